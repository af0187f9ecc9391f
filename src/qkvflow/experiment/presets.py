"""Plans with names, as data."""

from typing import Any

from qkvflow.errors import unknown

NARROWED = ("standard-narrow=standard:params_of=time-indexed-mlp",)
"""Of the default models, those that a comparison matched as a whole does without."""
DEFAULT_MODELS = (
    "standard",
    "tong",
    "time-indexed-mlp",
    "time-indexed-ssm",
    "hybrid",
    "shared",
    "frozen-time=time-indexed-mlp:frozen_time=0.5",
    *NARROWED,
)
"""The models of Tong et al. 2025 (SDML-KU/qkvflow) and of the time-indexed extension
(zaphrode/qkvflow), and controls: the time-indexed model with its time held still, and a standard
transformer with as many block parameters as that one."""

_PUBLISHED: dict[str, Any] = {
    # About 240,000 bytes each to validate and to test on, by whole files.
    "data": {"spec": "stdlib?split=0.96,0.02,0.02"},
    "model": {"d_model": 256, "num_heads": 4, "num_steps": 6, "context": 128},
    "train": {"batch_size": 8},
    "optim": {"lr": 3e-4},
    "checkpoint": {"every": 250},
    "budget": {"steps": 1000},
    "seeds": 5,
}

_SMALL: dict[str, Any] = {
    # 20 kB to validate and 49 kB to test on: two and three whole files.
    "data": {"spec": "stdlib?split=0.995,0.0025,0.0025"},
    "model": {"d_model": 64, "num_heads": 4, "num_steps": 4, "context": 64},
    "train": {"batch_size": 8},
    "optim": {"name": "muon", "lr": 1e-2, "warmup": 40},
    "checkpoint": {"every": 500},
    "budget": {"steps": 2000},
}
"""Minutes on two cores, and past the trigram of the corpus."""

_TIME_INDEXED = "time-indexed-mlp"
_INTEGRATION = "Is ODE integration needed?"
_STATE = "How many states does the state space layer need?"
_GATE = "Which gate?"

_QUESTIONS: tuple[tuple[str, str, str], ...] = (
    ("Is it time-indexing or only the adapter?", _TIME_INDEXED, "frozen-time"),
    ("Is it smooth in time, or one gate per layer?", _TIME_INDEXED, "gate-per-layer"),
    (f"{_INTEGRATION} Euler or residual steps, gated", "gated-euler", _TIME_INDEXED),
    (f"{_INTEGRATION} Parallel or sequential, gated", "gated-parallel", _TIME_INDEXED),
    (f"{_INTEGRATION} Euler or residual steps, hypernet", "tong", "tong-residual"),
    (f"{_INTEGRATION} Parallel or sequential, hypernet", "tong", "tong-sequential"),
    ("Does the hybrid combine the best of both? Against gated", "hybrid", _TIME_INDEXED),
    ("Does the hybrid combine the best of both? Against hypernet", "hybrid", "tong"),
    ("Time embedding: learned or fixed frequencies?", "time-learned", _TIME_INDEXED),
    ("Time embedding: raw t or sinusoidal?", "time-raw", _TIME_INDEXED),
    (f"{_GATE} Centred or sigmoid", "gate-centred", _TIME_INDEXED),
    (f"{_GATE} Input channels or time-indexed", "gate-input", _TIME_INDEXED),
    (f"{_GATE} Output channels or time-indexed", "gate-output", _TIME_INDEXED),
    (f"{_GATE} Both sides or time-indexed", "gate-both", _TIME_INDEXED),
    (f"{_GATE} Low rank or time-indexed", "gate-low-rank", _TIME_INDEXED),
    (f"{_STATE} 32 or 64", "ssm-32", "time-indexed-ssm"),
    (f"{_STATE} 128 or 64", "ssm-128", "time-indexed-ssm"),
    (f"{_STATE} 256 or 64", "ssm-256", "time-indexed-ssm"),
    ("Selective or linear time-invariant state space?", "ssm-selective", "time-indexed-ssm"),
)

