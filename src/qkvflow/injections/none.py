"""No injection: x <- x."""

from jaxtyping import Array, Float, PRNGKeyArray

from qkvflow.injections.base import AbstractInjection
from qkvflow.zoo.config import ModelConfig
from qkvflow.zoo.registry import INJECTIONS


class NoInjection(AbstractInjection):
    """The state goes on alone."""

    def __call__(
        self, x: Float[Array, "rows d_model"], e: Float[Array, "rows d_model"]
    ) -> Float[Array, "rows d_model"]:
        return x

    def flops_per_token(self) -> int:
        return 0


@INJECTIONS.register("none")
def make_none(config: ModelConfig, key: PRNGKeyArray) -> NoInjection:
    return NoInjection()
