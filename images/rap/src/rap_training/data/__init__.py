"""Raw batches: what a plan reads, generated from a seed or read from files."""
