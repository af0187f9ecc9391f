"""Self-speculative generation: draft with few steps, verify with all.

The same weights run with K steps make `draft_length` tokens one by one; one pass of all N steps
over them then says what it would have chosen at each place. The tokens up to the first
disagreement, and the full model's choice there, are kept (Leviathan et al. 2023).

The published scheme accepts a drafted token with a probability and redraws otherwise, which
keeps the distribution. Here draft and full model draw with the same noise: both take
argmax(log p + g) with the Gumbel noise g of that sequence and position (see `sampling`), and a
drafted token is accepted where the two agree. Every token is then the one that plain generation
with the same seed draws: the output is not only distributed alike, it is the same, for
sampling as for greedy, and in batches, which move on by what all sequences accept. The price is
a somewhat lower acceptance: with total variation distance d between the two distributions they
agree with probability at least (1 - d) / (1 + d), the published scheme with 1 - d.

Draft and full model have caches of their own. A cache belongs to a grid: its keys and values are
those of the states at its depths, and K steps visit other states than N steps do, even where
their depths coincide. To go back after a rejection, attention caches need only the position;
recurrent states are kept from before the round and fed again what was accepted.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from qkvflow.errors import UserError
from qkvflow.generation.caches import check_caches, is_recurrent, unstack_segments
from qkvflow.generation.decoding import (
    FullDepth,
    Job,
    Request,
    Run,
    advance,
    arrange,
    blocks_of,
    first_length,
    lay_out,
    precompute,
    prefill,
    put,
    steps,
)
from qkvflow.generation.prompts import Window, check, groups
from qkvflow.generation.sampling import Sampler, make_sampler
from qkvflow.lm import LanguageModel
from qkvflow.schemes import AbstractStepScheme
from qkvflow.schemes.base import Hidden


class Unrolled(NamedTuple):
    """A precomputed model, and its blocks apart."""

    model: LanguageModel
    blocks: list[Any]

    def advance(
        self, tokens: Int[Array, "batch seq"], caches: list[Any], start: Int[Array, ""]
    ) -> tuple[Hidden, list[Any]]:
        return advance(self.model, self.blocks, tokens, caches, start)


class Models(NamedTuple):
    full: Unrolled
    draft: Unrolled


class Pair(NamedTuple):
    """The known tokens and both models' caches."""

    tokens: Int[Array, "batch total"]
    full: Any
    draft: Any


@eqx.filter_jit(donate="all-except-first")
def _feed(
    fixed: tuple[Unrolled, Int[Array, "batch total"], Int[Array, ""], int], caches: Any
) -> Any:
    """The caches after `seq` more tokens from `start` on; no logits are made."""
    model, tokens, start, seq = fixed
    return model.advance(jax.lax.dynamic_slice_in_dim(tokens, start, seq, axis=1), caches, start)[1]


def _round(
    fixed: tuple[Models, Job, Int[Array, ""], int, int], pair: Pair
) -> tuple[Pair, Int[Array, ""]]:
    """Draft, verify, and how many drafts were right. `fixed` ends with the number of known
    tokens, how many of them the draft's caches lack, and how many to draft.

    Of the tokens returned, the known ones, the accepted ones and one more are right.
    """
    models, job, known, lag, length = fixed
    tokens, full, draft = pair
    batch = tokens.shape[0]

    newest = jax.lax.dynamic_slice_in_dim(tokens, known - lag, lag, axis=1)
    x, draft = models.draft.advance(newest, draft, known - lag)
    last = x.reshape(batch, lag, -1)[:, -1]
    drafted = put(tokens, job.choose(tokens, models.draft.model.logits(last), known), known)

    def body(position: Array, carry: Any) -> Any:
        drafted, draft = carry
        newest = jax.lax.dynamic_slice_in_dim(drafted, position - 1, 1, axis=1)
        x, draft = models.draft.advance(newest, draft, position - 1)
        chosen = job.choose(tokens, models.draft.model.logits(x), position)
        return put(drafted, chosen, position), draft

    drafted, draft = jax.lax.fori_loop(known + 1, known + length, body, (drafted, draft))

    given = jax.lax.dynamic_slice_in_dim(drafted, known - 1, length + 1, axis=1)
    x, full = models.full.advance(given, full, known - 1)
    logits = models.full.model.logits(x).reshape(batch, length + 1, -1)
    places = known + jnp.arange(length + 1)
    chosen = jax.vmap(job.choose, in_axes=(None, 1, 0), out_axes=1)(tokens, logits, places)
    right = jnp.all(chosen[:, :-1] == given[:, 1:], axis=0)
    accepted = jnp.sum(jnp.cumprod(right.astype(jnp.int32)))
    # Beyond the first disagreement these are no tokens of the text, but prompts stay as they are.
    tokens = jax.lax.dynamic_update_slice_in_dim(tokens, chosen, known, axis=1)
    return Pair(tokens, full, draft), accepted


_round_in_place = eqx.filter_jit(_round, donate="all-except-first")
_round_and_keep = eqx.filter_jit(_round)


class Speculation(NamedTuple):
    """What was generated, and how well the draft did."""

    tokens: list[list[int]]
    drafted: int
    accepted: int
    rounds: int
    """Passes of all steps."""
    made: int
    """Tokens of each sequence that the rounds gave."""

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / max(self.drafted, 1)

    @property
    def tokens_per_pass(self) -> float:
        """1 without speculation. How much faster it is depends on what a draft costs."""
        return self.made / max(self.rounds, 1)


