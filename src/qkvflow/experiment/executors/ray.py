"""The same units as tasks on an existing Ray cluster (extra `ray`).

Run directories, the corpus and plugin files lie on storage that all nodes share, under the same
paths. A task is a process of its own for every unit. Ray's own retries are off: a unit whose node
or process dies is put back here, as with local workers.
"""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkvflow.errors import UserError
from qkvflow.experiment.display import Display
from qkvflow.experiment.executors.base import AbstractExecutor, Board, ExecutorOptions, Stopped
from qkvflow.experiment.units import Queue
from qkvflow.zoo.plugins import plugin_setup
from qkvflow.zoo.registry import EXECUTORS

_POLL_SECONDS = 0.5
_GRACE_SECONDS = 120.0
_ANSWER_SECONDS = 5.0


def _perform(job: Mapping[str, Any], plugins: Mapping[str, Any]) -> dict[str, Any]:
    from qkvflow import allocator
    from qkvflow.experiment.worker import perform
    from qkvflow.zoo.plugins import take_setup

    allocator.configure_malloc()
    try:
        take_setup(plugins)
    except UserError as error:
        return {"blocked": str(error)}
    return perform(job)


@EXECUTORS.register("ray")
class Ray(AbstractExecutor):
    def __init__(self, options: ExecutorOptions) -> None:
        self._options = options

    def run(self, queue: Queue, *, logs: Path, display: Display, caught: list[int]) -> None:
        board = Board(queue, display)
        if not queue.left:
            return
        ray = self._connect()
        task = self._task(ray)
        refs: dict[Any, str] = {}
        number = 0
        try:
            while queue.left or refs:
                if caught or board.blocked is not None:
                    break
                while len(refs) < self._places(ray) and (unit := board.take()) is not None:
                    name, number = str(number), number + 1
                    board.running[name] = unit
                    refs[task.remote(dict(unit.job), plugin_setup())] = name
                self._collect(ray, refs, board, _POLL_SECONDS)
                board.show()
            self._cancel(ray, refs, board)
        finally:
            for ref in refs:
                ray.cancel(ref, force=True)
        board.raise_if_blocked()
        if caught:
            raise Stopped(caught[0])

    def _connect(self) -> Any:
        try:
            import ray
        except ImportError:
            raise UserError(
                "--executor ray needs Ray; install it with pip install 'qkvflow[ray]'"
            ) from None
        if not ray.is_initialized():
            try:
                _require_answer(self._options.address)
                ray.init(address=self._options.address or "auto", log_to_driver=False)
            except Exception as error:
                where = self._options.address or "this machine"
                text = " ".join(str(error).split())[:160]
                raise UserError(
                    f"no Ray cluster answers at {where} ({text}); start one with 'ray start "
                    "--head' and give its --ray-address"
                ) from None
        return ray

    def _task(self, ray: Any) -> Any:
        options = self._options
        # One thread, as local workers have on CPUs, so that the losses are the same bits.
        env = (
            {}
            if options.gpus_per_run
            else {"PJRT_NPROC": "1", "NPROC": "1", "JAX_PLATFORMS": "cpu"}
        )
        return ray.remote(_perform).options(
            num_cpus=options.cpus_per_run,
            num_gpus=options.gpus_per_run,
            max_retries=0,
            runtime_env={"env_vars": env},
        )

    def _places(self, ray: Any) -> int:
        """Units that the cluster can take at once; it may have grown or lost a node."""
        if self._options.workers is not None:
            return self._options.workers
        there = ray.cluster_resources()
        places = there.get("CPU", 0.0) / self._options.cpus_per_run
        if self._options.gpus_per_run:
            places = min(places, there.get("GPU", 0.0) / self._options.gpus_per_run)
        return max(1, int(places))

    def _collect(self, ray: Any, refs: dict[Any, str], board: Board, seconds: float) -> None:
        done, _ = ray.wait(list(refs), num_returns=1, timeout=seconds) if refs else ([], [])
        for ref in done:
            name = refs.pop(ref)
            try:
                board.answer(name, ray.get(ref))
            except ray.exceptions.RayTaskError as error:
                text = " ".join(str(error).split())[-200:]
                board.answer(name, {"failed": text})
            except ray.exceptions.RayError as error:
                board.died(name, f"was lost ({type(error).__name__})")

    def _cancel(self, ray: Any, refs: dict[Any, str], board: Board) -> None:
        """Ask all to stop, and wait until the runs are saved."""
        for ref in refs:
            ray.cancel(ref)
        if refs:
            ray.wait(list(refs), num_returns=len(refs), timeout=_GRACE_SECONDS)
        refs.clear()
        board.running.clear()


def _require_answer(address: str | None) -> None:
    """Fail within seconds where nobody listens: Ray itself tries for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
