"""The configuration of a model: one flat dataclass, the same names in Python, YAML and options."""

import contextlib
import dataclasses
import math
from types import NoneType
from typing import Any, get_args

from qkvflow.errors import UserError, unknown
from qkvflow.zoo import registry
from qkvflow.zoo.options import option

BASES = ("cosine", "chebyshev", "bspline")
GATES = ("time-indexed", "input", "output", "both", "low-rank", "full")
GATE_ACTIVATIONS = ("sigmoid", "centred")
TIME_FEATURES = ("sinusoidal", "learned", "raw", "step", "layers")
CYCLES = ("cycle", "modulated")
"""Fields of which a step is several layers."""
DIALS = ("refine", "repeat")
NORM_PLACEMENTS = ("pre", "sandwich", "post", "pre-post")
CORE_INITS = ("input", "zeros", "noise")
ACTIVATIONS = ("gelu_tanh", "gelu")
PARAMETRIZATIONS = ("standard", "mup")
COMPOSITIONS = ("sequential", "parallel")
_MOST_MIXERS = 64
REMATS = ("none", "block", "everything")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Everything that says what a model is. Impossible values are refused when it is made."""

    # The three choices
    field: str = option(
        "per-layer",
        "How weights depend on depth",
        registry.FIELDS,
    )
    block: str = option(
        "attention+mlp",
        "What one layer computes: mixers joined by +, in the order they are applied, of",
        registry.MIXERS,
    )
    scheme: str = option(
        "residual",
        "How depth is traversed",
        registry.SCHEMES,
    )
    composition: str = option(
        "sequential",
        "For residual, euler and fixed-point: branches one after another (sequential) or together "
        "(parallel).",
    )

    # Shape
    d_model: int = option(256, "Width of the residual stream.")
    num_heads: int = option(4, "Attention heads.")
    num_kv_heads: int | None = option(
        None, "Key and value heads, for grouped-query attention; none means as many as heads."
    )
    head_dim: int | None = option(
        None, "Channels of an attention head; none means d_model / num_heads."
    )
    num_steps: int = option(6, "Steps along depth: layers.")
    context: int = option(512, "Longest sequence in training, and the number of learned positions.")
    mlp_ratio: float = option(4.0, "Hidden width of the MLP over d_model.")

    # Depth
    horizon: float | None = option(
        None,
        "Whole increments the flow adds up to; none means num_steps for residual and fixed-point, "
        "1 for the rest.",
    )
    tolerance: float = option(
        1e-3, "Relative and absolute tolerance of the adaptive and fixed-point schemes."
    )
    residual_scale: float | None = option(
        None,
        "lambda: increments of N loops of L layers are scaled by lambda / (N sqrt(L)), which is a "
        "horizon of lambda / sqrt(L); learning rates then carry over to other N.",
    )
    frozen_time: float | None = option(
        None, "Hold the field at this depth: the constant-modulation control."
    )
    num_layers: int | None = option(
        None,
        "Layers of a field that stores values for each; none means num_steps. They are "
        "interpolated where the two differ.",
    )

    # Segments
    prelude: int = option(0, "Layers of their own before the core.")
    coda: int = option(0, "Layers of their own after the core.")
    injection: str = option(
        "none",
        "How the state before the core enters every step of it",
        registry.INJECTIONS,
    )
    core_init: str = option(
        "input", "The core's first state: input (the state before it), zeros or noise."
    )
    layers_per_loop: int = option(
        2, "Distinct layers in one step of the fields cycle and modulated."
    )
    exit_gate: bool = option(
        False,
        "A gate after every step of the core: the probability of leaving depth there (LoopLM, "
        "arXiv 2510.25741), trained with train.exit_entropy.",
    )
    depth_dial: str = option(
        "refine",
        "What another number of steps means: refine (the same flow, in finer or coarser steps) or "
        "repeat (more or fewer steps of the same length, as loops do).",
    )

    # Adapters
    lora: str = option(
        "none",
        "Which matrices have low-rank adapters: patterns over their names such as qkv:depth,out "
        "or *; :depth for adapters that depend on depth.",
    )
    lora_rank: int = option(8, "Rank of the adapters.")

    # Flavour
    norm: str = option("layernorm", "layernorm or rmsnorm.")
    norm_eps: float = option(1e-5, "Added to the variance in norms.")
    norm_placement: str = option(
        "pre",
        "Norms of a branch: pre (of its input), sandwich (of input and output), post (of the sum), "
        "or pre-post (of input and sum, as in Geiping et al. 2025).",
    )
    value_residual: bool = option(
        False, "The first layer's values mixed into those of every attention (ResFormer)."
    )
    loop_norm: bool = option(
        False, "A norm at the end of every step of the fields cycle and modulated."
    )
    coda_norm: bool = option(False, "A norm between the core and the coda.")
    final_norm: str = option(
        "plain",
        "plain; time: generated from t, as in the time-indexed extension (zaphrode/qkvflow); none: "
        "for a core with loop_norm.",
    )
    bias: bool = option(True, "Biases in linear layers and shifts in LayerNorm.")
    attention_bias: bool | None = option(None, "Biases in the attention; none means as `bias`.")
    attention_out_bias: bool | None = option(
        None, "Bias of the attention's output alone; none means as attention_bias."
    )
    qk_norm: bool = option(False, "Norms on the queries and keys of every head, as in Qwen3.")
    activation: str = option("gelu_tanh", "Of the mlp: gelu_tanh (as GPT-2) or gelu (exact).")
    positions: str = option("learned", "learned, rope or none.")
    rotary_base: float = option(10000.0, "Base of the rotary frequencies.")
    rotary_fraction: float = option(1.0, "Part of a head's channels that is rotated, the first.")
    rotary_scaling: str = option(
        "none",
        "Slower rotation for longer texts: none, linear:FACTOR, or that of Llama 3 as "
        "llama3:FACTOR:LOW:HIGH:ORIGINAL_CONTEXT, such as llama3:8:1:4:8192.",
    )
    scale_embedding: bool = option(False, "Embeddings times sqrt(d_model), before positions.")
    tied: bool = option(True, "Whether the head is the transposed embedding.")
    init_std: float = option(0.02, "Standard deviation of matrices at initialisation.")

    parametrization: str = option(
        "standard",
        "standard, or mup: initial sizes, updates, attention scores and logits scale with d_model "
        "so that the best learning rate does not move with it (Yang et al. 2022).",
    )
    mup_width: int = option(64, "Width at which mup is as standard, with heads of 16 channels.")

    # Regularisation
    dropout: float = option(0.0, "Dropout on the embedding and on every increment.")
    attention_dropout: float = option(0.0, "Dropout on attention probabilities.")

    # State space layers
    d_state: int = option(64, "States of ssm, states per head of selective-ssm.")
    ssm_expand: int = option(2, "Inner width of selective-ssm over d_model.")
    ssm_head_dim: int | None = option(
        None,
        "Channels per head of selective-ssm; none means 64, or less where the width asks for it.",
    )
    ssm_groups: int = option(1, "Groups of heads that share B and C in selective-ssm.")
    conv_width: int = option(4, "Width of the causal convolution in selective-ssm.")

    # How fields depend on t
    time_features: str = option(
        "sinusoidal", "sinusoidal, learned, raw, step (of t and of the step's length) or layers."
    )
    num_frequencies: int = option(32, "Sines (and as many cosines) in the sinusoidal features.")
    d_time: int = option(64, "Width of time embeddings.")
    gate: str = option(
        "time-indexed",
        "Where gates sit: time-indexed (as in zaphrode/qkvflow), input, output, both, low-rank or "
        "full.",
    )
    gate_activation: str = option(
        "sigmoid", "sigmoid (as in zaphrode/qkvflow) or centred (starts at 1)."
    )
    gate_rank: int = option(4, "Rank of low-rank gates.")
    rank: int = option(8, "Rank of the per-layer terms of the low-rank field.")
    basis: str = option("cosine", "cosine, chebyshev or bspline.")
    num_basis: int = option(4, "Basis functions along depth.")

    # Computation
    remat: str = option(
        "none",
        "What the backward pass computes again, to save memory: none, block (the inside of each "
        "step) or everything (groups of steps, then each step).",
    )
    compute_dtype: str = option("float32", "float32 or bfloat16: the type matrix products run in.")

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            object.__setattr__(self, each.name, _typed(each, getattr(self, each.name)))
        _choose("norm", self.norm, ("layernorm", "rmsnorm"))
        _choose("final_norm", self.final_norm, ("plain", "time", "none"))
        _choose("norm_placement", self.norm_placement, NORM_PLACEMENTS)
        _choose("positions", self.positions, ("learned", "rope", "none"))
        _choose("compute_dtype", self.compute_dtype, ("float32", "bfloat16"))
        _choose("depth dial", self.depth_dial, DIALS)
        _choose("core_init", self.core_init, CORE_INITS)
        _choose("activation", self.activation, ACTIVATIONS)
        _choose("parametrization", self.parametrization, PARAMETRIZATIONS)
        if self.parametrization == "mup" and (self.scale_embedding or self.core_init == "noise"):
            raise UserError(
                "parametrization mup has no rule for scale_embedding and core_init noise; leave "
                "them out"
            )
        _choose("composition", self.composition, COMPOSITIONS)
        _choose("remat", self.remat, REMATS)
        _choose("time features", self.time_features, TIME_FEATURES)
        _choose("gate", self.gate, GATES)
        _choose("gate activation", self.gate_activation, GATE_ACTIVATIONS)
        _choose("basis", self.basis, BASES)
        registry.FIELDS.check(self.field)
        registry.SCHEMES.check(self.scheme)
        registry.INJECTIONS.check(self.injection)
        if len(self.mixers) > _MOST_MIXERS:
            raise UserError(f"a block has at most {_MOST_MIXERS} mixers; give more num_steps")
        for name in self.mixers:
            registry.MIXERS.check(name)
        if self.lora != "none":
            parse_adapters(self.lora)
        for name, value in self.to_dict().items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if number and name not in _MAY_BE_ZERO and not value > 0:
                raise UserError(f"{name} must be positive, not {value}")
            if value == math.inf:
                raise UserError(f"{name} must be finite, not {value}")
            if (isinstance(value, int) or name == "mlp_ratio") and value >= 1 << 31:
                raise UserError(f"{name} must be below 2^31, not {value}")
        for name in ("dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"{name} must be in [0, 1), not {getattr(self, name)}")
        for name in ("prelude", "coda"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must be 0 or more layers, not {getattr(self, name)}")
        self._check_norms()
        self._check_loops()
        if self.frozen_time is not None and not 0.0 <= self.frozen_time <= 1.0:
            raise UserError(f"frozen_time must be in [0, 1], not {self.frozen_time}")
        if "attention" in self.mixers:
            self._check_heads()
        if "selective-ssm" in self.mixers:
            self._check_selective()

    def _check_norms(self) -> None:
        if self.coda_norm and not self.coda:
            raise UserError("coda_norm needs a coda; give coda 1 or more, or leave it out")
        if self.loop_norm and (self.field not in CYCLES or self.norm_placement.endswith("post")):
            raise UserError(
                f"loop_norm is for the fields {' and '.join(CYCLES)} with norm_placement pre or "
                "sandwich; a norm of the sum ends every other loop already"
            )

    def _check_loops(self) -> None:
        if self.residual_scale is not None and self.horizon is not None:
            raise UserError("residual_scale and horizon say the same thing; give one of them")
        if self.residual_scale is not None and self.depth_dial == "repeat":
            raise UserError(
                "residual_scale makes increments smaller as loops become more; choose depth_dial "
                "refine with it"
            )
        for name in ("exit_gate", "value_residual"):
            if getattr(self, name) and self.scheme in ("adaptive", "fixed-point"):
                raise UserError(f"{name} needs steps of the scheme's own; choose a fixed scheme")
        if self.value_residual and "attention" not in self.mixers:
            raise UserError("value_residual needs attention in the block; leave it out")

    def _check_heads(self) -> None:
        # Indices of compiled programs have 32 bits.
        if 3 * max(self.d_model, self.num_heads * self.d_head, self.d_hidden) >= 1 << 31:
            raise UserError("d_model, num_heads or mlp_ratio make matrices too wide; choose less")
        if self.head_dim is None and self.d_model % self.num_heads:
            raise UserError(
                f"d_model {self.d_model} is not divisible by num_heads {self.num_heads}; "
                "change one of them, or give head_dim"
            )
        if self.num_heads % self.kv_heads:
            raise UserError(
                f"num_heads {self.num_heads} is not divisible by num_kv_heads {self.kv_heads}; "
                "change one of them"
            )
        if self.positions != "rope":
            return
        parse_rotary_scaling(self.rotary_scaling)
        if self.rotary_fraction > 1.0:
            raise UserError(f"rotary_fraction must be in (0, 1], not {self.rotary_fraction}")
        if self.d_rotary % 2 or not self.d_rotary:
            part = "" if self.rotary_fraction == 1.0 else f" ({self.rotary_fraction} of it)"
            raise UserError(
                f"rotary positions need an even width per head{part}, not {self.d_rotary}; "
                "change d_model or num_heads"
            )

    def _check_selective(self) -> None:
        inner = self.ssm_expand * self.d_model
        if inner % self.d_ssm_head:
            raise UserError(
                f"ssm_head_dim {self.d_ssm_head} does not divide the inner width {inner}; "
                "choose a divisor"
            )
        if (heads := inner // self.d_ssm_head) % self.ssm_groups:
            raise UserError(
                f"ssm_groups {self.ssm_groups} does not divide the {heads} heads of "
                "selective-ssm; choose a divisor"
            )

    @property
    def mixers(self) -> tuple[str, ...]:
        return tuple(self.block.split("+"))

    @property
    def width_ratio(self) -> float | None:
        """Of mup: how many times as wide as where it is as standard; None without."""
        return self.d_model / self.mup_width if self.parametrization == "mup" else None

    @property
    def layers(self) -> int:
        """Of a field that stores values for each layer."""
        return self.num_steps if self.num_layers is None else self.num_layers

    @property
    def loop_layers(self) -> int:
        """Layers of their own in one step of the core."""
        return self.layers_per_loop if self.field in CYCLES else 1

    @property
    def kv_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def d_hidden(self) -> int:
        return max(1, round(self.mlp_ratio * self.d_model))

    @property
    def d_head(self) -> int:
        """Channels of an attention head."""
        return self.d_model // self.num_heads if self.head_dim is None else self.head_dim

    @property
    def d_rotary(self) -> int:
        """Channels of a head that are rotated."""
        return int(self.rotary_fraction * self.d_head)

    @property
    def d_ssm_head(self) -> int:
        """Channels per head of selective-ssm."""
        inner = self.ssm_expand * self.d_model
        return math.gcd(64, inner) if self.ssm_head_dim is None else self.ssm_head_dim

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name; `ModelConfig(**values)` of them is this again."""
        return dataclasses.asdict(self)


