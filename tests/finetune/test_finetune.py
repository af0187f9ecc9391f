"""Pretrain on one corpus, fine-tune on another at more and at fewer steps."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from qkvflow.cli import main
from qkvflow.errors import UserError
from qkvflow.evaluation import losses
from qkvflow.finetune.run import summary
from qkvflow.runs.config import make_config
from qkvflow.runs.load import load, load_run
from qkvflow.runs.rundir import read_lines
from qkvflow.training import resume, train

pytestmark = pytest.mark.usefixtures("rolled", "little_work")

WORDS = ["depth", "is", "a", "coordinate", "and", "the", "flow", "of", "weights", "runs", "on"]
BUDGET = 60


def corpus(path: Path, seed: int) -> str:
    """Words in the order of a random chain: corpora of one language, each with its own grammar."""
    draw = np.random.default_rng(seed)
    follows = draw.permuted(np.tile(np.arange(len(WORDS)), (len(WORDS), 1)), axis=1)[:, :2]
    word, text = 0, []
    for _ in range(4000):
        word = follows[word, draw.integers(2)]
        text.append(WORDS[word])
    path.write_text(" ".join(text))
    return f"file:{path}?split=0.8,0.1,0.1"


def options_of(spec: str, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "model": {
            "name": "tong",
            "d_model": 32,
            "num_steps": 3,
            "num_heads": 2,
            "context": 32,
            "d_time": 4,
            "num_frequencies": 4,
            "mlp_ratio": 2.0,
        },
        "data": {"spec": spec, "tokenizer": "char"},
        "train": {
            "steps": 400,
            "batch_size": 8,
            "eval_every": 200,
            "log_every": 10,
            "samples": "none",
        },
        "optim": {"lr": 0.01, "warmup": 10},
        "checkpoint": {"every": 200},
    }
    return make_config(base, changes).to_dict()


@pytest.fixture(scope="module")
def little_work() -> Iterator[None]:
    """Evaluations in batches no larger than the splits here, and no figure of a run's losses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "_BATCH_TOKENS", 1024)
        patch.setattr("qkvflow.training.run.draw_losses", lambda directory: None)
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("finetune")


@pytest.fixture(scope="module")
def specs(place: Path) -> tuple[str, str]:
    return corpus(place / "first.txt", 1), corpus(place / "second.txt", 2)


@pytest.fixture(scope="module")
def base(rolled: None, little_work: None, place: Path, specs: tuple[str, str]) -> Path:
    train(make_config(options_of(specs[0])), place / "base")
    return place / "base"


def finetune(base: Path, spec: str, out: Path, *words: object) -> int:
    given = ["--steps", BUDGET, "--train.eval_every", BUDGET, "--quiet", "--no-samples", *words]
    return main(["finetune", str(base), "--data", spec, "--out", str(out), *map(str, given)])


@pytest.fixture(scope="module")
def tuned(place: Path, base: Path, specs: tuple[str, str]) -> Callable[..., dict[str, Any]]:
    """`tuned(method, num_steps)`: the report of that fine-tuning, made once."""

    def report(method: str, num_steps: int, *words: object) -> dict[str, Any]:
        out = place / f"{method}-{num_steps}"
        if not out.exists():
            words = ("--method", method, "--num-steps", num_steps, *words)
            words = (*words, "--checkpoint.keep", 9)
            assert finetune(base, specs[1], out, *words) == 0
        return json.loads((out / "finetune.json").read_text())

    return report


