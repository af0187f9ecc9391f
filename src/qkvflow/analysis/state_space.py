"""What a state space layer remembers, along depth.

The discrete transition of a diagonal state space is h_k = a h_{k-1} + .., a = exp(delta A), so its
eigenvalues are the numbers a in (0, 1), and a state is half forgotten after

    half-life = log 2 / (delta |A|)   tokens.

In `ssm` there is one per state, whatever the text. In `selective-ssm` delta is read from the input:
there is one per head and token, and what is told is the median over the tokens of the text.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from qkvflow.analysis.base import AbstractResult, Analysis, Subject, check_depths, depths_of
from qkvflow.analysis.parts.flow import in_steps
from qkvflow.blocks import SSM, SelectiveSSM
from qkvflow.blocks.base import Branch, Rows
from qkvflow.distributed.memory import check_program
from qkvflow.lm import LanguageModel
from qkvflow.lm.accounting import block_at_end
from qkvflow.schemes import AbstractStepScheme, stage_times
from qkvflow.schemes.base import ApplyFull, Hidden
from qkvflow.zoo.registry import ANALYSES


@dataclass(frozen=True)
class Memory:
    """Of one layer; `states` are heads in a selective one."""

    ts: Float[np.ndarray, " depth"]
    eigenvalues: Float[np.ndarray, "depth states"]
    half_lives: Float[np.ndarray, "depth states"]
    """In tokens."""
    by_token: Float[np.ndarray, "depth seq states"] | None
    """The eigenvalues at every token, where they depend on the input."""


@dataclass(frozen=True)
class StateSpaces(AbstractResult):
    """How long the state space layers remember, over depth."""

    layers: dict[str, Memory]

    def findings(self) -> list[str]:
        said = []
        for name, layer in self.layers.items():
            low, middle, high = np.quantile(layer.half_lives, [0.05, 0.5, 0.95])
            first, last = np.median(layer.half_lives[0]), np.median(layer.half_lives[-1])
            said.append(
                f"{name}: half-lives are {low:.3g} to {high:.3g} tokens (5 % to 95 % of states and "
                f"depths), median {middle:.3g}; from the first depth to the last the median goes "
                f"from {first:.3g} to {last:.3g}."
            )
        return said


def lacks_state_space(model: LanguageModel) -> str | None:
    """Why there is nothing to analyse, or none."""
    kinds = [branch.mixer for branch in block_at_end(model).branches]
    if any(isinstance(mixer, SSM | SelectiveSSM) for mixer in kinds):
        return None
    return "this model has no state space layer"


def state_space(
    model: LanguageModel,
    tokens: Int[np.ndarray, " seq"],
    ts: Float[np.ndarray, " depth"] | None = None,
) -> StateSpaces:
    """Of `ssm` at the depths `ts`, of `selective-ssm` on the model's grid, for a text."""
    model = in_steps(model)
    ts = depths_of(model) if ts is None else np.asarray(ts, np.float32)
    layers: dict[str, Memory] = {}
    check_depths(model, ts, "the state-space analysis")
    blocks = model.field.stack(ts)
    logs = None
    for index, branch in enumerate(blocks.branches):
        mixer, name = branch.mixer, f"layer {index + 1}"
        if isinstance(mixer, SSM):
            log_a, log_delta = (
                np.asarray(x, np.float64) for x in (mixer.space.log_a, mixer.space.log_delta)
            )
            layers[f"{name}, ssm"] = _memory(ts, -np.exp(log_a + log_delta))
        elif isinstance(mixer, SelectiveSSM):
            if logs is None:
                given = jnp.asarray(tokens, jnp.int32)
                check_program(
                    _selective,
                    model,
                    given,
                    what=f"the state-space analysis of {len(tokens)} tokens",
                    instead="give a shorter --text or fewer --num-steps",
                )
                logs = _selective(model, given)
            by_token = np.asarray(logs[index], np.float64)
            here = _memory(first_stages(model), np.median(by_token, axis=1))
            layers[f"{name}, selective-ssm"] = Memory(
                here.ts, here.eigenvalues, here.half_lives, np.exp(by_token)
            )
    return StateSpaces(layers)


def first_stages(model: LanguageModel) -> Float[np.ndarray, " depth"]:
    """Where each step first asks for weights."""
    assert isinstance(model.scheme, AbstractStepScheme)
    return stage_times(model.num_steps, model.scheme.stages)[:, 0]


def _memory(ts: np.ndarray, log_decay: np.ndarray) -> Memory:
    return Memory(ts, np.exp(log_decay), np.log(2.0) / -log_decay, None)


class Recorded:
    """Evaluates branches as usual, and keeps delta A of the selective ones at each call."""

    def __init__(self, rows: Rows):
        self.plain, self.kept = ApplyFull(rows, None), {}

    def __call__(self, branch: Branch, x: Hidden) -> Hidden:
        mixer = branch.mixer
        if isinstance(mixer, SelectiveSSM):
            raw = mixer.in_proj(branch.normalised(x))[:, -mixer.num_heads :].astype(jnp.float32)
            delta = jax.nn.softplus(raw + mixer.decay.delta_bias[None])
            # A step may meet a layer several times; the first is at the step's own state.
            self.kept.setdefault(id(branch), -delta * jnp.exp(mixer.decay.log_a)[None])
        return self.plain(branch, x)

    def finish(self) -> tuple[Array, ...]:
        return tuple(self.kept.values())


@eqx.filter_jit
def _selective(model: LanguageModel, tokens: Array) -> dict[int, Any]:
    """delta A of each selective layer, by its place in the block, for every step and token."""
    rows = Rows(1, len(tokens))
    solution = model.core.integrate(
        model.core_input(tokens), rows, make_apply=lambda _: Recorded(rows)
    )
    # Later stages of a step, which have blocks of their own, come after those of the first.
    selective = [
        index
        for index, branch in enumerate(block_at_end(model).branches)
        if isinstance(branch.mixer, SelectiveSSM)
    ]
    return {index: solution.aux[place] for place, index in enumerate(selective)}


@ANALYSES.register("state-space")
class StateSpaceAnalysis(Analysis):
    order: ClassVar[int] = 50

    def run(self, subject: Subject) -> AbstractResult:
        return state_space(subject.model, subject.tokens)

    def lacks(self, model: LanguageModel) -> str | None:
        return lacks_state_space(model)
