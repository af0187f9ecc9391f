"""Several processes make one run, over loopback: real ones, killed and stopped as they run."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from processes import Started, start_python

from qkvflow.cli import main
from qkvflow.distributed.hosts import LOST_SECONDS
from qkvflow.distributed.launch import GRACE_SECONDS, free_port
from qkvflow.runs.checkpoint import Checkpoints
from qkvflow.runs.config_files import load_config
from qkvflow.runs.load import load_run
from qkvflow.runs.rundir import read_lines
from qkvflow.training import resume, train

pytestmark = pytest.mark.slow

STEPS = 60
MESH = ("--mesh", "fsdp=2,tensor=2")
FOUR = ("launch", "-n", "2", "--devices", "2", "--")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration that trains in a second, as a file."""
    folder = tmp_path_factory.mktemp("text")
    words = np.random.default_rng(0).choice(["depth", "is", "a", "coordinate", "of", "it"], 4000)
    (folder / "words.txt").write_text(" ".join(words) + "\n")
    path = folder / "config.yaml"
    path.write_text(
        f"""
model: {{name: standard, d_model: 16, num_steps: 2, num_heads: 2, context: 16, dropout: 0.1}}
data: {{spec: "file:{folder}/words.txt?split=0.8,0.1,0.1", tokenizer: char}}
train: {{steps: {STEPS}, batch_size: 4, eval_every: 30, eval_tokens: 512, log_every: 5,
         steps_per_dispatch: 2}}
optim: {{warmup: 5, lr: 0.003}}
checkpoint: {{every: 5, keep: 20}}
"""
    )
    return path


