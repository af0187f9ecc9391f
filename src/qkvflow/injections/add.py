"""The input is added: x <- x + e."""

from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.injections.base import AbstractInjection
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import INJECTIONS


class Add(AbstractInjection):
    def __call__(
        self, x: Float[Array, "rows d_model"], e: Float[Array, "rows d_model"]
    ) -> Float[Array, "rows d_model"]:
        return x + e

    def flops_per_token(self) -> int:
        return 0


@INJECTIONS.register("add")
def make_add(config: ModelConfig, key: PRNGKeyArray) -> Add:
    return Add()
