"""`qkvflow convert`: a field fitted to the layers of a trained per-layer model."""

import argparse
import dataclasses
import sys
from typing import Any

from qkvflow.cli.evaluation import add_checkpoint_option, checkpoint_step
from qkvflow.errors import UserError

_WHOLE = ("rank", "num_basis", "layers_per_loop", "prelude", "coda")
_WORDS = ("basis", "gate", "time_features")


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("dir", metavar="DIR", help="the run directory or export of a per-layer model")
    add("--out", required=True, metavar="DIR", help="the directory to make, which every verb takes")
    add(
        "--field",
        required=True,
        metavar="F",
        help="shared, low-rank, basis, gated, cycle or looped (own layers, a cycle, own layers)",
    )
    add(
        "--base",
        default="average",
        metavar="HOW",
        help="what stands for layers that become one: average (default), stepwise or lower",
    )
    add("--rank", type=int, metavar="R", help="of low-rank's terms")
    add("--num-basis", type=int, metavar="K", help="basis functions along depth")
    add("--basis", metavar="KIND", help="cosine, chebyshev or bspline")
    add("--gate", metavar="KIND", help="time-indexed, input, output or both")
    add("--time-features", metavar="KIND", help="of gates: sinusoidal, learned, raw or layers")
    add("--layers-per-loop", type=int, metavar="L", help="distinct layers of cycle and looped")
    add("--prelude", type=int, metavar="N", help="own layers before a looped core (default 1)")
    add("--coda", type=int, metavar="N", help="own layers after a looped core (default 1)")
    add(
        "--ranks",
        metavar="N,...",
        help="show other sizes too: ranks, numbers of basis functions or layers in a loop",
    )
    add("--data", metavar="SPEC", help="the text to measure losses on (default: the model's own)")
    add("--data-dir", metavar="DIR", help="a local copy of an hf: dataset")
    add("--split", default="validation", help="train, validation (default) or test")
    add("--max-tokens", type=int, metavar="N", help="windows spread evenly, not all")
    add_checkpoint_option(parser)


def run(args: argparse.Namespace) -> int:
    from qkvflow.compilation import use_compilation_cache
    from qkvflow.convert import TAKES, Conversion, convert
    from qkvflow.files import to_json, write_whole
    from qkvflow.report.conversion import JSON, build_conversion, sizes_table
    from qkvflow.runs.export import check_new, write_export
    from qkvflow.runs.load import load

    options = {n: getattr(args, n) for n in (*_WHOLE, *_WORDS) if getattr(args, n) is not None}
    conversion = Conversion(args.field, args.base, options)
    for name in options:
        if name not in TAKES.get(args.field, ()):
            others = " and ".join(field for field, taken in TAKES.items() if name in taken)
            raise UserError(
                f"--{name.replace('_', '-')} is for {others}, not for {args.field}; leave it out"
            )
    ranks = _ranks(args.ranks)
    for rank in ranks:
        conversion.of_size(rank)
    out = check_new(args.out, "--out")
    use_compilation_cache()
    source = load(args.dir, step=checkpoint_step(args.checkpoint))
    made = convert(source, conversion)
    findings = _findings(source, made, conversion, ranks, args)
    write_export(dataclasses.replace(made, step=None), out, None)
    write_whole(out / JSON, to_json(findings, 1) + "\n")
    heads, rows = sizes_table(findings)
    print(f"{findings['source']['model']} as {args.field}, before any training")
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    [chosen] = [each for each in findings["sizes"] if each["chosen"]]
    print("residual of each matrix, |W' - W| / |W|:")
    for name, value in chosen["residuals"].items():
        print(f"  {name}: {value:.4f}")
    print(f"wrote {out}: model, {JSON} and {build_conversion(out).name}")
    return 0


def _ranks(text: str | None) -> list[int]:
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"--ranks must be sizes such as 1,4,16, not '{text}'")
    return sorted({int(part) for part in parts})


def _findings(
    source: Any, made: Any, conversion: Any, ranks: list[int], args: argparse.Namespace
) -> dict[str, Any]:
    from qkvflow.convert import SIZES, convert, lost
    from qkvflow.evaluation import evaluate
    from qkvflow.lm import count_parameters

    split = _split(source, args)

    def about(each: Any) -> dict[str, Any]:
        counts = count_parameters(each.model)
        nats = None
        if split is not None:
            nats = evaluate(each.model, split, max_tokens=args.max_tokens).nats
        return {"parameters": counts.total, "blocks": counts.blocks, "nats": nats}

    name = SIZES.get(conversion.field)
    chosen = getattr(made.config.model.config, name) if name else None
    sizes = []
    for size in sorted({*ranks, int(chosen)}) if chosen is not None else [None]:
        each = made if size == chosen else convert(source, conversion.of_size(size))
        residuals = lost(source, each)
        row = {"size": size, "chosen": size == chosen, "residuals": residuals}
        sizes.append({**row, **about(each)})
    data = None
    if split is not None:
        data = {"spec": args.data or source.config.data.spec, "split": args.split}
    shape = source.config.model
    return {
        "source": {"path": args.dir, "model": shape.name, "layers": shape.config.layers}
        | about(source),
        "field": conversion.field,
        "base": conversion.base,
        "options": conversion.options,
        "size_name": name,
        "data": data,
        "sizes": sizes,
    }


def _split(source: Any, args: argparse.Namespace) -> Any:
    """The text to measure on; the model's own may be gone."""
    from qkvflow.runs.corpus import load_split

    try:
        return load_split(source, args.split, spec=args.data, data_dir=args.data_dir)[0]
    except UserError as error:
        if args.data is not None:
            raise
        print(f"note: no losses: {error}", file=sys.stderr)
        return None
