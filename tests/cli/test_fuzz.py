"""A short run of the fuzzer (`make fuzz`), and what its judge can tell."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from benchmarks.fuzz.judge import judge

ROOT = Path(__file__).parents[2]


def test_odd_calls_of_every_kind_end_well(finished: Path):
    cache = {"JAX_COMPILATION_CACHE_DIR": str(jax.config.values["jax_compilation_cache_dir"])}
    words = ["--calls", "40", "--seed", "3", "--hang", "240", "--run", str(finished)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.fuzz", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **cache},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [last] = [line for line in done.stdout.splitlines() if line.startswith("all ")]
    assert last.split()[1] == "40"


@pytest.mark.parametrize(
    ("verdict", "code", "said"),
    [
        ("refused", 2, "note: x\nqkvflow: no corpus 'x'; did you mean stdlib?\n"),
        ("refused", 2, "\rdone:  50%|#  | 1/2 [00:00<00:00, 9.9it/s]\nqkvflow: no task 'x' here\n"),
        ("done", 0, "note: x\n"),
        ("stopped", 143, "qkvflow: SIGTERM at step 3: the run is saved\n"),
        ("done", 1, "qkvflow: the loss or its gradient was not finite 3 times\n"),
        ("traceback", 1, "Traceback (most recent call last):\n  File\nKeyError: 'x'\n"),
        ("abort", -6, "terminate called\n"),
        ("unclear", 1, "nothing known\n"),
        ("unclear", 0, "some.py:3: UserWarning: x\n"),
        ("unclear", 2, "qkvflow: 'NoneType' object is not iterable; correct it\n"),
        ("unclear", 2, "qkvflow: cannot write x: File name too long; make room and try again\n"),
        ("unclear", 2, "qkvflow: one thing is wrong\nand another line\n"),
        ("unclear", 2, "qkvflow: " + "x" * 1000),
    ],
)
def test_the_judge(verdict: str, code: int, said: str):
    assert judge(code, said, late=False).verdict == verdict


def test_a_call_without_end_hangs():
    assert judge(-9, "", late=True).verdict == "hang"
