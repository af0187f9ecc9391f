"""`qkvflow scaling-law`: a grid of sizes, depths and tokens, and the law of the losses."""

import argparse
from typing import Any

from qkvflow.cli.executing import add_executor_options, execute
from qkvflow.cli.options import SHORT, add_config_options
from qkvflow.errors import UserError

_OWN = ("--model", "--d-model", "--layers", "--steps", "--tokens", "--seed", "--target-loss")
_SHORT = {key: value for key, value in SHORT.items() if key not in _OWN}
_EPILOG = """\
Fits L = E + A (N_once + r^phi N_shared)^-alpha + B D^-beta to the runs of each model: phi is what a
repeat of shared weights is worth, 0 nothing, 1 as much as weights of its own. Models are written as
in compare, with an optimiser of their own if need be: shared:optim.lr=3e-3.

Stopped or killed, the same command goes on; with more widths, depths, tokens or seeds, it goes
further.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("--out", required=True, metavar="DIR", help="the directory of this grid")
    grid = parser.add_argument_group("the grid")
    grid.add_argument("--config", metavar="FILE", help="a YAML file; options go on top of it")
    grid.add_argument(
        "--models", action="append", metavar="A,B,...", help="default: standard,shared"
    )
    grid.add_argument("--widths", default="32,64,96,128", metavar="N,...", help="d_model")
    grid.add_argument("--depths", default="2,4,8", metavar="N,...", help="steps: layers, or loops")
    grid.add_argument("--tokens", default="250k,1M,4M", metavar="N,...", help="training tokens")
    grid.add_argument("--seeds", default="2", metavar="N|A,B,...", help="how many, or which")
    grid.add_argument(
        "--reference", metavar="LABEL", help="whose loss to reach (default: the first model)"
    )
    grid.add_argument(
        "--evaluations", type=int, default=4, metavar="N", help="evaluations in a run (default 4)"
    )
    running = parser.add_argument_group("running")
    add_executor_options(running)
    running.add_argument(
        "--dry-run", action="store_true", help="print the runs with their FLOPs and hours; stop"
    )
    running.add_argument("--no-report", action="store_true", help="no page and no figures")
    add_config_options(parser, _SHORT)


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from qkvflow.experiment.scaling_law import cells_of, run_grid
    from qkvflow.report.scaling_law import build_scaling, sentences

    grid = _grid(args)
    if args.dry_run:
        _print(grid, cells_of(grid, Path(args.out)), args.workers)
        return 0
    result, code = execute(args, lambda **how: run_grid(grid, args.out, **how))
    if code:
        return code
    page = None if args.no_report else build_scaling(args.out)
    if not args.quiet:
        for line in sentences(result):
            print(line)
        print(f"wrote {args.out}: scaling.json{f', {page.name}' if page else ''}")
    return 0


def _grid(args: argparse.Namespace) -> Any:
    from qkvflow.experiment.plan import seeds_of
    from qkvflow.experiment.scaling_law import Grid
    from qkvflow.experiment.specs import parse_specs
    from qkvflow.runs.config_files import parse_overrides, read_yaml

    content: dict[str, Any] = read_yaml(args.config) if args.config else {}
    for section, values in parse_overrides(args.overrides).items():
        content[section] = {**(content.get(section) or {}), **values}
    seeds = args.seeds.split(",") if "," in args.seeds else args.seeds
    return Grid(
        models=parse_specs(args.models or ["standard,shared"]),
        widths=_numbers("--widths", args.widths),
        depths=_numbers("--depths", args.depths),
        tokens=_numbers("--tokens", args.tokens),
        seeds=seeds_of(seeds),
        content=content,
        reference=args.reference or "",
        evaluations=args.evaluations,
    )


def _numbers(option: str, text: str) -> tuple[int, ...]:
    """`250k,1M` as whole numbers."""
    found = []
    for part in text.split(","):
        unit = {"k": 1e3, "M": 1e6, "G": 1e9}.get(part.strip()[-1:], 1.0)
        try:
            number = float(part.strip().rstrip("kMG")) * unit
        except ValueError:
            number = -1.0
        if not 1 <= number < 1e18 or number != int(number):
            raise UserError(
                f"{option} must be whole numbers such as 64,128 or 250k,1M, not '{text}'"
            )
        found.append(int(number))
    return tuple(found)


def _print(grid: Any, cells: Any, workers: int | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from qkvflow.experiment.executors.local import count_accelerators, suggest_workers
    from qkvflow.experiment.scaling_law import cost_of
    from qkvflow.report import numbers

    needed = max(cell.entry.bytes for cell in cells)
    cost = cost_of(grid, cells, workers or suggest_workers(count_accelerators(), needed))
    out = Console(highlight=False, soft_wrap=True)
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("model")
    for heading in ("width", "steps", "once", "shared", "tokens", "FLOPs a run"):
        shown.add_column(heading, justify="right")
    for cell in cells:
        shape = cell.entry.config.model.config
        sizes = (cell.once, cell.shared, cell.tokens, cell.flops)
        shown.add_row(
            cell.entry.label,
            str(shape.d_model),
            str(cell.repeats),
            *(numbers.short(each) for each in sizes),
        )
    out.print(shown)
    how = "as the finished runs were" if cost["measured"] else "assumed"
    out.print(
        f"{cost['runs']} runs, {cost['finished']} finished; {numbers.short(cost['flops'])}FLOP in "
        f"all, {numbers.short(cost['flops_left'])}FLOP left: {cost['hours_left']:.2f} hours at "
        f"{numbers.short(cost['flops_per_second'])}FLOP/s ({how})"
    )
