"""The state space model of the time-indexed extension (zaphrode/qkvflow) as it was published.

Its state space weights are generated from t and gated by element besides. It exists to reproduce
that model's parameter count; `gated` is the same without the generation.
"""

from jaxtyping import PRNGKeyArray

from qkvflow.blocks.base import AbstractNorm
from qkvflow.blocks.ssm import StateSpace
from qkvflow.fields.base import MakeBlock
from qkvflow.fields.gated import Gated, gated_by_config
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import FIELDS


@FIELDS.register("gated-generated")
def make_gated_generated(make_block: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> Gated:
    return gated_by_config(
        make_block,
        config,
        key,
        gate="time-indexed",
        generate=(AbstractNorm, StateSpace),
        by_element=(StateSpace,),
    )
