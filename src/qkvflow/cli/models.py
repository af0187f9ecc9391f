"""`qkvflow models`: the zoo, counted."""

import argparse
import json
from typing import Any

from qkvflow.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these models")
    parser.add_argument("--size", default="small", help="tiny, small (default), medium or large")
    parser.add_argument("--vocab", type=int, default=256, help="vocabulary size (256: bytes)")
    parser.add_argument(
        "--published", action="store_true", help="the parameter counts of zaphrode/qkvflow"
    )
    parser.add_argument("--json", action="store_true", help="a JSON list, for scripts")


def run(args: argparse.Namespace) -> int:
    from qkvflow.zoo import PUBLISHED, names

    if args.vocab < 1:
        raise UserError(f"--vocab must be positive, not {args.vocab}")
    chosen = args.names or (list(PUBLISHED) if args.published else names())
    rows = [describe(name, args.size, args.vocab) for name in chosen]
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        _print(rows)
    return 0


def describe(name: str, size: str, vocab_size: int) -> dict[str, Any]:
    """One model of the zoo, counted without allocating it."""
    from qkvflow.lm import abstract, count_flops, count_parameters, weights_in_effect
    from qkvflow.schemes import make_scheme
    from qkvflow.zoo import PUBLISHED, configure, entry
    from qkvflow.zoo.config import COMPOSITIONS

    config = configure(entry(name, size), {})
    model = abstract(config, vocab_size=vocab_size)
    flops = count_flops(model)
    scheme = config.scheme
    first, second = (make_scheme(scheme, composition=each) for each in COMPOSITIONS)
    if first != second and len(config.mixers) > 1:
        scheme = f"{scheme}, {config.composition}"
    row: dict[str, Any] = {
        "name": name,
        "field": config.field,
        "block": config.block,
        "scheme": scheme,
        "params": count_parameters(model)._asdict(),
        "weights_in_effect": weights_in_effect(model),
        "flops_per_token": {"forward": flops.forward, "training": flops.training},
        "flops_per_pass": {"generation": flops.generation},
        "context": config.context,
    }
    if name in PUBLISHED:
        row["published"] = PUBLISHED[name][1]
    return row


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from qkvflow.report.numbers import short

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model", no_wrap=True)
    for heading in ("field", "block", "scheme"):
        table.add_column(heading)
    for heading in ("params", "embed", "blocks", "head", "in effect", "fwd/token", "train/token"):
        table.add_column(heading, justify="right", no_wrap=True)
    published = any("published" in row for row in rows)
    if published:
        table.add_column("published", justify="right", no_wrap=True)
    for row in rows:
        params, flops = row["params"], row["flops_per_token"]
        numbers = [params[part] for part in ("total", "embedding", "blocks", "head")]
        numbers += [row["weights_in_effect"], flops["forward"], flops["training"]]
        cells = [row["name"], row["field"], row["block"], row["scheme"], *map(short, numbers)]
        if published:
            cells[4] = f"{params['total']:,}"
            cells.append(f"{row['published']:,}" if "published" in row else "")
        table.add_row(*cells)
    console = Console(width=None if Console().is_terminal else 160)
    console.print(table)
    console.print(
        "\nparams: trained parameters. in effect: block weights applied along the depth grid.\n"
        "fwd, train: floating-point operations per token at the model's full context; making the\n"
        "weights of a pass is not in it (see flops_per_pass in --json).",
        style="dim",
        highlight=False,
    )
