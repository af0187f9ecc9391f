"""Learning from a teacher: the objective against SciPy and PyTorch, and runs that do it."""

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from processes import python
from scipy.special import log_softmax, rel_entr, softmax
from tiny_models import SEQ, VOCAB, random_tokens, tiny

from qkvflow.cli import main
from qkvflow.evaluation import losses
from qkvflow.lm.loss import token_losses_and_divergences
from qkvflow.runs.load import load
from qkvflow.runs.sections import DistillConfig, TrainConfig
from qkvflow.runs.weights import weights_hash
from qkvflow.training.objective import make_distillation

TOKENS, TARGETS = random_tokens(3, SEQ, seed=1), random_tokens(3, SEQ, seed=2)
TEMPERATURE, WEIGHT = 1.7, 0.3
_logits = eqx.filter_jit(lambda model: model(TOKENS))
_losses_and_divergences = eqx.filter_jit(token_losses_and_divergences)


def pair() -> tuple[Any, Any]:
    """A student with a head of its own, and a teacher of another shape."""
    return tiny("shared", tied=False), tiny("per-layer", "attention+swiglu")


@pytest.fixture(scope="module")
def logits() -> tuple[np.ndarray, np.ndarray]:
    student, teacher = (np.asarray(_logits(each), np.float64) for each in pair())
    return student, teacher


@pytest.mark.parametrize("pieces", [1, 5])
def test_divergences_are_those_of_scipy(logits: Any, pieces: int):
    student, teacher = pair()
    most = 1 << 26 if pieces == 1 else 2 * 3 * VOCAB * 2
    student = dataclasses.replace(student, max_logits=most)
    found = _losses_and_divergences(student, teacher, TOKENS, TARGETS, temperature=TEMPERATURE)
    p, q = (softmax(each / TEMPERATURE, axis=-1) for each in logits[::-1])
    np.testing.assert_allclose(found[1], rel_entr(p, q).sum(axis=-1), rtol=2e-5, atol=2e-6)
    entropy = -np.take_along_axis(
        log_softmax(logits[0], axis=-1), np.asarray(TARGETS)[..., None], -1
    )
    np.testing.assert_allclose(found[0], entropy[..., 0], rtol=2e-5)


@pytest.mark.peers
def test_the_objective_is_that_of_torch(logits: Any):
    torch = pytest.importorskip("torch")
    z, t = (torch.tensor(each, dtype=torch.float64) for each in logits)
    divergence = torch.nn.functional.kl_div(
        torch.log_softmax(z / TEMPERATURE, -1),
        torch.log_softmax(t / TEMPERATURE, -1),
        reduction="none",
        log_target=True,
    ).sum(-1)
    targets = torch.tensor(np.asarray(TARGETS), dtype=torch.long)
    entropy = torch.nn.functional.cross_entropy(z.flatten(0, 1), targets.flatten())
    want = (1 - WEIGHT) * entropy + WEIGHT * TEMPERATURE**2 * divergence.mean()
    assert value(*pair())[0] == pytest.approx(float(want), rel=1e-5)


@eqx.filter_jit
def value(student: Any, teacher: Any) -> tuple[Any, Any]:
    distill = DistillConfig("there", None, WEIGHT, TEMPERATURE)
    objective = make_distillation(TrainConfig(), distill)
    return objective(student, TOKENS, TARGETS, key=None, depth_key=None, teacher=teacher)


_gradient = eqx.filter_jit(eqx.filter_grad(lambda student, teacher: value(student, teacher)[0]))
_states = eqx.filter_jit(lambda model: model.norm.at(1.0)(model.integrate(TOKENS).x))


def test_gradient_is_the_closed_form(logits: Any):
    """d/dz of both terms is a difference of probabilities; the head's gradient is h^T of it."""
    student, teacher = pair()
    gradient = _gradient(student, teacher)
    z, t = logits
    chosen = np.eye(VOCAB)[np.asarray(TARGETS)]
    taught = softmax(z / TEMPERATURE, axis=-1) - softmax(t / TEMPERATURE, axis=-1)
    of_logits = (1 - WEIGHT) * (softmax(z, axis=-1) - chosen) + WEIGHT * TEMPERATURE * taught
    h = np.asarray(_states(student), np.float64)
    want = h.T @ of_logits.reshape(-1, VOCAB) / TOKENS.size
    np.testing.assert_allclose(gradient.head, want, rtol=1e-4, atol=1e-6)
    # Through the blocks: a difference quotient along the gradient.
    arrays, static = eqx.partition(student, eqx.is_inexact_array)
    size = sum(float(np.square(leaf).sum()) for leaf in map(np.asarray, jax.tree.leaves(gradient)))
    step = 1e-2 / size**0.5

    def moved(by: float) -> Any:
        def along(array: Any, slope: Any) -> Any:
            return jnp.asarray(np.asarray(array) + np.float32(by) * np.asarray(slope))

        return eqx.combine(jax.tree.map(along, arrays, gradient), static)

    ends = [value(moved(by), teacher) for by in (step, -step)]
    assert float(ends[0][0] - ends[1][0]) / (2 * step) == pytest.approx(size, rel=2e-2)


