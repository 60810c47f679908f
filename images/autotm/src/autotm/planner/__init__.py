"""Planners: the paper's three formulations, its baselines, and ours."""
