"""Proven bounds on the cells of a problem: Lagrangian programmes and what they stand on."""
