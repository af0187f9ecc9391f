"""Evaluation: a whole split, once through, in a fixed order.

Windows stand side by side, so that every token but the first is predicted exactly once, from
the tokens before it in its window. Losses come back per token and are added up in float64.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from qkvflow.data import TokenArray
from qkvflow.data.batches import (
    EvaluationWindows,
    evaluation_windows,
    fits_on_device,
    gather_windows,
    host_windows,
    window_mask,
)
from qkvflow.distributed import Layout, check_batch, hosts, one_device
from qkvflow.errors import UserError
from qkvflow.lm import LanguageModel, token_losses

GROUP = 16
"""Batches in one program call: enough to reuse its memory, few enough to stop soon."""
_BATCH_TOKENS = 1 << 13
_BATCH_LOGITS = 1 << 26


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The loss on a split."""

    nats: float
    """Mean cross-entropy, nats per token."""
    standard_error: float
    """Of that mean, over windows (tokens of one window are not independent)."""
    bits_per_byte: float
    tokens: int
    """Tokens predicted."""
    context: int
    by_position: np.ndarray
    """Mean loss of the tokens at each position of a window."""

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nats, 700.0))

    def summary(self) -> dict[str, float]:
        """What a record says of it (`losses` in docs/records.md)."""
        return {
            "nats": self.nats,
            "standard_error": self.standard_error,
            "bits_per_byte": self.bits_per_byte,
            "perplexity": self.perplexity,
        }


class WindowGroups(NamedTuple):
    """Windows in groups of `GROUP` batches, with the number of batches of each group."""

    starts: Int[np.ndarray, "groups group batch"]
    lengths: Int[np.ndarray, "groups group batch"]
    counts: list[int]


