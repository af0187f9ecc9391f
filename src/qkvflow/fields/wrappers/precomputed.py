"""A field's blocks made beforehand, for weights that will not change: generation, evaluation.

It answers only for the depths it was made for, which is all a scheme with fixed steps asks.
"""

from typing import Any

import equinox as eqx
import numpy as np

from qkvflow.fields.base import AbstractField, Depth, Depths, take


class Precomputed(AbstractField):
    blocks: tuple[Any, ...]
    """One stack of blocks for each array of depths."""
    depths: tuple[tuple[float, ...], ...] = eqx.field(static=True)

    def stack(self, ts: Depths) -> Any:
        return self.blocks[self.depths.index(tuple(np.asarray(ts).tolist()))]

    def at(self, t: Depth) -> Any:
        for blocks, depths in zip(self.blocks, self.depths, strict=True):
            if float(t) in depths:
                return take(blocks, depths.index(float(t)))
        raise ValueError(f"no block was made for depth {t}")


def precompute(field: AbstractField, depths: list[Depths]) -> Precomputed:
    return Precomputed(
        tuple(field.stack(ts) for ts in depths),
        tuple(tuple(np.asarray(ts).tolist()) for ts in depths),
    )