@pytest.fixture(scope="module")
def alone(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    directory = tmp_path_factory.mktemp("alone") / "run"
    train(load_config(str(config)), directory)
    return directory


def start(*arguments: str, **environment: str) -> Started:
    return start_python("-m", "qkvflow", *arguments, **environment)


def finished(process: Started) -> str:
    said, complaints = process.communicate(timeout=600)
    assert process.returncode == 0, complaints[-2000:]
    return said


@pytest.fixture(scope="module")
def together(config: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The same run by two processes with two devices each, and what they said: parameters are
    divided between processes, and each of those parts between devices."""
    directory = tmp_path_factory.mktemp("together") / "run"
    arguments = ("--config", str(config), "--out", str(directory), *MESH)
    return directory, finished(start(*FOUR, "train", *arguments))


def lines(directory: Path) -> list[dict[str, Any]]:
    whole = read_lines(directory / "metrics.jsonl")
    return [{key: value for key, value in line.items() if key != "seconds"} for line in whole]


def record(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "record.json").read_text())


def last_step(directory: Path) -> int:
    return max((line["step"] for line in read_lines(directory / "metrics.jsonl")), default=0)


def wait_for(moment: Callable[[], bool], *processes: Started | subprocess.Popen[str]) -> None:
    while not moment():
        assert all(process.poll() is None for process in processes), "ended too early"
        time.sleep(0.05)


def assert_close(one: Path, other: Path) -> None:
    """The same run but for rounding: every loss of training, validation and test."""
    assert [line["step"] for line in lines(one)] == [line["step"] for line in lines(other)]
    losses = [[line["loss"] for line in lines(each)] for each in (one, other)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    for split in ("validation", "test"):
        nats = [record(each)["losses"][split]["nats"] for each in (one, other)]
        assert nats[0] == pytest.approx(nats[1], rel=1e-5)


def test_two_processes_fine_tune_as_one(alone: Path, config: Path, tmp_path: Path):
    """From weights that every process reads whole; what belongs to the run is written once."""
    spec = load_config(str(config)).data.spec
    words = ("finetune", str(alone), "--data", spec, "--num-steps", "4", "--layers", "repeat")
    words = (*words, "--method", "lora", "--steps", "20", "--train.eval_every", "20")
    one, two = tmp_path / "one", tmp_path / "two"
    assert main([*words, "--out", str(one), "--quiet"]) == 0
    said = finished(start(*FOUR, *words, "--out", str(two), *MESH))
    assert said.count("first data:") == 1
    assert_close(two, one)
    reports = [json.loads((each / "finetune.json").read_text()) for each in (one, two)]
    for part in ("new_data", "first_data"):
        losses = [[v for v in each[part].values() if isinstance(v, float)] for each in reports]
        np.testing.assert_allclose(losses[0], losses[1], atol=2e-5)
    assert (two / "adapter.safetensors").exists()


def test_two_processes_make_the_run_of_one(alone: Path, together: tuple[Path, str]):
    directory, said = together
    assert_close(directory, alone)
    hardware = record(directory)["hardware"]
    assert (hardware["processes"], hardware["mesh"], hardware["devices"]) == (2, MESH[1], 4)
    # The first alone talks, and every file is there once.
    assert {line.split()[0] for line in said.splitlines()} == {"[0]"}
    assert said.count(f"finished: {STEPS} steps") == 1
    assert Checkpoints(directory, read_only=True).steps() == list(range(5, STEPS + 1, 5))
    np.testing.assert_allclose(
        load_run(directory).model.embedding, load_run(alone).model.embedding, atol=1e-4
    )


def test_one_is_killed_and_the_run_goes_on(
    config: Path, together: tuple[Path, str], tmp_path: Path
):
    """The launcher names it and stops the other; resumed, the run ends as if never interrupted."""
    directory = tmp_path / "run"
    command = [sys.executable, "-m", "qkvflow", *FOUR, "train", "--config", str(config), *MESH]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*command, "--out", str(directory)], stdout=pipe, stderr=pipe, text=True
    )
    assert process.stderr is not None
    announced = process.stderr.readline()
    pids = [int(each) for each in re.findall(r"\d+", announced.partition("(")[2])[:2]]
    wait_for(lambda: last_step(directory) >= 20, process)
    os.kill(pids[1], signal.SIGKILL)
    begin = time.monotonic()
    complaints = process.communicate(timeout=600)[1]
    assert time.monotonic() - begin < GRACE_SECONDS
    assert process.returncode == 1
    assert "qkvflow: process 1 of 2 was ended by SIGKILL; stopping process 0\n" in complaints
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not (directory / "record.json").exists()
    finished(start(*FOUR, "resume", str(directory), *MESH))
    assert lines(directory) == lines(together[0])
    samples = [(each / "samples.txt").read_text() for each in (directory, together[0])]
    assert samples[0] == samples[1] != ""
    assert record(directory)["losses"] == record(together[0])["losses"]
    for one, other in zip(*(weights(each) for each in (directory, together[0])), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("victim", [0, 1])
def test_who_is_left_says_who_is_gone(victim: int, config: Path, tmp_path: Path):
    """Started by hand, as on two hosts. The first is JAX's coordinator: when that is gone, JAX ends
    the others itself, and says why. No checkpoint is being written then: who waits for the others
    in one is told by heartbeats alone (docs/scaling.md)."""
    directory, address = tmp_path / "run", f"127.0.0.1:{free_port()}"
    join = ("--coordinator", address, "--num-processes", "2", "--process-id")
    arguments = ("train", "--config", str(config), "--out", str(directory), "--no-samples")
    arguments = (*arguments, "--steps", "100000", "--checkpoint.every", "100000")
    both = [start(*arguments, *join, str(index)) for index in range(2)]
    wait_for(lambda: last_step(directory) >= 10, *both)
    both[victim].send_signal(signal.SIGKILL)
    begin = time.monotonic()
    complaints = both[1 - victim].communicate(timeout=600)[1]
    took = time.monotonic() - begin
    both[victim].communicate()
    assert took < LOST_SECONDS + 15
    if victim == 1:
        assert both[0].returncode == 1
        assert "qkvflow: process 1 of 2 is gone, so this one stops as well; the run" in complaints
        assert "Traceback" not in complaints
    else:
        assert both[1].returncode in (1, -signal.SIGABRT)
        assert "leader task was preempted/died" in complaints


def weights(directory: Path) -> list[np.ndarray]:
    model = load_run(directory, step="last").model
    return [np.asarray(leaf) for leaf in jax.tree.leaves(model) if hasattr(leaf, "shape")]


def test_from_one_process_to_two_and_back(alone: Path, tmp_path: Path):
    directory = tmp_path / "run"
    shutil.copytree(alone, directory)
    (directory / "record.json").unlink()
    for step in range(35, STEPS + 1, 5):
        shutil.rmtree(directory / "checkpoints" / str(step))
    lines_then = len(lines(directory))
    process = start("launch", "-n", "2", "--", "resume", str(directory), "--no-samples")
    # It takes the files back to step 30 before it goes on.
    wait_for(lambda: len(lines(directory)) < lines_then, process)
    wait_for(lambda: last_step(directory) >= 35, process)
    process.send_signal(signal.SIGTERM)
    said, complaints = process.communicate(timeout=600)
    assert process.returncode == 143
    assert "mesh data=2 instead of data=1: sums may round differently" in said
    assert complaints.count("the run is saved; continue with 'qkvflow resume") == 1
    stopped = Checkpoints(directory, read_only=True).steps()[-1]
    assert 35 <= stopped < STEPS
    assert resume(directory)["status"] == "finished"
    assert_close(directory, alone)


def test_a_cluster_is_found_and_evaluates(alone: Path):
    """As SLURM would start two tasks on this machine."""
    wanted = json.loads((alone / "record.json").read_text())["losses"]["test"]
    arguments = ("eval", str(alone), "--split", "test", "--distributed", "auto", "--json")
    # The number of the job makes the port.
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost"}
    tasks = [
        start(*arguments, **job, SLURM_NTASKS="2", SLURM_PROCID=str(i), SLURM_LOCALID=str(i))
        for i in range(2)
    ]
    first, second = (finished(task) for task in tasks)
    assert json.loads(first)["results"][0]["nats"] == pytest.approx(wanted["nats"], rel=1e-6)
    assert second == ""


def test_another_command_is_refused(config: Path, tmp_path: Path):
    join = ("--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", "2", "--process-id")
    arguments = ("train", "--config", str(config), "--out", str(tmp_path / "run"))
    both = [start(*arguments, *join, str(i), "--seed", str(i)) for i in range(2)]
    for process in both:
        complaints = process.communicate(timeout=600)[1]
        assert process.returncode == 2, complaints
        assert "the configuration of process 1 is not that of process 0" in complaints
    assert not (tmp_path / "run").exists()


def test_mistakes_are_refused_at_once(capsys: pytest.CaptureFixture[str], config: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        train = f"train --config {config} --out nowhere"
        of_two = "--num-processes 2 --process-id"
        cases = {
            f"port {port} cannot be used here": f"--coordinator 127.0.0.1:{port} {of_two} 0",
            "--coordinator must be HOST:PORT": "--coordinator here",
            "--coordinator needs --process-id": "--coordinator here:1234",
            "--process-id must be from 0 to 1": f"--coordinator here:1234 {of_two} 2",
            "need --coordinator": "--process-id 0",
            "--distributed must be auto": "--distributed slurm",
            "unknown mesh axis 'model'": "--mesh model=2",
            "needs 512 devices": "--mesh data=512",
        }
        for said, options in cases.items():
            assert main(f"{train} {options}".split()) == 2
            complaint = capsys.readouterr().err
            assert said in complaint
            assert complaint.count("\n") == 1
    for said, arguments in {
        "unknown verb to launch 'tain'; did you mean train": ["-n", "2", "--", "tain"],
        "give the verb to launch": ["-n", "2"],
        "-n must be at least 1": ["-n", "0", "--", "train"],
    }.items():
        assert main(["launch", *arguments]) == 2
        assert said in capsys.readouterr().err


def test_the_coordinator_listens_at_its_address_alone():
    """Another address of the same machine finds nobody there."""
    port = free_port()
    program = (
        "from qkvflow.distributed import hosts\n"
        f"hosts.join('127.0.0.1:{port}', 0, 1)\n"
        "print('joined', flush=True)\n"
        "input()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "joined\n"
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.2", port), timeout=5)
    finally:
        process.kill()
        process.communicate()
