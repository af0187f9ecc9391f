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

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from qkvflow.inference.prompts import Window, check, groups, round_up
from qkvflow.inference.recompute import recompute
from qkvflow.inference.sampling import Sampler, make_sampler, sequence_keys, token_keys
from qkvflow.lm import LanguageModel
from qkvflow.schemes import AbstractStepScheme

GROUP = 32
"""Tokens made by one dispatch when nobody watches."""


class Job(eqx.Module):
    """What stays the same while a batch is generated."""

    lengths: Int[Array, " batch"]
    """Of the prompts."""
    keys: Key[Array, " batch"]
    """Of the sequences."""
    sampler: Sampler

    def write(
        self,
        tokens: Int[Array, "batch total"],
        logits: Array,
        position: Int[Array, ""],
    ) -> Int[Array, "batch total"]:
        """Put the token at `position`, of the prompt or drawn from the logits before it."""
        drawn = self.sampler(logits, token_keys(self.keys, position))
        given = jax.lax.dynamic_index_in_dim(tokens, position, axis=1, keepdims=False)
        chosen = jnp.where(position < self.lengths, given, drawn)
        return jax.lax.dynamic_update_index_in_dim(tokens, chosen, position, axis=1)


class Run(NamedTuple):
    """What changes: the tokens before `position` are known, all but the last of them in caches."""

    tokens: Int[Array, "batch total"]
    caches: Any
    position: Int[Array, ""]


tabulate = eqx.filter_jit(lambda model: model.tabulated())


@eqx.filter_jit(donate="all-except-first")
def prefill(
    fixed: tuple[LanguageModel, Job], tokens: Array, offset: Array, seq: int, length: int
) -> Run:
    """Feed `seq` tokens from `offset` on in one pass, into caches for `length`."""
    model, job = fixed
    given = jax.lax.dynamic_slice_in_dim(tokens, offset, seq, axis=1)
    batch = tokens.shape[0]
    x, caches = model.advance(given, model.init_caches(batch, length), 0)
    logits = model.logits(x.reshape(batch, seq, -1)[:, -1])
    position = offset + seq
    return Run(job.write(tokens, logits, position), caches, position + 1)


@eqx.filter_jit(donate="all-except-first")
def steps(fixed: tuple[LanguageModel, Job, Array, Array], run: Run) -> Run:
    """`count` tokens more, one at a time, in one dispatch.

    The count is not part of the program: any number of tokens, one compilation.
    """
    model, job, offset, count = fixed
    last = run.position + count

    def body(run: Run) -> Run:
        tokens, caches, position = run
        newest = jax.lax.dynamic_slice_in_dim(tokens, position - 1, 1, axis=1)
        x, caches = model.advance(newest, caches, position - 1 - offset)
        tokens = job.write(tokens, model.logits(x), position)
        return Run(tokens, caches, position + 1)

    return jax.lax.while_loop(lambda run: run.position < last, body, run)


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
    model = tabulate(model)
    for group in groups(texts, batch_size):
        source = _tokens(model, texts, group, num_tokens, sampler, seed, window, GROUP)
        for parts in source:
            for index, part in zip(group, parts, strict=True):
                if stop is None or stop not in out[index]:
                    out[index] += part
            if stop is not None and all(stop in out[index] for index in group):
                break
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
    texts = check(model, [prompt], num_tokens, window=window)
    return stream_checked(model, texts[0], num_tokens, sampler, seed, window, group)


def stream_checked(
    model: LanguageModel,
    prompt: list[int],
    num_tokens: int,
    sampler: Sampler,
    seed: int,
    window: bool,
    group: int,
) -> Iterator[list[int]]:
    """`stream` without the checks and the warning."""
    model = tabulate(model)
    for parts in _tokens(model, [prompt], [0], num_tokens, sampler, seed, window, group):
        yield parts[0]


def _tokens(
    model: LanguageModel,
    texts: list[list[int]],
    group: list[int],
    num_tokens: int,
    sampler: Sampler,
    seed: int,
    window: bool,
    at_a_time: int,
) -> Iterator[list[list[int]]]:
    """New tokens of each sequence of a group, as they come."""
    if not isinstance(model.scheme, AbstractStepScheme):
        # The error control looks at a whole batch: only alone is a sequence's result its own.
        for place, index in enumerate(group):
            for token in recompute(model, texts[index], num_tokens, sampler, seed, index, window):
                yield [[token] if other == place else [] for other in range(len(group))]
        return

    prompts = [texts[index] for index in group]
    lengths = np.array([len(prompt) for prompt in prompts])
    ends = lengths + num_tokens
    # Sizes are rounded so that similar requests share their compiled programs.
    batch = 1 << (len(group) - 1).bit_length()
    total = round_up(int(ends.max()), 64)
    tokens = np.zeros((batch, total), np.int32)
    for row in range(batch):
        prompt = prompts[min(row, len(group) - 1)]
        tokens[row, : len(prompt)] = prompt
    pad = [(0, batch - len(group))]
    job = Job(
        jnp.asarray(np.pad(lengths, pad, "edge")),
        sequence_keys(seed, jnp.asarray(np.pad(np.array(group), pad, "edge"))),
        sampler,
    )
    span = Window(model, window, total)
    done, run = _first(lengths), None
    buffer = jnp.asarray(tokens)
    while done < ends.max():
        offset = span.offset(done)
        if run is None or offset != span.offset(done - 1):
            buffer = buffer if run is None else run.tokens
            run = prefill((model, job), buffer, jnp.int32(offset), done - offset, span.length)
            made = 1
        else:
            made = min(at_a_time, int(ends.max()) - done, span.end(done) - done)
            run = steps((model, job, jnp.int32(offset), jnp.int32(made)), run)
        fresh = np.asarray(run.tokens[:, done : done + made])
        yield [
            fresh[row, max(0, lengths[row] - done) : max(0, ends[row] - done)].tolist()
            for row in range(len(group))
        ]
        done += made


def _first(lengths: np.ndarray) -> int:
    """How many tokens are fed at once: the whole prompt, or what all prompts of the group have.

    Where lengths differ, it is rounded down to one of few sizes, each of which is compiled once.
    """
    shortest = int(lengths.min())
    if (lengths == shortest).all():
        return shortest
    return shortest // 32 * 32 if shortest >= 32 else 1 << (shortest.bit_length() - 1)
