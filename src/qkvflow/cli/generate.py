"""`qkvflow generate`: text from a trained model, as it is produced."""

import argparse
import io
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkvflow.cli.evaluation import add_checkpoint_option, add_depth_options, checkpoint_step
from qkvflow.errors import UserError

DEFAULT_TOKENS = 200


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("dir", metavar="DIR", help="a run directory or an export")
    add("--prompt", metavar="TEXT", help="what to continue (default: a line break)")
    add("--prompts", metavar="FILE", help="many prompts, one on each line, in batches")
    add("--tokens", type=int, metavar="N", help="new tokens (default 200, or what fits)")
    add("--temperature", type=float, metavar="X", help="0: greedy (default 0.8)")
    add("--greedy", action="store_true", help="the most likely token always; as --temperature 0")
    add("--top-k", type=int, metavar="K", help="only the K most likely tokens")
    add("--top-p", type=float, metavar="P", help="only the most likely tokens that make up P")
    add("--seed", type=int, default=0, metavar="S", help="the same seed gives the same text")
    add("--window", action="store_true", help="beyond the context, go on with its last tokens")
    add_depth_options(parser)
    add("--draft-steps", type=int, metavar="K", help="draft with K steps, verify with all")
    add("--draft-length", type=int, metavar="L", help="tokens drafted at a time (default 4)")
    add("--benchmark", action="store_true", help="time --draft-steps against doing without")
    add(
        "--early-exit",
        metavar="RULE",
        help="entropy=0.5, change=0.01 or exit=0.5: stop when settled",
    )
    add("--batch-size", type=int, metavar="N", help="of --prompts (default 64)")
    add_checkpoint_option(parser)
    add("--json", action="store_true", help="a JSON object for each prompt, one on a line")


def run(args: argparse.Namespace) -> int:
    from qkvflow.cli.eval import at_depth
    from qkvflow.compilation import use_compilation_cache
    from qkvflow.generation import make_sampler
    from qkvflow.runs.load import load

    _settle(args)
    if args.tokens is not None and args.tokens < 1:
        raise UserError(f"--tokens must be at least 1, not {args.tokens}")
    if args.draft_steps is not None and (args.early_exit or args.window):
        raise UserError("--draft-steps goes with neither --early-exit nor --window; leave one out")
    if args.benchmark and (args.draft_steps is None or args.prompts):
        raise UserError("--benchmark times --draft-steps on one --prompt; give both, or leave it")
    # Refused before anything is loaded.
    make_sampler(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p)
    texts = _read(args.prompts) if args.prompts else [args.prompt]
    use_compilation_cache()
    trained = load(args.dir, step=checkpoint_step(args.checkpoint))
    model = at_depth(trained.model, trained.config.model.config, args)
    prompts = [_encode(trained.tokenizer, text) for text in texts]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if args.tokens is None:
            args.tokens = _fitting(model, prompts, args.window)
        if args.prompts:
            _batch(model, trained.tokenizer, texts, prompts, args)
        else:
            _single(model, trained.tokenizer, texts[0], prompts[0], args, caught)
    _show(caught)
    return 0


def _settle(args: argparse.Namespace) -> None:
    """Refuse what would be of no effect, and fill in the defaults."""
    for one, other in (("prompt", "prompts"), ("greedy", "temperature")):
        if getattr(args, one) not in (None, False) and getattr(args, other) not in (None, 0.0):
            raise UserError(f"--{one} and --{other} exclude each other; leave one out")
    for one, needed in (("draft_length", "draft_steps"), ("batch_size", "prompts")):
        if getattr(args, one) is not None and getattr(args, needed) is None:
            names = [f"--{name.replace('_', '-')}" for name in (one, needed)]
            raise UserError(f"{names[0]} is of {names[1]}; give both, or leave it out")
    defaults = {"prompt": "\n", "temperature": 0.0 if args.greedy else 0.8}
    for name, value in {**defaults, "draft_length": 4, "batch_size": 64}.items():
        if getattr(args, name) is None:
            setattr(args, name, value)


