"""`qkvflow resume`: continue a run from its last checkpoint."""

import argparse
from pathlib import Path

from qkvflow.cli.joining import add_parallel_options, joined
from qkvflow.cli.options import KEPT, add_config_options
from qkvflow.cli.train import add_output_options, overrides_of, run_and_tell
from qkvflow.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="the run directory")
    parser.add_argument(
        "--extend",
        action="store_true",
        help="allow other --steps although the learning rate's schedule depends on their number",
    )
    add_config_options(parser, KEPT)
    add_parallel_options(parser)
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    return joined(args, lambda: _resume(args))


def _resume(args: argparse.Namespace) -> int:
    from qkvflow.training import resume

    if any(key == "train.tokens" for key, _ in args.overrides):
        raise UserError("resume counts in steps; give --steps")
    overrides = overrides_of(args)
    return run_and_tell(
        args,
        Path(args.dir),
        lambda reporter: resume(
            args.dir, overrides=overrides, extend=args.extend, reporter=reporter, mesh=args.mesh
        ),
    )
