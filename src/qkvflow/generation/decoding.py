"""Generation: prompts in, tokens out, in batches, with caches.

A batch moves along one position at a time, all sequences together, so prompts of different
lengths need no padding: what all of them have is fed at once, and then, for each position, a
sequence takes the next token of its prompt if it has one and a drawn token if not. Each sequence
therefore sees exactly what it would see alone. Prompts whose lengths differ much are
run in separate batches, so that no long prompt is fed token by token.

Weights along depth are made once for a call. They, and all numbers of the sampler, are
arguments of the compiled programs, so that the same shapes never compile twice, even while the
weights are being trained.
"""

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from qkvflow.generation.caches import (
    check_caches,
    lengthen,
    share_equal,
    slot_sizes,
    unstack,
    unstack_segments,
)
from qkvflow.generation.cores import lanes, side_by_side
from qkvflow.generation.prompts import Window, check, groups, round_up
from qkvflow.generation.recompute import recompute
from qkvflow.generation.sampling import Sampler, make_sampler, sequence_keys, token_keys
from qkvflow.lm import LanguageModel
from qkvflow.lm.segments import Segment
from qkvflow.schemes import AbstractStepScheme
from qkvflow.schemes.base import ApplyInPlace, Hidden

GROUP = 32
"""Tokens made by one dispatch when nobody watches."""


class AbstractDecoder(eqx.Module):
    """How one token is carried through depth.

    Weights and caches of every step are arrays of their own: from arrays over all depths XLA
    copies each step's part for every token.
    """

    blocks: eqx.AbstractVar[Any]
    """Of every segment and step those at its stages; None before `prepared`."""

    @abc.abstractmethod
    def __call__(
        self,
        model: LanguageModel,
        newest: Int[Array, "batch 1"],
        caches: list[Any],
        start: Int[Array, ""],
        given: Bool[Array, " batch"],
    ) -> tuple[Float[Array, "batch vocab"], list[Any], Int[Array, " batch"], Int[Array, ""]]:
        """Logits after the newest tokens, the new caches, the steps that each prediction used
        and the steps that were run. Tokens that were `given` (by the prompt) take all steps."""


class FullDepth(AbstractDecoder):
    """Every step, for every token."""

    blocks: Any = None

    def __call__(
        self,
        model: LanguageModel,
        newest: Int[Array, "batch 1"],
        caches: list[Any],
        start: Int[Array, ""],
        given: Bool[Array, " batch"],
    ) -> tuple[Float[Array, "batch vocab"], list[Any], Int[Array, " batch"], Int[Array, ""]]:
        x, caches = advance(model, self.blocks, newest, caches, start)
        depths = jnp.full(newest.shape[0], model.num_steps)
        return model.logits(x), caches, depths, jnp.int32(model.num_steps)


def advance(
    model: LanguageModel,
    blocks: list[Any],
    tokens: Int[Array, "batch seq"],
    caches: list[Any],
    start: Int[Array, ""],
) -> tuple[Hidden, list[Any]]:
    """As `LanguageModel.advance`, with the weights and caches of every step apart."""
    (x, rows), left = model.begin(tokens, start), []
    for segment, stacks, states in zip(model.segments, blocks, caches, strict=True):
        x, new = through(model, segment, stacks, x, [ApplyInPlace(rows, s) for s in states])
        left.append(new)
    return x, left


def through(
    model: LanguageModel, segment: Segment, stacks: list[Any], x: Hidden, applies: list[Any]
) -> tuple[Hidden, list[Any]]:
    """The state after a segment, and what its steps leave behind."""
    x = segment.entered(x)
    before = segment.before(x, model.compute_dtype)
    x = segment.first(x, applies[0].rows)
    for blocks, apply in zip(stacks, applies, strict=True):
        x = segment.step(blocks, x, apply, before)
    return x, [apply.finish() for apply in applies]


