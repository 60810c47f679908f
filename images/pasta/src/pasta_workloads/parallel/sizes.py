"""The model of Figure 15 (docs/papers/pasta.md, 2): Megatron-LM's GPT with 345 M parameters."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("dp", "tp", "pp")


@dataclass(frozen=True, kw_only=True)
class ParallelSize:
    """A GPT and its batch. `batch` is global, in micro-batches of `micro` sequences."""

    layers: int
    width: int
    heads: int
    length: int
    vocabulary: int
    micro: int
    batch: int
    dropout: float
    half: bool  # fp16 weights with fp32 copies in the optimiser; else fp32 alone

    def padded_vocabulary(self, ways: int) -> int:
        """Rows of the embedding: a multiple of 128 on each tensor-parallel rank, as Megatron's."""
        step = 128 * ways
        return -(-self.vocabulary // step) * step


# Megatron-LM is given --seq-length 1024 and then 128; the last one counts.
SIZES = {
    "full": ParallelSize(
        layers=24, width=1024, heads=16, length=128, vocabulary=50257, micro=2, batch=8,
        dropout=0.1, half=True,
    ),
    "small": ParallelSize(
        layers=4, width=256, heads=8, length=128, vocabulary=5000, micro=2, batch=8, dropout=0.1,
        half=True,
    ),
    "tiny": ParallelSize(
        layers=2, width=32, heads=4, length=8, vocabulary=250, micro=2, batch=8, dropout=0.0,
        half=False,
    ),
}  # fmt: skip
