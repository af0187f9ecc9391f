"""`qkvflow finetune`: a pretrained run on other data, at another depth."""

import argparse
from pathlib import Path
from typing import Any

from qkvflow.cli.evaluation import add_checkpoint_option, checkpoint_step
from qkvflow.cli.joining import add_parallel_options, joined
from qkvflow.cli.options import KEPT, add_config_options
from qkvflow.cli.train import add_output_options, overrides_of, run_and_tell
from qkvflow.errors import UserError

_FREE = {"dropout", "attention_dropout", "remat", "compute_dtype"}
"""Fields of the model that may change without changing what its weights mean."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="the pretrained run directory, or an export")
    parser.add_argument("--out", required=True, metavar="DIR", help="the run directory to make")
    parser.add_argument(
        "--data", required=True, metavar="SPEC", help="the corpus, read with the model's tokenizer"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="a local copy of an hf: dataset")
    parser.add_argument("--num-steps", type=int, metavar="N", help="another number of depth steps")
    parser.add_argument("--scheme", metavar="S", help="another scheme: euler, heun, rk4, ...")
    parser.add_argument(
        "--method", default="full", metavar="M", help="full (default), lora or gates"
    )
    parser.add_argument("--rank", type=int, metavar="R", help="of lora's adapters (default 8)")
    parser.add_argument(
        "--adapter",
        metavar="NAMES",
        help="matrices that lora adapts, such as qkv:depth,out or * (default); with :depth an "
        "adapter depends on depth, without it is shared",
    )
    parser.add_argument(
        "--layers",
        metavar="HOW",
        help="a per-layer model at another depth: interpolate (default), repeat or keep its layers",
    )
    parser.add_argument(
        "--control",
        metavar="DIR",
        help="the teacher's own fine-tuned run, equally long, to stand beside this one; train: "
        "make it first, in OUT-control",
    )
    add_checkpoint_option(parser)
    own = ("train.", "optim.", "track.")
    short = {option: value for option, value in KEPT.items() if value[0].startswith(own)}
    text = "learn the predictions of this model (see --distill.weight, --distill.temperature)"
    add_config_options(parser, {**short, "--teacher": ("distill.teacher", "DIR", text)})
    add_parallel_options(parser)
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    return joined(args, lambda: _finetune(args))


def _finetune(args: argparse.Namespace) -> int:
    from qkvflow.distributed import hosts
    from qkvflow.finetune import Adaptation, finetune
    from qkvflow.finetune.run import FINDINGS, read_findings, summary

    overrides = overrides_of(args)
    _check(overrides)
    for name in ("num_steps", "rank"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be positive, not {value}")
    lora, depth = args.method == "lora", args.num_steps is not None
    for option, there, what in (
        ("rank", lora, "--method lora"),
        ("adapter", lora, "--method lora"),
        ("layers", depth, "another --num-steps"),
    ):
        if getattr(args, option) is not None and not there:
            raise UserError(f"--{option} is for {what}; give both, or leave it out")
    names = ("method", "num_steps", "scheme", "adapter", "rank", "layers")
    given = {name: getattr(args, name) for name in names}
    adaptation = Adaptation(**{k: value for k, value in given.items() if value is not None})
    code = run_and_tell(
        args,
        Path(args.out),
        lambda reporter: finetune(
            args.dir,
            args.out,
            adaptation=adaptation,
            data=args.data,
            data_dir=args.data_dir,
            overrides=overrides,
            step=checkpoint_step(args.checkpoint),
            reporter=reporter,
            mesh=args.mesh,
            control=args.control,
        ),
    )
    out = Path(args.out)
    told = not args.quiet and not args.json and hosts.is_rank0()
    if code == 0 and told and (out / FINDINGS).exists():
        print(summary(read_findings(out)))
    return code


def _check(overrides: dict[str, Any]) -> None:
    for name in overrides.get("model", {}):
        if name not in _FREE:
            raise UserError(
                f"--model.{name} belongs to the pretrained model; --num-steps, --scheme and "
                "--method say what may change"
            )
    for section, name in (("train", "trainable"), ("train", "start"), ("data", "tokenizer")):
        if name in overrides.get(section, {}):
            raise UserError(f"--{section}.{name} follows from --method and the pretrained run")
