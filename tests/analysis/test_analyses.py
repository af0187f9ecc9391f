"""Spectra, trajectories, weights and memory: against direct computations on the arrays."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear import linear_model, symmetric
from scipy import stats
from tiny_models import BLOCK_CASES, FIELD_CASES, SCHEME_CASES, TINY, random_tokens, tiny

from qkvflow.analysis import (
    ANALYSES,
    Subject,
    choose,
    depths_of,
    in_steps,
    lacks_state_space,
    spectra,
    state_space,
    to_arrays,
    trajectory,
    trend,
    weights_over_depth,
)
from qkvflow.analysis.trajectory import angles
from qkvflow.analysis.weights import curve
from qkvflow.blocks import MLP, SSM, Attention, SelectiveSSM
from qkvflow.blocks.base import Rows
from qkvflow.distributed import memory
from qkvflow.distributed.memory import tree_bytes
from qkvflow.errors import OutOfMemory, UserError
from qkvflow.fields.base import take
from qkvflow.schemes import grid

# Every field, every block and every scheme at least once: schemes of several stages with the block
# that has the fewest operations.
CASES = [
    ("per-layer", "attention+mlp", "residual"),
    ("shared", "attention+swiglu", "residual"),
    ("gated", "attention+ssm", "euler"),
    ("hypernet", "attention+selective-ssm", "residual"),
    ("low-rank", "ssm", "strang"),
    ("basis", "selective-ssm", "euler"),
    ("frozen-time", "ssm", "adaptive"),
    ("gated-generated", "ssm", "heun"),
    ("per-layer-hypernet", "ssm", "rk4"),
    ("cycle", "ssm", "residual"),
    ("modulated", "ssm", "midpoint"),
    ("universal", "ssm", "fixed-point"),
]


pytestmark = pytest.mark.usefixtures("rolled")


def subject_of(field: str, block: str, scheme: str) -> Subject:
    tokens = np.asarray(random_tokens(6))
    return Subject(in_steps(tiny(field, block, scheme)), tokens, str, num_exponents=2)


@pytest.mark.parametrize(("field", "block", "scheme"), CASES)
def test_every_analysis_of_every_kind_of_model(field: str, block: str, scheme: str):
    subject = subject_of(field, block, scheme)
    lacking = {name for name, make in ANALYSES.items() if make().lacks(subject.model)}
    assert lacking == (set() if "ssm" in block else {"state-space"})
    for which, analysis in choose(subject.model).items():
        result = analysis.run(subject)
        arrays = to_arrays(result)
        assert arrays
        for name, array in arrays.items():
            assert array.dtype != object, name
            if np.issubdtype(array.dtype, np.inexact) and array.ndim:
                assert np.isfinite(array).all(), f"{which} {name}"
        said = result.findings()
        assert said
        assert all(line.endswith(".") and "nan" not in line for line in said), said


def test_all_kinds_are_covered():
    for place, known in enumerate((FIELD_CASES, BLOCK_CASES, SCHEME_CASES)):
        assert {case[place] for case in CASES} == set(known)


# Spectra


def test_the_spectra_of_a_standard_transformer_are_those_of_its_matrices():
    model = tiny("per-layer")
    found = spectra(model)
    np.testing.assert_array_equal(found.ts, grid(3))
    heads, kv_heads, width = TINY["num_heads"], TINY["num_kv_heads"], 4
    for i, t in enumerate(found.ts):
        attention, mlp = (branch.mixer for branch in model.field.at(t).branches)
        assert isinstance(attention, Attention)
        assert isinstance(mlp, MLP)
        qkv, out = (np.asarray(w, np.float64) for w in (attention.qkv.weight, attention.out.weight))
        for head in range(heads):
            kv = head // (heads // kv_heads)
            q = qkv[:, head * width : (head + 1) * width]
            k = qkv[:, (heads + kv) * width : (heads + kv + 1) * width]
            v = qkv[:, (heads + kv_heads + kv) * width : (heads + kv_heads + kv + 1) * width]
            o = out[head * width : (head + 1) * width]
            for name, matrix in (("QK", q @ k.T), ("OV", v @ o)):
                check_spectrum(found.circuits[name], (i, head), matrix)
        up, down = (np.asarray(layer.weight, np.float64) for layer in (mlp.up, mlp.down))
        check_spectrum(found.circuits["MLP"], (i, 0), up @ down)


def check_spectrum(spectrum: Any, at: tuple[int, int], matrix: np.ndarray) -> None:
    """Against numpy on the whole matrix, whose other eigenvalues are 0."""
    values, singular = spectrum.eigenvalues[at], spectrum.singular_values[at]
    direct = np.linalg.eigvals(matrix)
    direct = direct[np.argsort(-np.abs(direct))]
    count = len(values)
    np.testing.assert_allclose(np.abs(direct[count:]), 0.0, atol=1e-6)
    np.testing.assert_allclose(np.sort_complex(values), np.sort_complex(direct[:count]), atol=1e-9)
    whole = np.linalg.svd(matrix, compute_uv=False)
    np.testing.assert_allclose(singular, whole[: len(singular)], atol=1e-9)
    np.testing.assert_allclose(spectrum.magnitude[at], np.abs(direct[:count]).mean())
    np.testing.assert_allclose(spectrum.spectral_norm[at], np.linalg.norm(matrix, ord=2))
    share = whole[whole > 1e-12] / whole.sum()
    np.testing.assert_allclose(spectrum.effective_rank[at], np.exp(stats.entropy(share)))


def test_the_spectrum_of_a_linear_field_is_the_one_that_was_chosen():
    chosen = [0.9, 0.3, -0.2, -1.5]
    found = spectra(linear_model(symmetric(chosen))).circuits["map.weight"]
    values = np.sort(np.real(found.eigenvalues[:, 0]), axis=-1)
    np.testing.assert_allclose(values, np.sort(chosen)[None] * np.ones((24, 1)), atol=1e-3)
    assert "cannot be tested" in found.growth.verdict()
    turning = np.array([[0.0, 2.0], [-2.0, 0.0]])
    values = spectra(linear_model(turning)).circuits["map.weight"].eigenvalues
    np.testing.assert_allclose(np.sort_complex(values[0, 0]), [-2j, 2j], atol=1e-6)


def test_a_field_that_grows_is_said_to_grow():
    """Layers whose matrices are scaled by 1, 2, .., 7: magnitudes go as the square."""
    model = tiny("per-layer", num_steps=7)
    first = take(model.field.stack(grid(7)), 0)
    scaled = jax.tree.map(
        lambda w: w[None] * jnp.arange(1.0, 8.0).reshape(-1, *[1] * w.ndim), first
    )
    grown = spectra(_with_layers(model, scaled))
    for name, circuit in grown.circuits.items():
        assert circuit.growth.rho == pytest.approx(1.0), name
        assert circuit.growth.p == pytest.approx(2 / 5040)
    assert all("grow with depth" in line for line in grown.findings()[:3])
    shrunk = spectra(_with_layers(model, jax.tree.map(lambda w: w[::-1], scaled)))
    assert all("shrink with depth" in line for line in shrunk.findings()[:3])


def _with_layers(model: Any, stacked: Any) -> Any:
    return eqx.tree_at(lambda m: m.field.layers.block, model, stacked)


@pytest.mark.parametrize("length", [3, 5, 20])
def test_rank_correlation(length: int):
    generator = np.random.default_rng(length)
    values = np.round(generator.normal(size=length) + np.linspace(0, 1, length), 1)
    ts = grid(length).astype(np.float64)
    found = trend(ts, values)
    peer: Any = stats.spearmanr(ts, values)
    assert found.rho == pytest.approx(peer.statistic)
    if length > 8:
        assert found.p == pytest.approx(peer.pvalue)
    else:
        # SciPy's own exact answer: every order of the values.
        exact = stats.permutation_test(
            (values,),
            lambda v: stats.spearmanr(ts, v).statistic,  # pyright: ignore
            permutation_type="pairings",
        )
        assert found.p == pytest.approx(exact.pvalue)


def test_no_trend_where_nothing_varies():
    assert np.isnan(trend(grid(6), np.ones(6)).p)
    assert np.isnan(trend(grid(2), np.array([1.0, 2.0])).p)
    # Four depths have 24 orders: even the straightest rise has p = 2 / 24.
    few = trend(grid(4), np.arange(4.0))
    assert few.p == pytest.approx(2 / 24)
    assert "too few depths (4)" in few.verdict()
    assert trend(grid(6), np.arange(6.0)).verdict(4) == "grow with depth"


def test_depths_hold_the_model_s_own():
    assert len(depths_of(tiny("per-layer"))) == 3
    assert len(depths_of(tiny("per-layer", lora="*", lora_rank=2))) == 3
    assert len(depths_of(tiny("gated", time_features="layers"))) == 3
    dense = depths_of(tiny("hypernet"))
    assert len(dense) == 24
    assert set(grid(3)) <= set(dense)


# Trajectories


def test_the_path_and_the_lens_are_the_model_s_own():
    model, tokens = tiny("gated", "attention+ssm", "euler"), np.asarray(random_tokens(6))
    found = trajectory(model, tokens)
    states = np.asarray(model.trajectory(jnp.asarray(tokens)), np.float64)
    np.testing.assert_allclose(found.norm, np.sqrt((states**2).sum(-1)), rtol=1e-6)
    steps = states[1:] - states[:-1]
    np.testing.assert_allclose(found.step_size, np.linalg.norm(steps, axis=-1), rtol=1e-5)
    cosines = (steps[:-1] * steps[1:]).sum(-1) / (found.step_size[:-1] * found.step_size[1:])
    np.testing.assert_allclose(found.turning, np.degrees(np.arccos(cosines)), rtol=1e-4)
    # The last row of the lens is what the model predicts.
    logits = np.asarray(model(jnp.asarray(tokens)), np.float64)
    probabilities = np.asarray(jax.nn.softmax(logits, -1))
    np.testing.assert_array_equal(found.lens.tokens[-1, :, 0], logits.argmax(-1))
    np.testing.assert_allclose(found.lens.probabilities[-1, :, 0], probabilities.max(-1), rtol=1e-4)
    np.testing.assert_allclose(
        found.lens.entropy[-1], stats.entropy(probabilities, axis=-1), rtol=1e-4
    )
    np.testing.assert_allclose(found.lens.divergence[-1], 0.0, atol=1e-12)
    first = np.asarray(jax.nn.softmax(model.logits(jnp.asarray(states[0], jnp.float32)), -1))
    divergence = stats.entropy(probabilities, first, axis=-1)
    np.testing.assert_allclose(found.lens.divergence[0], divergence, rtol=1e-3)
    assert found.lens.agreement[-1] == 1.0


def test_local_errors_fall_with_the_order_of_the_scheme():
    """Of a linear flow dx/dt = x A they are known: |e^{Ah} - (step)| to leading order."""
    a = symmetric([0.5, -0.5, 1.0, -1.0])
    coarse, fine = (
        trajectory(linear_model(a, num_steps=n), np.array([0, 1, 2])).local_error.mean()
        for n in (1, 2)
    )
    # RK4: the error of a step is O(h^5), its share of the step O(h^4).
    assert 10.0 < coarse / fine < 25.0


def test_angles():
    a = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    b = np.array([[2.0, 2e-9], [0.0, 3.0], [-1.0, 0.0]])
    np.testing.assert_allclose(angles(a, b), [np.degrees(1e-9), 90.0, 180.0], rtol=1e-6)


# Weights over depth


def test_the_shapes_of_weights_over_depth_are_recognised():
    ts = grid(24)
    t = ts.astype(np.float64)[:, None] * np.ones((1, 100))
    size = np.linspace(0.5, 1.5, 100)[None]
    still, line = curve(ts, size + 0.0 * t), curve(ts, 1.0 + size * t)
    wave = curve(ts, 1.0 + size * np.sin(2 * np.pi * 2 * t + size))
    assert (still.variation, still.constant) == (0.0, pytest.approx(0.0, abs=1e-9))
    assert np.isnan(still.linear)
    assert line.linear == pytest.approx(0.0, abs=1e-6)
    assert line.periodic > 0.3
    assert line.constant > 0.1
    assert wave.periodic == pytest.approx(0.0, abs=1e-6)
    assert wave.cycles == 2
    assert wave.linear > 0.9
    noise = curve(ts, np.random.default_rng(0).normal(size=(24, 4000)))
    # What explains nothing leaves everything, whatever the number of parameters.
    assert noise.linear == pytest.approx(1.0, abs=0.01)
    assert noise.periodic == pytest.approx(1.0, abs=0.02)
    # A straight way has the length of its ends' distance.
    ends = np.linalg.norm(size[0]) * (t[-1, 0] - t[0, 0])
    lengths = np.linalg.norm(1.0 + size * t, axis=1).mean()
    assert line.variation == pytest.approx(ends / lengths)
    assert line.values.shape == (24, 64)


def test_gates_and_weights_are_those_of_the_field():
    model = tiny("gated")
    found = weights_over_depth(model, grid(6))
    gate = found.curves["gate of 0.qkv.weight"]
    blocks = model.field.stack(grid(6))
    attention = blocks.branches[0].mixer
    assert isinstance(attention, Attention)
    # W(t) / W(t_0) is the quotient of the gates, one for each input channel.
    weight = np.asarray(attention.qkv.weight, np.float64)
    np.testing.assert_allclose(
        weight[:, :, 0] / weight[:1, :, 0], gate.values / gate.values[:1], rtol=1e-4
    )
    shared = weights_over_depth(tiny("shared"))
    assert shared.findings() == ["The weights are the same at every depth."]


# State spaces


def test_the_memory_of_a_linear_state_space():
    model = tiny("gated", "attention+ssm", "euler")
    found = state_space(model, np.asarray(random_tokens(6)), grid(5)).layers["layer 2, ssm"]
    for i, t in enumerate(grid(5)):
        mixer = model.field.at(t).branches[1].mixer
        assert isinstance(mixer, SSM)
        a, delta = -np.exp(mixer.space.log_a), np.exp(mixer.space.log_delta)
        np.testing.assert_allclose(found.eigenvalues[i], np.exp(delta * a), rtol=1e-5)
        # After its half-life, a state is half of what it was.
        np.testing.assert_allclose(found.eigenvalues[i] ** found.half_lives[i], 0.5, rtol=1e-6)
    assert found.by_token is None


def test_the_memory_of_a_selective_one_is_what_its_recurrence_forgets():
    """The state of the first step's layer, one token after another, by the layer's own `extend`."""
    model, tokens = tiny("basis", "selective-ssm", "euler"), np.asarray(random_tokens(6))
    found = state_space(model, tokens).layers["layer 1, selective-ssm"]
    assert found.by_token is not None
    assert found.by_token.shape == (3, 6, 4)
    np.testing.assert_allclose(found.ts, [1 / 3, 2 / 3, 1.0], atol=1e-6)
    branch = model.field.at(1 / 3).branches[0]
    assert isinstance(branch.mixer, SelectiveSSM)
    x = branch.norm(model.trajectory(jnp.asarray(tokens))[0])
    # Two pasts that differ in the state alone: what is left of the difference is exp(delta A).
    fresh = branch.mixer.init_state(1, 6, jnp.dtype(jnp.float32))
    other = dataclasses.replace(fresh, state=jnp.ones_like(fresh.state))
    after = [branch.mixer.extend(x[:1], Rows(1, 1), past)[1].state for past in (fresh, other)]
    left = np.asarray(after[1] - after[0])[0]
    np.testing.assert_allclose(left, found.by_token[0, 0][:, None, None] + 0 * left, rtol=1e-4)
    median = np.median(np.log(found.by_token), axis=1)
    np.testing.assert_allclose(found.half_lives, np.log(2) / -median, rtol=1e-6)


def test_a_state_space_analysis_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch):
    """There is room for the weights of its depths, and none for the flow of the text."""
    model, tokens = tiny("basis", "selective-ssm", "euler"), np.asarray(random_tokens(6))
    ts = grid(3)
    room = tree_bytes(lambda: model.field.stack(ts))
    monkeypatch.setattr(memory, "memory_limit", lambda: room)
    with pytest.raises(OutOfMemory, match=r"state-space analysis of 6 tokens takes .* --text"):
        state_space(model, tokens, ts)
    monkeypatch.setattr(memory, "memory_limit", lambda: room - 1)
    with pytest.raises(OutOfMemory, match=r"state-space analysis at .* depths takes"):
        state_space(model, tokens, ts)


def test_what_cannot_be_asked():
    model = tiny("per-layer")
    assert lacks_state_space(model) is not None
    with pytest.raises(UserError, match="did you mean spectra"):
        choose(model, ["spectre"])
    with pytest.raises(UserError, match="no state space layer"):
        choose(model, ["state-space"])
    assert list(choose(model, ["weights", "spectra"])) == ["spectra", "weights"]
    assert list(choose(model)) == ["spectra", "lyapunov", "trajectory", "weights"]
