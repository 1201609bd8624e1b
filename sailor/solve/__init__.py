"""Planners: searches over plans, all scored by the one cost kernel."""
