"""Adds numbers: a workload that can end in every way."""
