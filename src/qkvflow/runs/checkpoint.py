"""Checkpoints by Orbax: written in the background, atomic, the last few and the best kept.

A checkpoint has three parts: `model`, the arrays of the model to use; `training`, what else it
takes to go on (the optimiser's state, counters); and `host`, a small JSON document: what the host
knew at that step, what has to be the same when the run goes on (see `resume_rules`), and the hashes
of the other two. Loading a model reads the first part alone.
"""

import contextlib
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from qkvflow import allocator
from qkvflow.digests import SEAL, arrays_digest, is_intact, sealed
from qkvflow.distributed import hosts
from qkvflow.errors import UserError
from qkvflow.runs.rundir import CHECKPOINTS, cannot_write
from qkvflow.runs.sections import CheckpointConfig

# Orbax reports every save; what matters to the user is raised as an error.
logging.getLogger("absl").setLevel(logging.CRITICAL)


_OVERHEAD_BYTES = 1 << 17
"""Of a checkpoint besides its arrays."""
_UNSEALED = {"config", "data", "mesh", "progress"}
"""What the host's document had before it had hashes."""


class Checkpoints:
    """The checkpoints of a run directory."""

    def __init__(
        self, directory: Path, config: CheckpointConfig | None = None, *, read_only: bool = False
    ) -> None:
        self._run = directory
        self._policy = _LastAndBest(config.keep if config else None)
        options = ocp.CheckpointManagerOptions(
            create=not read_only,
            read_only=read_only,
            cleanup_tmp_directories=not read_only,
            enable_async_checkpointing=not read_only,
            preservation_policy=self._policy,
        )
        try:
            self._manager = ocp.CheckpointManager(
                (directory / CHECKPOINTS).absolute(),
                options=options,
                item_handlers={
                    "model": ocp.StandardCheckpointHandler(),
                    "training": ocp.StandardCheckpointHandler(),
                    "host": ocp.JsonCheckpointHandler(),
                },
            )
        except OSError as error:
            raise cannot_write(directory, error.strerror or str(error)) from error

    def steps(self) -> list[int]:
        """Steps that have a whole checkpoint."""
        return sorted(self._manager.all_steps())

    def save(
        self, model: Any, training: Any, host: dict[str, Any], step: int, best: int | None
    ) -> None:
        """Begin to save; the arrays are copied before this returns, so they may be donated.

        `best` is the step to keep besides the latest.
        """
        self._policy.best = best
        self.check_room((model, training))
        parts = {"model": _by_path(model), "training": _by_path(training)}
        host = {**host, "digests": {name: _digest(part) for name, part in parts.items()}}
        allocator.trim_malloc()  # What the one before took: copies of arrays, in pieces.
        try:
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    model=ocp.args.StandardSave(parts["model"]),
                    training=ocp.args.StandardSave(parts["training"]),
                    host=ocp.args.JsonSave(sealed(host)),
                ),
                force=True,
            )
        except Exception as error:
            raise self._failed(error) from error

    def check_room(self, arrays: Any) -> None:
        """Refuse to begin a checkpoint that the disk has no room for: halfway is too late."""
        needed = sum(leaf.nbytes for leaf in jax.tree.leaves(arrays)) + _OVERHEAD_BYTES
        free = shutil.disk_usage(self._run).free
        if free < needed:
            why = f"a checkpoint takes {needed / 1e6:.1f} MB and {free / 1e6:.1f} MB are free"
            raise cannot_write(self._run, why)

    def wait(self) -> None:
        """Until everything that was begun is on disk."""
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise self._failed(error) from error

    def restore_host(self, step: int) -> dict[str, Any]:
        """The JSON document of a checkpoint."""
        try:
            args = ocp.args.Composite(host=ocp.args.JsonRestore())
            host = self._manager.restore(step, args=args)["host"]
            intact = is_intact(host) if SEAL in host else host.keys() <= _UNSEALED
        except Exception as error:
            raise self._unreadable(step, error) from None
        if not intact:
            raise self._unreadable(step, "its document was altered")
        return host

    def restore_model(self, step: int, like: Any) -> Any:
        """The model's arrays of a checkpoint, in the shapes (and shardings) of `like`."""
        return self._restore(step, "model", like)

    def restore(self, step: int, model: Any, training: Any) -> tuple[Any, Any]:
        """Both parts of a checkpoint, in the shapes (and shardings) that are given."""
        return self._restore(step, "model", model), self._restore(step, "training", training)

    def _restore(self, step: int, part: str, like: Any) -> Any:
        shapes = _by_path(like)
        _hush_late_answers()
        try:
            # Of this part alone: the manager would read what it knows of all of them.
            folder = epath.Path(self._run.absolute()) / CHECKPOINTS / str(step) / part
            saved = ocp.StandardCheckpointHandler().metadata(folder)
            differs = _difference(saved, shapes)
        except Exception as error:
            raise self._unreadable(step, error) from None
        if differs is not None:
            raise UserError(
                f"the checkpoint of step {step} in {self._run} is of another model: {differs}"
            )
        try:
            args = ocp.args.Composite(**{part: ocp.args.StandardRestore(shapes)})
            flat = self._manager.restore(step, args=args)[part]
        except Exception as error:
            raise self._unreadable(step, error) from None
        recorded = self.restore_host(step).get("digests", {}).get(part)
        if recorded not in (None, _digest(flat)):
            raise self._unreadable(step, f"the arrays of its {part} part were altered")
        leaves, structure = jax.tree_util.tree_flatten_with_path(like)
        return jax.tree.unflatten(structure, [flat[_name(path)] for path, _ in leaves])

    def forget(self, keep: int | None) -> None:
        """Delete all checkpoints but that of one step."""
        for step in self.steps():
            if step != keep:
                self._manager.delete(step)

    def close(self) -> None:
        # What went wrong in the background has been raised by `wait`, or something worse has.
        with contextlib.suppress(Exception):
            self._manager.close()

    def _failed(self, error: Exception) -> Exception:
        if hosts.of_collective(error):
            return error  # Not of the disk: another process is gone.
        text = " ".join(str(error).split()) or type(error).__name__
        why = "No space left on device" if "No space left" in text else text[:200]
        return cannot_write(self._run, why)

    def _unreadable(self, step: int, error: Exception | str) -> UserError:
        # What libraries say of damage is of no use to anybody: their own objects and names.
        text = error if isinstance(error, str) else "it is damaged"
        if isinstance(error, OSError) and error.strerror:
            text = error.strerror
        return UserError(
            f"the checkpoint of step {step} in {self._run} cannot be read ({text}); delete "
            f"{self._run / CHECKPOINTS / str(step)} to go on from the one before"
        )


