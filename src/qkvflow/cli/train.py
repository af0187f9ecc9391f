"""`qkvflow train`: a model from text."""

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkvflow.cli.evaluation import with_error
from qkvflow.cli.joining import add_parallel_options, joined
from qkvflow.cli.options import add_config_options
from qkvflow.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, metavar="DIR", help="the run directory to make")
    parser.add_argument("--config", metavar="FILE", help="a YAML file; options go on top of it")
    add_config_options(parser)
    add_parallel_options(parser)
    add_output_options(parser)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="say nothing but errors")
    parser.add_argument("--json", action="store_true", help="print the final record, and only it")
    parser.add_argument("--no-samples", action="store_true", help="no generated text on the way")
    parser.add_argument("--label", help="how records call this run (default: the model's name)")


def overrides_of(args: argparse.Namespace) -> dict[str, Any]:
    """The sections that options give, those with names of their own included."""
    from qkvflow.runs import parse_overrides

    overrides = parse_overrides(args.overrides)
    if args.no_samples:
        overrides.setdefault("train", {})["samples"] = "none"
    if args.label is not None:
        overrides.setdefault("track", {})["label"] = args.label
    return overrides


def run(args: argparse.Namespace) -> int:
    return joined(args, lambda: _train(args))


def _train(args: argparse.Namespace) -> int:
    from qkvflow.runs import load_config
    from qkvflow.training import train

    given = {key for key, _ in args.overrides}
    if {"train.steps", "train.tokens"} <= given:
        raise UserError("--steps and --tokens are two budgets; give one of them")
    config = load_config(args.config, overrides_of(args))
    return run_and_tell(
        args,
        Path(args.out),
        lambda reporter: train(config, args.out, reporter=reporter, mesh=args.mesh),
    )


def run_and_tell(
    args: argparse.Namespace, directory: Path, work: Callable[[Any], dict[str, Any]]
) -> int:
    """Run `work(reporter)` and say how it ended; returns the exit code."""
    from qkvflow.distributed import hosts
    from qkvflow.files import to_json
    from qkvflow.runs.rundir import resume_command
    from qkvflow.training import Diverged, Interrupted
    from qkvflow.training.reporter import BarReporter, LineReporter, SilentReporter

    reporter = BarReporter() if sys.stdout.isatty() else LineReporter()
    if args.quiet or args.json:
        reporter = SilentReporter()
    try:
        record = work(reporter)
    except Interrupted as stopped:
        if hosts.is_rank0():
            print(f"qkvflow: {stopped}", file=sys.stderr)
        return 128 + stopped.signum
    except KeyboardInterrupt:
        hint = f"; continue with '{resume_command(directory)}'"
        begun = (directory / "config.yaml").exists()
        print(f"qkvflow: interrupted{hint if begun else ''}", file=sys.stderr)
        return 130
    except Diverged as error:
        if hosts.is_rank0():
            print(f"qkvflow: {error}", file=sys.stderr)
        return 1
    if not hosts.is_rank0():
        return 0
    if args.json:
        print(to_json(record, 1))
    elif not args.quiet:
        print(summary(record, directory))
    return 0


def summary(record: dict[str, Any], directory: Path) -> str:
    """The last lines of a run: what came out, and where everything is."""
    losses, speed, memory = record["losses"], record["speed"], record["memory"]
    lines = [
        f"finished: {record['budget']['steps']:,} steps, {record['budget']['tokens']:,} tokens in "
        f"{speed['seconds']:.1f} s ({speed['tokens_per_second'] or 0:,.0f} tokens/s, compilation "
        f"{speed['compile_seconds']:.1f} s, peak memory "
        f"{memory['peak_resident_bytes'] / 2**20:,.0f} MiB)"
    ]
    for split in ("validation", "test"):
        if losses[split] is not None:
            each = losses[split]
            lines.append(
                f"{split:>10}: {with_error(each)} nats/token, "
                f"{each['bits_per_byte']:.4f} bits/byte, perplexity {each['perplexity']:.2f} "
                f"(step {losses['selected_step']})"
            )
    if record["skipped_updates"]:
        lines.append(f"{record['skipped_updates']} updates were skipped as not finite")
    names = ("config.yaml", "metrics.jsonl", "record.json", "samples.txt", "loss.png")
    there = [name for name in (*names, "checkpoints") if (directory / name).exists()]
    lines.append(f"in {directory}: {', '.join(there)}")
    where = shlex.quote(str(directory))
    lines.append(f"next: qkvflow eval {where}   qkvflow generate {where} --prompt TEXT")
    return "\n".join(lines)
