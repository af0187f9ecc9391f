"""`qkvflow coordinate-check`: do activations keep their size when the width grows?"""

import argparse
from pathlib import Path
from typing import Any

from qkvflow.cli.options import SHORT, add_config_options
from qkvflow.errors import UserError

_OWN = ("--d-model", "--steps", "--tokens", "--warmup", "--seed", "--target-loss", "--track")
_SHORT = {key: value for key, value in SHORT.items() if key not in _OWN}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="a YAML file; options go on top of it")
    parser.add_argument(
        "--widths", default="32,64,128,256", metavar="N,...", help="default 32,64,128,256"
    )
    parser.add_argument(
        "--updates", type=int, default=4, metavar="N", help="of the weights (default 4)"
    )
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="mean over (default 1)")
    parser.add_argument(
        "--out", metavar="DIR", help="write coordinates.json, coordinates.html and the figure there"
    )
    add_config_options(parser, _SHORT)


def run(args: argparse.Namespace) -> int:
    from qkvflow.experiment.coordinate_check import coordinate_check
    from qkvflow.files import write_json
    from qkvflow.report.coordinates import build_coordinates, verdict
    from qkvflow.runs.config_files import parse_overrides, read_yaml
    from qkvflow.runs.rundir import writing

    try:
        widths = [int(part) for part in args.widths.split(",")]
    except ValueError:
        raise UserError(f"--widths must be numbers such as 64,128, not '{args.widths}'") from None
    content: dict[str, Any] = read_yaml(args.config) if args.config else {}
    for section, values in parse_overrides(args.overrides).items():
        content[section] = {**(content.get(section) or {}), **values}

    def tell(width: int, seed: int) -> None:
        print(f"width {width}, seed {seed}", flush=True)

    found = coordinate_check(content, widths, updates=args.updates, seeds=args.seeds, tell=tell)
    print(verdict(found))
    for name, slope in found["slopes"].items():
        changes = ", ".join(f"{row[-1]:.3g}" for row in found["changes"][name])
        print(f"  {name}: {changes} (slope {slope:+.2f})")
    if args.out is not None:
        directory = Path(args.out)
        with writing(directory, resumable=False):
            directory.mkdir(parents=True, exist_ok=True)
            write_json(directory / "coordinates.json", found)
            build_coordinates(found, directory)
        print(f"wrote {directory}: coordinates.json, coordinates.html")
    return 0
