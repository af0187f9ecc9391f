"""Plans against closed forms: work in compiled programs, memory by kind, what is offered."""

import json
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from qkvflow.blocks.kernels.attention import BLOCK, attend
from qkvflow.cli import main
from qkvflow.distributed.mesh import MeshShape
from qkvflow.errors import UserError
from qkvflow.planning.accelerators import ACCELERATORS, USABLE, accelerator
from qkvflow.planning.estimate import check_changes, on_accelerators
from qkvflow.planning.hlo import Work, count_work
from qkvflow.planning.process import make_estimate
from qkvflow.planning.program import CompiledStep, Memory
from qkvflow.planning.vocabulary import vocabulary_size
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.zoo.plugins import plugin_setup

TINY = {
    "d_model": 32,
    "num_heads": 2,
    "num_steps": 3,
    "context": 64,
    "d_time": 8,
    "num_frequencies": 4,
}


def work_of(function: Any, *shapes: tuple[int, ...]) -> Work:
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return count_work(jax.jit(function).lower(*arrays).compile().as_text() or "")


def test_products_are_counted_as_often_as_they_run():
    once = 2 * 64 * 32 * 32

    def depth(x: Any, weights: Any) -> Any:
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    assert work_of(lambda x, w: x @ w, (64, 32), (32, 32)).products == once
    assert work_of(depth, (64, 32), (7, 32, 32)).products == 7 * once
    gradient = jax.grad(lambda w, x: jnp.sum(depth(x, w)))
    assert work_of(gradient, (7, 32, 32), (64, 32)).products == 3 * 7 * once

    def nested(x: Any, weights: Any) -> Any:
        return jax.lax.scan(lambda x, w: (depth(x, w), None), x, weights)[0]

    assert work_of(nested, (64, 32), (5, 3, 32, 32)).products == 15 * once


def test_batched_products():
    def scores(q: Any, k: Any) -> Any:
        return jnp.einsum("bqhd,bkhd->bhqk", q, k)

    assert work_of(scores, (2, 16, 4, 8), (2, 16, 4, 8)).products == 2 * 2 * 4 * 16 * 16 * 8


def test_long_attention_counts_every_pair_of_blocks_on_and_below_the_diagonal():
    batch, seq, heads, d_head = 3, 1024, 2, 16
    pairs = (seq // BLOCK) * (seq // BLOCK + 1) // 2
    once = 2 * batch * heads * BLOCK * BLOCK * d_head
    shapes = [(batch, seq, heads, d_head)] * 3
    # Scores and mixing forwards; backwards scores again, then a gradient for each operand of both.
    assert work_of(attend, *shapes).products == pairs * 2 * once
    gradient = jax.grad(lambda *qkv: jnp.sum(attend(*qkv) ** 2), argnums=(0, 1, 2))
    assert work_of(gradient, *shapes).products == pairs * (2 + 5) * once


def test_a_branch_without_work_is_not_part_of_the_mean():
    once = 2 * 64 * 32 * 32

    def choose(index: Any, x: Any, w: Any) -> Any:
        branches = [lambda x: x, lambda x: x @ w, lambda x: (x @ w) @ w @ w]
        return jax.lax.switch(index[0].astype(int), branches, x)

    assert work_of(choose, (1,), (64, 32), (32, 32)).products == (once + 3 * once) // 2


def test_updates_of_muon_are_counted():
    """Five rounds of X X^T, of its square and of the product of both with X, for every matrix."""
    model = {"name": "shared", "d_model": 32, "num_steps": 1, "context": 16}
    products = [
        make_estimate(job(model=model, train={"batch_size": 1}, optim={"name": name}))[
            "flops_per_step"
        ]["compiled"]
        for name in ("adamw", "muon")
    ]
    matrices = [(32, 96), (32, 32), (32, 128), (32, 128)]
    expected = sum(5 * 2 * (2 * d * d * wide + d * d * d) for d, wide in matrices)
    assert products[1] - products[0] == expected


HEAD = "HloModule m, num_partitions=8\n\nENTRY %main (p: f32[16,4]) -> f32[16,4] {\n"


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ("all-reduce(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add", 2 * 192),
        ("all-reduce(%p), replica_groups={}, to_apply=%add", 2 * 224),
        ("all-gather(%p), replica_groups=[4,2]<=[8], dimensions={0}", 256),
        ("reduce-scatter(%p), replica_groups=mesh['x'=2,'y'=4] {'y'}, dimensions={0}", 192),
        ("all-to-all(%p), replica_groups=mesh['x'=2,'y'=4] {'x','y':(1)2}", 192),
        ("collective-permute(%p), source_target_pairs={{0,1},{1,0}}", 256),
        ("all-gather-start(%p), replica_groups=[4,2]<=[8]", 256),
        ("all-gather-done(%p)", 0),
    ],
)
def test_bytes_sent_in_a_ring(line: str, sent: int):
    text = f"{HEAD}  %p = f32[16,4]{{1,0}} parameter(0)\n  ROOT %r = f32[16,4]{{1,0}} {line}\n}}\n"
    assert count_work(text).exchanged == sent