_MAY_BE_ZERO = ("prelude", "coda", "dropout", "attention_dropout", "frozen_time")


def _choose(kind: str, name: str, options: tuple[str, ...]) -> None:
    if name not in options:
        raise unknown(kind, name, options)


def _typed(field: dataclasses.Field, value: Any) -> Any:
    """The value in the type of its field, or an error that names both."""
    kinds = get_args(field.type) or (field.type,)
    if value is None and NoneType in kinds:
        return None
    kind: Any = kinds[0]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise UserError(f"{field.name} must be {kind.__name__}, not {value!r}")


_OLD_NAMES = {"gate_squash": "gate_activation", "num_waves": "num_frequencies"}


def modern(values: dict[str, Any]) -> dict[str, Any]:
    """Values under today's names: saved configurations may be older than they are."""
    values = {_OLD_NAMES.get(key, key): value for key, value in values.items()}
    if isinstance(old := values.get("remat"), bool):
        values["remat"] = "block" if old else "none"
    if values.get("gate") == "documents":
        values["gate"] = "time-indexed"
    return values


def parse_adapters(text: str) -> list[tuple[str, bool]]:
    """`qkv:depth,out,*` as patterns, each with whether its adapters depend on depth."""
    found = []
    for part in text.split(","):
        pattern, _, kind = part.strip().partition(":")
        if not pattern or kind not in ("", "shared", "depth"):
            raise UserError(
                f"adapters are patterns over names, with :depth where they depend on depth, such "
                f"as 'qkv:depth,out' or '*', not '{text}'"
            )
        found.append((pattern, kind == "depth"))
    return found