class _LastAndBest(ocp.checkpoint_managers.PreservationPolicy):
    """Keeps the latest `last` checkpoints (all, if None) and the one of step `best`."""

    def __init__(self, last: int | None) -> None:
        self.last = last
        self.best: int | None = None

    def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
        first = 0 if self.last is None else len(checkpoints) - self.last
        return [index >= first or info.step == self.best for index, info in enumerate(checkpoints)]


def _hush_late_answers() -> None:
    """Reads that were under way when another failed answer to an event loop that is closed, each
    with a traceback that nobody can catch; the one that matters has been told."""
    if getattr(sys.unraisablehook, "__name__", "") == "hushed":
        return
    before = sys.unraisablehook

    def hushed(unraisable: Any) -> None:
        if "Event loop is closed" not in str(unraisable.exc_value):
            before(unraisable)

    sys.unraisablehook = hushed


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path)


def _by_path(tree: Any) -> dict[str, Any]:
    """A flat dictionary: its names do not depend on how a tree library writes its nodes."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {_name(path): leaf for path, leaf in leaves}


def _digest(arrays: dict[str, Any]) -> str:
    here = all(array.is_fully_addressable for array in arrays.values())
    return arrays_digest(arrays, None if here else _whole)


def _whole(array: Any) -> Any:
    """All of an array that may be divided over processes, who ask for it together."""
    if array.is_fully_addressable:
        return array
    if array.is_fully_replicated:
        return array.addressable_data(0)
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(array, tiled=True)


def _difference(saved: Any, wanted: dict[str, Any]) -> str | None:
    """The first way in which a checkpoint does not fit, or None."""
    found = {key: tuple(value.shape) for key, value in dict(saved).items()}
    expected = {key: tuple(value.shape) for key, value in wanted.items()}
    for key in sorted(found.keys() | expected.keys()):
        if found.get(key) != expected.get(key):
            return f"{key} is {found.get(key, 'absent')}, wanted {expected.get(key, 'absent')}"
    return None
