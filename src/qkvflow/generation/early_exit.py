"""Early exit: stop integrating when the prediction has settled.

After every step the state is read as if it were the last (the logit lens), and the token
leaves depth when

    entropy  the predictive distribution's entropy is below a threshold, in nats, or
    change   its total variation distance to that of the step before is below a threshold, or
    exit     the exit probabilities of a model with an exit gate add up to a threshold.

A later token still asks for this token's keys and values at the depths it skipped. They are
made from the state at which it left, as if it had gone on with increments of zero (as in
CALM, Schuster et al. 2022); recurrent states are advanced in the same way. That costs their
projections, but neither attention, nor output projections, nor MLPs.

A batch goes on until its last sequence has settled: sequences that left are held still
meanwhile, so that each gets what it would get alone, but the time saved is that of the
slowest. And looking costs: a norm and a head at every step, which a large vocabulary makes
as dear as a step, and the coda of a model that has one. Both are reported: the steps that
predictions used and those that were run.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from qkvflow.blocks.base import Branch, Rows
from qkvflow.errors import UserError, unknown
from qkvflow.generation.caches import unstack_segments
from qkvflow.generation.decoding import (
    AbstractDecoder,
    Request,
    precompute,
    prepared,
    run_group,
    through,
)
from qkvflow.generation.prompts import check, groups
from qkvflow.generation.sampling import make_sampler
from qkvflow.lm import LanguageModel
from qkvflow.lm.model import placed
from qkvflow.schemes import AbstractStepScheme
from qkvflow.schemes.base import ApplyCached, ApplyInPlace, Hidden


class ApplyHeld:
    """As `schemes.base.ApplyInPlace`, with increments of zero for sequences that have left, which
    are not computed when all have."""

    def __init__(self, rows: Rows, states: tuple[Any, ...], left: Bool[Array, " batch"]):
        self.rows, self.states, self.left, self.new = rows, states, left, []

    def __call__(self, branch: Branch, x: Hidden) -> Hidden:
        going = ~jnp.all(self.left)
        y, state = branch.extend_if(going, x, self.rows, self.states[len(self.new)])
        self.new.append(state)
        return jnp.where(self.left[:, None], 0.0, y)

    def finish(self) -> tuple[Any, ...]:
        return tuple(self.new)


class Seen(NamedTuple):
    """What is known of the sequences after a step."""

    left: Bool[Array, " batch"]
    depths: Int[Array, " batch"]
    logits: Float[Array, "batch vocab"]
    probabilities: Float[Array, "batch vocab"]
    """Of the last look."""
    stay: Float[Array, " batch"]
    """The probability that an exit gate has not let them go."""
    slots: list[Any]
    """Of the coda."""


class EarlyExit(AbstractDecoder):
    """When to stop integrating: an entropy, a change of the prediction, or both."""

    entropy: Float[Array, ""]
    change: Float[Array, ""]
    exit: Float[Array, ""]
    blocks: Any = None

    def settled(
        self, now: Float[Array, "batch vocab"], before: Float[Array, "batch vocab"]
    ) -> Bool[Array, " batch"]:
        """Whether predictions (probabilities) are final."""
        entropy = -jnp.sum(jax.scipy.special.xlogy(now, now), axis=-1)
        change = 0.5 * jnp.sum(jnp.abs(now - before), axis=-1)
        return (entropy < self.entropy) | (change < self.change)

    def __call__(
        self,
        model: LanguageModel,
        newest: Int[Array, "batch 1"],
        caches: list[Any],
        start: Int[Array, ""],
        given: Bool[Array, " batch"],
    ) -> tuple[Float[Array, "batch vocab"], list[Any], Int[Array, " batch"], Int[Array, ""]]:
        core, batch, place = model.core, newest.shape[0], len(model.prelude)
        (x, rows), made = model.begin(newest, start), []
        for segment, stacks, states in zip(model.prelude, self.blocks, caches, strict=False):
            x, new = through(model, segment, stacks, x, [ApplyInPlace(rows, s) for s in states])
            made.append(new)
        coda = list(zip(model.coda, self.blocks[place + 1 :], caches[place + 1 :], strict=True))

        def finish(x: Hidden) -> tuple[Hidden, list[Any]]:
            """The coda, from a state as if it were the core's last."""
            slots = []
            for segment, stacks, states in coda:
                x, new = through(model, segment, stacks, x, [ApplyCached(rows, s) for s in states])
                slots.append(new)
            return x, slots

        def look(x: Hidden, seen: Seen) -> Seen:
            end, new = finish(x)
            slots = jax.tree.map(lambda old, each: _where(seen.left, old, each), seen.slots, new)
            h, stay = model.norm.at(1.0)(end), seen.stay
            logits = model.project(h)
            if model.exit_gate is not None:
                stay = stay * jax.nn.sigmoid(-model.exit_gate(h)[:, 0])
            now = jax.nn.softmax(logits, axis=-1)
            done = (self.exit > 0.0) & (1.0 - stay >= self.exit)
            done = (self.settled(now, seen.probabilities) | done) & ~given
            return Seen(
                seen.left | done,
                seen.depths + jnp.where(seen.left, 0, 1),
                jnp.where(seen.left[:, None], seen.logits, logits),
                now,
                stay,
                slots,
            )

        e = core.entered(x)
        before, x, run = core.before(e, model.compute_dtype), core.first(e, rows), jnp.int32(0)
        seen = Seen(
            jnp.zeros(batch, bool),
            jnp.zeros(batch, jnp.int32),
            jnp.zeros((batch, model.vocab_size), jnp.float32),
            # Before the first step there is none: a distance that is below no threshold.
            jnp.full((batch, model.vocab_size), jnp.inf),
            jnp.ones(batch, jnp.float32),
            jax.tree.map(jnp.zeros_like, jax.eval_shape(finish, e)[1]),
        )
        inner = []
        for blocks, states in zip(self.blocks[place], caches[place], strict=True):
            apply, going = ApplyHeld(rows, states, seen.left), ~jnp.all(seen.left)
            y = core.step(blocks, x, apply, before)
            # An injection would move those that have left.
            x = y if before is None else jnp.where(seen.left[:, None], x, y)
            inner.append(apply.finish())
            seen = jax.lax.cond(going, look, lambda x, seen: seen, x, seen)
            run = run + going
        ends = [placed(old, new, start) for (*_, old), new in zip(coda, seen.slots, strict=True)]
        return seen.logits, [*made, inner, *ends], seen.depths, run


