"""The cost kernel: what a plan takes in memory, time and money. One for every planner."""
