"""Preprocessing plans: what is computed from raw columns before a training step."""
