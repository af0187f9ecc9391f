"""`qkvflow resume`: continue a run from its last checkpoint."""

import argparse
from pathlib import Path
from typing import Any

from qkvflow.cli.joining import add_parallel_options, joined
from qkvflow.cli.options import add_config_options
from qkvflow.cli.train import add_output_options, report
from qkvflow.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="the run directory")
    parser.add_argument(
        "--extend",
        action="store_true",
        help="allow more --steps although the learning rate's schedule depends on their number",
    )
    add_config_options(parser)
    add_parallel_options(parser)
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    return joined(args, lambda: _resume(args))


def _resume(args: argparse.Namespace) -> int:
    from qkvflow.finetune.run import complete
    from qkvflow.runs.config_files import parse_overrides
    from qkvflow.training import resume

    if any(key == "train.tokens" for key, _ in args.overrides):
        raise UserError("resume counts in steps; give --steps")
    overrides = parse_overrides(args.overrides)

    def work(reporter: Any, sample: Any) -> dict[str, Any]:
        record = resume(
            args.dir,
            overrides=overrides,
            extend=args.extend,
            sample=sample,
            reporter=reporter,
            mesh=args.mesh,
        )
        complete(args.dir, reporter)
        return record

    return report(args, Path(args.dir), work)
