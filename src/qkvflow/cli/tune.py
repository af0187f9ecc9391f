"""`qkvflow tune`: search over any options of a run."""

import argparse
from typing import Any

from qkvflow.cli.executing import add_executor_options, execute
from qkvflow.cli.options import SHORT, add_config_options

_SHORT = {key: value for key, value in SHORT.items() if key != "--seed"}
_EPILOG = """\
A space is KEY=log:LOW:HIGH, KEY=uniform:LOW:HIGH or KEY=A,B,... for any option of a configuration.

Stopped or killed, the same command goes on where it was; with more --trials, it goes further.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("--out", required=True, metavar="DIR", help="the directory of this search")
    search = parser.add_argument_group("the search")
    search.add_argument("--config", metavar="FILE", help="a YAML file; options go on top of it")
    search.add_argument(
        "--search", action="append", metavar="KEY=SPACE", help="an option and what it may be"
    )
    search.add_argument(
        "--trials", metavar="N", help="how many (default 20, or all combinations of choices)"
    )
    search.add_argument(
        "--seeds",
        default=1,
        metavar="N",
        help="runs of a trial, on seeds that comparisons never use (default 1)",
    )
    search.add_argument(
        "--evaluations", type=int, default=10, metavar="N", help="evaluations in a run (default 10)"
    )
    search.add_argument("--no-prune", action="store_true", help="bring every trial to its end")
    search.add_argument("--search-seed", default=0, metavar="S", help="of the sampler (default 0)")
    running = parser.add_argument_group("running")
    add_executor_options(running)
    running.add_argument("--no-report", action="store_true", help="no page and no figures")
    add_config_options(parser, _SHORT)


def run(args: argparse.Namespace) -> int:
    from qkvflow.experiment.search import make_search
    from qkvflow.experiment.tuning import run_search
    from qkvflow.report.tuning import build_tuning, summary
    from qkvflow.runs.config_files import parse_overrides, read_yaml

    search = make_search(
        args.search or (),
        trials=args.trials,
        seeds=args.seeds,
        prune=not args.no_prune,
        seed=args.search_seed,
    )
    content: dict[str, Any] = read_yaml(args.config) if args.config else {}
    for section, values in parse_overrides(args.overrides).items():
        content[section] = {**(content.get(section) or {}), **values}
    result, code = execute(
        args,
        lambda **how: run_search(content, search, args.out, evaluations=args.evaluations, **how),
    )
    if code:
        return code
    page = None if args.no_report else build_tuning(args.out)
    if not args.quiet:
        print(summary(result))
        print(f"wrote {args.out}: best.yaml, tuning.json{f', {page.name}' if page else ''}")
    return 0
