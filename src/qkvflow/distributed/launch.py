"""N local processes that make one run: for trying out on one machine what hosts do together.

Each process runs the same command with `--coordinator`, `--process-id` and `--num-processes` added.
Their lines come out as they are written, each with the number of its process in front. When one
fails, the others are stopped: they could only wait for it.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

GRACE_SECONDS = 10
"""How long processes may take to stop before they are killed."""


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(command: Sequence[str], processes: int, *, devices: int | None = None) -> int:
    """Run `qkvflow COMMAND` in that many processes; returns the exit code of the run.

    `devices` pretends that every process has so many devices, on a CPU.
    """
    address = f"127.0.0.1:{free_port()}"
    environment = dict(os.environ)
    if devices is not None:
        flags = f"{environment.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count"
        environment["XLA_FLAGS"] = f"{flags}={devices}".strip()
    started: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    asked: list[int] = []

    def ask(signum: int, _: Any) -> None:
        asked.append(signum)

    before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        for index in range(processes):
            options = ["--coordinator", address, "--process-id", str(index)]
            options += ["--num-processes", str(processes)]
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "qkvflow", *command, *options],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    # Ctrl-C reaches the processes through us, once.
                    start_new_session=True,
                )
            )
            readers += _relay(index, started[-1])
        pids = ", ".join(str(process.pid) for process in started)
        print(f"qkvflow: {processes} processes ({pids}) at {address}", file=sys.stderr, flush=True)
        return _attend(started, asked)
    finally:
        _end(started)
        for reader in readers:
            reader.join(GRACE_SECONDS)
        for each, handler in before.items():
            signal.signal(each, handler)


def _attend(started: list[subprocess.Popen[str]], asked: list[int]) -> int:
    """Until all have ended well, or one has not, or somebody asks to stop."""
    told = 0
    while True:
        codes = [process.poll() for process in started]
        # The one who is killed brings the others down; its own end is the one to tell of.
        failed = sorted(
            (index for index, code in enumerate(codes) if code),
            key=lambda index: codes[index] != -signal.SIGKILL,
        )
        if asked and told < len(asked):
            told = len(asked)
            _signal(started, asked[-1])
        if failed:
            return _report(failed[0], codes, started, asked)
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.05)


def _report(
    index: int, codes: list[int | None], started: list[subprocess.Popen[str]], asked: list[int]
) -> int:
    code = codes[index] or 0
    others = [each for each, other in enumerate(codes) if other is None]
    if asked or len(started) == 1:
        _end(started, wait=True)
        return code if code > 0 else 128 - code
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    left = f"; stopping {', '.join(f'process {each}' for each in others)}" if others else ""
    print(f"qkvflow: process {index} of {len(started)} {how}{left}", file=sys.stderr, flush=True)
    # A process that ended by itself has said why, and so will the others, given a moment.
    _end(started, wait=code > 0)
    return code if code > 0 else 1


def _signal(started: list[subprocess.Popen[str]], signum: int) -> None:
    for process in started:
        if process.poll() is None:
            process.send_signal(signum)


def _end(started: list[subprocess.Popen[str]], *, wait: bool = False) -> None:
    """Stop what is left: by itself within the grace, if it may; then without asking."""
    deadline = time.monotonic() + (GRACE_SECONDS if wait else 0)
    while time.monotonic() < deadline and any(process.poll() is None for process in started):
        time.sleep(0.05)
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


def _relay(index: int, process: subprocess.Popen[str]) -> list[threading.Thread]:
    pairs = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))

    def copy(source: Any, target: Any) -> None:
        for line in source:
            target.write(f"[{index}] {line.rstrip()}\n")
            target.flush()

    threads = [threading.Thread(target=copy, args=pair, daemon=True) for pair in pairs]
    for thread in threads:
        thread.start()
    return threads
