"""`qkvflow launch`: several processes of one run on this machine, for trying it out."""

import argparse

from qkvflow.errors import UserError, unknown

_VERBS = ("train", "resume", "finetune", "eval")
_EPILOG = """\
Lines of process I begin with [I]. When a process fails, the others are stopped. On several
machines, start the same command on each with --coordinator or --distributed (docs/scaling.md).
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.usage = "qkvflow launch -n N [--devices K] -- VERB ..."
    parser.add_argument("-n", type=int, required=True, metavar="N", help="how many processes")
    parser.add_argument(
        "--devices", type=int, metavar="K", help="pretend that each has K devices, on a CPU"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- VERB ...", help=", ".join(_VERBS)
    )


def run(args: argparse.Namespace) -> int:
    for name, value in (("-n", args.n), ("--devices", args.devices)):
        if value is not None and value < 1:
            raise UserError(f"{name} must be at least 1, not {value}")
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UserError("give the verb to launch: qkvflow launch -n 2 -- train ...")
    if command[0] not in _VERBS:
        raise unknown("verb to launch", command[0], _VERBS)
    from qkvflow.distributed.launch import launch
    from qkvflow.zoo.plugins import plugin_options

    command = [command[0], *plugin_options(), *command[1:]]
    return launch(command, args.n, devices=args.devices)