_SSM_MODELS = tuple(f"ssm-{n}=time-indexed-ssm:d_state={n}" for n in (32, 64, 128, 256))

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "title": "Do time-indexed weights pay at a small scale?",
        # Optimisers and rates by the search in results/quick-search, on seeds that are not of this.
        "models": [
            "standard",
            "shared",
            _TIME_INDEXED,
            "frozen-time=time-indexed-mlp:frozen_time=0.5,optim.lr=3e-3",
            "gated-euler=time-indexed-mlp:scheme=euler",
            "hybrid=hybrid:optim.lr=3e-3",
        ],
        "questions": [
            {"name": name, "a": a, "b": b}
            for name, a, b in (
                ("Does time matter beyond the adapter?", _TIME_INDEXED, "frozen-time"),
                ("Are ODE steps needed?", "gated-euler", _TIME_INDEXED),
                ("Does the hybrid win?", "hybrid", _TIME_INDEXED),
                ("Is a gate better than sharing alone?", _TIME_INDEXED, "shared"),
                ("Is it as good as layers of their own?", _TIME_INDEXED, "standard"),
            )
        ],
        **_SMALL,
        "seeds": [4, 5, 6, 7, 8],  # 0 to 3 are those of results/pilot, by which five were chosen.
        "evaluations": 4,
        "speed_rounds": 3,
    },
    "time-indexed": {
        "title": "The models of zaphrode/qkvflow at its setting, trained alike",
        "models": list(DEFAULT_MODELS),
        **_PUBLISHED,
    },
    "ablation": {
        "title": "What makes time-indexed models work?",
        "models": [
            _TIME_INDEXED,
            "frozen-time=time-indexed-mlp:frozen_time=0.5",
            "gate-per-layer=time-indexed-mlp:time_features=layers",
            "gated-euler=time-indexed-mlp:scheme=euler",
            "gated-parallel=time-indexed-mlp:composition=parallel",
            "tong",
            "tong-residual=tong:scheme=residual",
            "tong-sequential=tong:composition=sequential",
            "hybrid",
            "time-learned=time-indexed-mlp:time_features=learned",
            "time-raw=time-indexed-mlp:time_features=raw",
            "gate-centred=time-indexed-mlp:gate_activation=centred",
            "gate-input=time-indexed-mlp:gate=input",
            "gate-output=time-indexed-mlp:gate=output",
            "gate-both=time-indexed-mlp:gate=both",
            "gate-low-rank=time-indexed-mlp:gate=low-rank",
            "ssm-32=time-indexed-ssm:d_state=32",
            "time-indexed-ssm",
            "ssm-128=time-indexed-ssm:d_state=128",
            "ssm-256=time-indexed-ssm:d_state=256",
            "ssm-selective=time-indexed-selective-ssm",
        ],
        "questions": [{"name": name, "a": a, "b": b} for name, a, b in _QUESTIONS],
        **_SMALL,
        "train": {**_SMALL["train"], "eval_depths": "0.5,2,4,adaptive"},
        "tune": {"search": {"optim.lr": "1e-3,3e-3,1e-2"}, "seeds": 1},
        "seeds": [9, 10, 11, 12, 13],  # 0 to 8 are those of the pilot and of quick.
    },
    "looped": {
        "title": "Do looped models pay at equal cost?",
        # Twelve layers are passed by all but deq, which passes as many as it takes.
        "models": [
            "standard=standard:num_steps=12",
            "standard-llama=standard-llama:num_steps=12",  # The block of most of the others.
            "shared=shared:num_steps=12",
            "cycle",
            "huginn=huginn:num_steps=2",
            "parcae=parcae:num_steps=4",
            "universal=universal:num_steps=12",
            "ouro=ouro:num_steps=2",
            "loopformer=loopformer:num_steps=4",
            "deq=deq:optim.name=adamw",  # Muon at these rates ends in NaN.
        ],
        "data": {"spec": "stdlib?split=0.995,0.0025,0.0025"},
        "model": {"d_model": 64, "num_heads": 4, "context": 64},
        "train": {"batch_size": 8},
        "optim": {"name": "muon", "lr": 1e-2, "warmup": 100},
        "budget": {"steps": 1200},
        "tune": {"search": {"optim.lr": "3e-3,1e-2"}, "seeds": 1},
        "match": "flops",
        "seeds": 3,
    },
    "ssm-state": {
        "title": "How many states does a time-indexed state space layer need?",
        "models": list(_SSM_MODELS),
        "questions": [
            {"name": f"{_STATE} {n} or 64", "a": f"ssm-{n}", "b": "ssm-64"} for n in (32, 128, 256)
        ],
        **_PUBLISHED,
    },
}


_OLD_NAMES = {"documents": "time-indexed"}


def preset(name: str) -> dict[str, Any]:
    """The content of a plan, to be changed at will."""
    name = _OLD_NAMES.get(name, name)
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return {
        key: dict(value) if isinstance(value, dict) else value
        for key, value in PRESETS[name].items()
    }
