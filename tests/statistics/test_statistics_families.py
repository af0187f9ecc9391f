"""What Holm corrects for: the pairs of models that compare, and no others."""

from typing import Any

import pytest
from losses import BAD, GOOD, NOISY, only_pair, records, run

from qkvflow.records import Records
from qkvflow.statistics import compare_pairs


def test_holm_over_all_pairs_and_over_named_pairs_only():
    found = records({"a": GOOD, "b": BAD, "c": NOISY})
    family = compare_pairs(found)
    assert family["size"] == 3
    assert [(pair["a"], pair["b"]) for pair in family["pairs"]] == [
        ("a", "b"),
        ("a", "c"),
        ("b", "c"),
    ]
    ab = family["pairs"][0]["tests"]["t"]
    assert ab["p_holm"] == pytest.approx(3 * ab["p"])
    assert "after Holm over 3 pairs" in family["pairs"][0]["verdict"]["sentence"]
    named = compare_pairs(found, pairs=[("is b worse?", "b", "a"), ("other", "a", "c")])
    assert named["size"] == 2
    first = named["pairs"][0]
    assert (first["name"], first["a"], first["verdict"]["kind"]) == ("is b worse?", "b", "worse")
    assert first["tests"]["t"]["p_holm"] == pytest.approx(2 * ab["p"])
    corrected = family["pairs"][0]["detectable"]["corrected"]
    assert corrected > first["detectable"]["corrected"] > first["detectable"]["uncorrected"]


def elsewhere(labels: str, **data: Any) -> Records:
    """Models on another corpus that differ by noise alone; every pair can be tested."""
    runs = [
        run(
            label,
            seed,
            3.0 + 0.01 * ((seed * (i + 2)) % 7),
            data={"tokenizer": "bytes", "vocab_size": 256, "sha256": "other"} | data,
        )
        for i, label in enumerate(labels)
        for seed in range(5)
    ]
    return Records(finished=tuple(runs))


def merged(*found: Records) -> Records:
    return Records(finished=tuple(run for each in found for run in each.finished))


@pytest.mark.parametrize("pairs", [None, [("q", "a", "b"), ("r", "v", "w"), ("s", "v", "x")]])
def test_an_unrelated_experiment_changes_no_verdict(pairs: list[tuple[str, str, str]] | None):
    """Alone the pair has p = 0.02; corrected for ten more, or two, it would be no evidence."""
    shifts = [0.02, 0.05, 0.03, 0.06, 0.01]
    found = records({"a": GOOD, "b": [x + d for x, d in zip(GOOD, shifts, strict=True)]})
    alone = only_pair(found)
    assert 0.01 < alone["tests"]["t"]["p"] < 0.04
    assert alone["verdict"]["kind"] == "better"
    family = compare_pairs(merged(found, elsewhere("vwxyz")), pairs=pairs)
    together = next(p for p in family["pairs"] if (p["a"], p["b"]) == ("a", "b"))
    assert {**together, "name": None} == alone
    sizes = [(group["labels"], group["size"]) for group in family["groups"]]
    if pairs is None:
        assert sizes == [(["a", "b"], 1), (list("vwxyz"), 10)]
        across = next(p for p in family["pairs"] if (p["a"], p["b"]) == ("a", "v"))
        assert (across["group"], across["verdict"]["kind"]) == (None, "not-testable")
    else:
        assert sizes == [(["a", "b"], 1), (list("vwx"), 2)]
    assert family["size"] == sum(size for _, size in sizes)
    assert {p["group"] for p in family["pairs"]} == {0, 1} | ({None} if pairs is None else set())


def test_models_on_the_same_text_are_one_group():
    """Another batch size or training set changes the design, not the family."""
    found = records(
        {"a": GOOD, "b": BAD, "c": NOISY}, c={"training": {"batch_size": 16, "context": 64}}
    )
    family = compare_pairs(found)
    assert family["groups"] == [{"labels": ["a", "b", "c"], "size": 3}]
    assert family["pairs"][1]["design"] == "unpaired"
    # Another tokenizer on the same text is another group.
    split = compare_pairs(merged(found, elsewhere("de"), elsewhere("fg", vocab_size=300)))
    assert [group["labels"] for group in split["groups"]] == [
        ["a", "b", "c"],
        ["d", "e"],
        ["f", "g"],
    ]