def _where(left: Bool[Array, " batch"], old: Array, new: Array) -> Array:
    """The old ones of the sequences that have left. Arrays begin with sequences, or with sequences
    and their heads as one axis."""
    rows = jnp.repeat(left, old.shape[0] // left.shape[0])
    return jnp.where(rows.reshape(-1, *(1,) * (old.ndim - 1)), old, new)


def make_early_exit(*, entropy: float = 0.0, change: float = 0.0, exit: float = 0.0) -> EarlyExit:
    """Leave when any of them has reached its threshold; 0 is never reached."""
    for name, value in (("entropy", entropy), ("change", change), ("exit", exit)):
        if not 0.0 <= value < float("inf"):
            raise UserError(f"the threshold of {name} must be 0 or positive, not {value}")
    return EarlyExit(
        entropy=jnp.float32(entropy), change=jnp.float32(change), exit=jnp.float32(exit)
    )


def check_scheme(model: LanguageModel, rule: EarlyExit) -> None:
    """Early exit needs steps to skip, and the rule `exit` a gate."""
    if float(rule.exit) > 0.0 and model.exit_gate is None:
        raise UserError("this model has no exit gate; use entropy=X or change=X")
    if not isinstance(model.scheme, AbstractStepScheme):
        raise UserError(
            "a solver (adaptive, fixed-point) chooses its own depth; use a fixed scheme"
        )


def parse_early_exit(text: str) -> EarlyExit:
    """`entropy=0.5`, `change=0.01`, `exit=0.5`, or several with a comma between."""
    options: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in ("entropy", "change", "exit"):
            raise unknown("early exit rule", name, ("entropy=X", "change=X", "exit=X"))
        try:
            options[name] = float(value)
        except ValueError:
            raise UserError(f"early exit needs a number, as in {name}=0.1, not '{part}'") from None
    return make_early_exit(**options)


class Exited(NamedTuple):
    """What was generated, and how deep."""

    tokens: list[list[int]]
    depths: list[list[int]]
    """Steps that each token's prediction used. The first comes from the prompt's pass, which
    takes all steps."""
    average_depth: float
    """Mean of `depths`."""
    average_run: float
    """Steps run for a token of the batch: its deepest sequence decides."""


def generate_early_exit(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]] | Int[Array, "batch seq"] | np.ndarray,
    *,
    rule: EarlyExit,
    num_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    window: bool = False,
    batch_size: int = 64,
) -> Exited:
    """`generate` with early exit; prompts are read at full depth."""
    check_scheme(model, rule)
    sampler = make_sampler(temperature=temperature, top_k=top_k, top_p=top_p)
    texts = check(model, prompts, num_tokens, window=window)
    tokens: list[list[int]] = [[] for _ in texts]
    depths: list[list[int]] = [[] for _ in texts]
    request = Request(num_tokens, sampler, seed, window, decoder=rule)
    precomputed = precompute(model)
    run, passes = 0, 0
    for group in groups(texts, batch_size):
        for part in run_group(precomputed, texts, group, request):
            for index, new, used in zip(group, part.tokens, part.depths, strict=True):
                tokens[index] += new
                depths[index] += used
            passes += part.passes
            run += part.steps
    flat = [depth for each in depths for depth in each]
    return Exited(tokens, depths, float(np.mean(flat)), run / max(passes, 1))


