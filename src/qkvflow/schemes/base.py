"""How depth is traversed: from a field and a state at t = 0 to the state at t = 1.

The model is the flow of dx/dt = T f(x, t), where f is the sum of the increments of the block
at depth t and T, the `horizon`, is how many whole increments the flow adds up to. A standard
transformer of N layers adds N of them (T = N), that of Tong et al. 2025 (SDML-KU/qkvflow) takes
their average (T = 1). The horizon belongs to the trained model, so the same weights can be run with
more or fewer steps, or another scheme, and still follow the same flow: every scheme's step size is
T / N.

A scheme asks the field for blocks and hands branches to an `ApplyBranch`, which knows about
sequences, dropout and caches, so that a scheme is only arithmetic on states.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from qkvflow.blocks.base import Block, Branch, Rows
from qkvflow.errors import UserError
from qkvflow.schemes.parts.grid import stage_times
from qkvflow.schemes.parts.remat import scan

Hidden = Float[Array, "rows d_model"]
Size = float | Float[Array, ""]
"""Of a step: T / N, or what a grid that is drawn gives."""


@runtime_checkable
class FieldLike(Protocol):
    """All that a scheme knows of a field."""

    def at(self, t: Any) -> Block: ...

    def stack(self, ts: Any) -> Block: ...


@runtime_checkable
class ApplyBranch(Protocol):
    """Evaluates branches in the order a scheme calls for them, within one step."""

    def __call__(self, branch: Branch, x: Hidden) -> Hidden: ...

    def finish(self) -> Any:
        """What the step leaves behind (the new caches), in the order of the calls."""
        ...


class ApplyFull:
    """Whole sequences, with dropout where there is a key."""

    def __init__(self, rows: Rows, key: PRNGKeyArray | None):
        self.rows, self.key, self.calls = rows, key, 0

    def __call__(self, branch: Branch, x: Hidden) -> Hidden:
        key = None if self.key is None else jax.random.fold_in(self.key, self.calls)
        self.calls += 1
        return branch(x, self.rows, key=key)

    def finish(self) -> None:
        return None


class ApplyCached:
    """The next tokens of sequences whose past is in `states`, one for each call of the step.

    It leaves behind what has to be placed in the states (see `blocks.base.place`).
    """

    def __init__(self, rows: Rows, states: tuple[Any, ...]):
        self.rows, self.states, self.new = rows, states, []

    def __call__(self, branch: Branch, x: Hidden) -> Hidden:
        y, state = branch.append(x, self.rows, self.states[len(self.new)])
        self.new.append(state)
        return y

    def finish(self) -> tuple[Any, ...]:
        return tuple(self.new)


class ApplyInPlace:
    """As `ApplyCached`, but it leaves behind whole states, for states that are arrays of their own:
    what is written before it is read need not be copied."""

    def __init__(self, rows: Rows, states: tuple[Any, ...]):
        self.rows, self.states, self.new = rows, states, []

    def __call__(self, branch: Branch, x: Hidden) -> Hidden:
        y, state = branch.extend(x, self.rows, self.states[len(self.new)])
        self.new.append(state)
        return y

    def finish(self) -> tuple[Any, ...]:
        return tuple(self.new)


class InitCaches:
    """Empty caches for the calls a step makes; evaluates nothing."""

    def __init__(self, batch: int, length: int, dtype: Any):
        self.batch, self.length, self.dtype, self.new = batch, length, dtype, []

    def __call__(self, branch: Branch, x: Hidden) -> Hidden:
        self.new.append(branch.mixer.init_state(self.batch, self.length, self.dtype))
        return x

    def finish(self) -> tuple[Any, ...]:
        return tuple(self.new)


class Solution(NamedTuple):
    """The state at t = 1, what the steps left behind, and how much work it took."""

    x: Hidden
    aux: Any
    trajectory: Float[Array, "depth rows d_model"] | None
    num_evaluations: int | Int[Array, ""]
    """Of a whole block."""
    succeeded: bool | Array = True
    residual: float | Float[Array, ""] = 0.0
    """Largest entry of what is left of an equation that was solved."""


@dataclasses.dataclass(frozen=True)
class SchemeOptions:
    """What a configuration says of a scheme; each takes what concerns it."""

    composition: str = "sequential"
    tolerance: float = 1e-3


class AbstractScheme(eqx.Module):
    """How depth is traversed."""

    injected: ClassVar[bool | None] = None
    """Whether it needs an injection (True), cannot have one (False), or takes either."""

    @property
    def unwrapped(self) -> "AbstractScheme":
        """The scheme itself, where it stands inside another: what to ask for its kind."""
        return self

    def default_horizon(self, num_steps: int) -> float:
        """How many whole increments the flow adds up to, where nothing else is said."""
        return 1.0

    @abc.abstractmethod
    def integrate(
        self,
        field: FieldLike,
        x: Hidden,
        *,
        num_steps: int,
        horizon: Size,
        make_apply: Callable[[Any], ApplyBranch],
        per_step: Any = None,
        prepare: Callable[[Block], Block] = lambda block: block,
        remat: str = "none",
        save: bool = False,
        edges: Float[Array, " edges"] | None = None,
        before: Callable[[Hidden], Hidden] | None = None,
    ) -> Solution:
        """Carry x from t = 0 to t = 1.

        `make_apply` makes each step's `ApplyBranch` from that step's slice of `per_step` (keys,
        caches or nothing). `prepare` is applied to every block (to cast its matrices). `remat`
        says what the backward pass computes again instead of keeping (see `parts.remat`).
        `save` keeps the state before the first and after every step. `edges` are the N + 1
        depths where steps begin and end, if they are not to be equally long. `before` is applied
        to the state before every step (an injection).
        """


class AbstractSolver(AbstractScheme):
    """A scheme that works until a tolerance is met, and may give up before.

    Its work is not known beforehand and depends on the whole batch, so caches cannot be kept: it
    has no steps to hold them. Whoever runs it looks at `Solution.succeeded`.
    """

    max_steps: eqx.AbstractVar[int]

    @abc.abstractmethod
    def gave_up(self) -> str:
        """What to tell of a batch that it did not arrive with."""

    @abc.abstractmethod
    def blocks_made(self, num_steps: int, evaluations: int | float) -> int | float:
        """Of a pass that evaluated so many, how many it made."""

    @abc.abstractmethod
    def in_steps(self) -> "AbstractStepScheme":
        """The steps that stand for it where steps are looked at."""


class AbstractStepScheme(AbstractScheme):
    """A scheme that is the same step N times; it runs as a scan over depth."""

    stages: eqx.AbstractClassVar[tuple[float, ...]]
    """Where in a step weights are needed, as fractions of it."""

    @abc.abstractmethod
    def step(self, blocks: tuple[Block, ...], x: Hidden, size: Size, apply: ApplyBranch) -> Hidden:
        """One step of `size` from x, with the blocks at the stages."""

    @abc.abstractmethod
    def evaluations_per_step(self) -> int:
        """How many times a step evaluates the increments of a whole block."""

    def integrate(
        self,
        field: FieldLike,
        x: Hidden,
        *,
        num_steps: int,
        horizon: Size,
        make_apply: Callable[[Any], ApplyBranch],
        per_step: Any = None,
        prepare: Callable[[Block], Block] = lambda block: block,
        remat: str = "none",
        save: bool = False,
        edges: Float[Array, " edges"] | None = None,
        before: Callable[[Hidden], Hidden] | None = None,
    ) -> Solution:
        times, sizes = stage_times(num_steps, self.stages), None
        if edges is not None:
            lengths = jnp.diff(edges)
            times = edges[:-1, None] + lengths[:, None] * jnp.asarray(self.stages)[None]
            sizes = horizon * lengths
        blocks = tuple(prepare(field.stack(ts)) for ts in times.T)

        def body(x: Hidden, inputs: Any) -> tuple[Hidden, Any]:
            blocks, extra, size = inputs
            apply = make_apply(extra)
            size = horizon / num_steps if size is None else size
            begin = x if before is None else before(x).astype(x.dtype)
            x = self.step(blocks, begin, size, apply).astype(x.dtype)
            return x, (apply.finish(), x if save else None)

        end, (aux, states) = scan(
            body,
            x,
            (blocks, per_step, sizes),
            num_steps=num_steps,
            remat=remat,
            # With caches there is nothing to keep, and a loop reads fewer of them at once.
            unroll=not isinstance(per_step, tuple),
        )
        trajectory = jnp.concatenate([x[None], states]) if save else None
        return Solution(end, aux, trajectory, num_steps * self.evaluations_per_step())

    def init_caches(
        self, field: FieldLike, *, num_steps: int, batch: int, length: int, dtype: Any
    ) -> Any:
        """Empty caches for every call of every step, with a leading depth axis."""
        # At depths that this scheme asks for: a precomputed field knows no others.
        ts = stage_times(num_steps, self.stages)[:, 0]
        blocks = eqx.filter_eval_shape(lambda field: field.stack(ts), field)
        block = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), blocks)
        fresh = InitCaches(batch, length, dtype)
        self.step((block,) * len(self.stages), jnp.zeros((1, 1)), 1.0, fresh)
        return jax.tree.map(
            lambda leaf: jnp.zeros((num_steps, *leaf.shape), leaf.dtype), fresh.finish()
        )


def total_increment(block: Block, x: Hidden, apply: ApplyBranch) -> Hidden:
    """f(x, t): the sum of all branches' increments at the same state."""
    increments = [apply(branch, x) for branch in block.branches]
    return sum(increments[1:], increments[0])


def check_injected(name: str, scheme: AbstractScheme, injected: bool) -> None:
    """Refuse a scheme with an injection that it cannot have, or without one that it needs."""
    if scheme.injected is False and injected:
        raise UserError(
            f"scheme {name} has no steps of its own to inject before; choose a fixed scheme, or "
            "injection none"
        )
    if scheme.injected and not injected:
        raise UserError(
            f"scheme {name} needs an injection: without one its result does not depend on the "
            "text; choose one, such as injection diagonal"
        )
