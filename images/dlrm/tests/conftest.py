"""Compiled CPU kernels are kept between test runs, apart from the source tree."""

import os

from dlrm_inference.cli import kernel_cache

os.environ.setdefault("NUMBA_CACHE_DIR", str(kernel_cache(os.environ)))
