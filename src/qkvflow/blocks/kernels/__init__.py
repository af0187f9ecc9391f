"""Fast forms of a layer's arithmetic, each with a backward pass of its own and a plain twin.

A rule for the backward pass rules out forward mode (`jax.jvp`, `jax.linearize`); inside
`forward_mode()` the plain twins are used instead, which can be differentiated either way.
"""

from qkvflow.blocks.kernels.attention import attend
from qkvflow.blocks.kernels.choice import forward_mode
from qkvflow.blocks.kernels.rows import gelu, layer_norm, product, rms_norm

__all__ = ["attend", "forward_mode", "gelu", "layer_norm", "product", "rms_norm"]
