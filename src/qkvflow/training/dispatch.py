"""Calls of the compiled program: many steps at once, with data from the device or the host."""

from typing import Any

import jax
import numpy as np

from qkvflow.data import TokenArray
from qkvflow.data.batches import BatchLoader, fits_on_device
from qkvflow.distributed import hosts
from qkvflow.distributed.memory import program_bytes
from qkvflow.training.program import Program
from qkvflow.training.step import TrainState

MAX_STEPS = 128
"""Of one call, a part of the program; runs of any length share it."""
_MAX_HOST_STEPS = 8
_SECONDS = 2.0
"""Of one call: its temporaries are handed out anew by the system, which for a step of a third of a
second costs a sixth of it; and Ctrl-C is answered when it ends."""


class Dispatch:
    """Calls the compiled program, with as many steps at once as take about two seconds."""

    def __init__(self, program: Program, tokens: TokenArray, first_step: int) -> None:
        train = program.config.train
        self._program, self._layout = program, program.layout
        # Several processes read their own rows of every batch.
        on_device = hosts.count() == 1 and fits_on_device(len(tokens), tokens.tokens.dtype.itemsize)
        self._most = MAX_STEPS if on_device else _MAX_HOST_STEPS
        self._wanted = train.steps_per_dispatch
        self.size = min(self._wanted or 1, self._most)
        hyper = jax.tree.map(self._layout.replicate, program.hyper())
        self._hyper = hyper._replace(teacher=program.teacher_arrays)
        self._jitted = program.jitted(self._most, on_device=on_device)
        self._loader: BatchLoader | None = None
        if on_device:
            self._tokens = self._layout.replicate(tokens.tokens)
        else:
            self._loader = BatchLoader(
                tokens.tokens,
                seed=train.seed,
                batch_size=train.batch_size,
                context=program.config.context,
                first_step=first_step,
                rows=self._layout.own_rows(train.batch_size),
                prefetch=2 * self._most,
            )

    def compile(self, state: TrainState) -> int | None:
        """Compile for this state; returns the bytes that the program holds at once."""
        self._compiled = self._jitted.lower(state, self._hyper, *self._data(0)).compile()
        return program_bytes(self._compiled)

    def __call__(self, state: TrainState, count: int) -> tuple[TrainState, Any]:
        state, metrics = self._compiled(state, self._hyper, *self._data(count))
        return state, jax.device_get(metrics)

    def _data(self, count: int) -> tuple[Any, Any]:
        """The tokens, or the next `count` batches of them; and `count`."""
        number = self._layout.replicate(np.int32(count))
        if self._loader is None:
            return self._tokens, number
        batch_size = self._program.config.train.batch_size
        rows = self._layout.own_rows(batch_size)
        shape = (self._most, rows.stop - rows.start, self._program.config.context)
        both = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        for index in range(count):
            both[0][index], both[1][index] = next(self._loader)
        return tuple(self._layout.assemble(each, batch_size) for each in both), number

    def learn(self, seconds_per_step: float) -> None:
        """How long a step takes, for the size of the next call."""
        if self._wanted is None:
            size = int(_SECONDS / max(seconds_per_step, 1e-6))
            self.size = max(1, min(size, self._most, 2 * self.size))

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()
