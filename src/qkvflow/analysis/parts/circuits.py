"""The linear maps inside a block, as the weights in effect make them.

    attention      QK = W_q W_k^T and OV = W_v W_o, for every head (Elhage et al. 2021); with
                   rotary positions QK is that of a token with itself
    mlp            W_up W_down: the MLP with its activation left out
    swiglu         the same, and W_gate W_down
    ssm            diag(D) + B diag(delta) C, the response to an input at once, and
                   diag(D) + B diag(delta / (1 - exp(delta A))) C, the response to a constant input
    selective-ssm  CB = W_C W_B^T for every group and XO = W_x W_out for every head, which play the
                   parts of QK and OV (Dao and Gu 2024, section 7)

Any other mixer gives each of its matrices. Norm scales, biases and 1 / sqrt(d_head) are left out:
these are the products of the matrices, and can be checked against them.

A circuit is kept as two factors, left (D x r) and right (r x D): its eigenvalues other than 0 are
those of the small product right left, and no D x D matrix is made where r < D.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from qkvflow.blocks import MLP, SSM, Attention, SelectiveSSM, SwiGLU
from qkvflow.blocks.base import AbstractMixer, AbstractWeights, Block, is_matrix, is_weights


class Circuit(NamedTuple):
    left: Float[np.ndarray, "depth heads d_in rank"]
    right: Float[np.ndarray, "depth heads rank d_out"]


def circuits_of(blocks: Block) -> dict[str, Circuit]:
    """The circuits of a stack of blocks, by name; a second branch of a kind gets a number."""
    found: dict[str, Circuit] = {}
    for branch in blocks.branches:
        given: dict[type, Callable[[Any], Iterator[tuple[str, Circuit]]]] = {
            Attention: _attention,
            MLP: _mlp,
            SwiGLU: _swiglu,
            SSM: _ssm,
            SelectiveSSM: _selective_ssm,
        }
        for name, circuit in given.get(type(branch.mixer), _matrices)(branch.mixer):
            count = sum(each.partition(" #")[0] == name for each in found)
            found[f"{name} #{count + 1}" if count else name] = circuit
    return found


def _double(x: Any) -> np.ndarray:
    return np.asarray(x, np.float64)


def _columns(weight: np.ndarray, start: int, count: int, width: int) -> np.ndarray:
    """`count` heads of `width` columns each, as depth heads d_model width."""
    part = weight[..., start : start + count * width]
    return np.moveaxis(part.reshape(*part.shape[:-1], count, width), -2, 1)


def _rows(weight: np.ndarray, count: int) -> np.ndarray:
    """The rows of each head, as depth heads width d_model."""
    return weight.reshape(weight.shape[0], count, -1, weight.shape[-1])


def _one(left: np.ndarray, right: np.ndarray) -> Circuit:
    return Circuit(left[:, None], right[:, None])


def _attention(mixer: Attention) -> Iterator[tuple[str, Circuit]]:
    heads, kv_heads = mixer.num_heads, mixer.num_kv_heads
    qkv, out = _double(mixer.qkv.weight), _double(mixer.out.weight)
    width = out.shape[-2] // heads
    q = _columns(qkv, 0, heads, width)
    k = _columns(qkv, heads * width, kv_heads, width)
    v = _columns(qkv, (heads + kv_heads) * width, kv_heads, width)
    k, v = (np.repeat(each, heads // kv_heads, axis=1) for each in (k, v))
    yield "QK", Circuit(q, np.swapaxes(k, -1, -2))
    yield "OV", Circuit(v, _rows(out, heads))


def _mlp(mixer: MLP) -> Iterator[tuple[str, Circuit]]:
    yield "MLP", _one(_double(mixer.up.weight), _double(mixer.down.weight))


def _swiglu(mixer: SwiGLU) -> Iterator[tuple[str, Circuit]]:
    down = _double(mixer.down.weight)
    yield "MLP", _one(_double(mixer.up.weight), down)
    yield "MLP gate", _one(_double(mixer.gate.weight), down)


def _ssm(mixer: SSM) -> Iterator[tuple[str, Circuit]]:
    space = mixer.space
    b, c, d = _double(space.b), _double(space.c), _double(space.d)
    delta = np.exp(_double(space.log_delta))
    lasting = delta / -np.expm1(-delta * np.exp(_double(space.log_a)))
    skip = d[:, :, None] * np.eye(d.shape[-1])
    for name, gain in (("SSM at once", delta), ("SSM in the long run", lasting)):
        yield (
            name,
            _one((b * gain[:, None]) @ c + skip, np.broadcast_to(np.eye(d.shape[-1]), skip.shape)),
        )


def _selective_ssm(mixer: SelectiveSSM) -> Iterator[tuple[str, Circuit]]:
    heads, width = mixer.num_heads, mixer.head_dim
    inner, groups, states = heads * width, mixer.groups, mixer.d_state
    in_proj = _double(mixer.in_proj.weight)
    b = _columns(in_proj, 2 * inner, groups, states)
    c = _columns(in_proj, 2 * inner + groups * states, groups, states)
    yield "CB", Circuit(c, np.swapaxes(b, -1, -2))
    x = _columns(in_proj, inner, heads, width)
    yield "XO", Circuit(x, _rows(_double(mixer.out_proj.weight), heads))


def _matrices(mixer: AbstractMixer) -> Iterator[tuple[str, Circuit]]:
    groups, _ = jax.tree_util.tree_flatten_with_path(mixer, is_leaf=is_weights)
    for path, weights in groups:
        if not isinstance(weights, AbstractWeights):
            continue
        place = jax.tree_util.keystr(path, simple=True, separator=".")
        for name, role in weights.roles.items():
            if is_matrix(role) and (value := getattr(weights, name)) is not None:
                matrix = _double(value)
                unit = np.broadcast_to(
                    np.eye(matrix.shape[-1]), (len(matrix), *[matrix.shape[-1]] * 2)
                )
                yield f"{place}.{name}", _one(matrix, unit)
