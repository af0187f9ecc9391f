"""A mixer of your own, in one file.

A mixer turns the normalised residual stream into an increment. This one mixes tokens by a moving
average of the past, with a rate of its own for each channel:

    u = x W_in,   h_k = a h_{k-1} + (1 - a) u_k,   y = h W_out,   a = sigmoid(rate)

Compare it with attention:

    qkvflow compare --plugin examples/my_mixer.py --models standard,my-mixer \
        --model.d_model 64 --model.context 64 --steps 300 --out runs/my-mixer

Its weights have roles, so every field, optimiser and mesh works with it: `in_proj` for a matrix
that reads the residual stream, `out_proj` for one that writes to it (see `qkvflow.blocks.Role`).
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

import qkvflow
from qkvflow.blocks import AbstractMixer, AbstractWeights, Linear, Role, Rows, init_linear
from qkvflow.zoo import MIXERS


class Rate(AbstractWeights):
    rate: Any
    """`channels`: the logit of how much of the past is kept."""

    roles: ClassVar[dict[str, Role]] = {"rate": "offset"}


class MovingAverage(AbstractMixer):
    mixes: ClassVar[Any] = "tokens"

    in_proj: Linear
    rate: Rate
    out_proj: Linear

    def __call__(self, x: Any, rows: Rows, *, key: Any = None) -> Any:
        """The increment for whole sequences; `x` has them one after another, as `rows d_model`."""
        return self.extend(x, rows, self.init_state(rows.batch, rows.seq, jnp.dtype("float32")))[0]

    def init_state(self, batch: int, length: int, dtype: Any) -> Any:
        """What `extend` has to remember of the past: here the average, whatever the length."""
        return jnp.zeros((batch, self.out_proj.weight.shape[-2]), jnp.float32)

    def extend(self, x: Any, rows: Rows, state: Any) -> tuple[Any, Any]:
        """The increment for the next tokens, and the new state."""
        keep = jax.nn.sigmoid(self.rate.rate)
        u = rows.unfold(self.in_proj(x)).astype(jnp.float32)  # batch seq channels
        added = (1 - keep)[None, None] * u
        added = added.at[:, 0].add(keep[None] * state)
        kept = jnp.broadcast_to(keep, u.shape)
        # h_k = kept_k h_{k-1} + added_k for all k at once: such maps compose associatively.
        _, h = jax.lax.associative_scan(
            lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (kept, added), axis=1
        )
        return self.out_proj(rows.fold(h)), h[:, -1]

    def flops_per_token(self, context: int) -> int:
        """Matrix products, a multiply-add as two."""
        return self.in_proj.flops_per_token + self.out_proj.flops_per_token


@MIXERS.register("moving-average")
def make_moving_average(config: qkvflow.ModelConfig, out_scale: float, key: Any) -> MovingAverage:
    """`out_scale` makes increments small enough for their number; it is for what writes."""
    key_in, key_rate, key_out = jax.random.split(key, 3)
    d, std = config.d_model, config.init_std
    return MovingAverage(
        in_proj=init_linear(d, d, bias=config.bias, std=std, key=key_in, role="in_proj"),
        rate=Rate(jax.random.uniform(key_rate, (d,), minval=-1.0, maxval=3.0)),
        out_proj=init_linear(
            d, d, bias=config.bias, std=std * out_scale, key=key_out, role="out_proj"
        ),
    )


# A block is named mixers joined by +, in the order they are applied.
qkvflow.register("my-mixer", block="moving-average+mlp")
