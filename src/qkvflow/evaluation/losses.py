"""Evaluation: a whole split, once through, in a fixed order.

Windows stand side by side, so that every token but the first is predicted exactly once, from
the tokens before it in its window. Losses come back per token and are added up in float64.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from qkvflow.compilation import shared
from qkvflow.data import TokenArray
from qkvflow.data.batches import (
    EvaluationWindows,
    evaluation_windows,
    host_windows,
    window_mask,
)
from qkvflow.distributed import Layout, check_batch, one_device
from qkvflow.distributed.memory import check_program
from qkvflow.errors import UserError
from qkvflow.lm import LanguageModel, Work, token_losses, token_losses_and_work
from qkvflow.schemes import AbstractSolver

GROUP = 16
"""Batches in one program call: enough to reuse its memory, few enough to stop soon."""
_BATCH_TOKENS = 1 << 13
_BATCH_LOGITS = 1 << 26


class Solved(NamedTuple):
    """What a solver did for the batches of an evaluation, or for the steps of training."""

    batches: int
    missed: int
    """Batches that it did not arrive with: their losses are not those of what it solves."""
    evaluations: float
    """Of a whole block of the core, mean over batches."""
    residual: float
    """The largest."""


def solved(work: Work) -> Solved:
    """From entries for every batch."""
    evaluations = np.asarray(work.evaluations, np.float64)
    missed = int(np.count_nonzero(~np.asarray(work.arrived)))
    return Solved(len(evaluations), missed, float(evaluations.mean()), float(np.max(work.residual)))


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
    solved: Solved | None = None
    """Where a solver traverses depth."""

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


@shared
def _program(leaves: tuple[Any, ...], structure: Any, context: int, layout: Layout) -> Any:
    """`losses(params, batches, lengths, count)`, compiled: every token's loss, 0 where masked, and
    every batch's work where there is a solver."""
    static = jax.tree.unflatten(structure, leaves)

    def losses(
        params: Any,
        batches: tuple[Int[Array, "group batch seq"], Int[Array, "group batch seq"]],
        lengths: Int[Array, "group batch"],
        count: Int[Array, ""],
    ) -> tuple[Float[Array, "group batch seq"], Work | None]:
        # The weights along depth are made once for all batches, not once for each.
        model = layout.shard_model(eqx.combine(params, static).precomputed())
        solves = isinstance(model.scheme.unwrapped, AbstractSolver)

        def body(index: Any, out: tuple[Array, Work | None]) -> tuple[Array, Work | None]:
            inputs, targets = (layout.shard_batch(each[index]) for each in batches)
            if solves:
                each, work = token_losses_and_work(model, inputs, targets)
            else:
                each, work = token_losses(model, inputs, targets), None
            made = jnp.where(window_mask(lengths[index], context), each, 0.0), work
            return jax.tree.map(lambda all, one: all.at[index].set(one), out, made)

        size = lengths.shape[0]
        none = Work(jnp.zeros(size), jnp.zeros(size, bool), jnp.zeros(size)) if solves else None
        return jax.lax.fori_loop(0, count, body, (jnp.zeros((*lengths.shape, context)), none))

    return jax.jit(losses, out_shardings=layout.replicated)


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
    if batch_size is not None:  # Not more windows at once than there are.
        windows = max(1, -(-(len(split) - 1) // length))
        batch_size = min(batch_size, -(-windows // parts) * parts)
    evaluator = Evaluator(
        static,
        split,
        context=length,
        batch_size=batch_size or evaluation_batch(length, model.vocab_size, parts),
        max_tokens=max_tokens,
        layout=layout,
    )
    evaluator.prepare(params)
    return evaluator(params)


class Evaluator:
    """Evaluates parameters on one split; compiled at the first call of a model like this."""

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
        leaves, structure = jax.tree.flatten(static)
        self._losses = _program(tuple(leaves), structure, context, self._layout)

    @property
    def tokens_run(self) -> int:
        """Tokens that an evaluation computes: whole batches, their padding included."""
        return sum(self._groups.counts) * self._groups.starts.shape[2] * self._context

    def compile(self, params: Any) -> None:
        """Compile now, and compute nothing: for whoever times the evaluation."""
        for losses in self._each(params, batches=0):
            jax.block_until_ready(losses)
            return

    def prepare(self, params: Any) -> None:
        """Compile for these parameters; what does not fit into memory is refused before it runs."""
        check_program(
            self._losses,
            *next(self._arguments(params, 0)),
            what=f"an evaluation at context {self._context}",
            instead="use a shorter context or a smaller batch",
        )

    def __call__(self, params: Any) -> Evaluation:
        made = [jax.device_get(each) for each in self._each(params)]
        losses = np.concatenate([each.astype(np.float64) for each, _ in made])
        lengths = self._groups.lengths.reshape(-1)
        found = summarise(
            losses.reshape(-1, self._context)[lengths > 0], lengths[lengths > 0], self._split
        )
        if made[0][1] is None:
            return found
        parts = [
            jax.tree.map(lambda leaf, n=count: leaf[:n], work)
            for (_, work), count in zip(made, self._groups.counts, strict=True)
        ]
        work = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        return dataclasses.replace(found, solved=solved(work))

    def _each(self, params: Any, batches: int = GROUP) -> Iterator[Any]:
        for arguments in self._arguments(params, batches):
            yield self._losses(*arguments)

    def _arguments(self, params: Any, batches: int) -> Iterator[tuple[Any, ...]]:
        for starts, lengths, count in zip(*self._groups, strict=True):
            count = min(count, batches)
            numbers = [self._layout.replicate(each) for each in (lengths, np.int32(count))]
            yield params, self._windows(starts), *numbers

    def _windows(self, starts: Int[np.ndarray, "group batch"]) -> tuple[Array, ...]:
        """The windows of a group, of which this process reads its own rows."""
        batch_size = starts.shape[1]
        own = starts[:, self._layout.own_rows(batch_size)]
        windows = host_windows(self._split.tokens, own.reshape(-1), self._context)
        return tuple(
            self._layout.assemble(each.reshape(*own.shape, self._context), batch_size)
            for each in windows
        )


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