class Quality(NamedTuple):
    """Early exit on a given text, token after token, beside the full depth."""

    loss: float
    """Nats per token with early exit."""
    full_loss: float
    """Nats per token at full depth."""
    agreement: float
    """How often the most likely token is that of full depth."""
    average_depth: float
    average_run: float
    num_steps: int


def exit_quality(
    model: LanguageModel, tokens: Int[Array, "batch seq"] | np.ndarray, rule: EarlyExit
) -> Quality:
    """What early exit saves and costs on a text: every token leaves where the rule says.

    Caches are as in generation, so that the effect of filled keys and values counts.
    """
    tokens = jnp.asarray(tokens, jnp.int32)
    if tokens.shape[1] < 2:
        raise UserError("a text of at least 2 tokens is needed")
    check_scheme(model, rule)
    precomputed = precompute(model)
    numbers = _quality(precomputed, prepared(rule, precomputed), tokens)
    return Quality(*map(float, numbers), num_steps=model.num_steps)


@eqx.filter_jit
def _quality(model: LanguageModel, rule: EarlyExit, tokens: Int[Array, "batch seq"]) -> Any:
    batch, seq = tokens.shape[0], tokens.shape[1] - 1

    def body(caches: Any, inputs: Any) -> Any:
        position, newest = inputs
        logits, caches, depths, run = rule(
            model, newest[:, None], caches, position, jnp.zeros(batch, bool)
        )
        return caches, (logits, depths, run)

    caches = unstack_segments(model, model.init_caches(batch, seq))
    _, (logits, depths, run) = jax.lax.scan(body, caches, (jnp.arange(seq), tokens[:, :-1].T))
    full = jnp.swapaxes(model(tokens[:, :-1]), 0, 1)

    def loss(logits: Array) -> Array:
        log_probs = jax.nn.log_softmax(logits, axis=-1)
        return -jnp.mean(jnp.take_along_axis(log_probs, tokens[:, 1:].T[:, :, None], axis=-1))

    agree = jnp.mean(jnp.argmax(logits, axis=-1) == jnp.argmax(full, axis=-1))
    return loss(logits), loss(full), agree, jnp.mean(depths), jnp.mean(run)
