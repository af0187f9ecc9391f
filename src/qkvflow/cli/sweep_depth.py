"""`qkvflow sweep-depth`: a trained model on other depth grids and with other solvers."""

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkvflow.cli.evaluation import add_checkpoint_option, checkpoint_step
from qkvflow.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="a run directory or an export")
    parser.add_argument(
        "--num-steps",
        default="1,2,3,4,6,8,12,24",
        metavar="N,N,...",
        help="numbers of depth steps (default 1,2,3,4,6,8,12,24)",
    )
    parser.add_argument(
        "--schemes",
        default="euler,heun,rk4",
        metavar="S,S,...",
        help="fixed schemes (default euler,heun,rk4); euler is residual at the model's horizon",
    )
    parser.add_argument(
        "--adaptive", metavar="X,X,...", help="tolerances of the adaptive solver, e.g. 1e-2,1e-3"
    )
    parser.add_argument("--split", default="validation", help="train, validation (default) or test")
    parser.add_argument("--data", metavar="SPEC", help="another corpus, with the model's tokenizer")
    parser.add_argument("--data-dir", metavar="DIR", help="a local copy of an hf: dataset")
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=65536,
        metavar="N",
        help="windows spread evenly over the split (default 65536; 0: the whole split)",
    )
    add_checkpoint_option(parser)
    parser.add_argument(
        "--out", metavar="DIR", help="write sweep.json, sweep.csv, sweep.png and sweep.pdf there"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, for scripts")


def run(args: argparse.Namespace) -> int:
    from qkvflow.compilation import use_compilation_cache
    from qkvflow.evaluation.sweep import settings_of, sweep_depth
    from qkvflow.files import to_json
    from qkvflow.runs.corpus import load_split
    from qkvflow.runs.load import load
    from qkvflow.runs.rundir import writing

    if args.max_tokens < 0:
        raise UserError(f"--max-tokens must not be negative, not {args.max_tokens}")
    num_steps = _listed("--num-steps", args.num_steps, int, "3,6,12")
    tolerances = _listed("--adaptive", args.adaptive or "", float, "1e-2,1e-3")
    use_compilation_cache()
    trained = load(args.dir, step=checkpoint_step(args.checkpoint))
    config = trained.config.model.config
    settings = settings_of(
        trained.model,
        config.scheme,
        composition=config.composition,
        num_steps=num_steps,
        schemes=[name.strip() for name in args.schemes.split(",") if name.strip()],
        tolerances=tolerances,
        own_tolerance=config.tolerance,
    )
    if args.out is not None:
        with writing(Path(args.out), resumable=False):
            Path(args.out).mkdir(parents=True, exist_ok=True)
    split, _ = load_split(trained, args.split, spec=args.data, data_dir=args.data_dir)
    points = []
    for point in sweep_depth(
        trained.model,
        split,
        settings,
        composition=config.composition,
        max_tokens=args.max_tokens or None,
    ):
        points.append(dataclasses.asdict(point))
        if sys.stderr.isatty() and not args.json:
            print(f"{len(points)} of {len(settings)} settings", end="\r", file=sys.stderr)
    answer = {
        "path": args.dir,
        "model": trained.config.model.name,
        "step": trained.step,
        "split": args.split,
        "data": args.data or trained.config.data.spec,
        "horizon": trained.model.horizon,
        "context": trained.model.context,
        "points": points,
    }
    text = to_json(answer, 1)
    if args.json:
        print(text)
    else:
        _print(answer)
    if args.out is not None:
        made = _write(Path(args.out), answer, text)
        print(f"wrote {made}", file=sys.stderr if args.json else sys.stdout)
    return 0


def _listed(option: str, text: str, kind: Callable[[str], Any], example: str) -> list[Any]:
    """`1,2,3` as positive numbers."""
    try:
        found = [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = [0]
    if any(not 0 < each < float("inf") for each in found) or (
        text == "" and option != "--adaptive"
    ):
        raise UserError(f"{option} must be positive numbers such as {example}, not '{text}'")
    return found


def _print(answer: dict[str, Any]) -> None:
    from rich.console import Console

    from qkvflow.report.sweep import to_table

    console = Console(width=None if sys.stdout.isatty() else 120)
    tokens = answer["points"][0]["tokens"]
    print(
        f"{answer['model']} at step {answer['step']}, {answer['split']} split "
        f"({tokens:,} tokens, context {answer['context']}), horizon {answer['horizon']:g}"
    )
    console.print(to_table(answer["points"]))
    print("* as it was trained; ± is the standard error over windows; FLOPs are of a forward pass")
    if not all(point["reached"] for point in answer["points"]):
        print("(gave up): the solver ran out of steps before its tolerance; loosen --adaptive")


def _write(directory: Path, answer: dict[str, Any], text: str) -> str:
    from qkvflow.files import write_whole
    from qkvflow.report.sweep import draw_sweep, to_csv
    from qkvflow.runs.rundir import writing

    with writing(directory, resumable=False):
        write_whole(directory / "sweep.json", text + "\n")
        write_whole(directory / "sweep.csv", to_csv(answer["points"]))
        figures = draw_sweep(answer["points"], answer["model"], directory)
    if figures is None:
        return f"{directory}: sweep.json, sweep.csv (figures need pip install 'qkvflow[figures]')"
    return f"{directory}: sweep.json, sweep.csv, sweep.png, sweep.pdf"
