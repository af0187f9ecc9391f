"""Rotary positions as `transformers` writes them: `rope_parameters`, or in older versions
`rope_theta` and `rope_scaling`."""

from typing import Any

from qkvflow.errors import UserError, one_line
from qkvflow.interop.families.base import Settings
from qkvflow.zoo import ModelConfig
from qkvflow.zoo.config import parse_rotary_scaling

_LLAMA3 = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)


def read_rotary(settings: Settings, *, theta: str = "rope_theta", part: float = 1.0) -> dict:
    """Our options; `theta` is the name of the base, `part` of a head rotated by default."""
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise UserError(f"rope_parameters must be an object, not {one_line(rope, 80)}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    numbers: list[Any] = []
    if kind == "linear":
        numbers = [rope.get("factor")]
    elif kind == "llama3":
        last = settings.get("max_position_embeddings")
        numbers = [rope.get(each, last if each == _LLAMA3[-1] else None) for each in _LLAMA3]
    elif kind != "default":
        raise UserError(
            f"unsupported rope_type {one_line(kind, 80)}; qkvflow can load default, linear and "
            "llama3 only"
        )
    if None in numbers:
        raise UserError(f"rope_type {kind} needs {', '.join(_LLAMA3[: len(numbers)])}; add them")
    scaling = "none" if kind == "default" else ":".join(map(str, [kind, *numbers]))
    fraction = rope.get("partial_rotary_factor", part)
    return {
        "positions": "rope" if fraction else "none",
        "rotary_base": rope.get("rope_theta", settings.get(theta, 10000.0)),
        "rotary_scaling": scaling,
        **({"rotary_fraction": fraction} if fraction else {}),
    }


def write_rotary(config: ModelConfig) -> dict[str, Any]:
    kind, numbers = parse_rotary_scaling(config.rotary_scaling)
    rope: dict[str, Any] = {"rope_type": "default" if kind == "none" else kind}
    rope["rope_theta"] = config.rotary_base
    if kind != "none":
        rope |= dict(zip(_LLAMA3, numbers, strict=False))
    if kind == "llama3":
        rope[_LLAMA3[-1]] = int(numbers[-1])
    fraction = config.rotary_fraction if config.positions == "rope" else 0.0
    if fraction != 1.0:
        rope["partial_rotary_factor"] = fraction
    return {"rope_theta": config.rotary_base, "rope_parameters": rope}
