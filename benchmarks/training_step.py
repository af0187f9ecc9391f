"""A training step of models of the zoo beside PyTorch doing the same work.

    python -m benchmarks.training_step [--shapes 64,128,256,256x1024] [--models standard,shared]
                                       [--peers gpt,hf] [--rounds 9]

Batch 8, a vocabulary of 256, AdamW, clipping, float32. Peers (`make peers`): a minimal GPT with
fused attention and a fused AdamW (`benchmarks.gpt`, equal to `standard` to the parameter) and
Hugging Face's GPT-2, each eager and compiled. Every contender has a process of its own with the
same number of threads, and they take turns; ratios are medians over rounds. The machine's own
matrix-product peak is measured in the same rounds, and utilisation is against that (attention
counted as the whole square of scores, as is usual, for all contenders alike).

`--devices 2` divides the batch of our models over so many devices of the CPU, as `--mesh data=2` of
`qkvflow train` does.

On a machine that others use as well, `--cpu-time --threads 1` counts the processor's seconds of
each contender instead of the clock's.
"""

import argparse
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.timing import report
from benchmarks.workers import serve, take_turns

BATCH, VOCAB = 8, 256
SHAPES: dict[str, tuple[int, int, int, int, int]] = {
    "64": (64, 4, 4, 64, 40),
    "128": (128, 6, 4, 128, 16),
    "256": (256, 6, 4, 128, 8),
    "256x1024": (256, 6, 4, 1024, 1),
}
"""Width, layers, heads, context, and steps in one call: about as many as `train` makes in it."""


def ours(name: str, shape: str) -> tuple[Callable[[], Any], dict[str, Any]]:
    """A call that makes the shape's number of training steps, as `qkvflow train` makes them."""
    import jax

    from qkvflow import allocator
    from qkvflow.distributed import make_layout
    from qkvflow.runs import make_config
    from qkvflow.training import make_program

    allocator.configure_malloc()
    d_model, layers, heads, context, steps = SHAPES[shape]
    sizes = {"d_model": d_model, "num_steps": layers, "num_heads": heads, "context": context}
    config = make_config(
        {"model": {"name": name, **sizes}, "train": {"steps": 10_000, "batch_size": BATCH}}
    )
    layout = make_layout(f"data={jax.device_count()}")
    program = make_program(config, VOCAB, layout)
    tokens = np.random.default_rng(1).integers(0, VOCAB, 1_000_000).astype(np.uint8)
    rest = jax.tree.map(layout.replicate, (program.hyper(), tokens, np.int32(steps)))
    state = [program.init()]
    run = program.jitted(steps, on_device=True)

    def call() -> None:
        state[0], metrics = run(state[0], *rest)
        jax.block_until_ready((state[0], metrics))

    parameters = sum(leaf.size for leaf in jax.tree.leaves(program.params))
    return call, {"parameters": parameters, "flops": program.flops_per_step}


def peer(kind: str, shape: str) -> tuple[Callable[[], Any], dict[str, Any]]:
    """The same number of steps in PyTorch: `gpt` or `hf`, `eager` or `compiled`."""
    import torch

    from benchmarks import gpt

    torch.manual_seed(0)
    family, mode = kind.split()
    sizes, steps = gpt.Shape(*SHAPES[shape][:4], BATCH, VOCAB), SHAPES[shape][4]
    if family == "gpt":
        model: Any = gpt.GPT(sizes)
    else:
        import transformers

        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=VOCAB, n_positions=sizes.context, n_embd=sizes.d_model,
                n_layer=sizes.num_layers, n_head=sizes.num_heads,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
            )
        )  # fmt: skip
    run = torch.compile(model) if mode == "compiled" else model
    forward = run if family == "gpt" else (lambda tokens: run(input_ids=tokens).logits)
    return gpt.trainer(model, forward, sizes, steps), {"parameters": gpt.num_parameters(model)}


def matrix_products() -> tuple[Callable[[], Any], dict[str, Any]]:
    """Square products of 1,024, as fast as either library makes them."""
    import torch

    a, b = torch.ones(1024, 1024), torch.ones(1024, 1024)
    out = torch.empty(1024, 1024)

    def call() -> None:
        for _ in range(16):
            torch.mm(a, b, out=out)

    return call, {"flops": 16 * 2 * 1024**3}


def compare(
    shape: str, models: list[str], peers: list[str], rounds: int, threads: int, clock: str
) -> None:
    contenders = {name: ["ours", name, shape] for name in models}
    for family in peers:
        for mode in ("eager", "compiled"):
            contenders[f"{family} {mode}"] = ["peer", f"{family} {mode}", shape]
    contenders["matrix products"] = ["products", "", shape]
    seconds, facts = take_turns(
        "benchmarks.training_step", contenders, rounds=rounds, threads=threads, clock=clock
    )
    peak = facts["matrix products"]["flops"] / seconds.pop("matrix products")
    seconds = {name: values / SHAPES[shape][4] for name, values in seconds.items()}
    d_model, layers, heads, context, _ = SHAPES[shape]
    print(f"\n{d_model} wide, {layers} layers, {heads} heads, context {context}, batch {BATCH}")
    report(seconds, reference=models[0])
    minimal = [name for name in seconds if name.startswith("gpt ")]
    if models[0] == "standard":
        for name in minimal:
            assert facts[name]["parameters"] == facts["standard"]["parameters"], name
    if minimal:
        fastest = np.min([seconds[name] for name in minimal], axis=0)
        ratio = np.median(fastest / seconds[models[0]])
        print(f"speed of {models[0]} relative to the faster minimal GPT: {ratio:.2f}")
    print(f"matrix-product peak: {np.median(peak) / 1e9:.0f} GFLOP/s")
    for name in [*models, *minimal]:
        flops = facts[name].get("flops", facts[models[0]]["flops"])
        share = np.median(flops / seconds[name] / peak)
        print(f"{name}: {flops / 1e9:.1f} GFLOP per step, {share:.0%} of the peak", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--models", default="standard,shared,time-indexed-mlp,tong")
    parser.add_argument("--peers", default="gpt,hf", help="of gpt, hf; '' for none")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--devices", type=int, default=1, help="of the CPU, for our models")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--worker", nargs=3, metavar=("SIDE", "NAME", "SHAPE"))
    args = parser.parse_args()
    if args.worker is None:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(args.devices)
        peers = [name for name in args.peers.split(",") if name]
        for shape in args.shapes.split(","):
            clock = "cpu" if args.cpu_time else "wall"
            compare(shape, args.models.split(","), peers, args.rounds, args.threads, clock)
        return
    side, name, shape = args.worker
    if side == "ours":
        serve(*ours(name, shape))
    elif side == "peer":
        serve(*peer(name, shape))
    else:
        serve(*matrix_products())


if __name__ == "__main__":
    main()
