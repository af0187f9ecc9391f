"""`qkvflow plan`: what a training run would need, before it is run."""

import argparse
from typing import Any

from qkvflow.cli.options import add_config_options
from qkvflow.errors import UserError

_KINDS = {
    "parameters": "the model's arrays",
    "optimiser": "its state",
    "gradients": "as large as the parameters",
    "generated": "weights made along depth, and their gradients",
    "batch": "tokens",
    "activations": "kept for the backward pass, and workspace",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dir", nargs="?", metavar="DIR", help="the model of a run directory, an export or import"
    )
    parser.add_argument("--config", metavar="FILE", help="a YAML file; options go on top of it")
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="an accelerator, e.g. a100-80g: does it fit, what to change",
    )
    parser.add_argument(
        "--vocab", type=int, metavar="N", help="vocabulary size (default: told by --tokenizer)"
    )
    parser.add_argument(
        "--utilisation",
        type=float,
        default=0.4,
        metavar="X",
        help="share of the peak speed that training is assumed to reach (default 0.4)",
    )
    parser.add_argument("--json", action="store_true", help="the plan as JSON, for scripts")
    parser.add_argument(
        "--mesh", metavar="AXES", help="devices, e.g. data=4,fsdp=2,tensor=2 (default: one)"
    )
    add_config_options(parser)


def run(args: argparse.Namespace) -> int:
    from qkvflow.distributed.mesh import MeshShape, parse_mesh
    from qkvflow.planning import estimate_run
    from qkvflow.planning.vocabulary import vocabulary_size
    from qkvflow.runs.config import make_config
    from qkvflow.runs.config_files import load_config, parse_overrides
    from qkvflow.runs.load import read_config

    overrides, vocab = parse_overrides(args.overrides), args.vocab
    if args.dir is None:
        config = load_config(args.config, overrides)
    elif args.config is not None:
        raise UserError("a DIR has a configuration of its own; leave out --config")
    else:
        saved, size = read_config(args.dir)
        config, vocab = make_config(saved.to_dict(), overrides), vocab or size
    if args.vocab is not None and args.vocab < 1:
        raise UserError(f"--vocab must be positive, not {args.vocab}")
    made = estimate_run(
        config,
        vocab_size=vocab or vocabulary_size(config.data.spec, config.data.tokenizer),
        mesh=parse_mesh(args.mesh) if args.mesh else MeshShape(),
        device=args.device,
        utilisation=args.utilisation,
    )
    if args.json:
        from qkvflow.files import to_json

        print(to_json(made, 2))
    else:
        told = f"given, {vocab:,}" if vocab else config.data.tokenizer
        _print(made, data=config.data.spec, size=config.model.size, vocabulary=told)
    return 0


def _print(made: dict[str, Any], *, data: str, size: str, vocabulary: str) -> None:
    from rich.console import Console
    from rich.table import Table

    from qkvflow.report.numbers import short

    out = Console(highlight=False, soft_wrap=True)
    tokens = made["batch_size"] * made["context"]
    flops = made["flops_per_step"]
    out.print(
        f"{made['model']} on {data}: {made['parameters']:,} parameters, "
        f"{made['weights_in_effect']:,} weights in effect, vocabulary {made['vocab_size']:,} "
        f"({vocabulary})"
    )
    out.print(
        f"a step on {made['devices']} device{'s' * (made['devices'] > 1)} ({made['mesh']}): "
        f"{made['batch_size']} x {made['context']} = {tokens:,} tokens, "
        f"{short(flops['compiled'])}FLOP of matrix products (counted by hand: "
        f"{short(flops['analytic'])}FLOP), {_bytes(made['exchanged_bytes_per_device'])} sent by "
        "each device"
    )
    out.print("\nmemory of each device")
    memory = Table(box=None, pad_edge=False, show_header=False)
    memory.add_column()
    memory.add_column(justify="right")
    memory.add_column()
    for kind, text in _KINDS.items():
        memory.add_row(f"  {kind}", _bytes(made["memory_per_device"][kind]), text)
    memory.add_row("  total", _bytes(made["memory_per_device"]["total"]), "")
    out.print(memory)
    _print_accelerators(out, made)
    if made["device"] is not None:
        _print_verdict(out, made)
    out.print(
        "\nMemory is that of the program compiled for CPUs, where nothing is run: attention scores "
        "are counted whole."
    )
    if made["compute_dtype"] == "bfloat16":
        out.print(
            "CPUs widen bfloat16 to float32: activations are an upper bound, up to twice what an "
            "accelerator keeps."
        )


def _print_accelerators(out: Any, made: dict[str, Any]) -> None:
    from rich.table import Table

    out.print(
        f"\n{made['steps']:,} steps at {made['utilisation']:.0%} of the peak speed, nothing "
        "overlapped; prices are assumptions"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("  device")
    for heading in ("memory", "fits", "a step", "the run", "cost"):
        table.add_column(heading, justify="right")
    for row in made["accelerators"]:
        mark = " *" if row["device"] == made["device"] else ""
        table.add_row(
            f"  {row['device']}{mark}",
            _bytes(row["memory_bytes"]),
            "yes" if row["fits"] else "no",
            _time(row["step_seconds"]),
            _time(3600 * row["run_hours"]),
            f"${row['cost']:,.2f} at ${row['price_per_hour']:.2f}/h" if row["fits"] else "",
        )
    out.print(table)


def _print_verdict(out: Any, made: dict[str, Any]) -> None:
    device = made["device"]
    if made["fits"]:
        out.print(f"\nIt fits {device}.")
        return
    share = f"{made['usable_memory']:.0%} of its memory"
    out.print(f"\nIt does not fit {device} ({share}). Changes, each compiled:")
    if not made["changes"]:
        out.print("  none are left to try; make the model, the batch or the context smaller")
    for change in made["changes"]:
        verdict = "fits" if change["fits"] else "does not fit"
        out.print(f"  {change['options']}: {_bytes(change['bytes'])}, {verdict}")
    if made["changes"] and not any(change["fits"] for change in made["changes"]):
        out.print("  none is enough; make the model, the batch or the context smaller")


def _bytes(number: float) -> str:
    """80e9 as 80.0 GB: decimal, as memory is sold."""
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= scale:
            return f"{number / scale:,.1f} {unit}"
    return f"{number:.0f} B"


def _time(seconds: float) -> str:
    for scale, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= scale:
            return f"{seconds / scale:,.1f} {unit}"
    return f"{1e3 * seconds:.1f} ms"