@pytest.mark.parametrize(("method", "num_steps"), [("full", 1), ("lora", 4)])
def test_better_than_frozen_and_than_from_scratch(
    method: str, num_steps: int, place: Path, specs: tuple[str, str], tuned: Callable[..., Any]
):
    report = tuned(method, num_steps, *["--rank", 8] * (method == "lora"))
    new = report["new_data"]
    # The same model: its weights begin as those of the pretrained one did.
    scratch = options_of(
        specs[1],
        model={"num_steps": num_steps, "horizon": 3.0},
        train={"steps": BUDGET, "eval_every": BUDGET},
    )
    alone = train(make_config(scratch), place / f"scratch-{num_steps}")
    margin = 0.1
    assert new["tuned"] < new["frozen"] - margin
    assert new["tuned"] < new["frozen_at_this_depth"] - margin
    assert new["tuned"] < alone["losses"]["validation"]["nats"] - margin
    # Forgetting is what it says it is: the loss on the first corpus, before and after.
    first = report["first_data"]
    assert first["spec"] == specs[0]
    assert first["forgetting"] == first["after"] - first["before"]
    assert first["after"] > first["before"]
    assert first["before"] < new["frozen"]
    assert report["num_steps"] == {"before": 3, "after": num_steps}


def arrays(directory: Path) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(
        eqx.filter(load(directory).model, eqx.is_array)
    )
    named = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    return {name.replace(".field.field", ".field"): leaf for name, leaf in named.items()}


def test_lora_trains_adapters_alone(place: Path, base: Path, tuned: Callable[..., Any]):
    report = tuned("lora", 4)
    before, after = arrays(base), arrays(place / "lora-4")
    for name, leaf in before.items():
        np.testing.assert_array_equal(after[name], leaf, err_msg=name)
    adapters = {name: leaf for name, leaf in after.items() if "adapters" in name}
    assert all(np.abs(leaf).max() > 0 for leaf in adapters.values())
    assert report["parameters"]["trained"] == sum(leaf.size for leaf in adapters.values())


def test_gates_train_what_says_how_depth_enters(place: Path, base: Path, tuned: Callable[..., Any]):
    report = tuned("gates", 4)
    before, after = arrays(base), arrays(place / "gates-4")
    assert before.keys() == after.keys()
    moved = {name for name, leaf in before.items() if np.any(after[name] != leaf)}
    assert report["parameters"]["trained"] == sum(before[name].size for name in moved)
    assert any("norm" in name for name in moved)
    assert any("qkv.embedding" in name for name in moved)
    # Neither the maps from which the generator mixes its weights nor the table of tokens.
    largest = max(before, key=lambda name: before[name].size)
    assert not {largest, ".embedding"} & moved
    new = report["new_data"]
    assert new["tuned"] < new["frozen_at_this_depth"] - 0.1
    assert new["tuned"] < new["frozen"]


def test_a_finetuned_run_is_a_run(
    place: Path, base: Path, tuned: Callable[..., Any], capsys: pytest.CaptureFixture[str]
):
    tuned("lora", 4)
    run = place / "lora-4"
    capsys.readouterr()
    assert main(["eval", str(run), "--json"]) == 0
    nats = [json.loads(capsys.readouterr().out)["results"][0]["nats"]]
    assert main(["export", str(run), "--to", str(place / "whole")]) == 0
    assert main(["export", str(run), "--to", str(place / "merged"), "--merge"]) == 0
    file = run / "adapter.safetensors"
    words = ["export", str(base), "--adapter", str(file), "--to", str(place / "put-on")]
    assert main(words) == 0
    for each in ("whole", "merged", "put-on"):
        capsys.readouterr()
        spec = make_config(yaml.safe_load((run / "config.yaml").read_text())).data.spec
        assert main(["eval", str(place / each), "--data", spec, "--json"]) == 0
        nats.append(json.loads(capsys.readouterr().out)["results"][0]["nats"])
    np.testing.assert_allclose(nats, nats[0], atol=1e-5)
    assert main(["generate", str(run), "--prompt", "depth is", "--tokens", "4"]) == 0
    words = ["--num-steps", "3", "--schemes", "euler", "--max-tokens", "64"]
    assert main(["sweep-depth", str(run), *words]) == 0
    assert "euler, 4 steps *" in capsys.readouterr().out


