"""F-FLOW, the CP-SAT model of one cell."""
