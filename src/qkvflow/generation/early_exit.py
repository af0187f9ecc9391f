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
from qkvflow.generation.decoding import AbstractDecoder, Request, precompute, run_group
from qkvflow.generation.prompts import check, groups
from qkvflow.generation.sampling import make_sampler
from qkvflow.lm import LanguageModel
from qkvflow.lm.model import placed
from qkvflow.schemes import AbstractStepScheme
from qkvflow.schemes.base import Hidden


class Held:
    """As `schemes.base.ApplyCached`, with increments of zero for sequences that have left."""

    def __init__(self, rows: Rows, states: tuple[Any, ...], left: Bool[Array, " batch"] | None):
        self.rows, self.states, self.left, self.new = rows, states, left, []

    def __call__(self, branch: Branch, x: Hidden) -> Hidden:
        y, state = branch.append(x, self.rows, self.states[len(self.new)])
        self.new.append(state)
        if self.left is None:
            # All have left: nothing reads y, and the compiler drops what only y needs.
            return jnp.zeros_like(x)
        return jnp.where(self.left[:, None], 0.0, y)

    def finish(self) -> tuple[Any, ...]:
        return tuple(self.new)


def _put(caches: Array, new: Array, step: Int[Array, ""], start: Int[Array, ""]) -> Array:
    """One step's new slots or state in the caches of all steps, in place."""
    at = [
        step,
        *(start if new != old else 0 for new, old in zip(new.shape, caches.shape[1:], strict=True)),
    ]
    return jax.lax.dynamic_update_slice(caches, new[None], at)


class EarlyExit(AbstractDecoder):
    """When to stop integrating: an entropy, a change of the prediction, or both."""

    entropy: Float[Array, ""]
    change: Float[Array, ""]
    exit: Float[Array, ""]

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
        caches: Any,
        start: Int[Array, ""],
        given: Bool[Array, " batch"],
    ) -> tuple[Float[Array, "batch vocab"], Any, Int[Array, " batch"], Int[Array, ""]]:
        core, batch = model.core, newest.shape[0]
        stacks = core.stacks()
        (e, rows), passed = model.begin(newest, start), []
        for segment, old in zip(model.prelude, caches, strict=False):
            e, new = model.append(segment, e, rows, old)
            passed.append(placed(old, new, start))
        before = core.before(e, model.compute_dtype)
        old_coda = caches[len(model.prelude) + 1 :]

        def finish(x: Hidden) -> tuple[Hidden, list[Any]]:
            """The coda, from a state as if it were the core's last."""
            slots = []
            for segment, old in zip(model.coda, old_coda, strict=True):
                x, new = model.append(segment, x, rows, old)
                slots.append(new)
            return x, slots

        def step(i: Array, x: Hidden, caches: Any, left: Any) -> tuple[Hidden, Any]:
            blocks, states = jax.tree.map(lambda leaf: leaf[i], (stacks, caches))
            evaluate = Held(rows, states, left)
            y = core.step(blocks, x, evaluate, before)
            # An injection would move those that have left.
            x = y if left is None or before is None else jnp.where(left[:, None], x, y)
            return x, jax.tree.map(
                lambda all, new: _put(all, new, i, start), caches, evaluate.finish()
            )

        def look(carry: Any) -> Any:
            i, x, caches, left, depths, logits, last, stay, slots = carry
            x, caches = step(i, x, caches, left)
            end, made = finish(x)
            slots = jax.tree.map(lambda old, new: _where(left, old, new), slots, made)
            h = model.norm.at(1.0)(end)
            new = model.project(h)
            if model.exit_gate is not None:
                stay = stay * jax.nn.sigmoid(-model.exit_gate(h)[:, 0])
            now = jax.nn.softmax(new, axis=-1)
            logits = jnp.where(left[:, None], logits, new)
            depths = depths + jnp.where(left, 0, 1)
            done = (self.exit > 0.0) & (1.0 - stay >= self.exit)
            left = left | ((self.settled(now, last) | done) & ~given)
            return i + 1, x, caches, left, depths, logits, now, stay, slots

        def fill(carry: Any) -> Any:
            i, caches = carry
            return i + 1, step(i, x, caches, None)[1]

        # Before the first step there is no prediction: a distance that is below no threshold.
        nowhere = jnp.full((batch, model.vocab_size), jnp.inf)
        i, x, inner, _, depths, logits, _, _, slots = jax.lax.while_loop(
            lambda carry: (carry[0] < model.num_steps) & ~jnp.all(carry[3]),
            look,
            (
                jnp.int32(0),
                core.first(e, rows),
                caches[len(model.prelude)],
                jnp.zeros(batch, bool),
                jnp.zeros(batch, jnp.int32),
                jnp.zeros((batch, model.vocab_size), jnp.float32),
                nowhere,
                jnp.ones(batch, jnp.float32),
                jax.tree.map(jnp.zeros_like, jax.eval_shape(finish, e)[1]),
            ),
        )
        _, inner = jax.lax.while_loop(lambda carry: carry[0] < model.num_steps, fill, (i, inner))
        ends = [placed(old, new, start) for old, new in zip(old_coda, slots, strict=True)]
        return logits, (*passed, inner, *ends), depths, i


def _where(left: Bool[Array, " batch"], old: Array, new: Array) -> Array:
    """Of arrays `steps batch ...`: the old ones of the sequences that have left."""
    return jnp.where(left.reshape(1, -1, *(1,) * (old.ndim - 2)), old, new)


def make_early_exit(*, entropy: float = 0.0, change: float = 0.0, exit: float = 0.0) -> EarlyExit:
    """Leave when any of them has reached its threshold; 0 is never reached."""
    for name, value in (("entropy", entropy), ("change", change), ("exit", exit)):
        if not 0.0 <= value < float("inf"):
            raise UserError(f"the threshold of {name} must be 0 or positive, not {value}")
    return EarlyExit(jnp.float32(entropy), jnp.float32(change), jnp.float32(exit))


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
    numbers = _quality(precompute(model), rule, tokens)
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

    caches = model.init_caches(batch, seq)
    _, (logits, depths, run) = jax.lax.scan(body, caches, (jnp.arange(seq), tokens[:, :-1].T))
    full = jnp.swapaxes(model(tokens[:, :-1]), 0, 1)

    def loss(logits: Array) -> Array:
        log_probs = jax.nn.log_softmax(logits, axis=-1)
        return -jnp.mean(jnp.take_along_axis(log_probs, tokens[:, 1:].T[:, :, None], axis=-1))

    agree = jnp.mean(jnp.argmax(logits, axis=-1) == jnp.argmax(full, axis=-1))
    return loss(logits), loss(full), agree, jnp.mean(depths), jnp.mean(run)
