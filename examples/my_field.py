"""A field of your own, in one file.

A field says how a block's weights depend on depth: a map from t in [0, 1] to a block. This one has
two blocks, one for each end, and mixes their weights linearly in between:

    W(t) = (1 - t) W_first + t W_last

Compare it with the others, from the same initial keys and on the same batches:

    qkvflow compare --plugin examples/my_field.py --models standard,shared,my-field \
        --model.d_model 64 --model.context 64 --steps 300 --out runs/my-field
"""

from typing import Any

import jax
import jax.numpy as jnp

import qkvflow
from qkvflow.fields import AbstractField
from qkvflow.zoo import FIELDS


class TwoEnds(AbstractField):
    """Weights on the straight line between two blocks."""

    first: Any
    last: Any

    def at(self, t: Any) -> Any:
        return jax.tree.map(lambda a, b: (1 - t) * a + t * b, self.first, self.last)

    def stack(self, ts: Any) -> Any:
        """The blocks at all depths, with a leading depth axis on every array."""
        return jax.vmap(self.at)(jnp.asarray(ts, jnp.float32))


@FIELDS.register("two-ends")
def make_two_ends(make_block: Any, config: qkvflow.ModelConfig, key: Any) -> TwoEnds:
    """`make_block(key)` gives a block with fresh weights; `config` is the model's configuration."""
    first, last = jax.random.split(key)
    return TwoEnds(make_block(first), make_block(last))


# A model is what it changes of the defaults; every option of a model can be given here.
qkvflow.register("my-field", field="two-ends")
