"""`qkvflow export`: a trained model as files any tool can read."""

import argparse

from qkvflow.cli.evaluation import checkpoint_step


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="the run directory")
    parser.add_argument("--to", required=True, metavar="OUT", help="the directory to make")
    parser.add_argument(
        "--checkpoint", default="best", metavar="STEP", help="best (default), last, or a step"
    )


def run(args: argparse.Namespace) -> int:
    from qkvflow.training.export import export

    made = export(args.dir, args.to, step=checkpoint_step(args.checkpoint))
    names = ", ".join(sorted(path.name for path in made.iterdir()))
    print(f"wrote {made}: {names}")
    return 0