class Job(eqx.Module):
    """What stays the same while a batch is generated."""

    lengths: Int[Array, " batch"]
    """Of the prompts."""
    keys: Key[Array, " batch"]
    """Of the sequences."""
    sampler: Sampler
    decoder: AbstractDecoder = FullDepth()

    def choose(
        self,
        tokens: Int[Array, "batch total"],
        logits: Float[Array, "batch vocab"],
        position: Int[Array, ""],
    ) -> Int[Array, " batch"]:
        """The token at `position`: of the prompt, or drawn from the logits before it."""
        drawn = self.sampler(logits, token_keys(self.keys, position))
        given = jax.lax.dynamic_index_in_dim(tokens, position, axis=1, keepdims=False)
        return jnp.where(position < self.lengths, given, drawn)


class Run(NamedTuple):
    """What changes: the tokens before `position` are known, all but the last of them in caches."""

    tokens: Int[Array, "batch total"]
    depths: Int[Array, "batch total"]
    """Steps that the prediction of each token used."""
    caches: Any
    position: Int[Array, ""]
    steps: Int[Array, ""]
    """Steps that were run for the batch since the last prefill."""


def put(row: Array, values: Array, position: Int[Array, ""]) -> Array:
    """`values` written into column `position`."""
    return jax.lax.dynamic_update_index_in_dim(row, values.astype(row.dtype), position, axis=1)


precompute = eqx.filter_jit(lambda model: model.precomputed())
take_apart = eqx.filter_jit(
    lambda model: [
        list(zip(*(unstack(each, part.num_steps) for each in part.stacks()), strict=True))
        for part in model.segments
    ]
)


def blocks_of(model: LanguageModel) -> list[Any]:
    """Of a precomputed model, apart; weights that repeat along depth are one array."""
    return list(map(share_equal, take_apart(model)))


def prepared(decoder: AbstractDecoder, model: LanguageModel) -> Any:
    """The decoder of a precomputed model, if it has steps and is not prepared yet."""
    if decoder.blocks is not None or not isinstance(model.scheme, AbstractStepScheme):
        return decoder
    return dataclasses.replace(decoder, blocks=blocks_of(model))


@eqx.filter_jit(donate="all-except-first")
def prefill(
    fixed: tuple[LanguageModel, Job, Int[Array, ""]],
    tokens: Int[Array, "batch total"],
    depths: Int[Array, "batch total"],
    seq: int,
    length: int,
) -> Run:
    """Feed `seq` tokens from an offset (the last of `fixed`) on in one pass of all steps, into
    caches for `length`."""
    model, job, offset = fixed
    given = jax.lax.dynamic_slice_in_dim(tokens, offset, seq, axis=1)
    batch = tokens.shape[0]
    x, caches = model.advance(given, model.init_caches(batch, length), 0)
    logits = model.logits(x.reshape(batch, seq, -1)[:, -1])
    position = offset + seq
    tokens = put(tokens, job.choose(tokens, logits, position), position)
    depths = put(depths, jnp.full(batch, model.num_steps), position)
    return Run(tokens, depths, caches, position + 1, jnp.int32(0))


@eqx.filter_jit(donate="all-except-first")
def steps(fixed: tuple[LanguageModel, Job, Int[Array, ""], Int[Array, ""]], run: Run) -> Run:
    """`count` tokens more, one at a time, in one dispatch; `fixed` ends with `offset`, `count`.

    The count is not part of the program: any number of tokens, one compilation.
    """
    model, job, offset, count = fixed
    last = run.position + count

    def body(run: Run) -> Run:
        tokens, depths, caches, position, work = run
        newest = jax.lax.dynamic_slice_in_dim(tokens, position - 1, 1, axis=1)
        start = position - 1 - offset
        given = position <= job.lengths
        logits, caches, used, made = job.decoder(model, newest, caches, start, given)
        tokens = put(tokens, job.choose(tokens, logits, position), position)
        return Run(tokens, put(depths, used, position), caches, position + 1, work + made)

    return jax.lax.while_loop(lambda run: run.position < last, body, run)


@eqx.filter_jit
def arrange(model: LanguageModel, run: Run, length: int) -> Run:
    """The run with caches for `length` tokens or more, of every step apart."""
    caches = run.caches
    if not isinstance(caches, list):
        caches = unstack_segments(model, caches)
    return run._replace(caches=lengthen(model, caches, run.tokens.shape[0], length))


