"""A training step of every model of the zoo beside PyTorch doing the same work.

    python -m benchmarks.training_step [--models standard,shared] [--rounds 7] [--no-torch]

The reference documents' shape: 6 steps, 256 wide, 4 heads, batch 8 x 128 bytes, AdamW, float32.
Peers (`make peers`): Hugging Face GPT-2 and Mamba-2, eager and compiled. The machine's own
matrix-product peak is measured in the same rounds, and utilisation is against that.
"""

import argparse
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import interleave, report
from qkvflow import names
from qkvflow.runs import make_config
from qkvflow.training import make_program

BATCH, CONTEXT, VOCAB, STEPS = 8, 128, 256, 4


def ours(name: str) -> tuple[Callable[[], None], int]:
    """A call that makes `STEPS` training steps, and the FLOPs of one."""
    config = make_config(
        {
            "model": {"name": name, "context": CONTEXT},
            "train": {"steps": 10_000, "batch_size": BATCH},
        }
    )
    program = make_program(config, VOCAB)
    run = jax.jit(program.multi_step(STEPS, on_device=True), donate_argnums=0)
    tokens = jax.random.randint(jax.random.key(1), (1_000_000,), 0, VOCAB).astype(jnp.uint8)
    state = [program.init()]

    def call() -> None:
        state[0], metrics = run(state[0], program.hyper(), tokens, np.int32(STEPS))
        jax.block_until_ready(metrics)

    return call, program.flops_per_step


def peer(kind: str, compiled: bool) -> Callable[[], None]:
    """The same number of steps of a Hugging Face model of the same shape."""
    import torch
    import transformers

    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=VOCAB, n_positions=CONTEXT, n_embd=256, n_layer=6, n_head=4,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.Mamba2Config(
            vocab_size=VOCAB, hidden_size=256, num_hidden_layers=6, state_size=64, expand=2,
            head_dim=64, num_heads=8, n_groups=1, conv_kernel=4, chunk_size=64, use_cache=False,
        )  # fmt: skip
        model = transformers.Mamba2ForCausalLM(config)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    run = torch.compile(model) if compiled else model
    data = torch.randint(0, VOCAB, (1_000_000,))
    generator = np.random.default_rng(0)

    def call() -> None:
        for _ in range(STEPS):
            starts = generator.integers(0, len(data) - CONTEXT - 1, BATCH)
            windows = torch.stack([data[i : i + CONTEXT + 1] for i in starts])
            logits = run(input_ids=windows[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(
                logits.reshape(-1, VOCAB), windows[:, 1:].reshape(-1)
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            optim.zero_grad(set_to_none=True)

    return call


def matrix_products() -> tuple[Callable[[], None], float]:
    """Products of the shape that dominates a block, and their FLOPs."""
    a, b = jnp.ones((1024, 1024)), jnp.ones((1024, 1024))
    run = jax.jit(lambda a, b: a @ b)

    def call() -> None:
        for _ in range(8):
            run(a, b).block_until_ready()

    return call, 8 * 2.0 * 1024**3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(names()))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-torch", action="store_true")
    args = parser.parse_args()
    contenders: dict[str, Callable[[], None]] = {}
    flops: dict[str, int] = {}
    for name in args.models.split(","):
        contenders[name], flops[name] = ours(name)
    if not args.no_torch:
        for kind in ("gpt2", "mamba2"):
            contenders[f"torch {kind} eager"] = peer(kind, compiled=False)
            contenders[f"torch {kind} compiled"] = peer(kind, compiled=True)
    contenders["matrix products"], product_flops = matrix_products()
    seconds = interleave(contenders, rounds=args.rounds)
    products = seconds.pop("matrix products")
    seconds = {name: values / STEPS for name, values in seconds.items()}
    report(seconds, reference=args.models.split(",")[0])
    peak = product_flops / products
    print(f"\nmatrix-product peak: {np.median(peak) / 1e9:.0f} GFLOP/s")
    for name, count in flops.items():
        share = np.median(count / seconds[name] / peak)
        print(f"{name}: {count / 1e9:.1f} GFLOP per step, {share:.0%} of the peak")


if __name__ == "__main__":
    main()