def _fitting(model: Any, prompts: list[list[int]], window: bool) -> int:
    """200 new tokens, or as many as learned positions leave room for."""
    room = model.context - max(map(len, prompts))
    if window or model.positions is None or room >= DEFAULT_TOKENS:
        return DEFAULT_TOKENS
    if room < 1:
        raise UserError(
            f"the prompt fills the model's context of {model.context} tokens; shorten it, or go on "
            "with --window"
        )
    warnings.warn(
        f"{room} new tokens fit the model's context of {model.context}; --tokens N --window goes "
        "on beyond it",
        stacklevel=2,
    )
    return room


def _read(path: str) -> list[str]:
    try:
        lines = Path(path).read_text("utf-8").removesuffix("\n").split("\n")
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise UserError(f"cannot read --prompts {path}: {reason.lower()}") from None
    except UnicodeDecodeError:
        raise UserError(f"--prompts {path} is not UTF-8; convert it") from None
    if lines == [""]:
        raise UserError(f"--prompts {path} is empty; write one prompt on each line")
    return lines


def _encode(tokenizer: Any, text: str) -> list[int]:
    try:
        return tokenizer.encode_prompt(text)
    except UnicodeError:
        raise UserError("the prompt is not UTF-8; type it again") from None


def _show(caught: list[Any]) -> None:
    for each in caught:
        print(f"note: {each.message}", file=sys.stderr)
    caught.clear()


def _single(
    model: Any, tokenizer: Any, text: str, prompt: list[int], args: argparse.Namespace, caught: Any
) -> None:
    started = time.perf_counter()
    parts = _parts(model, prompt, args)
    _show(caught)
    timed, new, seen = [], [], []
    decoder = tokenizer.stream_after(prompt)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if not args.json:
        print(text, end="", flush=True)
    for part in parts:
        timed.append((time.perf_counter(), len(part.tokens[0])))
        new += part.tokens[0]
        seen.append(part)
        if not args.json:
            print("".join(map(decoder.push, part.tokens[0])), end="", flush=True)
    if not args.json:
        print(decoder.finish(), flush=True)
    numbers: dict[str, Any] = {
        "tokens": len(new),
        "tokens_per_second": rate(started, timed),
        "seconds_to_first_token": timed[0][0] - started,
        **_report(model, prompt, new, seen, args),
    }
    if args.json:
        from qkvflow.files import to_json

        print(to_json({"prompt": text, "text": tokenizer.decode_after(prompt, new), **numbers}))
    print(_closing(numbers), file=sys.stderr)


def _parts(model: Any, prompt: list[int], args: argparse.Namespace) -> Iterator[Any]:
    """The tokens as they come, with what is known of each group of them."""
    from qkvflow.generation import make_sampler
    from qkvflow.generation.decoding import FullDepth, Request, stream_parts
    from qkvflow.generation.early_exit import check_scheme, parse_early_exit
    from qkvflow.generation.speculative import stream_speculative

    sampler = make_sampler(temperature=args.temperature, top_k=args.top_k, top_p=args.top_p)
    if args.draft_steps is not None:
        return stream_speculative(
            model,
            prompt,
            draft_steps=args.draft_steps,
            draft_length=args.draft_length,
            num_tokens=args.tokens,
            sampler=sampler,
            seed=args.seed,
        )
    decoder = FullDepth()
    if args.early_exit:
        decoder = parse_early_exit(args.early_exit)
        check_scheme(model, decoder)
    # Small groups, so that the text flows.
    request = Request(args.tokens, sampler, args.seed, args.window, 8, decoder)
    return stream_parts(model, prompt, request)


def rate(started: float, timed: list[tuple[float, int]]) -> float:
    """Tokens per second once the programs are compiled, which the first two parts may do."""
    if len(timed) > 2:
        return sum(count for _, count in timed[2:]) / (timed[-1][0] - timed[1][0])
    return sum(count for _, count in timed) / (timed[-1][0] - started)


