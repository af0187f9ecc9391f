"""Options of the verbs that run on many devices and many hosts, and joining the others."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable

from qkvflow.errors import UserError, one_line, out_of_memory


def add_parallel_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("devices and hosts (docs/scaling.md)")
    group.add_argument(
        "--mesh",
        metavar="AXIS=N,...",
        help="how devices are used: data, fsdp and tensor, as data=4,fsdp=2 (default: all on data)",
    )
    group.add_argument(
        "--distributed", metavar="auto", help="join the other processes, as the cluster tells"
    )
    group.add_argument("--coordinator", metavar="HOST:PORT", help="join them at process 0")
    group.add_argument("--process-id", type=int, metavar="I", help="this process, from 0")
    group.add_argument("--num-processes", type=int, metavar="N", help="how many there are")


def joined(args: argparse.Namespace, work: Callable[[], int]) -> int:
    """`work()`, after joining the other processes of the run, if there are any."""
    if not _several(args):
        return work()
    from qkvflow.distributed import hosts

    hosts.join(args.coordinator, args.process_id, args.num_processes)
    _keep_output()
    # Whatever goes wrong here alone, the others wait for: this process must not wait for them.
    try:
        with hosts.watched():
            code = work()
            hosts.part()
            return code
    except hosts.Lost as lost:
        print(f"qkvflow: {lost}", file=sys.stderr)
        hosts.leave(1)
    except UserError as error:
        print(f"qkvflow: {one_line(error)}", file=sys.stderr)
        hosts.leave_together(2)
    except BaseException as error:
        if (problem := out_of_memory(error)) is not None:
            print(f"qkvflow: {problem}", file=sys.stderr)
            hosts.leave(2)
        traceback.print_exc()
        hosts.leave(1)


def _keep_output() -> None:
    """What libraries below Python print goes to stderr: stdout is for what was asked for."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(kept, "w", buffering=1)


def _several(args: argparse.Namespace) -> bool:
    """Whether several processes were asked for; refuses half an address."""
    if args.distributed not in (None, "auto"):
        raise UserError(f"--distributed must be auto, not '{args.distributed}'")
    if args.coordinator is None:
        if args.process_id is not None or args.num_processes is not None:
            raise UserError("--process-id and --num-processes need --coordinator HOST:PORT as well")
    elif args.distributed:
        raise UserError("--distributed auto and --coordinator are two ways; give one of them")
    return args.distributed is not None or args.coordinator is not None