def evaluation_batch(context: int, vocab_size: int, parts: int = 1) -> int:
    """Windows of a batch: a fixed rule, because another batch may change the last bits.

    Where a batch is divided into `parts`, there are at least so many, and equally many in each.
    """
    batch = max(1, min(_BATCH_TOKENS, _BATCH_LOGITS // vocab_size) // context)
    return -(-batch // parts) * parts


def evaluation_groups(
    num_tokens: int, context: int, batch_size: int, max_tokens: int | None = None
) -> WindowGroups:
    """All windows of a split, or as many as hold `max_tokens`, evenly spread."""
    windows = evaluation_windows(num_tokens, context, batch_size)
    starts, lengths = windows.starts.reshape(-1), windows.lengths.reshape(-1)
    total = int(np.count_nonzero(lengths))
    wanted = total if max_tokens is None else min(total, max(1, max_tokens // context))
    chosen = np.arange(wanted) * total // max(wanted, 1)
    batches = -(-wanted // batch_size)
    padded = -(-batches // GROUP) * GROUP * batch_size
    shape = (-1, GROUP, batch_size)
    picked = EvaluationWindows(np.zeros(padded, starts.dtype), np.zeros(padded, lengths.dtype))
    picked.starts[:wanted], picked.lengths[:wanted] = starts[chosen], lengths[chosen]
    counts = [min(GROUP, batches - first) for first in range(0, batches, GROUP)]
    return WindowGroups(picked.starts.reshape(shape), picked.lengths.reshape(shape), counts)


def make_group_losses(
    static: Any, context: int, layout: Layout | None = None
) -> Callable[..., Array]:
    """`losses(params, tokens, starts, lengths, count)`: every token's loss, 0 where masked."""

    def losses(
        params: Any,
        tokens: Integer[Array, " tokens"],
        starts: Int[Array, "group batch"],
        lengths: Int[Array, "group batch"],
        count: Int[Array, ""],
    ) -> Float[Array, "group batch seq"]:
        def batch(index: Any) -> tuple[Array, Array]:
            return gather_windows(tokens, starts[index], context)

        return _losses(eqx.combine(params, static), batch, lengths, count, context, layout)

    return losses


def _losses(
    model: LanguageModel,
    batch: Callable[[Any], tuple[Array, Array]],
    lengths: Int[Array, "group batch"],
    count: Int[Array, ""],
    context: int,
    layout: Layout | None,
) -> Float[Array, "group batch seq"]:
    # The weights along depth are made once for all batches, not once for each.
    model = model.precomputed()
    if layout is not None:
        model = layout.shard_model(model)

    def body(index: Any, out: Array) -> Array:
        inputs, targets = batch(index)
        if layout is not None:
            inputs, targets = layout.shard_batch(inputs), layout.shard_batch(targets)
        each = token_losses(model, inputs, targets)
        mask = window_mask(lengths[index], context)
        return out.at[index].set(jnp.where(mask, each, 0.0))

    return jax.lax.fori_loop(0, count, body, jnp.zeros((*lengths.shape, context)))


def evaluate(
    model: LanguageModel,
    split: TokenArray,
    *,
    context: int | None = None,
    batch_size: int | None = None,
    max_tokens: int | None = None,
    layout: Layout | None = None,
) -> Evaluation:
    """The loss of a model on a split. For evaluations again and again, keep an `Evaluator`."""
    params, static = eqx.partition(model, eqx.is_inexact_array)
    length, parts = context or model.context, 1 if layout is None else layout.shape.rows
    evaluator = Evaluator(
        static,
        split,
        context=length,
        batch_size=batch_size or evaluation_batch(length, model.vocab_size, parts),
        max_tokens=max_tokens,
        layout=layout,
    )
    return evaluator(params)


class Evaluator:
    """Evaluates parameters on one split; compiled at the first call."""

    def __init__(
        self,
        static: Any,
        split: TokenArray,
        *,
        context: int,
        batch_size: int,
        max_tokens: int | None = None,
        layout: Layout | None = None,
    ) -> None:
        if len(split) < 2:
            raise UserError("this split has no tokens to predict; the corpus needs a larger share")
        self._split, self._context = split, context
        self._groups = evaluation_groups(len(split), context, batch_size, max_tokens)
        self._layout = layout or one_device()
        check_batch(self._layout.shape, batch_size)
        # Several processes read their own windows each.
        fits = fits_on_device(len(split), split.tokens.dtype.itemsize)
        self._on_device = fits and hosts.count() == 1
        if self._on_device:
            self._tokens = self._layout.replicate(split.tokens)
            losses = make_group_losses(static, context, self._layout)
        else:
            losses = _host_group_losses(static, context, self._layout)
        self._losses = jax.jit(losses, out_shardings=self._layout.replicated)

    @property
    def tokens_run(self) -> int:
        """Tokens that an evaluation computes: whole batches, their padding included."""
        return sum(self._groups.counts) * self._groups.starts.shape[2] * self._context

    def compile(self, params: Any) -> None:
        """Compile now, and compute nothing: for whoever times the evaluation."""
        for losses in self._each(params, batches=0):
            jax.block_until_ready(losses)
            return

    def __call__(self, params: Any) -> Evaluation:
        losses = np.concatenate([np.asarray(each, np.float64) for each in self._each(params)])
        lengths = self._groups.lengths.reshape(-1)
        return summarise(
            losses.reshape(-1, self._context)[lengths > 0], lengths[lengths > 0], self._split
        )

    def _each(self, params: Any, batches: int = GROUP) -> Iterator[Any]:
        for starts, lengths, count in zip(*self._groups, strict=True):
            count = min(count, batches)
            numbers = [self._layout.replicate(each) for each in (lengths, np.int32(count))]
            if self._on_device:
                placed = self._layout.replicate(starts)
                yield self._losses(params, self._tokens, placed, *numbers)
            else:
                yield self._losses(params, self._windows(starts), *numbers)

    def _windows(self, starts: Int[np.ndarray, "group batch"]) -> tuple[Array, ...]:
        """The windows of a group, of which this process reads its own rows."""
        batch_size = starts.shape[1]
        own = starts[:, self._layout.own_rows(batch_size)]
        windows = host_windows(self._split.tokens, own.reshape(-1), self._context)
        return tuple(
            self._layout.assemble(each.reshape(*own.shape, self._context), batch_size)
            for each in windows
        )


def _host_group_losses(static: Any, context: int, layout: Layout) -> Callable[..., Array]:
    def losses(params: Any, batches: tuple[Array, Array], lengths: Array, count: Array) -> Array:
        inputs, targets = batches
        model = eqx.combine(params, static)
        return _losses(model, lambda i: (inputs[i], targets[i]), lengths, count, context, layout)

    return losses


def summarise(
    losses: Float[np.ndarray, "windows seq"],
    lengths: Int[np.ndarray, " windows"],
    split: TokenArray,
) -> Evaluation:
    """Mean, standard error and loss by position, from each token's loss (0 where masked).

    The mean is a ratio of sums over windows, so its error is that of a ratio estimator; with
    windows of one length it is the usual standard error of their means.
    """
    windows, context = losses.shape
    total = int(lengths.sum())
    mean = float(losses.sum() / total)
    rest = losses.sum(axis=1) - mean * lengths
    error = math.nan
    if windows > 1:
        error = math.sqrt(windows / (windows - 1) * float(rest @ rest)) / total
    counts = (lengths[:, None] > np.arange(context)[None, :]).sum(axis=0)
    longest = int(np.count_nonzero(counts))
    by_position = losses.sum(axis=0)[:longest] / counts[:longest]
    return Evaluation(mean, error, split.bits_per_byte(mean), total, context, by_position)
