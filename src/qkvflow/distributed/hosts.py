"""One run by several processes, on one machine or many: `jax.distributed`.

Every process runs the same program on its own devices and reads its own rows of every batch.
Process 0 alone writes files and talks. What processes have to decide alike (when to stop, how many
steps to make) they decide here, from what all of them or the first one say.
"""

import contextlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
import numpy as np

from qkvflow.errors import UserError

HEARTBEAT_SECONDS = 100
"""A process that has not been heard of for so long is taken for dead: JAX's own measure, which a
machine with too much to do does not exceed."""
LOST_SECONDS = 5
"""How long those who are left wait for an answer of the others before they end."""
_JOIN_SECONDS = 120
_TEXT_BYTES = 1024


class Lost(Exception):
    """Another process of the run has gone."""


def join(
    coordinator: str | None = None,
    process_id: int | None = None,
    num_processes: int | None = None,
    *,
    timeout: int = _JOIN_SECONDS,
) -> None:
    """Join the run at `coordinator`, `HOST:PORT` of process 0; before anything else uses JAX.

    With nothing given, JAX asks the cluster: SLURM, Open MPI, Kubernetes, a TPU pod.
    """
    if coordinator is not None:
        _check(coordinator, process_id, num_processes)
    # Programs that wait for each other's collectives must start in the same order everywhere.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    # SIGTERM is ours to act on (see `training.loop.signals`).
    jax.config.update("jax_enable_preemption_service", False)
    # JAX aborts the process when its own patience ends; ours ends before, with a line to read.
    patience = threading.Timer(timeout, _give_up, (coordinator, process_id, num_processes, timeout))
    patience.daemon = True
    patience.start()
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            initialization_timeout=timeout + HEARTBEAT_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=HEARTBEAT_SECONDS,
            coordinator_bind_address=_bind_address(coordinator) if process_id == 0 else None,
        )
    except Exception as error:
        text = " ".join(str(error).split())
        if coordinator is None:
            raise UserError(
                "--distributed auto found no cluster (SLURM, Open MPI, Kubernetes or a TPU pod); "
                "give --coordinator HOST:PORT, --process-id and --num-processes"
            ) from None
        raise UserError(
            f"process {process_id} could not join the run at {coordinator}: {text[:200]}"
        ) from None
    finally:
        patience.cancel()


def _give_up(coordinator: str | None, process_id: Any, num_processes: Any, timeout: int) -> None:
    where = "" if coordinator is None else f" at {coordinator}"
    print(
        f"qkvflow: process {process_id} has waited {timeout} s for the others{where}; start all "
        f"{num_processes or ''} processes, with the same --coordinator",
        file=sys.stderr,
    )
    leave(2)


def _check(coordinator: str, process_id: int | None, num_processes: int | None) -> None:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UserError(f"--coordinator must be HOST:PORT of process 0, not '{coordinator}'")
    if process_id is None or num_processes is None:
        raise UserError("--coordinator needs --process-id and --num-processes as well")
    if not 0 <= process_id < num_processes:
        raise UserError(
            f"--process-id must be from 0 to {num_processes - 1} of {num_processes} processes, "
            f"not {process_id}"
        )
    if process_id == 0:
        _check_port(int(port))


def _bind_address(coordinator: str | None) -> str | None:
    """Where process 0 listens: at the address it was given and no other, if that is one of this
    machine's. One that is only translated to it (a service of a cluster) means all of them."""
    if coordinator is None:
        return None
    host, _, port = coordinator.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
        family, kind, _, _, address = found[0]
        with contextlib.closing(socket.socket(family, kind)) as probe:
            probe.bind(address)
    except OSError:
        return None
    return f"[{address[0]}]:{port}" if family == socket.AF_INET6 else f"{address[0]}:{port}"


def _check_port(port: int) -> None:
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise UserError(
                f"port {port} cannot be used here ({error.strerror}); choose another in "
                "--coordinator, the same for all processes"
            ) from None


def count() -> int:
    return jax.process_count()


def is_rank0() -> bool:
    """Whether this is the process that writes and talks."""
    return jax.process_index() == 0


def all_gather(value: Any) -> np.ndarray:
    """Everybody's value, `process ...`, on everybody."""
    from jax.experimental import multihost_utils

    value = np.asarray(value)
    return value[None] if count() == 1 else np.asarray(multihost_utils.process_allgather(value))


def on_rank0(work: Callable[[], Any]) -> Any:
    """`work()` on process 0, with everybody waiting; its result there, None elsewhere.

    A `UserError` there is raised everywhere.
    """
    if count() == 1:
        return work()
    all_gather(0)
    result, said = None, ""
    if is_rank0():
        try:
            result = work()
        except UserError as error:
            said = str(error)
    said = _gather_text(said)[0]
    if said:
        raise UserError(said)
    return result


def rank0_first(work: Callable[[], Any]) -> Any:
    """`work()` on process 0, then on the others, who find in caches what it left there."""
    result = on_rank0(work)
    return result if is_rank0() else work()


def require_same(what: str, value: str) -> None:
    """Refuse to go on when processes do not have the same."""
    if count() == 1:
        return
    values = _gather_text(value)
    for process, each in enumerate(values):
        if each != values[0]:
            raise UserError(
                f"{what} of process {process} is not that of process 0; every process has to be "
                "started with the same command and find the same files"
            )


def _gather_text(text: str) -> list[str]:
    cut = text.encode()[:_TEXT_BYTES]
    padded = np.zeros(_TEXT_BYTES, np.uint8)
    padded[: len(cut)] = np.frombuffer(cut, np.uint8)
    return [row.tobytes().rstrip(b"\0").decode(errors="ignore") for row in all_gather(padded)]


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Turns the failure of a collective into `Lost`, which names the processes that are gone."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if not of_collective(error):
            raise
        gone = missing()
        who = "another process" if not gone else ", ".join(f"process {each}" for each in gone)
        verb = "are" if len(gone) > 1 else "is"
        raise Lost(
            f"{who} of {count()} {verb} gone, so this one stops as well; the run can be resumed "
            "from its last checkpoint"
        ) from error


def of_collective(error: Exception) -> bool:
    """Whether this came of another process, by the words that JAX's libraries use for it."""
    if count() == 1 or isinstance(error, UserError):
        return False
    words = ("gloo", "nccl", "collective", "connection", "coordination", "barrier", "deadline")
    text = str(error).lower()
    return any(word in text for word in words)


def missing(question: str = "anyone there") -> list[int]:
    """The processes that do not answer within a few seconds. A question is asked only once."""
    from orbax.checkpoint import multihost

    everybody = set(range(count()))
    try:
        multihost.sync_global_processes(question, timeout=LOST_SECONDS, processes=everybody)
    except Exception as error:
        # The service names those who did not come to the barrier, one on a line.
        named = str(error).partition("timed out task names:")[2]
        return sorted({int(each) for each in re.findall(r"(\d+)\s*$", named, re.MULTILINE)})
    return []


def part() -> None:
    """Leave the run in good order: when all have come to its end."""
    jax.distributed.shutdown()


def leave_together(code: int) -> NoReturn:
    """End this process, after those who end for the same reason: the first one last, because JAX
    aborts the others when it goes."""
    if not missing("leaving") and is_rank0():
        time.sleep(1)
    leave(code)


def leave(code: int) -> NoReturn:
    """End this process now. The ordinary way out waits for the others, who may be gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
