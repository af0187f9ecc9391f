"""A short depthwise causal convolution, as in front of a selective state space layer.

    y_k[c] = sum_{w = 0 .. width-1} kernel[w, c] x_{k - (width-1) + w}[c]

so the last row of the kernel weighs the current position. Mamba (Gu and Dao, 2023) uses width 4.
Positions before the first are the `tail`: zeros at the start of a text, or what an earlier call
returned, so that a sequence may be run in pieces or one position at a time.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def causal_conv(
    x: Float[Array, "batch seq channels"],
    kernel: Float[Array, "width channels"],
    tail: Float[Array, "batch width-1 channels"],
) -> tuple[Float[Array, "batch seq channels"], Float[Array, "batch width-1 channels"]]:
    """The convolved sequence and the last `width - 1` inputs."""
    seq = x.shape[1]
    width = kernel.shape[0]
    padded = jnp.concatenate([tail.astype(x.dtype), x], axis=1)
    # Shifted adds fuse into one pass over memory; a convolution primitive with one feature per
    # group is far slower on a CPU.
    y = sum(kernel[w][None, None, :] * padded[:, w : w + seq] for w in range(width))
    return jnp.asarray(y, x.dtype), padded[:, seq:].astype(tail.dtype)
