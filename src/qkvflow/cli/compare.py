"""`qkvflow compare`: models x seeds x one budget, then statistics and a report."""

import argparse
import sys
from pathlib import Path
from typing import Any

from qkvflow.cli.executing import add_executor_options, execute
from qkvflow.cli.options import SHORT, add_config_options
from qkvflow.errors import UserError, one_line

_BUDGETS = {
    "steps": ("N", "optimiser steps"),
    "tokens": ("N", "training tokens"),
    "flops": ("X", "training FLOPs"),
    "seconds": ("X", "seconds of training"),
}
_OWN = ("--model", *(f"--{kind}" for kind in _BUDGETS), "--seed", "--target-loss")
_SHORT = {
    **{option: value for option, value in SHORT.items() if option not in _OWN},
    "--lr": ("optim.lr", "X", "peak learning rate, shared by all models"),
}
_EPILOG = """\
A model is NAME, NAME:key=value,... or LABEL=NAME:key=value,... with any option of its configuration
(as --help-all has them, without 'model.'), or with params_of=LABEL or flops_of=LABEL for the width
that gives it another model's block parameters or FLOPs per token; optim.KEY=VALUE gives it an
optimiser of its own. NAME may be the best.yaml of a search.

Stopped or killed, the same command goes on where it was; finished runs are not repeated.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="the directory of this comparison"
    )
    plan = parser.add_argument_group("the plan")
    plan.add_argument(
        "--preset", metavar="NAME", help="quick, time-indexed, ablation, looped or ssm-state"
    )
    plan.add_argument("--config", metavar="FILE", help="a plan.yaml; options go on top of it")
    plan.add_argument(
        "--models",
        action="append",
        metavar="A,B,...",
        help="the models (default: those of time-indexed)",
    )
    plan.add_argument("--seeds", metavar="N|A,B,...", help="how many seeds, or which (default 3)")
    for kind, (metavar, text) in _BUDGETS.items():
        plan.add_argument(f"--{kind}", metavar=metavar, help=f"the budget of every run: {text}")
    plan.add_argument("--match", help="rescale widths to the reference's params or flops; none")
    plan.add_argument(
        "--reference", metavar="LABEL", help="the model to match (default: the first)"
    )
    plan.add_argument(
        "--tune",
        action="append",
        metavar="KEY[=SPACE]",
        help="choose each model's lr (of 3e-4,1e-3,3e-3,1e-2, X,... or log:X:Y) or another option "
        "of optim on validation; may be given several times; none: not even if the preset does",
    )
    plan.add_argument(
        "--depths", metavar="X,...", help="evaluate at 0.5,2,4 times N and adaptive too"
    )
    plan.add_argument("--evaluations", metavar="N", help="evaluations in a run (default 4)")
    plan.add_argument("--title", help="the question, for the head of the report")
    running = parser.add_argument_group("running")
    add_executor_options(running)
    running.add_argument(
        "--speed-rounds", metavar="N", help="rounds of timing (default 7, 0: none)"
    )
    running.add_argument("--no-samples", action="store_true", help="no generated text")
    running.add_argument("--retry-failed", action="store_true", help="run failed runs once more")
    running.add_argument("--no-report", action="store_true", help="records and statistics alone")
    running.add_argument(
        "--dry-run", action="store_true", help="print the plan and its shapes; stop"
    )
    add_config_options(parser, _SHORT)


def run(args: argparse.Namespace) -> int:
    from qkvflow.experiment.comparison import run_plan

    plan = plan_of(args)
    if args.dry_run:
        return _dry_run(plan)
    outcome, code = execute(
        args, lambda **how: run_plan(plan, args.out, retry_failed=args.retry_failed, **how)
    )
    if code:
        return code
    for line in outcome.notes:
        print(f"note: {one_line(line)}", file=sys.stderr)
    for line in outcome.failed:
        print(f"qkvflow: failed and left out: {line}", file=sys.stderr)
    if not outcome.finished:
        print("qkvflow: every run failed; nothing to compare", file=sys.stderr)
        return 1
    _report(args, plan)
    return 0


def _report(args: argparse.Namespace, plan: Any) -> None:
    if args.no_report:
        from qkvflow.records import collect
        from qkvflow.report.build import analyse

        analyse(collect(args.out), Path(args.out))
        return
    from qkvflow.report import build_report, print_summary
    from qkvflow.runs.config import make_config

    paths = build_report([args.out])
    if plan.track.name != "none":
        from qkvflow.training.trackers import make_tracker

        directory = Path(args.out)
        shared = {"track": {"group": plan.track.group or directory.name}}
        config = make_config(plan.base_config(plan.models[0]).to_dict(), shared)
        tracker = make_tracker(directory, config)
        tracker.page("report", paths.html)
        tracker.close()
    if not args.quiet:
        print_summary(paths)


def plan_of(args: argparse.Namespace) -> Any:
    """The plan that the options ask for: preset or file first, options on top."""
    from qkvflow.experiment.plan import make_plan, modern, seeds_of
    from qkvflow.experiment.presets import DEFAULT_MODELS, NARROWED, preset
    from qkvflow.experiment.specs import parse_specs
    from qkvflow.runs.config_files import parse_overrides, read_yaml

    if args.preset and args.config:
        raise UserError("--preset and --config are two plans; give one of them")
    content: dict[str, Any] = {}
    if args.preset:
        content = preset(args.preset)
    elif args.config:
        content = read_yaml(args.config)
    content = modern(content)
    if args.models and not any(words.strip(" ,") for words in args.models):
        raise UserError("--models names no model; give some, or leave it out for the default ones")
    if args.models:
        content["models"] = [spec.to_dict() for spec in parse_specs(args.models)]
        content.pop("questions", None)
        content.pop("reference", None)
    for key in ("match", "reference", "tune", "evaluations", "speed_rounds", "title"):
        if (given := getattr(args, key)) is not None:
            left_out = key in ("match", "tune") and given in ("none", ["none"])
            content[key] = None if left_out else given
    if not content.get("models"):
        content["models"] = list(DEFAULT_MODELS)
    if content.get("match") and not args.models:
        # Matched to each other, a standard transformer narrowed to another is no model of its own.
        content["models"] = [m for m in content["models"] if m not in NARROWED]
    if args.seeds is not None:
        several = "," in args.seeds
        content["seeds"] = list(seeds_of(args.seeds.split(",") if several else args.seeds))
    budgets = {kind: getattr(args, kind) for kind in _BUDGETS if getattr(args, kind) is not None}
    if len(budgets) > 1:
        raise UserError(f"--{' and --'.join(budgets)} are {len(budgets)} budgets; give one of them")
    if budgets:
        content["budget"] = budgets
    elif not content.get("budget"):
        raise UserError("give a budget: --steps, --tokens, --flops or --seconds (or a --preset)")
    overrides = parse_overrides(args.overrides)
    train = overrides.setdefault("train", {})
    if args.depths is not None:
        train["eval_depths"] = args.depths
    if args.no_samples:
        train["samples"] = "none"
    for section, values in overrides.items():
        if not isinstance(content.get(section) or {}, dict):
            raise UserError(f"{args.config}: {section} must be options by name; correct it")
        content[section] = {**(content.get(section) or {}), **values}
    return make_plan(content)


def _dry_run(plan: Any) -> int:
    import yaml

    from qkvflow.experiment.resolve import describe, shapes, with_steps
    from qkvflow.runs.corpus import load_data

    encoded = load_data(plan.base_config(plan.models[0]))
    entries = shapes(plan, encoded.tokenizer.vocab_size)
    if plan.budget.kind != "seconds":  # Those are measured when it runs.
        entries = with_steps(plan, entries)
    content = {**plan.to_dict(), "resolved": describe(plan, entries, encoded)}
    print(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), end="")
    return 0
