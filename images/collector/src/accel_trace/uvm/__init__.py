"""Unified memory under PyTorch: a managed pool, advice, its replay, a microbenchmark."""
