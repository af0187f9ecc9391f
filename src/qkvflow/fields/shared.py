"""The same block at every depth (ALBERT, Lan et al. 2020; Universal Transformer, Dehghani 2019)."""

from typing import Any

from qkvflow.fields.base import AbstractField, Depth, Depths, repeat


class Shared(AbstractField):
    block: Any

    def at(self, t: Depth) -> Any:
        return self.block

    def stack(self, ts: Depths) -> Any:
        return repeat(self.block, ts.shape[0])
