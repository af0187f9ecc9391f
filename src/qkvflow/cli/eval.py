"""`qkvflow eval`: the loss of a trained model on a whole split."""

import argparse
import json
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
    add_checkpoint_option(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object, for scripts")
    add_parallel_options(parser)


def run(args: argparse.Namespace) -> int:
    return joined(args, lambda: _eval(args))


def _eval(args: argparse.Namespace) -> int:
    from qkvflow.compilation import use_compilation_cache
    from qkvflow.distributed import hosts, make_layout
    from qkvflow.evaluation.probes import answer_accuracy
    from qkvflow.runs.corpus import load_probe
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
    split, floor, answers = load_probe(trained, args.split, spec=args.data, data_dir=args.data_dir)
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
        "floor": floor,
        "results": results,
    }
    if not hosts.is_rank0():
        return 0
    if answers is not None:
        answer["accuracy"] = answer_accuracy(model, split, answers)._asdict()
    if args.json:
        print(json.dumps(answer, indent=1))
    else:
        _print(answer)
    return 0


def at_depth(model: Any, config: Any, args: argparse.Namespace) -> Any:
    """The model on another grid or with another solver, as asked."""
    from qkvflow.schemes import make_scheme

    if args.tolerance is not None and args.scheme != "adaptive":
        raise UserError("--tolerance is for --scheme adaptive")
    scheme = None
    if args.scheme is not None:
        tolerance = config.tolerance if args.tolerance is None else args.tolerance
        scheme = make_scheme(args.scheme, composition=config.composition, tolerance=tolerance)
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
    reached = _arrives(model, split, context, args)
    if reached is False:
        print(
            f"note: at context {context} the solver ran out of steps, so this is no loss of the"
            " flow at its end; give a larger --tolerance",
            file=sys.stderr,
        )
    return {
        "context": context,
        "reached": reached,
        "trained_context": trained.model.context,
        "tokens": evaluation.tokens,
        **evaluation.summary(),
        "by_position": positions_of(evaluation.by_position),
    }


def _arrives(model: Any, split: Any, context: int, args: argparse.Namespace) -> bool | None:
    """Whether the solver has steps enough, on one batch; None if several processes share it."""
    import jax

    from qkvflow.evaluation.losses import evaluation_batch
    from qkvflow.evaluation.sweep import count_work
    from qkvflow.schemes import Adaptive

    if not isinstance(model.scheme, Adaptive):
        return True
    if jax.process_count() > 1:
        return None
    size = args.batch_size or evaluation_batch(context, model.vocab_size)
    return count_work(model, split, size, args.max_tokens, batches=1, context=context)[1]


def _print(answer: dict[str, Any]) -> None:
    depth = f"{answer['num_steps']} steps, {answer['scheme']}"
    print(f"{answer['model']} at step {answer['step']}, {answer['split']} split ({depth})")
    for each in answer["results"]:
        print(
            f"context {each['context']}: {with_error(each)} nats/token, "
            f"{each['bits_per_byte']:.4f} bits/byte, perplexity {each['perplexity']:.2f} "
            f"({each['tokens']:,} tokens)"
        )
        for part in each["by_position"]:
            print(f"  positions {part['first']}-{part['last']}: {part['nats']:.4f}")
    if found := answer.get("accuracy"):
        print(
            f"answers: {found['tokens']:.2%} ± {found['standard_error']:.2%} of tokens right, "
            f"{found['documents']:.2%} of {found['count']:,} documents; "
            f"a guess has {found['chance']:.2%}"
        )
    if answer["floor"] is not None:
        print(f"the entropy rate of this source is {answer['floor']:.4f} nats/token")
