"""Any field held at one t: the constant-modulation control.

It has every parameter of the field it wraps, and the same block at every depth: what remains
of a time-dependent model's advantage against it is what time-dependence is worth.
"""

from typing import Any

import equinox as eqx
import numpy as np

from qkvflow.fields.base import AbstractField, Depth, Depths, repeat


class FrozenTime(AbstractField):
    """Any field held at one depth."""

    field: AbstractField
    t: float = eqx.field(static=True)

    def at(self, t: Depth) -> Any:
        return self.field.at(np.float32(self.t))

    def stack(self, ts: Depths) -> Any:
        return repeat(self.at(self.t), ts.shape[0])