class Round(NamedTuple):
    """Some more new tokens of each sequence; drafts of this round that there were, and right."""

    tokens: list[list[int]]
    drafted: int
    accepted: int


def generate_speculative(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]] | Int[Array, "batch seq"] | np.ndarray,
    *,
    draft_steps: int,
    draft_length: int = 4,
    num_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    batch_size: int = 64,
) -> Speculation:
    """The tokens of `generate`, drafted with `draft_steps` steps, `draft_length` at a time."""
    sampler = make_sampler(temperature=temperature, top_k=top_k, top_p=top_p)
    texts = check(model, prompts, num_tokens, window=False)
    models = make_pair(model, draft_steps, draft_length)
    out: list[list[int]] = [[] for _ in texts]
    drafted = accepted = rounds = made = 0
    for group in groups(texts, batch_size):
        request = Request(num_tokens, sampler, seed)
        for part in speculate(models, texts, group, request, draft_length):
            for index, new in zip(group, part.tokens, strict=True):
                out[index] += new
            if part.drafted:
                drafted, accepted = drafted + part.drafted, accepted + part.accepted
                rounds, made = rounds + 1, made + part.accepted + 1
    return Speculation(out, drafted, accepted, rounds, made)


def stream_speculative(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    draft_steps: int,
    draft_length: int = 4,
    num_tokens: int,
    sampler: Sampler,
    seed: int = 0,
) -> Iterator[Round]:
    """`generate_speculative` for one prompt, round by round."""
    texts = check(model, [prompt], num_tokens, window=False)
    models = make_pair(model, draft_steps, draft_length)
    return speculate(models, texts, [0], Request(num_tokens, sampler, seed), draft_length)


def make_pair(model: LanguageModel, draft_steps: int, draft_length: int) -> Models:
    """The model and its draft, with weights along depth made for both grids."""
    if not isinstance(model.scheme, AbstractStepScheme):
        raise UserError("a solver (adaptive, fixed-point) has no steps to draft with; use another")
    if not 1 <= draft_steps < model.num_steps:
        raise UserError(
            f"draft steps must be at least 1 and fewer than the model's {model.num_steps}, "
            f"not {draft_steps}"
        )
    if draft_length < 1:
        raise UserError(f"draft length must be at least 1, not {draft_length}")
    pair = precompute(model), precompute(model.at_depth(draft_steps))
    return Models(*(Unrolled(each, blocks_of(each)) for each in pair))


def speculate(
    models: Models, texts: list[list[int]], group: list[int], request: Request, length: int
) -> Iterator[Round]:
    """New tokens of each sequence of a group, round by round."""
    start, lengths, ends, job = lay_out(texts, group, request, spare=length + 1)
    full = models.full.model
    slots = Window(full, False, start.shape[1]).length
    # Choices beyond the context would read positions that do not exist.
    limit = min(int(ends.max()), slots - length + 1)
    check_caches(full, start.shape[0], slots)
    recurrent = is_recurrent(full)
    round_ = _round_and_keep if recurrent else _round_in_place
    zero, done = jnp.int32(0), first_length(lengths)

    def new(tokens: Array, upto: int) -> list[list[int]]:
        host = np.asarray(tokens)
        return [
            host[row, max(length, done) : min(end, upto)].tolist()
            for row, (length, end) in enumerate(zip(lengths, ends, strict=True))
        ]

    depths = jnp.zeros(start.shape, jnp.int32)
    run = prefill((full, job, zero), jnp.asarray(start), depths, done, slots)
    run = arrange(full, run, slots)
    drafting = models.draft.model
    empty = unstack_segments(drafting, drafting.init_caches(start.shape[0], slots))
    draft = _feed((models.draft, run.tokens, zero, done), empty)
    pair, lag = Pair(run.tokens, run.caches, draft), 1
    yield Round(new(pair.tokens, done + 1), 0, 0)
    done += 1
    while done < limit:
        before = pair
        pair, count = round_((models, job, jnp.int32(done), lag, length), pair)
        accepted = int(count)
        if recurrent and accepted < length:
            # Both states have gone too far: from where they were, feed what was right.
            fed, missing = jnp.int32(done - 1), jnp.int32(done - lag)
            fed_full = _feed((models.full, pair.tokens, fed, accepted + 1), before.full)
            fed_draft = _feed((models.draft, pair.tokens, missing, accepted + lag), before.draft)
            pair = Pair(pair.tokens, fed_full, fed_draft)
        lag = 2 if accepted == length else 1
        yield Round(new(pair.tokens, done + accepted + 1), length, accepted)
        done += accepted + 1
    if done < ends.max():
        # Too near the end of the context for a whole round.
        rest = jnp.int32(int(ends.max()) - done)
        unknown = jnp.zeros_like(pair.tokens)
        last = Run(pair.tokens, unknown, pair.full, jnp.int32(done), jnp.int32(0))
        job = dataclasses.replace(job, decoder=FullDepth(models.full.blocks))
        final = steps((full, job, zero, rest), last)
        yield Round(new(final.tokens, int(ends.max())), 0, 0)