def _report(
    model: Any, prompt: list[int], new: list[int], parts: list[Any], args: argparse.Namespace
) -> dict[str, Any]:
    """What speculation or early exit did."""
    if args.draft_steps is not None:
        rounds = [part for part in parts if part.drafted]
        accepted = sum(part.accepted for part in rounds)
        found = {
            "acceptance_rate": accepted / max(sum(part.drafted for part in rounds), 1),
            "tokens_per_pass": (accepted + len(rounds)) / max(len(rounds), 1),
        }
        if args.benchmark:
            drafting = _warm_rate(model, prompt, args, draft_steps=args.draft_steps)
            found["speedup"] = drafting / _warm_rate(model, prompt, args, draft_steps=None)
        return found
    if args.early_exit:
        import numpy as np

        from qkvflow.generation import exit_quality
        from qkvflow.generation.early_exit import parse_early_exit

        text = np.array([prompt + new])[:, -model.context :]
        quality = exit_quality(model, text, parse_early_exit(args.early_exit))
        depths = [depth for part in parts for depth in part.depths[0]]
        return {
            "average_depth": sum(depths) / len(depths),
            "num_steps": model.num_steps,
            "agreement": quality.agreement,
            "loss": quality.loss,
            "full_loss": quality.full_loss,
        }
    return {}


def _warm_rate(model: Any, prompt: list[int], args: argparse.Namespace, **changes: Any) -> float:
    """Tokens per second of a run in which nothing is compiled: the second of two."""
    again = argparse.Namespace(**{**vars(args), **changes, "tokens": min(args.tokens, 128)})
    seconds = 0.0
    for _ in range(2):
        started = time.perf_counter()
        for _ in _parts(model, prompt, again):
            pass
        seconds = time.perf_counter() - started
    return again.tokens / seconds


def _closing(numbers: dict[str, Any]) -> str:
    line = (
        f"{numbers['tokens']} tokens, {numbers['tokens_per_second']:.0f} tokens/s, "
        f"{1000.0 * numbers['seconds_to_first_token']:.0f} ms to the first token"
    )
    if "acceptance_rate" in numbers:
        line += (
            f"; {numbers['acceptance_rate']:.0%} of drafts accepted, "
            f"{numbers['tokens_per_pass']:.2f} tokens per pass"
        )
    if "speedup" in numbers:
        line += f", {numbers['speedup']:.2f} times as fast as without"
    if "average_depth" in numbers:
        line += (
            f"; {numbers['average_depth']:.2f} of {numbers['num_steps']} steps on average, "
            f"{numbers['agreement']:.0%} of choices as at full depth, loss of this text "
            f"{numbers['loss']:.3f} (full depth {numbers['full_loss']:.3f})"
        )
    return line


def _batch(
    model: Any,
    tokenizer: Any,
    texts: list[str],
    prompts: list[list[int]],
    args: argparse.Namespace,
) -> None:
    from qkvflow.files import to_json
    from qkvflow.generation import generate, generate_early_exit, generate_speculative
    from qkvflow.generation.early_exit import parse_early_exit

    for line, prompt in enumerate(prompts, 1):
        if not prompt:
            raise UserError(f"line {line} of --prompts {args.prompts} is empty; remove it")
    options = {
        "num_tokens": args.tokens,
        "temperature": args.temperature,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "seed": args.seed,
        "batch_size": args.batch_size,
    }
    started, note = time.perf_counter(), ""
    depths: list[list[int]] | None = None
    if args.draft_steps is not None:
        draft = {"draft_steps": args.draft_steps, "draft_length": args.draft_length}
        made = generate_speculative(model, prompts, **draft, **options)
        out, note = made.tokens, f"; {made.acceptance_rate:.0%} of drafts accepted"
    elif args.early_exit:
        rule = parse_early_exit(args.early_exit)
        exited = generate_early_exit(model, prompts, rule=rule, window=args.window, **options)
        out, depths = exited.tokens, exited.depths
        note = (
            f"; {exited.average_depth:.2f} of {model.num_steps} steps used on average, "
            f"{exited.average_run:.2f} run"
        )
    else:
        out = generate(model, prompts, window=args.window, **options)
    seconds = time.perf_counter() - started
    for index, (text, new) in enumerate(zip(texts, out, strict=True)):
        added = tokenizer.decode_after(prompts[index], new)
        if args.json:
            row = {"prompt": text, "text": added, "tokens": len(new)}
            if depths is not None:
                row["average_depth"] = sum(depths[index]) / len(depths[index])
            print(to_json(row))
        else:
            print(f"{text}{added}\n" + "-" * 40)
    total = sum(map(len, out))
    print(
        f"{len(out)} prompts, {total} tokens, {total / seconds:.0f} tokens/s "
        f"with compilation{note}",
        file=sys.stderr,
    )
