"""The same block at every depth (ALBERT, Lan et al. 2020; Universal Transformer, Dehghani 2019)."""

from typing import Any

from jaxtyping import PRNGKeyArray

from qkvflow.fields.base import AbstractField, Depth, Depths, MakeBlock, repeat
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import FIELDS


class Shared(AbstractField):
    """The same weights at every depth."""

    block: Any

    def at(self, t: Depth) -> Any:
        return self.block

    def stack(self, ts: Depths) -> Any:
        return repeat(self.block, ts.shape[0])


@FIELDS.register("shared")
def make_shared(make_block: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> Shared:
    return Shared(make_block(key))
