"""The losses at 4:1 over a sweep of the slow tier's rates: how far A1 and A2 hang on them."""

from autotm.experiments.ratios import run

__all__ = ["run"]
