"""Finding plans: dynamic programme over splits, local search, annealing, zones."""
