"""One block, and coordinates of position and step before it (Dehghani et al. 2019).

    x <- x + P_i + P_k,   P_{i, 2j} = sin(i / 10000^(2j / D)),  P_{i, 2j+1} = cos(the same)

for the token at position i in step k; then the block. That is the Universal Transformer with a
fixed number of steps (its adaptive halting is left out). k = N t, with N the configured number
of layers: 1 .. N on a grid of N steps, and something between them on others.

The block does not know t: its first branch adds a vector that it is given, as weights are.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.blocks.base import AbstractMixer, AbstractWeights, Block, Branch, Mixes, Role, Rows
from qkvflow.fields.base import AbstractField, Depth, Depths, MakeBlock, at_one, repeat
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import FIELDS


def coordinates(index: Array, d_model: int) -> Float[Array, "index d_model"]:
    """P of each index."""
    channel = jnp.arange(d_model)
    angles = index[:, None] / 10000.0 ** (2 * (channel // 2) / d_model)[None]
    return jnp.where(channel[None] % 2 == 0, jnp.sin(angles), jnp.cos(angles))


class Signal(AbstractWeights):
    step: Float[Array, "*depth d_model"]

    roles: ClassVar[dict[str, Role]] = {"step": "offset"}


class Coordinates(AbstractMixer):
    """The increment P_i + P_k, whatever the state is."""

    mixes: ClassVar[Mixes] = "channels"

    signal: Signal

    def __call__(
        self, x: Float[Array, "rows d_model"], rows: Rows, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "rows d_model"]:
        both = coordinates(rows.positions, x.shape[-1]) + self.signal.step[None]
        return rows.fold(jnp.broadcast_to(both[None], (rows.batch, *both.shape))).astype(x.dtype)

    def init_state(self, batch: int, length: int, dtype: jnp.dtype) -> None:
        return None

    def extend(
        self, x: Float[Array, "rows d_model"], rows: Rows, state: None
    ) -> tuple[Float[Array, "rows d_model"], None]:
        return self(x, rows), None

    def flops_per_token(self, context: int) -> int:
        return 0


class Universal(AbstractField):
    block: Block
    d_model: int = eqx.field(static=True)
    num_steps: int = eqx.field(static=True)

    def stack(self, ts: Depths) -> Any:
        steps = coordinates(self.num_steps * jnp.asarray(ts, jnp.float32), self.d_model)
        first = Branch(None, Coordinates(Signal(steps)))
        return Block((first, *repeat(self.block, ts.shape[0]).branches))

    def at(self, t: Depth) -> Any:
        return at_one(self, t)


@FIELDS.register("universal")
def make_universal(make_block: MakeBlock, config: ModelConfig, key: PRNGKeyArray) -> Universal:
    return Universal(make_block(key), config.d_model, config.layers)
