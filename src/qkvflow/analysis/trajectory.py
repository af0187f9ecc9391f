"""The path of the hidden states along depth, for one text.

norm         |x_i| of every token
step_size    |x_{i+1} - x_i|
turning      the angle between one step and the next, in degrees: 0 is straight on
projection   on the two directions in which all states of all tokens vary most (PCA)
lens         the logit lens (nostalgebraist 2020): what the model would predict if it stopped
             at t, from the final norm and head of the state there
local_error  one step against two half steps from the same state, |Phi_h - Phi_h/2 Phi_h/2|,
             as a share of the step: small where the grid resolves the flow
"""

from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from qkvflow.analysis.base import AbstractResult, Analysis, Subject
from qkvflow.analysis.parts.flow import depth_flow, in_steps
from qkvflow.blocks.base import Rows
from qkvflow.distributed.memory import check_fits, check_program
from qkvflow.lm import LanguageModel
from qkvflow.zoo.registry import ANALYSES

TOP = 5


@dataclass(frozen=True)
class Lens:
    """Depths are 0, 1/N, .., 1; the last is the model's own prediction."""

    tokens: Int[np.ndarray, "depth seq top"]
    """The most likely next tokens, most likely first."""
    probabilities: Float[np.ndarray, "depth seq top"]
    entropy: Float[np.ndarray, "depth seq"]
    """In nats."""
    divergence: Float[np.ndarray, "depth seq"]
    """KL of the final prediction from the one at t, in nats."""
    agreement: Float[np.ndarray, " depth"]
    """The share of positions whose most likely token is already the final one."""


@dataclass(frozen=True)
class Trajectory(AbstractResult):
    """The states of a text along depth, and what each would predict."""

    ts: Float[np.ndarray, " depth"]
    """0, 1/N, .., 1: the embedding, then the state after each step."""
    norm: Float[np.ndarray, "depth seq"]
    step_size: Float[np.ndarray, "steps seq"]
    turning: Float[np.ndarray, "turns seq"]
    local_error: Float[np.ndarray, "steps seq"]
    projection: Float[np.ndarray, "depth seq 2"]
    explained: Float[np.ndarray, " 2"]
    """The share of the variance in each of the two directions."""
    lens: Lens
    tokens: Int[np.ndarray, " seq"]

    def findings(self) -> list[str]:
        norm, error = self.norm.mean(1), float(np.median(self.local_error))
        said = [
            f"The norm of the states goes from {norm[0]:.3g} to {norm[-1]:.3g} along depth, on "
            "average over the tokens.",
            f"One step differs from two half steps by {error:.1%} of the step (median)"
            + (
                ": the grid resolves the flow."
                if error < 0.05
                else ": the grid is part of the model."
            ),
        ]
        first = int(np.argmax(self.lens.agreement >= 0.9))
        where = f"At t = {self.ts[first]:.2f}" if first < len(self.ts) - 1 else "Only at the end"
        said.append(
            f"{where} the most likely next token is the final one at nine positions in ten "
            f"({np.interp(0.5, self.ts, self.lens.agreement):.0%} of them half-way)."
        )
        if len(self.turning):
            said.append(
                f"From one step to the next the path turns by {np.median(self.turning):.0f}° "
                "(median); 0° is straight on."
            )
        return said


def trajectory(model: LanguageModel, tokens: Int[np.ndarray, " seq"]) -> Trajectory:
    """Follow a text through the model's own steps."""
    model = in_steps(model)
    given = jnp.asarray(tokens, jnp.int32)
    what = f"the trajectory analysis of {len(tokens)} tokens"
    instead = "give a shorter --text or fewer --num-steps"
    # `lens_of` holds five arrays like the logits at once, in double precision.
    entries = (model.num_steps + 1) * len(tokens) * model.vocab_size
    check_fits(4 * entries, what, instead, host=5 * 8 * entries)
    check_program(_run, model, given, what=what, instead=instead)
    states, logits, local = _run(model, given)
    x = np.asarray(states, np.float64)
    steps = np.diff(x, axis=0)
    size = np.linalg.norm(steps, axis=-1)
    difference = np.asarray(local, np.float64)
    projection, explained = principal(x)
    return Trajectory(
        np.linspace(0.0, 1.0, len(x)),
        np.linalg.norm(x, axis=-1),
        size,
        angles(steps[:-1], steps[1:]),
        np.divide(difference, size, out=np.zeros_like(size), where=size > 0),
        projection,
        explained,
        lens_of(np.asarray(logits, np.float64)),
        np.asarray(tokens, np.int64),
    )


@eqx.filter_jit
def _run(model: LanguageModel, tokens: Array) -> tuple[Array, Array, Array]:
    """States, the logits from each of them, and the local errors' norms."""
    states = model.trajectory(tokens)
    seq, num_steps = len(tokens), model.num_steps
    logits = jax.vmap(lambda x: model.read(x, Rows(1, seq)))(states)
    given = model.core_input(tokens)
    whole = depth_flow(model, seq, given=given)
    half = depth_flow(model, seq, 2 * num_steps, given=given)

    def error(x: Array, i: Array) -> Array:
        return jnp.linalg.norm(whole(x, i) - half(half(x, 2 * i), 2 * i + 1), axis=-1)

    # One after another, as the model itself does: all at once would hold every activation.
    return states, logits, jax.lax.map(lambda at: error(*at), (states[:-1], jnp.arange(num_steps)))


def angles(
    a: Float[np.ndarray, "*batch d_model"], b: Float[np.ndarray, "*batch d_model"]
) -> Float[np.ndarray, "*batch"]:
    """In degrees, by Kahan's formula, which is accurate for small angles too."""
    a, b = (
        each / np.maximum(np.linalg.norm(each, axis=-1, keepdims=True), 1e-30) for each in (a, b)
    )
    apart, together = np.linalg.norm(a - b, axis=-1), np.linalg.norm(a + b, axis=-1)
    return np.degrees(2.0 * np.arctan2(apart, together))


def principal(
    states: Float[np.ndarray, "depth seq d_model"],
) -> tuple[Float[np.ndarray, "depth seq 2"], Float[np.ndarray, " 2"]]:
    """Coordinates on the two leading principal directions, and their shares of the variance."""
    centred = (states - states.mean((0, 1))).reshape(-1, states.shape[-1])
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    placed = centred @ directions[:2].T
    shares = sizes[:2] ** 2 / max(np.sum(sizes**2), 1e-30)
    return placed.reshape(*states.shape[:2], 2), shares


def lens_of(logits: Float[np.ndarray, "depth seq vocab"]) -> Lens:
    logits = logits - logits.max(-1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    p = np.exp(logs)
    top = np.argsort(-logs, axis=-1, kind="stable")[..., :TOP]
    return Lens(
        top,
        np.take_along_axis(p, top, axis=-1),
        -(p * logs).sum(-1),
        (p[-1] * (logs[-1] - logs)).sum(-1),
        (top[..., 0] == top[-1, :, 0]).mean(-1),
    )


@ANALYSES.register("trajectory")
class TrajectoryAnalysis(Analysis):
    order: ClassVar[int] = 30

    def run(self, subject: Subject) -> AbstractResult:
        return trajectory(subject.model, subject.tokens)

    def lacks(self, model: LanguageModel) -> str | None:
        return None
