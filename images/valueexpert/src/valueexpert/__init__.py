"""Mini-benchmarks of value redundancy before and after, and what a value profiler finds in them."""
