"""The dense part of the model on a CPU: bottom MLP 256-128-128, dot interaction, top 128-64-1."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dlrm_inference.config import Config

DENSE_FEATURES = 256
_HIDDEN = 128
_TOP = (128, 64, 1)
_MODEL_STREAM = 9  # keeps these random numbers apart from those of tables and ids

Array = NDArray[np.float32]
Layer = tuple[Array, Array]


class Dense:
    """Everything of DLRM but the embedding stage, fp32, weights from the config's seed.

    The bottom MLP maps 256 dense features to `dim`, so that its output can take part in the dot
    interaction (docs/papers/dlrm.md, 2: 256-128-128 at dim 128). The top MLP reads that output
    beside the pairwise dot products, (tables + 1) * tables / 2 of them.
    """

    def __init__(self, config: Config) -> None:
        generator = np.random.default_rng((config.seed, _MODEL_STREAM))
        pairs = (config.tables + 1) * config.tables // 2
        self._bottom = _layers(generator, (DENSE_FEATURES, _HIDDEN, config.dim_of(0)))
        self._top = _layers(generator, (config.dim_of(0) + pairs, *_TOP))
        self._pairs = np.tril_indices(config.tables + 1, -1)

    def bottom(self, features: Array) -> Array:
        """Return (bags, dim) from dense features (bags, 256)."""
        return _forward(features, self._bottom, last_relu=True)

    def top(self, dense: Array, sums: list[Array]) -> Array:
        """Return click probabilities (bags, 1) from the bottom output and a (bags, dim) a table."""
        vectors = np.stack([dense, *sums], axis=1)
        products = np.matmul(vectors, vectors.transpose(0, 2, 1))
        rows, columns = self._pairs
        interaction = np.concatenate([dense, products[:, rows, columns]], axis=1)
        logits = _forward(interaction, self._top, last_relu=False)
        one = np.float32(1)
        return one / (one + np.exp(-logits))


def dense_features(config: Config) -> Array:
    """Return one batch of dense features (bags, 256), standard normal fp32."""
    generator = np.random.default_rng((config.seed, _MODEL_STREAM, 1))
    return generator.standard_normal((config.batch, DENSE_FEATURES), dtype=np.float32)


def _layers(generator: np.random.Generator, widths: tuple[int, ...]) -> list[Layer]:
    layers = []
    for inputs, outputs in pairwise(widths):
        scale = np.float32(np.sqrt(2 / (inputs + outputs)))
        weights = generator.standard_normal((inputs, outputs), dtype=np.float32) * scale
        layers.append((weights, np.zeros(outputs, dtype=np.float32)))
    return layers


def _forward(values: Array, layers: list[Layer], *, last_relu: bool) -> Array:
    for number, (weights, bias) in enumerate(layers, start=1):
        values = values @ weights + bias
        if last_relu or number < len(layers):
            np.maximum(values, 0, out=values)
    return values
