"""`qkvflow report`: the report of one experiment, or of several together."""

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directories", nargs="+", metavar="DIR", help="experiment directories; several are merged"
    )
    parser.add_argument(
        "--out", metavar="DIR", help="where to write (default: into the experiment itself)"
    )
    parser.add_argument(
        "--metric", default="test", choices=("test", "validation"), help="the loss to compare"
    )
    parser.add_argument(
        "--margin",
        type=float,
        default=0.01,
        metavar="NATS",
        help="differences below this count as equivalent (default: 0.01 nats per token)",
    )


def run(args: argparse.Namespace) -> int:
    from qkvflow.report import build_report, print_summary

    paths = build_report(args.directories, args.out, metric=args.metric, margin=args.margin)
    print_summary(paths)
    return 0
