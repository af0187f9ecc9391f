"""The training program of a configuration: the one place where a step is put together.

The loop runs it, speed measurements time it, `plan` compiles it for devices that are not there, and
budgets in FLOPs count it: all of them ask here, so what is counted is what is run.
"""

import dataclasses
from functools import cached_property, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from qkvflow.compilation import shared
from qkvflow.distributed import Layout, one_device
from qkvflow.errors import UserError
from qkvflow.lm import LanguageModel, build_config, count_flops
from qkvflow.lm.assembly import abstract_model
from qkvflow.runs.config import RunConfig
from qkvflow.schemes import AbstractSolver
from qkvflow.training.objective import make_distillation, make_objective, step_flops
from qkvflow.training.optim import averages, evaluation_params, optimiser
from qkvflow.training.schedule import make_schedule
from qkvflow.training.step import (
    Hyper,
    MultiStep,
    TrainState,
    init_state,
    make_multi_step,
    model_key,
    split_model,
)
from qkvflow.zoo.registry import OPTIMISERS


@dataclasses.dataclass(frozen=True)
class Program:
    """What a run computes, apart from its data. Make one with `make_program`."""

    config: RunConfig
    vocab_size: int
    params: Any
    """Shapes of the model's arrays."""
    static: Any
    """The rest of the model."""
    layout: Layout
    teacher: LanguageModel | None = None
    """Whose predictions are learnt; placed as the layout says."""

    @property
    def model(self) -> LanguageModel:
        """The model's shapes."""
        return eqx.combine(self.params, self.static)

    @cached_property
    def flops_per_step(self) -> int:
        """On average over what a step may draw, consistency and random depths included. A solver's
        steps count as one evaluation each: how many it makes is not known before."""
        return self.flops_as_run(None)

    def flops_as_run(self, evaluations: float | None) -> int:
        """Of a step, where a solver was found to make so many evaluations on average, with the
        teacher's forward pass. A teacher's weights along depth do not change: the compiler makes
        them once for all steps of a call, and they are not counted."""
        tokens = self.config.tokens_per_step
        own = step_flops(self.config.train, self.model, tokens, evaluations=evaluations)
        if self.teacher is None:
            return own
        return own + count_flops(self.teacher, self.config.context).forward * tokens

    def hyper(self) -> Hyper:
        """The arguments of the compiled program that this run gives."""
        train, optim = self.config.train, self.config.optim
        return Hyper(
            np.int32(train.seed),
            np.float32(optim.lr),
            np.int32(optim.warmup),
            np.int32(train.steps),
        )

    @property
    def teacher_arrays(self) -> Any:
        return None if self.teacher is None else split_model(self.teacher)[0]

    def multi_step(self, max_steps: int, *, on_device: bool) -> MultiStep:
        """`multi_step(state, hyper, data, count)`; data are the tokens of the train split where
        they are kept on the device, else `max_steps` batches."""
        train, shape = self.config.train, self.config.model.config
        objective, teacher = make_objective(train, exits=shape.exit_gate), None
        if self.teacher is not None:
            objective = make_distillation(train, self.config.distill)
            teacher = split_model(self.teacher)[1]
        return make_multi_step(
            self.static,
            self._optimiser,
            make_schedule(self.config.optim),
            max_steps=max_steps,
            batch_size=train.batch_size,
            context=self.config.context if on_device else None,
            grad_accum=train.grad_accum,
            dropout=shape.dropout > 0 or shape.attention_dropout > 0 or shape.core_init == "noise",
            objective=objective,
            teacher=teacher,
            shard_batch=self.layout.shard_batch,
            shard_model=self.layout.shard_model,
        )

    def jitted(self, max_steps: int, *, on_device: bool) -> Any:
        """`multi_step` under `jax.jit`, which donates the state. Runs that differ in their seed
        alone share it, but for those that have a teacher, which would be kept with it."""
        if self.teacher is not None:
            return self._jitted_steps(max_steps, on_device)
        return _shared_steps(_Alike.of(self), max_steps, on_device)

    def _jitted_steps(self, max_steps: int, on_device: bool) -> Any:
        return jax.jit(
            self.multi_step(max_steps, on_device=on_device),
            donate_argnums=0,
            out_shardings=(self.layout.shardings(self.state), self.layout.replicated),
        )

    def _optimiser(self, hyper: Hyper) -> optax.GradientTransformationExtraArgs:
        optim = self.config.optim
        schedule = partial(make_schedule(optim), hyper)
        ratio = self.config.model.config.width_ratio
        return optimiser(optim, schedule, self.config.train.trainable, ratio)

    def _init_state(self, params: Any) -> TrainState:
        return init_state(params, self._optimiser(jax.tree.map(jnp.asarray, self.hyper())))

    # States

    @cached_property
    def state(self) -> TrainState:
        """Shapes of the training state, with their shardings."""
        return self.layout.like(jax.eval_shape(self._init_state, self.params))

    def init(self) -> TrainState:
        """The state before the first step, with fresh weights from the seed."""
        alike = _Alike.of(dataclasses.replace(self, teacher=None))
        return _shared_init(alike)(np.int32(self.config.train.seed))

    def _fresh(self, seed: Any) -> TrainState:
        config, key = self.config.model.config, model_key(seed)
        model = build_config(config, vocab_size=self.vocab_size, key=key)
        return self._init_state(split_model(model)[0])

    def init_from(self, model: LanguageModel) -> TrainState:
        """The state before the first step, with given weights."""
        given = split_model(model)[0]
        shapes = [jax.tree.map(lambda leaf: leaf.shape, each) for each in (given, self.params)]
        structures = [jax.tree.structure(each) for each in (given, self.params)]
        if structures[0] != structures[1] or shapes[0] != shapes[1]:
            raise UserError(
                "the weights to begin from are of another model or vocabulary than the "
                "configuration; keep the model and its tokenizer"
            )
        return self.layout.place(self._init_state(given))

    def evaluation_params(self, state: TrainState) -> Any:
        """The weights to evaluate and to use: the parameters, or what the optimiser averages."""
        return evaluation_params(self.config.optim, state.opt_state, state.params)

    def split_state(self, state: TrainState) -> tuple[Any, TrainState]:
        """The weights to use and what else it takes to go on: the two parts of a checkpoint."""
        weights = self.evaluation_params(state)
        return weights, state if self._averages else state._replace(params=None)

    def join_state(self, weights: Any, rest: TrainState) -> TrainState:
        """The other way round."""
        return rest if self._averages else rest._replace(params=weights)

    def state_parts(self) -> tuple[Any, TrainState]:
        """Shapes of the two parts of a checkpoint."""
        rest = self.state if self._averages else self.state._replace(params=None)
        return self.state.params, rest

    @property
    def _averages(self) -> bool:
        return averages(self.state.opt_state)