def test_a_finetuning_without_its_first_weights_says_what_to_do(
    specs: tuple[str, str], tmp_path: Path
):
    """As a kill before the first checkpoint leaves it."""
    content = options_of(specs[0], train={"start": "elsewhere"})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match="delete it and call 'qkvflow finetune' again"):
        resume(tmp_path)


def test_losses_that_are_not_finite_are_told():
    """They are null in the file that a summary is made from."""
    counts = {"trained": 1, "total": 2}
    told = summary(
        {
            "method": "full",
            "parameters": counts,
            "num_steps": {"before": 1, "after": 1},
            "new_data": {"tuned": None, "frozen": 1.0, "frozen_at_this_depth": 1.0, "spec": "a"},
            "first_data": {"before": 1.0, "after": None, "forgetting": None, "spec": "b"},
        }
    )
    assert "new data: not finite nats/token; frozen 1.0000" in told
    assert "first data: 1.0000 -> not finite nats/token, forgetting not finite (b)" in told


def test_an_interrupted_finetuning_resumes_to_the_same_end(place: Path, tuned: Callable[..., Any]):
    """From the weights it began with, which no seed gives again, with all that belongs to it."""
    tuned("lora", 4)
    whole, cut = place / "lora-4", place / "cut"
    shutil.copytree(whole, cut)
    shutil.rmtree(cut / "checkpoints" / str(BUDGET))
    for name in ("record.json", "finetune.json", "adapter.safetensors"):
        (cut / name).unlink()
    assert load_run(cut).step == 0
    resume(cut)
    lines = [read_lines(each / "metrics.jsonl") for each in (whole, cut)]
    one, two = ([{**line, "seconds": None} for line in each] for each in lines)
    assert one == two
    adapters = [load_file(each / "adapter.safetensors") for each in (whole, cut)]
    assert adapters[0].keys() == adapters[1].keys()
    for name, array in adapters[0].items():
        np.testing.assert_array_equal(adapters[1][name], array)
    reports = [json.loads((each / "finetune.json").read_text()) for each in (whole, cut)]
    assert reports[0] == reports[1]
    # What is missing of a run that has ended is made up for.
    (cut / "finetune.json").unlink()
    resume(cut)
    assert json.loads((cut / "finetune.json").read_text()) == reports[0]
    # Trained on, it has an adapter of its new weights.
    record = resume(cut, overrides={"train": {"steps": BUDGET + 10}}, extend=True)
    selected = record["losses"]["selected_step"]
    assert selected > BUDGET
    assert json.loads((cut / "finetune.json").read_text())["step"] == selected
    longer = load_file(cut / "adapter.safetensors")
    assert any(np.any(longer[name] != array) for name, array in adapters[0].items())
    # Without even its first checkpoint it is refused, not begun from other weights.
    shutil.rmtree(cut / "checkpoints")
    (cut / "record.json").unlink()
    with pytest.raises(UserError, match="call 'qkvflow finetune' again"):
        resume(cut)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "lorra"], "did you mean lora"),
        (["--num-steps", "0"], "--num-steps must be positive"),
        (["--scheme", "eular"], "did you mean euler"),
        (["--adapter", "nothing", "--method", "lora"], "no matrix is named 'nothing'"),
        (["--model.d_model", "64"], "belongs to the pretrained model"),
        (["--train.trainable", "all"], "follows from --method"),
        (["--rank", "4"], "--rank is for --method lora"),
        (["--adapter", "qkv"], "--adapter is for --method lora"),
        (["--layers", "repeat"], "--layers is for another --num-steps"),
        (["--teacher", "nowhere"], "nowhere does not exist"),
    ],
)
def test_mistakes(base: Path, specs: Any, tmp_path: Path, words: Any, said: str, capsys: Any):
    capsys.readouterr()
    assert finetune(base, specs[1], tmp_path / "out", *words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()