@pytest.fixture(scope="module")
def little_work(finished: Path) -> Iterator[None]:
    """Evaluations in batches no larger than the splits here, and no figure of a run's losses: not
    for `finished`, which is all tests'."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "_BATCH_TOKENS", 1024)
        patch.setattr("qkvflow.training.run.draw_losses", lambda directory: None)
        yield


@pytest.fixture(scope="module")
def student(finished: Path, little_work: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("distillation") / "student"
    assert main(["convert", str(finished), "--field", "shared", "--out", str(out)]) == 0
    return out


def options(data: str, out: Path, *more: str) -> list[str]:
    common = ["--steps", "6", "--warmup", "1", "--train.eval_every", "3", "--checkpoint.every", "3"]
    every = ["--train.eval_tokens", "none", "--quiet"]
    return ["--data", data, "--out", str(out), *common, *every, *more]


@pytest.fixture(scope="module")
def data(text: Path) -> str:
    return f"file:{text}?split=0.8,0.1,0.1"


@pytest.fixture(scope="module")
def taught(finished: Path, student: Path) -> list[str]:
    teach = ["--teacher", str(finished), "--distill.weight", "1"]
    return ["finetune", str(student), *teach]


@pytest.fixture(scope="module")
def runs(finished: Path, student: Path, taught: list[str], data: str) -> tuple[Path, Path]:
    """The teacher trained on, and the student with its teacher."""
    control, out = student.with_name("control"), student.with_name("out")
    assert main(["finetune", str(finished), *options(data, control)]) == 0
    assert main([*taught, *options(data, out, "--control", str(control))]) == 0
    return control, out


def test_runs(
    finished: Path,
    student: Path,
    taught: list[str],
    runs: tuple[Path, Path],
    data: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    control, out = runs
    found = json.loads((out / "finetune.json").read_text())["distillation"]
    record, of_control = (json.loads((each / "record.json").read_text()) for each in (out, control))
    assert found["weight"] == 1.0
    assert found["control"] == str(control)
    assert found["after"] == pytest.approx(record["losses"]["validation"]["nats"], abs=1e-5)
    assert found["teacher_trained"] == pytest.approx(
        of_control["losses"]["validation"]["nats"], abs=1e-5
    )
    # It learnt from the teacher alone: nearer to its predictions than it was.
    tokens = jnp.asarray(np.arange(32).reshape(2, 16) % load(out).model.vocab_size)
    models = [load(each).model for each in (student, out, finished)]
    before, after = (
        float(_losses_and_divergences(each, models[2], tokens, tokens, temperature=1.0)[1].mean())
        for each in models[:2]
    )
    assert after < before

    # Killed after the first checkpoint and resumed, it ends with the same bits.
    again = tmp_path / "again"
    shutil.copytree(out, again)
    shutil.rmtree(again / "checkpoints" / "6")
    for name in ("record.json", "finetune.json"):
        (again / name).unlink()
    capsys.readouterr()
    assert main(["resume", str(again), "--quiet"]) == 0
    assert weights_hash(load(again).model) == weights_hash(load(out).model)
    assert json.loads((again / "finetune.json").read_text())["distillation"] == found

    # Another teacher, another control, what does not go together.
    shutil.rmtree(again / "checkpoints" / "6")
    (again / "record.json").unlink()
    moved = ["--distill.teacher", str(control)]
    capsys.readouterr()
    for wrong, word in (
        (["resume", str(again), *moved], "other weights"),
        ([*taught, *options(data, tmp_path / "x", "--control", str(out))], "other first weights"),
        ([*taught, *options(data, tmp_path / "y", "--train.consistency", "1")], "consistency"),
        ([*taught, *options(data, tmp_path / "z", "--distill.temperature", "0")], "temperature"),
        (["finetune", str(student), *options(data, tmp_path / "w", "--control", str(out))], "too"),
        (["finetune", str(student), *options(data, tmp_path / "v", "--control", "train")], "too"),
    ):
        assert main(wrong) == 2
        err = capsys.readouterr().err
        assert word in err
        assert err.count("\n") == 1


def test_the_control_is_trained_beside(
    taught: list[str],
    runs: tuple[Path, Path],
    data: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    """What `--control train` makes first is the run that was made by hand, with its weights."""
    out, beside = tmp_path / "out", tmp_path / "out-control"
    command = [*taught, *options(data, out, "--control", "train")]
    assert main(command) == 0
    assert weights_hash(load(beside).model) == weights_hash(load(runs[0]).model)
    found, by_hand = (
        json.loads((each / "finetune.json").read_text())["distillation"] for each in (out, runs[1])
    )
    assert found == {**by_hand, "control": str(beside)}
    assert found["teacher_trained"] != found["teacher_loss"]
    # One that is there is kept, one that has not ended is to be resumed, another length refused.
    shutil.rmtree(out)
    before = (beside / "record.json").stat().st_mtime_ns
    assert main(command) == 0
    assert (beside / "record.json").stat().st_mtime_ns == before
    shutil.rmtree(out)
    capsys.readouterr()
    assert main([*command, "--steps", "7"]) == 2
    assert "out-control has other tokens" in capsys.readouterr().err
    (beside / "record.json").unlink()
    assert main(command) == 2
    assert f"continue it with 'qkvflow resume {beside}'" in capsys.readouterr().err


def test_divided_over_devices(
    taught: list[str], runs: tuple[Path, Path], data: str, tmp_path: Path
):
    """Two devices, arrays of student and teacher divided: the losses are those of one."""
    two = tmp_path / "two"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    words = [*taught, *options(data, two, "--mesh", "fsdp=2")]
    done = python("-m", "qkvflow", *words, XLA_FLAGS=flags)
    assert done.returncode == 0, done.stderr
    nats = [
        json.loads((each / "record.json").read_text())["losses"]["validation"]["nats"]
        for each in (runs[1], two)
    ]
    assert nats[0] == pytest.approx(nats[1], abs=1e-4)
