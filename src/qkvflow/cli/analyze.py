"""`qkvflow analyze`: what a trained model does inside."""

import argparse
from pathlib import Path
from typing import Any

from qkvflow.cli.evaluation import add_checkpoint_option, add_depth_options, checkpoint_step
from qkvflow.errors import UserError
from qkvflow.zoo.registry import ANALYSES

SAMPLE = 48
"""Tokens of the model's own text, where none is given."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="a run directory or an export")
    parser.add_argument(
        "--only",
        metavar="NAME,...",
        help=f"{', '.join(ANALYSES)} (default: all that apply)",
    )
    parser.add_argument(
        "--text", metavar="TEXT", help="the text to follow (default: a sample of the model's own)"
    )
    add_depth_options(parser)
    parser.add_argument(
        "--exponents",
        default="16",
        metavar="K",
        help="Lyapunov exponents: the leading K, or all (default 16)",
    )
    add_checkpoint_option(parser)
    parser.add_argument(
        "--out", metavar="DIR", help="where to write (default: analysis/ in the run or export)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print analysis.json alone, for scripts"
    )


def run(args: argparse.Namespace) -> int:
    from qkvflow.analysis import Subject, analyse, choose, in_steps
    from qkvflow.cli.eval import at_depth
    from qkvflow.compilation import use_compilation_cache
    from qkvflow.lm import count_parameters
    from qkvflow.report.analysis import build_analysis
    from qkvflow.runs.load import load
    from qkvflow.schemes.fixed_point import FixedPoint

    num_exponents = _exponents(args.exponents)
    names = None if args.only is None else [name.strip() for name in args.only.split(",")]
    use_compilation_cache()
    trained = load(args.dir, step=checkpoint_step(args.checkpoint))
    asked = at_depth(trained.model, trained.config.model.config, args)
    model = in_steps(asked)
    analyses = choose(model, names)
    tokens, text = _text(asked, trained.tokenizer, args.text)
    notes = []
    if type(model.scheme) is not type(asked.scheme):
        name = type(model.scheme).__name__
        notes.append(f"A solver has no steps of its own: {name} steps on the grid stand for it.")
        if isinstance(asked.scheme, FixedPoint):
            notes.append(
                "That is one loop from the core's first state, not at the fixed point: the last "
                "state here is not what the model predicts from."
            )
    if args.text is None:
        notes.append("The text is a sample of the model's own; --text gives another.")
    about = {
        "model": trained.config.model.name,
        "step": trained.step,
        "num_steps": model.num_steps,
        "scheme": args.scheme or trained.config.model.config.scheme,
        "horizon": model.horizon,
        "parameters": count_parameters(model).total,
        "text": text,
        "notes": notes,
    }
    subject = Subject(model, tokens, lambda token: trained.tokenizer.decode([token]), num_exponents)
    out = Path(args.out) if args.out else Path(args.dir) / "analysis"

    def tell(name: str, findings: list[str]) -> None:
        if not args.json:
            print("\n".join([name, *(f"  {line}" for line in findings)]), flush=True)

    summary = analyse(subject, analyses, out, about, tell)
    paths = build_analysis(out)
    if args.json:
        print(summary.read_text("utf-8"), end="")
        return 0
    arrays = ", ".join(f"{name}.npz" for name in analyses)
    print(f"wrote {paths.html}; beside it {arrays} and {summary.name}", end="")
    if paths.figures is None:
        print("; PNG and PDF figures need matplotlib: pip install 'qkvflow[figures]'")
    else:
        print(f", and {len(paths.figures) // 2} figures as PNG and PDF in figures/")
    return 0


def _exponents(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--exponents must be a number such as 16, or all, not '{text}'")
    return int(text)


def _text(model: Any, tokenizer: Any, text: str | None) -> tuple[Any, str]:
    """The tokens to follow, and what they say."""
    import numpy as np

    if text is None:
        return _sample(model, tokenizer)
    try:
        tokens = np.asarray(tokenizer.encode_prompt(text) if text else [], np.int64)
    except UnicodeError:
        raise UserError("--text is not UTF-8; type it again") from None
    if not len(tokens):
        raise UserError("--text is empty; give at least one token")
    if len(tokens) > model.context:
        raise UserError(
            f"--text has {len(tokens)} tokens, more than this model's context of {model.context}; "
            "shorten it"
        )
    return tokens, text


def _sample(model: Any, tokenizer: Any) -> tuple[Any, str]:
    import numpy as np

    from qkvflow.generation import generate

    try:
        start = tokenizer.encode_prompt("\n") or [0]
    except UserError:
        # An alphabet without line breaks: any token will do.
        start = [0]
    length = min(SAMPLE, model.context)
    tokens = start
    if length > len(start):
        [new] = generate(model, [start], num_tokens=length - len(start), temperature=0.8, seed=0)
        tokens = start + list(new)
    return np.asarray(tokens, np.int64), tokenizer.decode(tokens)
