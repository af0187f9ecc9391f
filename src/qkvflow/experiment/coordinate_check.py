"""The coordinate check of a parametrisation (Yang et al. 2022, appendix D): how large activations,
and what a few updates change of them, are at several widths.

Where the best learning rate does not move with the width, neither grows with it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from qkvflow.compilation import use_compilation_cache
from qkvflow.data import EncodedCorpus
from qkvflow.distributed.memory import check_fits
from qkvflow.errors import UserError
from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.corpus import load_data
from qkvflow.training.dispatch import Dispatch
from qkvflow.training.program import make_program

_FULL_RATE = {"optim": {"warmup": 0, "schedule": "constant"}}
_PROBED = 4
"""Windows of the validation split."""


def coordinate_check(
    content: Mapping[str, Any],
    widths: Sequence[int],
    *,
    updates: int = 4,
    seeds: int = 1,
    tell: Callable[[int, int], None] = lambda width, seed: None,
) -> dict[str, Any]:
    """Root mean squares of the states after each step of depth and of the logits, before training
    (`sizes`) and of what each update has changed of them (`changes`), by width; and the slopes of
    both after the last update, in logarithms. `tell` hears the width and seed of each run."""
    if len(set(widths)) < 2 or min(widths) < 1 or updates < 1 or seeds < 1:
        raise UserError("a coordinate check needs two widths, an update and a seed; give more")
    use_compilation_cache()
    encoded = load_data(make_config(dict(content)))
    found: dict[str, list[Any]] = {}
    for width in widths:
        runs = []
        for seed in range(seeds):
            tell(width, seed)
            layer = {"model": {"d_model": width}, "train": {"seed": seed}}
            config = make_config(dict(content), _FULL_RATE, layer)
            runs.append(_measure(config, encoded, updates))
        for name in runs[0]:
            found.setdefault(name, []).append(np.mean([run[name] for run in runs], axis=0).tolist())
    shape = make_config(dict(content)).model.config
    return {
        "parametrization": shape.parametrization,
        "optimiser": make_config(dict(content)).optim.name,
        "widths": list(widths),
        "updates": updates,
        "sizes": {name: [float(each[0]) for each in rows] for name, rows in found.items()},
        "changes": {name: [each[1:] for each in rows] for name, rows in found.items()},
        "slopes": {
            name: _slope(widths, [each[-1] for each in rows]) for name, rows in found.items()
        },
    }


def _measure(config: RunConfig, encoded: EncodedCorpus, updates: int) -> dict[str, list[float]]:
    """Of every activation: its size, then the size of its change after 1, 2, ... updates."""
    program = make_program(config, encoded.tokenizer.vocab_size)
    windows = min(_PROBED, len(encoded.validation) // config.context)
    tokens = encoded.validation.tokens[: windows * config.context]
    tokens = jnp.asarray(tokens.reshape(windows, config.context).astype(np.int32))

    @jax.jit
    def look(params: Any) -> Any:
        model = eqx.combine(params, program.static)
        states = model.trajectory(tokens)[1:]
        return states, model(tokens)

    state = program.init()
    dispatch = Dispatch(program, encoded.train, 0)
    try:
        what = f"a step at width {config.model.config.d_model}"
        check_fits(dispatch.compile(state), what, "use smaller --widths or train.batch_size")
        begin = jax.device_get(look(state.params))
        rows = [_sizes(begin)]
        for _ in range(updates):
            state, _ = dispatch(state, 1)
            now = jax.device_get(look(state.params))
            rows.append(_sizes(jax.tree.map(np.subtract, now, begin)))
    finally:
        dispatch.close()
    return {name: [row[name] for row in rows] for name in rows[0]}


def _sizes(seen: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    states, logits = seen
    sizes = {f"state after step {i}": _rms(each) for i, each in enumerate(states, start=1)}
    return {**sizes, "logits": _rms(logits)}


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))


def _slope(widths: Sequence[int], sizes: Sequence[float]) -> float:
    return float(np.polyfit(np.log(widths), np.log(np.maximum(sizes, 1e-30)), 1)[0])