def job(**changes: Any) -> dict[str, Any]:
    config = make_config({"model": TINY, "train": {"batch_size": 8}}, changes)
    return {
        "config": config.to_dict(),
        "vocab_size": 100,
        "mesh": {"data": 1, "fsdp": 1, "tensor": 1},
        "device": None,
        "utilisation": 0.5,
        "plugins": plugin_setup(),
    }


def assert_products(flops: dict[str, float], batch_size: int = 8, rel: float = 0.03) -> None:
    """Compiled as counted, but for attention: the whole square of its scores is counted, and of
    what is above the diagonal some is not computed."""
    tokens = batch_size * TINY["context"]
    square = 3 * TINY["num_steps"] * 4 * TINY["context"] * TINY["d_model"] * tokens
    least = flops["analytic"] - 0.5 * square
    assert (1 - rel) * least <= flops["compiled"] <= (1 + rel) * flops["analytic"]


@pytest.mark.parametrize("name", ["standard", "tong", "time-indexed-ssm"])
def test_a_plan_agrees_with_the_counts(name: str):
    made = make_estimate(job(model={"name": name}))
    flops, memory = made["flops_per_step"], made["memory_per_device"]
    assert_products(flops)
    assert memory["parameters"] == memory["gradients"] == 4 * made["parameters"]
    # Two moments of AdamW, and counters.
    assert memory["optimiser"] == pytest.approx(8 * made["parameters"], abs=100)
    # Twice (with gradients) the weights in effect in float32; layers of their own are not made.
    generated = 0 if name == "standard" else 8 * made["weights_in_effect"]
    assert memory["generated"] == pytest.approx(generated, rel=0.05)
    assert made["exchanged_bytes_per_device"] == 0
    assert memory["total"] == sum(v for kind, v in memory.items() if kind != "total")
    assert memory["activations"] > 3 * 8 * 64 * 32 * 4
    for row in made["accelerators"]:
        peak = accelerator(row["device"]).float32
        assert row["step_seconds"] == pytest.approx(flops["compiled"] / (0.5 * peak))
        assert row["cost"] == pytest.approx(
            1000 * row["step_seconds"] / 3600 * row["price_per_hour"]
        )


def test_a_plan_of_the_step_that_is_asked_for():
    """Only gates trained, or a number of steps drawn: the program is another one."""
    model = {"name": "time-indexed-mlp"}
    made, of_gates = (
        make_estimate(job(model=model, train={"trainable": part})) for part in ("all", "gates")
    )
    whole, gates = made["memory_per_device"], of_gates["memory_per_device"]
    assert 0 < gates["gradients"] < whole["gradients"] / 2
    assert gates["optimiser"] == pytest.approx(2 * gates["gradients"], abs=100)
    assert gates["parameters"] == whole["parameters"]
    drawn = make_estimate(job(model=model, train={"depth_jitter": "2,4"}))["flops_per_step"]
    assert_products(drawn)
    # The mean of 2 and 4 steps is the model's own 3.
    assert drawn["compiled"] == pytest.approx(made["flops_per_step"]["compiled"], rel=0.01)


def test_weights_are_differentiated_in_every_part_of_a_batch():
    model = {"name": "tong", "context": 16}
    counted = [
        make_estimate(job(model=model, train={"grad_accum": parts}))["flops_per_step"]
        for parts in (1, 4)
    ]
    one, four = counted
    assert four["analytic"] > 1.1 * one["analytic"]
    for each in counted:
        assert each["compiled"] == pytest.approx(each["analytic"], rel=0.02)