@dataclasses.dataclass(frozen=True)
class _Alike:
    """A program, equal to those that compile to the same for another seed."""

    key: Any
    program: Program = dataclasses.field(compare=False)

    @classmethod
    def of(cls, program: Program) -> "_Alike":
        config = program.config
        leaves, structure = jax.tree.flatten(program.static)
        model = tuple(leaves), structure, program.vocab_size, config.model.config, program.layout
        # What a name stands for may change while a process lives.
        optim = config.optim, OPTIMISERS[config.optim.name]
        return cls((model, optim, dataclasses.replace(config.train, seed=0)), program)


@shared
def _shared_steps(alike: _Alike, max_steps: int, on_device: bool) -> Any:
    return alike.program._jitted_steps(max_steps, on_device)


@shared
def _shared_init(alike: _Alike) -> Any:
    program = alike.program
    return jax.jit(program._fresh, out_shardings=program.layout.shardings(program.state))


def make_program(
    config: RunConfig,
    vocab_size: int,
    layout: Layout | None = None,
    teacher: LanguageModel | None = None,
) -> Program:
    """The program of a run, on one device or divided as `layout` says. Nothing is allocated, but
    for a teacher."""
    params, static = abstract_model(config.model.config, vocab_size)
    layout = layout or one_device()
    if teacher is not None:
        if isinstance(static.scheme, AbstractSolver):
            raise UserError("a teacher needs a model of fixed steps; choose another --model.scheme")
        arrays, rest = split_model(teacher)
        teacher = eqx.combine(layout.place(arrays), rest)
    return Program(config, vocab_size, params, static, layout, teacher)
