"""`qkvflow export`: a trained model as files any tool can read."""

import argparse
import dataclasses
from pathlib import Path

from qkvflow.cli.evaluation import add_checkpoint_option, checkpoint_step


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="a run directory, an export or an import")
    parser.add_argument("--to", required=True, metavar="OUT", help="the directory to make")
    parser.add_argument(
        "--format",
        default="qkvflow",
        metavar="F",
        help="qkvflow (default), or hf: for transformers, as gpt2, gpt_neox, llama, ...",
    )
    parser.add_argument(
        "--push",
        metavar="OWNER/NAME",
        help="upload it to the Hugging Face Hub as well, private if it is new",
    )
    add_checkpoint_option(parser)
    parser.add_argument(
        "--adapter", metavar="FILE", help="put the adapters of an adapter.safetensors on it first"
    )
    parser.add_argument(
        "--merge", action="store_true", help="merge low-rank adapters into the weights"
    )


def run(args: argparse.Namespace) -> int:
    from qkvflow.finetune import load_adapter, merge
    from qkvflow.runs.export import check_new, export, push, write_export
    from qkvflow.runs.load import load
    from qkvflow.runs.rundir import read_record

    step = checkpoint_step(args.checkpoint)
    if args.adapter is None and not args.merge:
        made = export(args.dir, args.to, step=step, form=args.format)
    else:
        made = check_new(args.to)
        trained = load(args.dir, step=step)
        if args.adapter is not None:
            trained = dataclasses.replace(load_adapter(trained, args.adapter), step=None)
        record = read_record(Path(args.dir)) if args.adapter is None else None
        write_export(merge(trained) if args.merge else trained, made, record, args.format)
    names = ", ".join(sorted(path.name for path in made.iterdir()))
    print(f"wrote {made}: {names}")
    if args.push is not None:
        print(f"uploaded to {push(made, args.push)}")
    return 0
