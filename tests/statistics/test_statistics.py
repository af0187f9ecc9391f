"""The two files: what stands in them for ordinary, small, degenerate and failed experiments."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
from losses import BAD, GOOD, NOISY, failure, only_pair, records, run

from qkvflow.errors import UserError
from qkvflow.records import Records
from qkvflow.statistics import compare_pairs, summarise, write_statistics

# SciPy's results have fields that its annotations do not know.
stats: Any = scipy.stats

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "statistics.md"


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item, f"{path}[]")
    else:
        yield path, value


def assert_strict(value: Any) -> None:
    """Plain JSON, and every object with a null number says why."""
    json.loads(json.dumps(value, allow_nan=False))

    def check(each: Any) -> None:
        if isinstance(each, dict):
            numbers = {"low", "high", "mean", "sd", "estimate", "p", "corrected"}
            if "reason" in each and any(each.get(k, 0) is None for k in numbers - {"sd"}):
                assert each["reason"], each
            for item in each.values():
                check(item)
        elif isinstance(each, list):
            for item in each:
                check(item)

    check(value)


def test_summary_by_hand():
    models = summarise(records({"a": [1.0, 2.0, 4.0, 5.0]}))["models"]
    nats = models["a"]["metrics"]["test"]["nats"]
    # Deviations -2, -1, 1, 2: variance 10 / 3; t(0.975, 3) = 3.182446.
    assert (nats["n"], nats["mean"]) == (4, 3.0)
    assert nats["sd"] == pytest.approx(math.sqrt(10 / 3))
    assert nats["standard_error"] == pytest.approx(math.sqrt(10 / 12))
    half = 3.18244630528 * math.sqrt(10 / 12)
    assert nats["t_interval"]["low"] == pytest.approx(3 - half, rel=1e-6)
    assert nats["t_interval"]["high"] == pytest.approx(3 + half, rel=1e-6)
    assert nats["t_interval"]["level"] == 0.95
    assert 1 <= nats["bca_interval"]["low"] < 3 < nats["bca_interval"]["high"] <= 5
    assert nats["values"] == [{"seed": s, "value": v} for s, v in enumerate([1.0, 2.0, 4.0, 5.0])]
    perplexity = models["a"]["metrics"]["validation"]["perplexity"]
    assert perplexity["mean"] == pytest.approx(sum(map(math.exp, [1, 2, 4, 5])) / 4)
    assert models["a"]["budget"] == {"steps": 10, "tokens": 100, "flops": 1000, "seconds": 1}


@pytest.mark.parametrize("n", [1, 2])
def test_nothing_is_inferred_from_one_or_two_seeds(n: int):
    found = records({"a": GOOD[:n], "b": BAD[:n]})
    nats = summarise(found)["models"]["a"]["metrics"]["test"]["nats"]
    assert nats["mean"] is not None
    assert (nats["sd"] is None) == (n == 1)
    for name in ("t_interval", "bca_interval"):
        assert (nats[name]["low"], nats[name]["high"]) == (None, None)
        assert f"{n} seed" in nats[name]["reason"]
    pair = only_pair(found)
    assert (pair["design"], pair["verdict"]["kind"]) == ("none", "not-testable")
    assert pair["tests"]["t"]["p"] is None
    assert "at least 3" in pair["verdict"]["sentence"]
    assert_strict(compare_pairs(found))


def test_failed_unfinished_and_missing_seeds_are_named():
    found = records({"a": [*GOOD, None], "b": BAD}, failed=[failure("b", 7), failure("c", 0)])
    found = Records(found.finished, found.failed, unfinished=(("a", 9),))
    summary = summarise(found)
    assert_strict(summary)
    a, b, c = (summary["models"][label] for label in "abc")
    assert a["metrics"]["test"]["nats"]["n"] == 5
    assert a["metrics"]["test"]["nats"]["missing"][0]["seed"] == 5
    assert a["unfinished"] == [9]
    assert b["failed"] == [{"seed": 7, "error": "diverged"}]
    assert (c["name"], c["seeds"], c["failed"][0]["seed"]) == (None, [], 0)
    assert c["metrics"]["test"]["nats"]["mean"] is None
    family = compare_pairs(found)
    assert_strict(family)
    assert family["labels"] == ["a", "b", "c"]
    assert family["size"] == 1
    ab, ac, _ = family["pairs"]
    assert ab["n"] == {"a": 5, "b": 5}
    assert ab["verdict"]["caveats"] == [
        "a: seed 5 without a finite test loss left out",
        "a: seed 9 not finished",
        "b: seed 7 failed and left out",
    ]
    assert ac["verdict"]["kind"] == "not-testable"
    assert "c has no finished run" in ac["reason"]


def test_bootstrap_does_not_depend_on_the_company():
    alone = summarise(records({"b": NOISY}))
    together = summarise(records({"a": GOOD, "b": NOISY}))
    assert alone["models"]["b"] == together["models"]["b"]
    assert summarise(records({"b": NOISY}), seed=1) != alone


def test_better_and_worse():
    pair = only_pair(records({"a": GOOD, "b": BAD}))
    expected = stats.ttest_rel(GOOD, BAD)
    assert pair["design"] == "paired"
    assert pair["tests"]["t"]["name"] == "paired t"
    assert pair["tests"]["t"]["p"] == pytest.approx(expected.pvalue)
    assert pair["difference"]["estimate"] == pytest.approx(-0.104)
    assert pair["difference"]["sd"] == pytest.approx(0.0134164, rel=1e-5)
    assert pair["hedges_g"]["estimate"] < 0
    assert pair["probability_of_improvement"]["estimate"] == 1.0
    assert pair["verdict"]["kind"] == "better"
    assert pair["verdict"]["better"] == "a"
    assert pair["verdict"]["within_margin"] is False
    assert re.match(
        r"a is better than b by 0\.1040 nats per token"
        r" \(95 % interval 0\.0873 to 0\.1207, p < 0\.001, 5 paired seeds\)\.$",
        pair["verdict"]["sentence"],
    )
    pair = only_pair(records({"a": BAD, "b": GOOD}))
    assert (pair["verdict"]["kind"], pair["verdict"]["better"]) == ("worse", "b")
    assert pair["verdict"]["sentence"].startswith("a is worse than b by 0.1040 nats")


def test_no_evidence_says_what_would_have_been_seen():
    pair = only_pair(records({"a": GOOD, "b": NOISY}))
    assert pair["verdict"]["kind"] == "no-evidence"
    detectable = pair["detectable"]["corrected"]
    assert detectable == pair["detectable"]["uncorrected"] > 0.1
    ending = f"a difference of {detectable:.4f} nats would have been detected with 80 % power."
    assert pair["verdict"]["sentence"].endswith(ending)
    assert pair["verdict"]["better"] is None


def test_equivalent():
    close = [x + d for x, d in zip(GOOD, [0.001, -0.001, 0.0005, 0.0, -0.0008], strict=True)]
    pair = only_pair(records({"a": GOOD, "b": close}))
    assert pair["verdict"]["kind"] == "equivalent"
    assert pair["verdict"]["within_margin"] is True
    assert "equivalent within 0.01 nats" in pair["verdict"]["sentence"]
    assert pair["equivalence"]["equivalent"] is True
    wide = only_pair(records({"a": GOOD, "b": close}), margin=0.0005)
    assert wide["verdict"]["kind"] == "no-evidence"


def test_a_real_difference_within_the_margin_is_both():
    close = [x + d for x, d in zip(GOOD, [0.003, 0.0031, 0.0029, 0.003, 0.0032], strict=True)]
    pair = only_pair(records({"a": GOOD, "b": close}))
    assert (pair["verdict"]["kind"], pair["verdict"]["within_margin"]) == ("better", True)
    assert "even so the two are equivalent within 0.01 nats" in pair["verdict"]["sentence"]


@pytest.mark.parametrize(
    ("other", "words"),
    [(GOOD, "same loss on each of 5 seeds"), ([x + 0.5 for x in GOOD], "same on every seed")],
)
def test_differences_without_variance(other: list[float], words: str):
    family = compare_pairs(records({"a": GOOD, "b": other, "c": BAD}))
    assert_strict(family)
    pair = family["pairs"][0]
    assert (pair["verdict"]["kind"], pair["design"]) == ("not-testable", "none")
    assert words in pair["reason"]
    assert pair["means"]["a"] is not None
    # It is not counted among the tests that were made.
    assert family["size"] == 2


def test_constant_values_and_absurd_effects_stay_finite():
    found = records({"a": [1.0] * 5, "b": GOOD, "c": [x + 500.0 for x in NOISY], "d": [7.0] * 5})
    assert_strict(summarise(found))
    family = compare_pairs(found)
    assert_strict(family)
    by_labels = {(pair["a"], pair["b"]): pair for pair in family["pairs"]}
    assert by_labels["a", "b"]["verdict"]["kind"] == "better"
    assert by_labels["a", "d"]["verdict"]["kind"] == "not-testable"
    # exp(502) is finite, its square is not.
    perplexity = summarise(found)["models"]["c"]["metrics"]["test"]["perplexity"]
    assert (perplexity["n"], len(perplexity["missing"])) == (0, 5)
    interval = summarise(found)["models"]["a"]["metrics"]["test"]["nats"]["t_interval"]
    assert "the same" in interval["reason"]


def test_partners_are_found_by_seed():
    a = [
        run("a", seed, loss) for seed, loss in zip([4, 2, 0, 1], [4.0, 2.1, 0.1, 1.2], strict=True)
    ]
    b = [
        run("b", seed, loss) for seed, loss in zip([1, 2, 4, 9], [1.0, 2.0, 4.0, 9.0], strict=True)
    ]
    pair = only_pair(Records(finished=(*a, *b)))
    assert pair["design"] == "paired"
    assert pair["seeds"] == {"a": [1, 2, 4], "b": [1, 2, 4]}
    assert pair["values"] == {"a": [1.2, 2.1, 4.0], "b": [1.0, 2.0, 4.0]}
    assert pair["left_out"] == {"a": [0], "b": [9]}
    assert pair["difference"]["estimate"] == pytest.approx(0.1)
    assert "b: seed 9 left out for want of a partner" in pair["verdict"]["caveats"]


def test_unpaired_designs_use_welch():
    a = [run("a", seed, loss) for seed, loss in enumerate(GOOD)]
    b = [run("b", 100 + seed, loss) for seed, loss in enumerate(BAD[:4])]
    pair = only_pair(Records(finished=(*a, *b)))
    expected = stats.ttest_ind(GOOD, BAD[:4], equal_var=False)
    assert pair["design"] == "unpaired"
    assert "common seeds" in pair["reason"]
    assert pair["tests"]["t"]["name"] == "Welch t"
    assert pair["tests"]["t"]["p"] == pytest.approx(expected.pvalue)
    assert pair["tests"]["rank"]["name"] == "Mann-Whitney"
    assert pair["tests"]["rank"]["p"] == pytest.approx(2 / math.comb(9, 4))
    assert "5 and 4 unpaired seeds" in pair["verdict"]["sentence"]
    assert_strict(pair)


def test_other_batches_are_not_paired():
    found = records({"a": GOOD, "b": BAD}, b={"training": {"batch_size": 16, "context": 128}})
    pair = only_pair(found)
    assert pair["design"] == "unpaired"
    assert "batch size" in pair["reason"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"tokenizer": "bpe", "vocab_size": 512}, "different tokenizers"),
        ({"tokenizer": "bytes", "vocab_size": 256, "sha256": "other"}, "different test data"),
    ],
)
def test_losses_on_other_data_are_not_compared(data: dict[str, Any], words: str):
    pair = only_pair(records({"a": GOOD, "b": BAD}, b={"data": data}))
    assert pair["verdict"]["kind"] == "not-testable"
    assert words in pair["verdict"]["sentence"]
    assert pair["difference"]["estimate"] is None


def test_unequal_budgets_are_a_caveat():
    def spent(**changes: float) -> dict[str, Any]:
        budget = {"steps": 10, "tokens": 100, "flops": 1000, "seconds": 1.0}
        return {"budget": budget | changes}

    by_tokens = spent(flops=9000, seconds=4.0)
    assert only_pair(records({"a": GOOD, "b": BAD}, b=by_tokens))["verdict"]["caveats"] == []
    longer = spent(steps=20, tokens=200, flops=2000, seconds=2.0)
    caveats = only_pair(records({"a": GOOD, "b": BAD}, b=longer))["verdict"]["caveats"]
    assert caveats == ["a and b agree neither in steps, tokens, FLOPs nor seconds spent"]


def test_mistakes_are_told():
    found = records({"standard": GOOD, "b": BAD})
    with pytest.raises(UserError, match="unknown metric 'tset'; did you mean test"):
        compare_pairs(found, metric="tset")
    with pytest.raises(UserError, match="did you mean standard"):
        compare_pairs(found, pairs=[("q", "standrad", "b")])
    with pytest.raises(UserError, match="with itself"):
        compare_pairs(found, pairs=[("q", "b", "b")])
    with pytest.raises(UserError, match="alpha"):
        compare_pairs(found, alpha=0.7)
    with pytest.raises(UserError, match="margin"):
        compare_pairs(found, margin=0.0)


def test_one_model_has_no_pairs():
    family = compare_pairs(records({"a": GOOD}))
    assert (family["size"], family["pairs"], family["labels"]) == (0, [], [])


def test_files_are_strict_repeatable_and_documented(tmp_path: Path):
    found = records({"a": GOOD, "b": BAD, "c": GOOD, "d": NOISY[:2]}, failed=[failure("a", 8)])
    question = [("does b help?", "b", "a")]
    paths = write_statistics(tmp_path, found, pairs=question)
    assert [path.name for path in paths] == ["statistics_summary.json", "significance_tests.json"]
    first = [path.read_bytes() for path in paths]
    summary, tests = (json.loads(text, parse_constant=pytest.fail) for text in first)
    assert summary == json.loads(json.dumps(summarise(found)))
    assert tests["all_pairs"] == json.loads(json.dumps(compare_pairs(found)))
    assert tests["named_pairs"] == json.loads(json.dumps(compare_pairs(found, pairs=question)))
    write_statistics(tmp_path, found, pairs=question)
    assert [path.read_bytes() for path in paths] == first
    assert json.loads(first[1])["schema"] == 1

    text = DOCUMENTATION.read_text(encoding="utf-8")
    described = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`\n]+)`", text))))
    labels = set("abcd")
    keys = {
        key
        for document in (summary, tests)
        for path, _ in leaves(document)
        for key in re.findall(r"\.([^.\[]+)", path)
    }
    assert {"p_holm", "t_interval", "caveats"} <= keys
    assert keys - described - labels == set()


def test_without_questions_there_is_no_named_family(tmp_path: Path):
    _, tests = write_statistics(tmp_path, records({"a": GOOD, "b": BAD}))
    assert json.loads(tests.read_text())["named_pairs"] is None
