"""A language model whose depth flow is dx/dt = x A for every token: all about it is known."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.blocks.base import (
    AbstractMixer,
    AbstractNorm,
    Block,
    Branch,
    Linear,
    Mixes,
    Role,
    Rows,
)
from qkvflow.fields import Shared
from qkvflow.lm import LanguageModel
from qkvflow.schemes import RK4


class NoNorm(AbstractNorm):
    scale: Float[Array, "*depth d_model"]

    roles: ClassVar[dict[str, Role]] = {"scale": "scale"}

    def __call__(self, x: Float[Array, "rows d_model"]) -> Float[Array, "rows d_model"]:
        return x


class LinearMixer(AbstractMixer):
    mixes: ClassVar[Mixes] = "channels"

    map: Linear

    def __call__(
        self, x: Float[Array, "rows d_model"], rows: Rows, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "rows d_model"]:
        return self.map(x)

    def init_state(self, batch: int, length: int, dtype: Any) -> None:
        return None

    def extend(self, x: Any, rows: Rows, state: None) -> tuple[Any, None]:
        return self.map(x), None

    def flops_per_token(self, context: int) -> int:
        return self.map.flops_per_token


def linear_model(a: np.ndarray, *, num_steps: int = 8, vocab: int = 5) -> LanguageModel:
    width = len(a)
    weight = jnp.asarray(a, jnp.float32)
    branch = Branch(NoNorm(jnp.ones(width)), LinearMixer(Linear(weight, None)))
    embedding = np.random.default_rng(0).normal(size=(vocab, width))
    return LanguageModel(
        embedding=jnp.asarray(embedding, jnp.float32),
        positions=None,
        field=Shared(Block((branch,))),
        norm=Shared(NoNorm(jnp.ones(width))),
        head=None,
        scheme=RK4(),
        num_steps=num_steps,
        horizon=1.0,
        context=16,
    )


def symmetric(values: list[float], seed: int = 1) -> np.ndarray:
    """A symmetric matrix with these eigenvalues."""
    q = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))[0]
    return q @ np.diag(values) @ q.T
