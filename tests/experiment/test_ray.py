"""The same units on a real Ray cluster of two nodes, one of which is killed while it trains."""

from pathlib import Path
from typing import Any

import pytest
from comparisons import environment, small_plan
from test_comparison import Watching, assert_same_bits, workers

from qkvflow.cli import main
from qkvflow.experiment.comparison import run_plan
from qkvflow.experiment.executors import ExecutorOptions, make_executor

ray = pytest.importorskip("ray")

LONG: dict[str, Any] = {
    "models": ["standard", "shared"],
    "seeds": 1,
    "budget": {"steps": 300},
    "checkpoint": {"every": 50},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_nodes_one_of_which_dies(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    plan = small_plan(text, **LONG)
    assert run_plan(plan, tmp_path / "local", executor=workers(2)).finished == 2
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        second = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        watching = Watching(lambda: cluster.remove_node(second, allow_graceful=False), at=60)
        executor = make_executor("ray", ExecutorOptions(address=cluster.address))
        outcome = run_plan(plan, tmp_path / "out", executor=executor, display=watching)
        assert watching.acted
        assert outcome.finished == 2
        assert any("lost" in line for line in watching.said)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert_same_bits(tmp_path / "out", tmp_path / "local")


def test_no_cluster_is_one_line(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]):
    words = ["compare", "--models", "standard", "--steps", "2", "--data", f"file:{text}"]
    words += ["--model.context", "16", "--executor", "ray", "--ray-address", "127.0.0.1:1"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "no Ray cluster answers at 127.0.0.1:1" in capsys.readouterr().err
