"""Plans as data: models as text, one budget, presets, and what may not change."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from comparisons import content, small_plan

from qkvflow.errors import UserError
from qkvflow.experiment.plan import difference, make_plan
from qkvflow.experiment.presets import DEFAULT_MODELS, PRESETS, preset
from qkvflow.experiment.resolve import shapes, with_steps
from qkvflow.experiment.specs import parse_spec, parse_specs


@pytest.mark.parametrize(
    ("text", "label", "name", "options"),
    [
        ("standard", "standard", "standard", {}),
        ("tong:d_time=8", "tong:d_time=8", "tong", {"d_time": 8}),
        (
            "frozen=time-indexed-mlp:frozen_time=0.5,gate=both",
            "frozen",
            "time-indexed-mlp",
            {"frozen_time": 0.5, "gate": "both"},
        ),
        ("a=published/tong", "a", "published/tong", {}),
        ("n=standard:params_of=tong", "n", "standard", {"params_of": "tong"}),
    ],
)
def test_models_as_text(text: str, label: str, name: str, options: dict[str, Any]):
    spec = parse_spec(text)
    assert (spec.label, spec.name, dict(spec.options)) == (label, name, options)


def test_several_models_in_one_text():
    specs = parse_specs(
        ["standard,x=tong:d_time=8,num_frequencies=4,shared,y=hybrid", "low-rank:rank=2"]
    )
    assert [spec.label for spec in specs] == ["standard", "x", "shared", "y", "low-rank:rank=2"]
    assert dict(specs[1].options) == {"d_time": 8, "num_frequencies": 4}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("standrad", "did you mean standard"),
        ("standard:d_mdel=3", "did you mean d_model"),
        ("standard:d_model", "key=value"),
        ("standard:", "is not a model"),
        ("=standard", "is not a model"),
        ("../up=standard", "cannot be a label"),
    ],
)
def test_wrong_models_are_refused(text: str, part: str):
    with pytest.raises(UserError, match=part):
        parse_spec(text)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_plans_and_survive_yaml(name: str):
    plan = make_plan(preset(name))
    written = yaml.safe_dump(plan.to_dict(), sort_keys=False)
    again = make_plan(yaml.safe_load(written))
    assert again == plan
    assert difference(yaml.safe_load(written), again.to_dict()) is None
    assert len(plan.seeds) >= 3, "with fewer seeds nothing is inferred"


def test_quick_has_a_recipe_for_each_model_and_the_controls_of_its_questions():
    plan = make_plan(preset("quick"))
    controls = {"standard", "shared", "frozen-time", "gated-euler"}
    assert controls <= set(plan.labels)
    asked = {label for question in plan.questions for label in (question.a, question.b)}
    assert controls <= asked <= set(plan.labels)
    made = {spec.label: plan.base_config(spec).optim for spec in plan.models}
    assert {each.name for each in made.values()} == {"muon"}
    assert (made["standard"].lr, made["hybrid"].lr) == (1e-2, 3e-3)


def test_time_indexed_has_the_default_models():
    labels = [parse_spec(text).label for text in DEFAULT_MODELS]
    assert len(labels) == 8
    assert make_plan(preset("time-indexed")).labels == labels
    assert preset("documents") == preset("time-indexed"), "the name it had before"
    published = make_plan(preset("time-indexed"))
    config = published.base_config(published.models[0])
    assert (config.model.config.d_model, config.model.config.num_steps) == (256, 6)
    assert (config.context, config.train.batch_size, len(published.seeds)) == (128, 8, 5)
    assert published.budget.to_dict() == {"steps": 1000}
    assert config.optim.lr == 3e-4


def test_a_grid_of_rates_is_given_in_a_word():
    tune = make_plan({**preset("quick"), "tune": "lr=1e-3,2e-2"}).tune
    assert tune is not None
    assert list(tune.grid()) == [{"optim.lr": 1e-3}, {"optim.lr": 2e-2}]
    assert (tune.seeds, tune.prune) == ((1_000_001, 1_000_002), False)
    default = make_plan({**preset("quick"), "tune": "lr"}).tune
    assert default is not None
    assert default.trials == 4
    several = make_plan({**preset("quick"), "tune": ["lr=log:1e-4:1e-2", "optim.beta2=0.9,0.99"]})
    assert several.tune is not None
    assert [space.kind for space in several.tune.spaces] == ["log", "choice"]
    assert make_plan(several.to_dict()) == several
    old = make_plan({**preset("quick"), "tune": {"grid": [0.001, 0.02], "seeds": [71]}}).tune
    assert old == dataclasses.replace(tune, seeds=(71,))


def test_a_model_has_an_optimiser_of_its_own(tmp_path: Path):
    (tmp_path / "best.yaml").write_text(
        "model: {name: shared, d_model: 32}\noptim: {name: lion, lr: 0.01}\ntrain: {steps: 9}\n"
    )
    specs = ["standard:optim.lr=0.02,num_steps=3,standard", f"tuned={tmp_path}/best.yaml"]
    models = [spec.to_dict() for spec in parse_specs(specs)]
    plan = make_plan({**preset("quick"), "questions": [], "models": models})
    made = [plan.base_config(spec) for spec in plan.models]
    assert [each.optim.lr for each in made] == [0.02, plan.optim.lr, 0.01]
    assert [each.optim.name for each in made] == ["muon", "muon", "lion"]
    assert (made[0].model.config.num_steps, made[2].model.config.d_model) == (3, 32)
    assert plan.labels[2] == "tuned"
    assert make_plan(plan.to_dict()) == plan


def test_ablation_asks_every_question_of_the_documents():
    plan = make_plan(preset("ablation"))
    asked = " ".join(question.name for question in plan.questions)
    for word in ("adapter", "per layer", "ODE", "hybrid", "embedding", "gate", "states"):
        assert word in asked
    assert plan.train.eval_depths == "0.5,2,4,adaptive"
    sizes = {
        plan.base_config(spec).model.config.d_state
        for spec in plan.models
        if spec.name == "time-indexed-ssm"
    }
    assert sizes == {32, 64, 128, 256}


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"models": []}, "at least one model"),
        ({"models": ["standard", "standard"]}, "two models are called"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"seeds": [1, 1]}, "given twice"),
        ({"seeds": [-1]}, "from 0 to"),
        ({"budget": {}}, "one budget"),
        ({"budget": {"steps": 5, "tokens": 5}}, "one budget"),
        ({"budget": {"step": 5}}, "did you mean steps"),
        ({"budget": {"steps": 0}}, "must be positive"),
        ({"match": "param"}, "did you mean params"),
        ({"reference": "tong"}, "unknown model of this comparison"),
        ({"models": ["n=standard:params_of=tong"]}, "unknown model of this comparison"),
        ({"questions": [{"name": "q", "a": "standard", "b": "x"}]}, "question 'q'"),
        ({"questions": [{"a": "standard"}]}, "name, a and b"),
        ({"depths": ["deep"]}, "multiple of N"),
        ({"tune": {"seeds": [0]}}, "tune on seeds of its own"),
        ({"tune": "momentum"}, "not a search space"),
        ({"tune": "momentum=0.9"}, "unknown section to search in 'momentum'"),
        ({"tune": 3}, "tune must be lr"),
        ({"tune": "optim.bata1=0.9"}, "did you mean beta1"),
        ({"tune": "model.d_model=32,64"}, "tunes options of optim alone"),
        ({"tune": "lr=log:1e-2:1e-3"}, "the ends must grow"),
        ({"tune": "lr=log:1e-2"}, "needs two ends"),
        ({"tune": "lr=1e-3,1e-3"}, "twice"),
        ({"seeds": [1_000_001]}, "kept for searches"),
        ({"tune": "lr=1e-3,fast"}, "'fast'"),
        ({"tune": "lr=1e-3,-1"}, "must be positive"),
        ({"train": {"seed": 3}}, "--seeds"),
        ({"train": {"batch_size": 0}}, "must be positive"),
        ({"model": {"name": "tong"}}, "--models"),
        ({"sedes": 3}, "did you mean seeds"),
    ],
)
def test_wrong_plans_are_refused(tmp_path: Path, changes: dict[str, Any], part: str):
    with pytest.raises(UserError, match=part):
        make_plan(content(tmp_path / "text", **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": 3}, r"seeds was \[0, 1\], now \[0, 1, 2\]"),
        ({"models": ["tong"]}, "models was standard, now tong"),
        ({"models": ["standard:bias=false"]}, "models was standard, now standard:bias=false"),
        ({"models": [{"name": "standard", "options": {"bias": False}}]}, "standard.options.bias"),
        ({"models": ["checkpoint=standard:optim.lr=0.1"]}, "models was standard, now checkpoint"),
        ({"budget": {"tokens": 640}}, "budget"),
        ({"optim": {"lr": 0.01, "warmup": 2}}, "optim.lr was 0.003, now 0.01"),
        ({"match": "params"}, "match was none, now params"),
    ],
)
def test_differences_are_named(tmp_path: Path, changes: dict[str, Any], words: str):
    before = small_plan(tmp_path).to_dict()
    found = difference(before, small_plan(tmp_path, **changes).to_dict())
    assert found is not None
    assert re.search(words, found)


def test_plans_of_earlier_versions_are_the_same_plans():
    before = {"train": {"eval_depths": 2}, "resolved": {"models": {"a": {"flops_per_token": 7}}}}
    after = {"train": {"eval_depths": "2"}, "resolved": {"models": {"a": {"flops_per_token": 8}}}}
    assert difference(before, after) is None


def test_a_label_may_be_the_name_of_a_section(tmp_path: Path):
    before, after = (
        small_plan(tmp_path, models=[f"checkpoint=standard:optim.lr={lr}"]).to_dict()
        for lr in (0.1, 0.2)
    )
    assert "models.checkpoint.options.optim.lr was 0.1, now 0.2" in str(difference(before, after))


def test_checkpoints_and_titles_may_change(tmp_path: Path):
    before = small_plan(tmp_path).to_dict()
    after = small_plan(tmp_path, checkpoint={"every": 7}, title="other").to_dict()
    assert difference(before, after) is None


def test_a_model_goes_before_what_all_share(tmp_path: Path):
    plan = small_plan(tmp_path, models=["standard", "wide=standard:d_model=32"])
    widths = [plan.base_config(spec).model.config.d_model for spec in plan.models]
    assert widths == [16, 32]


def test_budgets_become_steps(tmp_path: Path):
    models = ["standard", "wide=standard:d_model=32"]

    def steps(budget: dict[str, Any], seconds: dict[str, float] | None = None) -> list[int]:
        plan = small_plan(tmp_path, models=models, budget=budget)
        return [entry.steps for entry in with_steps(plan, shapes(plan, 20), seconds)]

    assert steps({"steps": 7}) == [7, 7]
    assert steps({"tokens": 7 * 64 - 3}) == [7, 7]
    plan = small_plan(tmp_path, models=models)
    costs = [entry.flops_per_step for entry in shapes(plan, 20)]
    found = steps({"flops": 100 * costs[0]})
    assert found[0] == 100
    assert found[1] == round(100 * costs[0] / costs[1]) < 60
    assert steps({"seconds": 3}, {"standard": 0.01, "wide": 0.1}) == [300, 30]
    with pytest.raises(UserError, match="raise it"):
        steps({"flops": 10})


def test_all_models_need_one_context(tmp_path: Path):
    plan = small_plan(tmp_path, models=["standard", "long=standard:context=32"])
    with pytest.raises(UserError, match="one context"):
        shapes(plan, 20)