@pytest.mark.parametrize(("num_steps", "groups"), [(3, False), (4, True)])
def test_rematerialisation_in_groups_where_there_are_any(num_steps: int, groups: bool):
    block, everything = (
        make_estimate(job(model={"num_steps": num_steps, "context": 16, "remat": remat}))[
            "flops_per_step"
        ]
        for remat in ("block", "everything")
    )
    for kind in ("analytic", "compiled"):
        assert (everything[kind] > block[kind]) == groups


def test_time_and_cost_of_a_mesh():
    memory = Memory(1, 2, 1, 0, 0, 100)
    program = CompiledStep(1, 1, 1, memory, Work(products=312 * 10**12, exchanged=300 * 10**9))
    config = make_config({"model": {"compute_dtype": "bfloat16"}, "train": {"steps": 3600}})
    rows = {r["device"]: r for r in on_accelerators(program, config, MeshShape(fsdp=8), 0.5)}
    # Two seconds of products at half the peak, one of exchange; 3 hours on 8 devices.
    assert rows["a100-80g"]["step_seconds"] == pytest.approx(3.0)
    assert rows["a100-80g"]["cost"] == pytest.approx(3 * 8 * ACCELERATORS["a100-80g"].price)


def test_changes_are_tried_until_they_fit():
    """With memory of a known form: activations divide by parts and devices, the rest by devices."""

    def compile(config: RunConfig, mesh: MeshShape) -> CompiledStep:
        saved = {"none": 1, "block": 4, "everything": 5}[config.model.config.remat]
        activations = 400e9 / saved / config.train.grad_accum / mesh.size
        fixed = int(4e9 / mesh.size)
        memory = Memory(fixed, fixed, fixed, 0, 0, int(activations))
        return CompiledStep(1, 1, 1, memory, Work())

    config = make_config({"train": {"batch_size": 64}})
    rows = check_changes(compile(config, MeshShape()), config, MeshShape(), "a100-80g", compile)
    fits = {row["options"]: row["fits"] for row in rows}
    # 72 GB may be used: 112, 92, 12 + 100 / 2 and 112 / 2.
    assert fits == {
        "--model.remat block": False,
        "--model.remat everything": False,
        "--model.remat block --train.grad_accum 2": True,
        "--model.remat block --mesh fsdp=2": True,
    }
    rows = check_changes(compile(config, MeshShape()), config, MeshShape(), "tpu-v5e", compile)
    assert [row["options"] for row in rows if row["fits"]] == [
        # 14.4 GB, 12 of them fixed: 42 parts would do, and 64 is the first number that divides.
        "--model.remat block --train.grad_accum 64",
        "--model.remat block --mesh fsdp=8",
    ]
    assert USABLE == 0.9


def test_a_mesh_of_pretend_devices_in_a_process():
    """Data parallel training exchanges its gradients once: 2 (n - 1) / n of them."""
    options = [f"--model.{key}={value}" for key, value in TINY.items()]
    options += ["--data", "wikitext-103", "--tokenizer", "bpe:300", "--batch-size", "256"]
    command = [sys.executable, "-m", "qkvflow", "plan", *options, "--mesh", "data=4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["devices"] == 4
    assert made["vocab_size"] == 300
    gradients = made["memory_per_device"]["gradients"]
    # The table of the embedding, being the head as well, has two.
    table = 300 * 32 * 4
    assert made["exchanged_bytes_per_device"] == pytest.approx(1.5 * (gradients + table), rel=0.02)
    assert_products(made["flops_per_step"], batch_size=256, rel=0.01)


def test_vocabularies(tmp_path: Any):
    assert vocabulary_size("wikitext-103", "byte") == 256
    assert vocabulary_size("hf:any/thing", "bpe:50257") == 50257
    with pytest.raises(UserError, match="--vocab"):
        vocabulary_size("stdlib", "char")
    with pytest.raises(UserError, match="--vocab"):
        vocabulary_size("source:markov", "byte")
    with pytest.raises(UserError, match="no tokenizer"):
        vocabulary_size("stdlib", str(tmp_path / "tokenizer.json"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "a100"], "a100-40g"),
        (["--mesh", "fsdq=2"], "fsdp"),
        (["--data", "wikitext-104"], "wikitext-103"),
        (["--mesh", "data=3", "--batch-size", "16"], "batch of 16"),
        (["--utilisation", "40"], "at most 1"),
        (["--vocab", "0"], "positive"),
    ],
)
def test_mistakes_are_one_line(options: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
