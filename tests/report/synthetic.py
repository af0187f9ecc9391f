"""Experiments that nobody ran: records with the shape and size of real ones."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from qkvflow.files import write_json
from qkvflow.records import write_record


@dataclass(frozen=True)
class Made:
    """A model as invented: its final loss, cost and shape."""

    loss: float
    params: int
    flops: float
    ms: float
    field: str = "gated"
    block: str = "attention+mlp"
    scheme: str = "residual"
    d_model: int = 256


MODELS: dict[str, Made] = {
    "standard": Made(1.752, 4_865_280, 3.1e7, 245, field="per-layer"),
    "tong": Made(1.748, 51_512_960, 9.4e7, 610, field="hypernet", scheme="euler"),
    "time-indexed-mlp": Made(1.812, 1_062_400, 3.0e7, 251),
    "time-indexed-ssm": Made(1.835, 1_310_720, 2.6e7, 232, block="attention+ssm"),
    "hybrid": Made(1.861, 1_062_400, 3.0e7, 238, scheme="euler"),
    "shared": Made(1.868, 920_064, 3.0e7, 236, field="shared"),
    "frozen-time": Made(1.866, 1_062_400, 3.0e7, 250, field="frozen-time"),
    "standard-narrow": Made(1.905, 1_060_112, 6.9e6, 98, field="per-layer", d_model=112),
}
NGRAMS = (3.201, 2.348, 1.897, 1.571, 1.418)
STEPS, EVERY, BATCH, CONTEXT = 1000, 100, 8, 128
SPLITS = {"train": (1_256_449, 41), "validation": (120_330, 5), "test": (119_870, 5)}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def data_section(spec: str = "stdlib", *, floor: float | None = None) -> dict[str, Any]:
    splits = {
        name: {
            "documents": documents,
            "bytes": size,
            "characters": size - 212,
            "tokens": size,
            "sha256": digest(spec + name),
        }
        for name, (size, documents) in SPLITS.items()
    }
    return {
        "spec": spec,
        "tokenizer": "bytes",
        "vocab_size": 256,
        "sha256": digest(spec),
        "floor": floor,
        "splits": splits,
    }


def losses(nats: float) -> dict[str, float]:
    return {
        "nats": nats,
        "standard_error": 0.006,
        "bits_per_byte": nats / math.log(2),
        "perplexity": math.exp(nats),
    }


def record(
    label: str, seed: int, made: Made, data: Mapping[str, Any], noise: Sequence[float]
) -> dict[str, Any]:
    per_step = made.flops * BATCH * CONTEXT
    return {
        "schema": 1,
        "status": "finished",
        "error": None,
        "label": label,
        "model": {
            "name": label,
            "field": made.field,
            "block": made.block,
            "scheme": made.scheme,
            "config": {
                "d_model": made.d_model,
                "num_steps": 6,
                "num_heads": 4,
                "mlp_ratio": 4.0,
                "context": CONTEXT,
            },
        },
        "seed": seed,
        "params": {
            "total": made.params,
            "embedding": 65_536,
            "blocks": made.params - 66_048,
            "head": 512,
            "in_effect": 4_738_560,
        },
        "flops": {
            "per_token": {"forward": made.flops / 3, "training": made.flops},
            "per_step": per_step,
        },
        "data": dict(data),
        "budget": {
            "steps": STEPS,
            "tokens": STEPS * BATCH * CONTEXT,
            "flops": STEPS * per_step,
            "seconds": STEPS * made.ms / 1e3 * (1 + 0.05 * abs(noise[2])),
        },
        "training": {
            "batch_size": BATCH,
            "context": CONTEXT,
            "optim": {"name": "adamw", "lr": 3e-4, "schedule": "cosine", "warmup_steps": 100},
        },
        "losses": {
            "train": made.loss - 0.03 + noise[0],
            "validation": losses(made.loss + noise[0]),
            "test": losses(made.loss + 0.02 + noise[1]),
            "selected_step": STEPS,
        },
        "speed": {"tokens_per_second": 1e3 * BATCH * CONTEXT / made.ms, "compile_seconds": 4.2},
        "memory": {"peak_resident_bytes": 1_400_000_000, "program_bytes": 60 * made.params},
        "skipped_updates": 0,
        "versions": {"qkvflow": "0.1.0", "jax": "0.10.0", "python": "3.12.4"},
        "hardware": {"device": "cpu", "count": 1, "cores": 2},
        "started": "2030-01-01T10:00:00Z",
        "finished": "2030-01-01T10:04:05Z",
    }


def metrics(made: Made, end: float, generator: np.random.Generator, every: int) -> str:
    """A power law that ends at `end`, logged every 10 steps and evaluated every `every`."""
    lines = []
    for step in range(10, STEPS + 1, 10):
        level = end + 3.8 * ((step / 10) ** -0.55 - 100**-0.55)
        place = {
            "step": step,
            "tokens": step * BATCH * CONTEXT,
            "seconds": step * made.ms / 1e3,
        }
        loss = float(level + generator.normal(0, 0.05))
        lines.append({"kind": "train", **place, "loss": loss, "lr": 3e-4, "grad_norm": 1.0})
        if step % every == 0:
            lines.append({"kind": "validation", **place, "loss": float(level + 0.02)})
    return "".join(json.dumps(line) + "\n" for line in lines)


def experiment(
    directory: Path,
    *,
    models: Mapping[str, Made] = MODELS,
    seeds: int = 5,
    spec: str = "stdlib",
    floor: float | None = None,
    speed: bool = True,
    baselines: bool = True,
    curves: bool = True,
    every: int = EVERY,
    failed: Sequence[tuple[str, int]] = (),
    evaluations: bool = False,
    plan: Mapping[str, Any] | None = None,
    sample: str = 'def read(self, path):\n    """Return the next line."""\n    return self.',
    spread: float = 0.008,
    generator: np.random.Generator | None = None,
) -> Path:
    """Write an experiment directory; seeds share a part of their noise, as paired seeds do."""
    generator = generator or np.random.default_rng(7)
    data = data_section(spec, floor=floor)
    common = generator.normal(0, spread, seeds)
    for label, made in models.items():
        for seed in range(seeds):
            run = directory / "runs" / label.replace("/", "-") / f"seed-{seed}"
            run.mkdir(parents=True)
            noise = common[seed] + generator.normal(0, spread, 3)
            content = record(label, seed, made, data, noise.tolist())
            if (label, seed) in failed:
                content |= {"status": "failed", "error": "loss was not finite at step 412"}
                content["losses"] = None
            elif evaluations:
                content["evaluations"] = [
                    {"num_steps": steps, "scheme": made.scheme, "nats": made.loss + extra}
                    for steps, extra in ((3, 0.41), (6, 0.02), (12, 0.09), (24, 0.2))
                ]
            write_record(run / "record.json", content)
            if curves:
                text = metrics(made, made.loss - 0.02 + float(noise[0]), generator, every)
                (run / "metrics.jsonl").write_text(text)
                (run / "samples.txt").write_text(
                    f"--- step 500 ---\nearly text\n\n--- step {STEPS} ---\n{sample}\n\n"
                )
    if speed:
        write_json(directory / "speed.json", speed_file(models, generator))
    if baselines:
        ngrams = [
            # The report shows the smoothing that is better on validation.
            {
                "order": n,
                "smoothing": name,
                "validation": loss + worse - 0.004,
                "test": loss + worse,
            }
            for name, worse in (("add-k", 0.05), ("witten-bell", 0.0))
            for n, loss in enumerate(NGRAMS, start=1)
        ]
        write_json(directory / "baselines.json", {"ngrams": ngrams})
    if plan is not None:
        (directory / "plan.yaml").write_text(yaml.safe_dump(dict(plan), sort_keys=False))
    return directory


def speed_file(models: Mapping[str, Made], generator: np.random.Generator) -> dict[str, Any]:
    entries = {}
    for label, made in models.items():
        rounds = made.ms * (1 + 0.02 * np.abs(generator.standard_normal(9)))
        q1, median, q3 = np.quantile(rounds, [0.25, 0.5, 0.75])
        entries[label] = {
            "ms_per_step": {"median": median, "q1": q1, "q3": q3, "all": rounds.tolist()},
            "tokens_per_second": 1e3 * BATCH * CONTEXT / median,
            "compile_seconds": 4.2,
            "program_bytes": 60 * made.params,
            "resident_bytes": 1_300_000_000,
        }
    return {"rounds": 9, "batch_size": BATCH, "context": CONTEXT, "models": entries}


PLAN: dict[str, Any] = {
    "models": list(MODELS),
    "seeds": 5,
    "data": "stdlib",
    "budget": {"steps": STEPS},
    "match": None,
    "lr": 3e-4,
}
QUESTIONS = [
    {
        "name": "Is it time-indexing or only the adapter?",
        "a": "time-indexed-mlp",
        "b": "frozen-time",
    },
    {"name": "Is it time-indexing or only the adapter?", "a": "time-indexed-mlp", "b": "shared"},
    {"name": "Does the hybrid combine the best of both?", "a": "hybrid", "b": "time-indexed-mlp"},
]
