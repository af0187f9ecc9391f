"""A linear time-invariant state space layer, that of the time-indexed extension (zaphrode/qkvflow).

    h_k = exp(delta A) h_{k-1} + delta B x_k,   y_k = C h_k + D x_k

with a diagonal A < 0 of N states, a step delta > 0 per state, B (D to N), C (N to D) and a skip
D. Nothing in it depends on the input: within a layer it is a fixed linear filter (S4D with a
real diagonal, Gu et al. 2022). For the input-dependent kind see `selective_ssm`.

A and delta are stored as logarithms (`log_a` = log(-A)), so that they keep their signs
whatever a field does to them. B and C are stored `in out`, as all matrices here.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.blocks.base import AbstractMixer, AbstractWeights, Mixes, Role, Rows
from qkvflow.blocks.kernels.recurrence import (
    chunked_flops_per_token,
    chunked_states,
    step_state,
)
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import MIXERS


class StateSpace(AbstractWeights):
    log_a: Float[Array, "*depth d_state"]
    b: Float[Array, "*depth d_model d_state"]
    c: Float[Array, "*depth d_state d_model"]
    d: Float[Array, "*depth d_model"]
    log_delta: Float[Array, "*depth d_state"]

    roles: ClassVar[dict[str, Role]] = {
        "log_a": "log",
        "b": "in_proj",
        "c": "out_proj",
        "d": "gain",
        "log_delta": "log",
    }


class SSM(AbstractMixer):
    """A linear time-invariant state space layer, one system per channel."""

    mixes: ClassVar[Mixes] = "tokens"

    space: StateSpace

    def _run(self, x: Array, rows: Rows, initial: Array, states: Any) -> tuple[Array, Array]:
        space = self.space
        delta = jnp.exp(space.log_delta)
        u = (x.astype(space.b.dtype) @ space.b).astype(jnp.float32) * delta[None]
        h, final = states(-delta * jnp.exp(space.log_a), rows.unfold(u), initial)
        y = rows.fold(h).astype(space.c.dtype) @ space.c
        return y + (x * space.d[None]).astype(y.dtype), final

    def __call__(
        self, x: Float[Array, "rows d_model"], rows: Rows, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "rows d_model"]:
        initial = self.init_state(rows.batch, rows.seq, jnp.dtype(jnp.float32))
        return self._run(x, rows, initial, chunked_states)[0]

    def scanned(self, x: Float[Array, "rows d_model"], rows: Rows) -> Float[Array, "rows d_model"]:
        """The reference twin of `__call__`: the two equations, token after token."""
        space = self.space
        delta = jnp.exp(space.log_delta)
        decay = jnp.exp(-delta * jnp.exp(space.log_a))

        def token(h: Array, x_k: Array) -> tuple[Array, Array]:
            h = decay[None] * h + delta[None] * (x_k @ space.b)
            return h, h @ space.c + space.d[None] * x_k

        initial = self.init_state(rows.batch, rows.seq, jnp.dtype(jnp.float32))
        _, y = jax.lax.scan(token, initial, jnp.swapaxes(rows.unfold(x), 0, 1))
        return rows.fold(jnp.swapaxes(y, 0, 1))

    def init_state(
        self, batch: int, length: int, dtype: jnp.dtype
    ) -> Float[Array, "batch d_state"]:
        # The state is summed over the whole past: float32 whatever the cache's type.
        return jnp.zeros((batch, self.space.log_a.shape[-1]), jnp.float32)

    def extend(
        self, x: Float[Array, "rows d_model"], rows: Rows, state: Float[Array, "batch d_state"]
    ) -> tuple[Float[Array, "rows d_model"], Float[Array, "batch d_state"]]:
        def one_token(log_decay: Array, u: Array, initial: Array) -> tuple[Array, Array]:
            h = step_state(log_decay, u[:, 0], initial)
            return h[:, None], h

        return self._run(x, rows, state, one_token if rows.seq == 1 else chunked_states)

    def flops_per_token(self, context: int) -> int:
        d_model, d_state = self.space.b.shape[-2:]
        return 4 * d_model * d_state + round(chunked_flops_per_token(d_state, context))


@MIXERS.register("ssm")
def init_ssm(config: ModelConfig, out_scale: float, key: PRNGKeyArray) -> SSM:
    """A = -1 .. -N (S4D-Lin's real part), delta log-uniform in [0.001, 0.1].

    B and C keep the variance of what they read; C and D, which write to the residual stream,
    are scaled by `out_scale`. D is drawn around 0, as in S4D's code: a D of one sign would add the
    state to itself at every layer, and a fresh model with a tied head would repeat its input.
    """
    key_b, key_c, key_d, key_delta = jax.random.split(key, 4)
    d_model, d_state = config.d_model, config.d_state
    span = jnp.log(jnp.array([1e-3, 1e-1]))
    return SSM(
        StateSpace(
            log_a=jnp.log(jnp.arange(1.0, d_state + 1.0)),
            b=jax.random.normal(key_b, (d_model, d_state)) / d_model**0.5,
            c=out_scale * jax.random.normal(key_c, (d_state, d_model)) / d_state**0.5,
            d=out_scale * jax.random.normal(key_d, (d_model,)),
            log_delta=jax.random.uniform(key_delta, (d_state,), minval=span[0], maxval=span[1]),
        )
    )
