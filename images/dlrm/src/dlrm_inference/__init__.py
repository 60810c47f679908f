"""Embedding-bag inference: the design points of MICRO'24 (arXiv 2410.22249) and ours."""