def parse_rotary_scaling(text: str) -> tuple[str, list[float]]:
    """`llama3:8:1:4:8192` as its kind and its numbers."""
    kind, *words = text.split(":")
    numbers: list[float] = []
    with contextlib.suppress(ValueError):
        numbers.extend(float(each) for each in words)
    count = {"none": 0, "linear": 1, "llama3": 4}.get(kind)
    wrong = len(numbers) != len(words) or len(numbers) != count
    if wrong or not all(0.0 < each < math.inf for each in numbers):
        raise UserError(
            "rotary_scaling is none, linear:FACTOR or llama3:FACTOR:LOW:HIGH:ORIGINAL_CONTEXT with "
            f"positive numbers, not '{text}'"
        )
    if kind == "llama3" and numbers[1] >= numbers[2]:
        raise UserError(f"LOW must be less than HIGH in rotary_scaling, not '{text}'")
    return kind, numbers


def configure(base: dict[str, Any], overrides: dict[str, Any]) -> ModelConfig:
    """A configuration from an entry and overrides by name; a misspelt name offers the nearest."""
    names = [field.name for field in dataclasses.fields(ModelConfig)]
    overrides = modern(overrides)
    for name in overrides:
        if name not in names:
            raise unknown("model option", name, names)
    return ModelConfig(**modern({**base, **overrides}))
