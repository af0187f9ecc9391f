"""Options of the verbs that bring many runs to their end, and how those verbs are stopped."""

import argparse
import signal
import sys
from collections.abc import Callable
from typing import Any


def add_executor_options(running: Any) -> None:
    running.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="runs at once (default: one for each core, or for each accelerator)",
    )
    running.add_argument(
        "--executor", default="local", metavar="NAME", help="local (worker processes) or ray"
    )
    running.add_argument(
        "--ray-address", metavar="ADDR", help="of an existing Ray cluster (default: this machine's)"
    )
    running.add_argument(
        "--cpus-per-run", type=float, default=1.0, metavar="X", help="that a Ray task asks for"
    )
    running.add_argument(
        "--gpus-per-run", type=float, default=0.0, metavar="X", help="that a Ray task asks for"
    )
    running.add_argument("--quiet", action="store_true", help="say nothing but errors")


def execute(args: argparse.Namespace, run: Callable[..., Any]) -> tuple[Any, int]:
    """`run(executor=, display=, command=)` and 0, or None and the exit code of a signal."""
    import shlex

    from qkvflow.experiment.display import BarDisplay, LineDisplay, SilentDisplay
    from qkvflow.experiment.executors import ExecutorOptions, Stopped, make_executor

    options = ExecutorOptions(args.workers, args.ray_address, args.cpus_per_run, args.gpus_per_run)
    display = BarDisplay() if sys.stdout.isatty() else LineDisplay()
    try:
        made = run(
            executor=make_executor(args.executor, options),
            display=SilentDisplay() if args.quiet else display,
            command=shlex.join(["qkvflow", *sys.argv[1:]]),
        )
    except Stopped as stopped:
        name = signal.Signals(stopped.signum).name
        print(
            f"qkvflow: {name}: saved in {args.out}; the same command goes on from here",
            file=sys.stderr,
        )
        return None, 128 + stopped.signum
    return made, 0
