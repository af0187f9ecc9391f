"""`qkvflow export`: a trained model as files any tool can read."""

import argparse
import dataclasses
from pathlib import Path

from qkvflow.cli.evaluation import add_checkpoint_option, checkpoint_step


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="the run directory")
    parser.add_argument("--to", required=True, metavar="OUT", help="the directory to make")
    add_checkpoint_option(parser)
    parser.add_argument(
        "--adapter", metavar="FILE", help="put the adapters of an adapter.safetensors on it first"
    )
    parser.add_argument(
        "--merge", action="store_true", help="merge low-rank adapters into the weights"
    )


def run(args: argparse.Namespace) -> int:
    from qkvflow.finetune import load_adapter, merge
    from qkvflow.runs.export import check_new, export, write_export
    from qkvflow.runs.load import load
    from qkvflow.runs.rundir import read_record

    step = checkpoint_step(args.checkpoint)
    if args.adapter is None and not args.merge:
        made = export(args.dir, args.to, step=step)
    else:
        made = check_new(args.to)
        trained = load(args.dir, step=step)
        if args.adapter is not None:
            trained = dataclasses.replace(load_adapter(trained, args.adapter), step=None)
        record = read_record(Path(args.dir)) if args.adapter is None else None
        write_export(merge(trained) if args.merge else trained, made, record)
    names = ", ".join(sorted(path.name for path in made.iterdir()))
    print(f"wrote {made}: {names}")
    return 0