class Request(NamedTuple):
    """How to continue the prompts of a group."""

    num_tokens: int | np.ndarray
    """Of all texts, or of each."""
    sampler: Sampler
    seed: int | np.ndarray
    """Of all texts, which are numbered, or of each, as if it were alone."""
    window: bool = False
    at_a_time: int = GROUP
    """Tokens made by one dispatch."""
    decoder: AbstractDecoder = FullDepth()
    lanes: int = 1
    """Groups that run at the same time."""
    few_shapes: bool = False
    """Round what is fed at once even where all prompts are of one length."""

    def keys(self, texts: np.ndarray) -> Key[Array, " batch"]:
        if isinstance(self.seed, int):
            return sequence_keys(self.seed, jnp.asarray(texts))
        return sequence_keys(jnp.asarray(self.seed[texts]), jnp.zeros(len(texts), jnp.int32))

    def draws(self, index: int) -> tuple[int, int]:
        """The seed of a text, and its number under that seed."""
        return (self.seed, index) if isinstance(self.seed, int) else (int(self.seed[index]), 0)


class Part(NamedTuple):
    """Some more new tokens of each sequence of a group (none for one that is not there yet)."""

    tokens: list[list[int]]
    depths: list[list[int]]
    """Steps that the prediction of each token used."""
    passes: int
    """Tokens that the whole group went along."""
    steps: int
    """Steps that were run for these passes."""


class Buffers(NamedTuple):
    """A group of prompts in arrays."""

    tokens: np.ndarray
    lengths: np.ndarray
    ends: np.ndarray
    job: Job


def lay_out(
    texts: list[list[int]], group: list[int], request: Request, *, spare: int = 0
) -> Buffers:
    """The group's prompts in arrays, of sizes that similar requests have too."""
    prompts = [texts[index] for index in group]
    lengths = np.array([len(prompt) for prompt in prompts])
    ends = lengths + np.broadcast_to(request.num_tokens, len(texts))[group]
    batch = 1 << (len(group) - 1).bit_length()
    tokens = np.zeros((batch, round_up(int(ends.max()) + spare, 64)), np.int32)
    for row in range(batch):
        prompt = prompts[min(row, len(group) - 1)]
        tokens[row, : len(prompt)] = prompt
    pad = [(0, batch - len(group))]
    job = Job(
        jnp.asarray(np.pad(lengths, pad, "edge")),
        request.keys(np.pad(np.array(group), pad, "edge")),
        request.sampler,
        request.decoder,
    )
    return Buffers(tokens, lengths, ends, job)


def run_group(
    model: LanguageModel, texts: list[list[int]], group: list[int], request: Request
) -> Iterator[Part]:
    """New tokens of each sequence of a group, as they come. The model is precomputed."""
    if not isinstance(model.scheme, AbstractStepScheme):
        yield from _without_caches(model, texts, group, request)
        return
    start, lengths, ends, job = lay_out(texts, group, request)
    job = dataclasses.replace(job, decoder=prepared(job.decoder, model))
    span = Window(model, request.window, start.shape[1])
    check_caches(model, start.shape[0] * request.lanes, span.length)
    sizes = slot_sizes(model, start.shape[0], span.length)
    done, run, slots = first_length(lengths, request.few_shapes), None, 0

    def slots_for(seen: int) -> int:
        return next((each for each in sizes if each >= seen), span.length)

    tokens, depths = jnp.asarray(start), jnp.zeros(start.shape, jnp.int32)
    while done < ends.max():
        offset = span.offset(done)
        if run is None or offset != span.offset(done - 1):
            if run is not None:
                tokens, depths = run.tokens, run.depths
            # Whatever decodes what follows: one program, and not one for each decoder.
            fixed = (model, dataclasses.replace(job, decoder=FullDepth()), jnp.int32(offset))
            slots = slots_for(done - offset + request.at_a_time)
            run = prefill(fixed, tokens, depths, done - offset, slots)
            run = arrange(model, run, slots)
            made, before = 1, -model.num_steps
        else:
            before = int(run.steps)
            made = min(request.at_a_time, int(ends.max()) - done, span.end(done) - done)
            if done - offset + made - 1 > slots:
                slots = slots_for(done - offset + made)
                run = arrange(model, run, slots)
            run = steps((model, job, jnp.int32(offset), jnp.int32(made)), run)
        yield Part(
            _new(run.tokens, done, made, lengths, ends),
            _new(run.depths, done, made, lengths, ends),
            made,
            int(run.steps) - before,
        )
        done += made


