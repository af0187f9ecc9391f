"""Tokens per second of generation: with caches and without, along the length, drafted, in batches,
with weights that repeat along depth, with early exit.

    python -m benchmarks.generation [--models standard,mamba] [--tokens 256] [--no-torch]

The small size of the zoo (6 steps, 256 wide), vocabulary 256, one sequence, float32. Rows with the
same name differ in what they measure, not in the model. Every time is the best of several runs of
programs that are compiled already. Peer (`make peers`): Hugging Face GPT-2 of the same shape with
its own cache, and the minimal GPT of `benchmarks.gpt`, each in a process of its own. Weights are
fresh, so acceptance and depth of trained models are not measured here: `qkvflow generate
--draft-steps` and `--early-exit` report them for a run.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from benchmarks.workers import serve, take_turns
from qkvflow import allocator, build
from qkvflow.generation import (
    cache_bytes,
    generate,
    generate_early_exit,
    generate_speculative,
    make_early_exit,
    make_sampler,
    stream,
)
from qkvflow.generation.recompute import recompute

PROMPT, VOCAB = 16, 256


def best(call: Callable[[], Any], rounds: int = 3) -> float:
    """Seconds of the fastest call, after one that may compile."""
    call()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def model_of(name: str, **overrides: Any) -> Any:
    shape = {"context": 2048, **overrides}
    return build(name, vocab_size=VOCAB, key=jax.random.key(0), **shape)


def prompt_of(length: int = PROMPT) -> list[int]:
    return np.random.default_rng(0).integers(VOCAB, size=length).tolist()


def cached_and_uncached(names: Iterable[str], tokens: int) -> None:
    print(f"\n{tokens} tokens after {PROMPT}          cached    recomputed   tokens/s")
    greedy = make_sampler(temperature=0.0)
    for name in names:
        model, prompt = model_of(name), prompt_of()
        fast = tokens / best(lambda m=model, p=prompt: generate(m, [p], num_tokens=tokens))
        few = max(8, tokens // 8)
        start = prompt_of(PROMPT + tokens - few)
        # The last tokens of the same length: the dearest ones without a cache.
        slow = few / best(lambda m=model, s=start, n=few: list(recompute(m, s, n, greedy, 0)), 1)
        print(f"{name:28} {fast:9.0f} {slow:12.0f}", flush=True)


def along_the_length(names: Iterable[str]) -> None:
    print("\nms per token and size of the caches, by where in the text")
    for name in names:
        model, cells = model_of(name), []
        for length in (64, 512, 1920):
            each = per_token(model, prompt_of(length))
            size = cache_bytes(model, 1, length + 97) / 2**20
            cells.append(f"{length}: {1000 * each:6.2f} ms {size:7.2f} MB")
        print(f"{name:28} {'   '.join(cells)}", flush=True)


def per_token(model: Any, prompt: list[int]) -> float:
    """Seconds of one token in the quickest of several dispatches; the prompt is left out."""
    times = []
    for _ in range(2):
        before = None
        for part in stream(model, prompt, num_tokens=97, group=16):
            now = time.perf_counter()
            if before is not None:
                times.append((now - before) / len(part))
            before = now
    return min(times)


def batches(names: Iterable[str], tokens: int) -> None:
    print("\ntokens/s of a batch of    1        8       32")
    for name in names:
        model, cells = model_of(name), []
        for batch in (1, 8, 32):
            prompts = [prompt_of()] * batch
            seconds = best(lambda m=model, p=prompts: generate(m, p, num_tokens=tokens))
            cells.append(f"{batch * tokens / seconds:8.0f}")
        print(f"{name:20} {' '.join(cells)}", flush=True)


def in_turns(calls: dict[str, Callable[[], Any]], rounds: int) -> list[np.ndarray]:
    """Seconds of each call in every round, one after another."""
    seconds = np.array([[best(call, 1) for call in calls.values()] for _ in range(rounds)])
    return list(seconds.T)


def repeated(tokens: int, rounds: int) -> None:
    """Weights that repeat along depth are read from one array, which may stay in the processor's
    cache: `shared` beside `standard` of the same shape."""
    print("\ntokens/s of 12 steps, one sequence    standard    shared    ratio")
    for width in (256, 512, 768):
        shape = {"d_model": width, "num_heads": width // 64, "num_steps": 12}
        models = {name: model_of(name, **shape) for name in ("standard", "shared")}
        standard, shared = in_turns(
            {
                name: lambda m=model: generate(m, [prompt_of()], num_tokens=tokens)
                for name, model in models.items()
            },
            rounds,
        )
        speeds = " ".join(f"{tokens / np.median(each):11.0f}" for each in (standard, shared))
        print(f"{f'{width} wide':30} {speeds} {np.median(standard / shared):8.2f}", flush=True)


def early_exit(tokens: int, rounds: int) -> None:
    """What looking after every step costs, and what leaving at the first saves, at most."""
    model, prompts = model_of("standard"), [prompt_of()]
    calls: dict[str, Callable[[], Any]] = {
        "all steps": lambda: generate(model, prompts, num_tokens=tokens)
    }
    for name, entropy in (("all steps, a look after each", 1e-9), ("one step of six", 100.0)):
        rule = make_early_exit(entropy=entropy)
        calls[name] = lambda rule=rule: generate_early_exit(
            model, prompts, rule=rule, num_tokens=tokens
        )
    print("\nearly exit, one sequence          tokens/s   of all steps")
    seconds = in_turns(calls, rounds)
    for name, each in zip(calls, seconds, strict=True):
        ratio = np.median(seconds[0] / each)
        print(f"{name:30} {tokens / np.median(each):11.0f} {ratio:14.2f}", flush=True)


def drafted(tokens: int) -> None:
    print("\ntong at 24 steps, drafts of 4     tokens/s   accepted   tokens per pass")
    model, prompt = model_of("tong", num_steps=24), prompt_of()
    plain = best(lambda: generate(model, [prompt], num_tokens=tokens))
    print(f"{'plain':30} {tokens / plain:12.0f}", flush=True)
    for steps in (6, 12):
        made = generate_speculative(model, [prompt], draft_steps=steps, num_tokens=tokens)
        seconds = best(
            lambda n=steps: generate_speculative(model, [prompt], draft_steps=n, num_tokens=tokens)
        )
        print(
            f"{f'drafted with {steps} steps':30} {tokens / seconds:12.0f} "
            f"{made.acceptance_rate:10.0%} {made.tokens_per_pass:10.2f}",
            flush=True,
        )


def continues(side: str, batch: int, tokens: int) -> Callable[[], Any]:
    """A call that continues `batch` prompts greedily, here or in one of the peers."""
    if side == "ours":
        allocator.configure_malloc()
        model, prompts = model_of("standard"), [prompt_of()] * batch
        return lambda: generate(model, prompts, num_tokens=tokens, temperature=0.0)
    import torch

    from benchmarks import gpt

    given = torch.tensor([prompt_of()] * batch)
    if side == "gpt":
        return gpt.generator(gpt.GPT(gpt.Shape(256, 6, 4, 2048)).eval(), given, tokens)
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=2048, n_embd=256, n_layer=6, n_head=4,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    hugging: Any = transformers.GPT2LMHeadModel(config).eval()
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False}
    mask = torch.ones_like(given)

    def call() -> None:
        with torch.inference_mode():
            hugging.generate(given, attention_mask=mask, pad_token_id=0, **options)

    return call


def beside_pytorch(tokens: int, rounds: int, threads: int, clock: str) -> None:
    """`standard` beside the minimal GPT and Hugging Face's `generate`, taking turns."""
    sides = {"standard": "ours", "minimal GPT": "gpt", "Hugging Face GPT-2": "hf"}
    print(f"\n{tokens} tokens after {PROMPT}: tokens/s, and how many times that of each peer")
    for batch in (1, 32):
        contenders = {name: [side, str(batch), str(tokens)] for name, side in sides.items()}
        seconds, _ = take_turns(
            "benchmarks.generation", contenders, rounds=rounds, threads=threads, clock=clock
        )
        for name, each in seconds.items():
            ratio = np.median(each / seconds["standard"])
            speed = batch * tokens / np.median(each)
            print(f"{batch:3} sequences  {name:20} {speed:9.0f} {ratio:7.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="standard,standard-llama,tong,time-indexed-ssm,mamba")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--only-peers", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--worker", nargs=3, metavar=("SIDE", "BATCH", "TOKENS"))
    args = parser.parse_args()
    if args.worker is not None:
        side, batch, tokens = args.worker
        serve(continues(side, int(batch), int(tokens)), {})
        return
    if not args.no_torch:
        clock = "cpu" if args.cpu_time else "wall"
        beside_pytorch(args.tokens, args.rounds, args.threads, clock)
    if args.only_peers:
        return
    names = args.models.split(",")
    cached_and_uncached(names, args.tokens)
    along_the_length([name for name in names if name in ("standard", "mamba")] or names)
    batches(names[:1], args.tokens)
    repeated(args.tokens, args.rounds)
    early_exit(args.tokens, args.rounds)
    drafted(args.tokens)


if __name__ == "__main__":
    main()
