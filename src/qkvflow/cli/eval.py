"""`qkvflow eval`: the loss of a trained model on a whole split."""

import argparse
import sys
from typing import Any

from qkvflow.cli.evaluation import (
    add_checkpoint_option,
    add_depth_options,
    checkpoint_step,
    contexts_of,
    positions_of,
    with_error,
)
from qkvflow.cli.joining import add_parallel_options, joined
from qkvflow.errors import UserError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="a run directory or an export")
    parser.add_argument("--split", default="validation", help="train, validation (default) or test")
    parser.add_argument("--data", metavar="SPEC", help="another corpus, with the model's tokenizer")
    parser.add_argument("--data-dir", metavar="DIR", help="a local copy of an hf: dataset")
    add_depth_options(parser)
    parser.add_argument(
        "--context", metavar="N[,N...]", help="other lengths of context, e.g. 2048,4096,8192"
    )
    parser.add_argument("--batch-size", type=int, metavar="N", help="windows at once")
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="windows spread evenly, not all"
    )
    parser.add_argument(
        "--levels", metavar="N[,N...]", help="difficulties of a probe to answer too, e.g. 1,2,8"
    )
    add_checkpoint_option(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object, for scripts")
    add_parallel_options(parser)


def run(args: argparse.Namespace) -> int:
    return joined(args, lambda: _eval(args))


def _eval(args: argparse.Namespace) -> int:
    from qkvflow.compilation import use_compilation_cache
    from qkvflow.distributed import hosts, make_layout
    from qkvflow.evaluation.probes import measure_probe
    from qkvflow.runs.corpus import load_part
    from qkvflow.runs.depths import parse_levels
    from qkvflow.runs.load import load

    for name in ("num_steps", "batch_size", "max_tokens"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise UserError(
                f"--{name.replace('_', '-')} must be positive, not {getattr(args, name)}"
            )
    use_compilation_cache()
    layout = make_layout(args.mesh)
    trained = load(args.dir, step=checkpoint_step(args.checkpoint), layout=layout)
    model = at_depth(trained.model, trained.config.model.config, args)
    levels = parse_levels(args.levels or "none")
    split, corpus = load_part(trained, args.split, spec=args.data, data_dir=args.data_dir)
    if levels and corpus.answers is None:
        raise UserError(
            f"--levels is for probes such as source:p-hop, which '{corpus.spec}' is not"
        )
    results = [
        _evaluate(trained, model, split, context, args, layout)
        for context in contexts_of(args.context, trained.model.context)
    ]
    answer = {
        "path": args.dir,
        "model": trained.config.model.name,
        "step": trained.step,
        "split": args.split,
        "num_steps": model.num_steps,
        "scheme": args.scheme or trained.config.model.config.scheme,
        "floor": corpus.floor,
        "results": results,
    }
    if not hosts.is_rank0():
        return 0
    if corpus.answers is not None:
        answer["accuracy"] = measure_probe(
            model, split, corpus, trained.tokenizer, name=args.split, levels=levels
        )
    if args.json:
        from qkvflow.files import to_json

        print(to_json(answer, 1))
    else:
        _print(answer)
    return 0


def at_depth(model: Any, config: Any, args: argparse.Namespace) -> Any:
    """The model on another grid or with another solver, as asked."""
    from qkvflow.schemes import AbstractSolver, make_scheme

    scheme = None
    if args.scheme is not None or args.tolerance is not None:
        name = args.scheme or config.scheme
        tolerance = config.tolerance if args.tolerance is None else args.tolerance
        scheme = make_scheme(name, composition=config.composition, tolerance=tolerance)
        if args.tolerance is not None and not isinstance(scheme, AbstractSolver):
            raise UserError(
                f"--tolerance is for solvers such as --scheme adaptive, which {name} is not"
            )
    return model.at_depth(args.num_steps, scheme)


def _evaluate(
    trained: Any, model: Any, split: Any, context: int, args: argparse.Namespace, layout: Any
) -> dict[str, Any]:
    from qkvflow.evaluation.losses import evaluate

    if context > trained.model.context:
        print(
            f"note: this model was trained on {trained.model.context} tokens at a time, less than "
            f"{context}",
            file=sys.stderr,
        )
    evaluation = evaluate(
        model,
        split,
        context=context,
        batch_size=args.batch_size,
        max_tokens=args.max_tokens,
        layout=layout,
    )
    work = evaluation.solved
    if work is not None and work.missed:
        print(
            f"note: in {work.missed} of {work.batches} batches at context {context} "
            f"{model.scheme.gave_up()}",
            file=sys.stderr,
        )
    return {
        "context": context,
        "reached": work is None or not work.missed,
        "solver": None if work is None else work._asdict(),
        "trained_context": trained.model.context,
        "tokens": evaluation.tokens,
        **evaluation.summary(),
        "by_position": positions_of(evaluation.by_position),
    }


def _print(answer: dict[str, Any]) -> None:
    depth = f"{answer['num_steps']} steps, {answer['scheme']}"
    print(f"{answer['model']} at step {answer['step']}, {answer['split']} split ({depth})")
    for each in answer["results"]:
        print(
            f"context {each['context']}: {with_error(each)} nats/token, "
            f"{each['bits_per_byte']:.4f} bits/byte, perplexity {each['perplexity']:.2f} "
            f"({each['tokens']:,} tokens)"
        )
        if work := each["solver"]:
            print(
                f"  solver: arrived in {work['batches'] - work['missed']} of {work['batches']} "
                f"batches, {work['evaluations']:.1f} evaluations of a block on average, largest "
                f"residual {work['residual']:.2g}"
            )
        for part in each["by_position"]:
            print(f"  positions {part['first']}-{part['last']}: {part['nats']:.4f}")
    if found := answer.get("accuracy"):
        print(
            f"answers: {_share(found)} of tokens right, {found['documents']:.2%} of "
            f"{found['count']:,} documents; a guess has {found['chance']:.2%}"
        )
        for each in found["levels"] if len(found["levels"]) > 1 else ():
            there = "" if each["trained"] else " (not trained on)"
            print(f"  {found['difficulty']} {each['level']}: {_share(each)}{there}")
        for level in found["left_out"]:
            print(f"  {found['difficulty']} {level}: the model has no positions or symbols for it")
    if answer["floor"] is not None:
        print(
            f"the best possible loss, the entropy rate of this source, is {answer['floor']:.4f} "
            "nats/token"
        )


def _share(found: dict[str, Any]) -> str:
    ends = f"{found['low']:.2%} to {found['high']:.2%}"
    return f"{found['tokens']:.2%} (95 % interval {ends})"