def _new(
    columns: Array, done: int, made: int, lengths: np.ndarray, ends: np.ndarray
) -> list[list[int]]:
    """The columns from `done` on that are neither prompt nor beyond what was asked for."""
    fresh = np.asarray(columns)[:, done : done + made]
    return [
        fresh[row, max(0, length - done) : max(0, end - done)].tolist()
        for row, (length, end) in enumerate(zip(lengths, ends, strict=True))
    ]


def _without_caches(
    model: LanguageModel, texts: list[list[int]], group: list[int], request: Request
) -> Iterator[Part]:
    counts = np.broadcast_to(request.num_tokens, len(texts))
    # The error control looks at a whole batch: only alone is a sequence's result its own.
    for place, index in enumerate(group):
        asked = (int(counts[index]), request.sampler, *request.draws(index), request.window)
        for token in recompute(model, texts[index], *asked):
            each = [[token] if other == place else [] for other in range(len(group))]
            yield Part(each, [[0] * len(part) for part in each], 1, 0)


def first_length(lengths: np.ndarray, few_shapes: bool = False) -> int:
    """How many tokens are fed at once: the whole prompt, or what all prompts of the group have.

    Where lengths differ, or few shapes are wanted, it is rounded down to one of few sizes, each of
    which is compiled once.
    """
    shortest = int(lengths.min())
    if not few_shapes and (lengths == shortest).all():
        return shortest
    return shortest // 32 * 32 if shortest >= 32 else 1 << (shortest.bit_length() - 1)


def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]] | Int[Array, "batch seq"] | np.ndarray,
    *,
    num_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    window: bool = False,
    stop: int | None = None,
    batch_size: int = 64,
) -> list[list[int]]:
    """`num_tokens` tokens after each prompt (fewer where `stop` came: it is the last one).

    Temperature 0 is greedy. The result is a pure function of the prompts and the seed, whatever
    the batch size. Beyond the model's context, learned positions end: `window` goes on with the
    last tokens alone (see `Window`).
    """
    sampler = make_sampler(temperature=temperature, top_k=top_k, top_p=top_p)
    texts = check(model, prompts, num_tokens, window=window)
    out: list[list[int]] = [[] for _ in texts]
    at_once = lanes(min(batch_size, len(texts)))
    model = precompute(model)
    decoder = prepared(FullDepth(), model)
    request = Request(num_tokens, sampler, seed, window, decoder=decoder, lanes=at_once)

    def complete(group: list[int]) -> Iterator[None]:
        for parts in run_group(model, texts, group, request):
            for index, part in zip(group, parts.tokens, strict=True):
                if stop is None or stop not in out[index]:
                    out[index] += part
            if stop is not None and all(stop in out[index] for index in group):
                return
            yield

    side_by_side(map(complete, groups(texts, batch_size, at_once)), at_once)
    if stop is not None:
        out = [text[: text.index(stop) + 1] if stop in text else text for text in out]
    return out


def stream(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    num_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    window: bool = False,
    group: int = 8,
) -> Iterator[list[int]]:
    """The tokens of `generate` for one prompt, as they come: one, then `group` at a time."""
    sampler = make_sampler(temperature=temperature, top_k=top_k, top_p=top_p)
    request = Request(num_tokens, sampler, seed, window, group)
    return (part.tokens[0] for part in stream_parts(model, prompt, request))


def stream_parts(model: LanguageModel, prompt: Sequence[int], request: Request) -> Iterator[Part]:
    """As `stream`, with the depths that were used. Checks before it returns."""
    texts = check(model, [prompt], int(request.num_tokens), window=request.window)
    return run_group(precompute(model), texts, [0], request)
