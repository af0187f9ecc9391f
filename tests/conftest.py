"""Set-up shared by all tests; it has to run before JAX or qkvflow is imported.

Shapes in the annotations of qkvflow are checked at every call (jaxtyping with beartype), rank
promotion raises, and compiled programs are kept between runs in `$QKVFLOW_CACHE` or the user's
cache directory.
"""

import gc
import importlib.util
import mmap
import os
import re
import sys
from pathlib import Path
from typing import Any

assert "qkvflow" not in sys.modules, "imported too early for the shape checks"

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Two threads of NumPy's BLAS (and of PyTorch) that wait for a core which another worker has spin:
# six decompositions of 64 x 256 were seen to take three seconds and not six milliseconds.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests compile much and compute little: without LLVM's optimisations, compiling costs half.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Lines of source beside every operation of a program, which nobody reads here, are a twelfth of it.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")


def _knows(flag: str) -> bool:
    """Whether this jaxlib has a flag: XLA ends the process at one that it does not have."""
    jaxlib = importlib.util.find_spec("jaxlib")
    assert jaxlib is not None
    for library in Path(*(jaxlib.submodule_search_locations or ())).glob("*.so"):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as text:
            if text.find(flag.encode()) >= 0:
                return True
    return False


# The older way of making code for fusions is not as good, and a third less work in all; a program
# in one piece and not in 32 for as many threads is another sixth less.
# Given once: a worker of xdist inherits what its parent set, and flags are part of the names under
# which programs are kept, so given twice they would hide what a run without workers has compiled.
for flag in ("xla_cpu_use_fusion_emitters=false", "xla_cpu_parallel_codegen_split_count=1"):
    given = os.environ.get("XLA_FLAGS", "")
    if flag.partition("=")[0] not in given and _knows(flag.partition("=")[0]):
        os.environ["XLA_FLAGS"] = f"{given} --{flag}".strip()

from collections.abc import Iterator  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402
from jax.experimental.compilation_cache.compilation_cache import reset_cache  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

# In the rooms that know JAX. Statistics and reports make a million calls without an array, and
# the checks were half of their tests' time.
PACKAGE = Path(__file__).parents[1] / "src" / "qkvflow"
ROOMS = {
    module.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for module in PACKAGE.rglob("*.py")
    if re.search(r"^\s*(import|from) jax", module.read_text("utf-8"), re.MULTILINE)
}
install_import_hook([f"qkvflow.{room}" for room in sorted(ROOMS)], "shapes.checked")

from qkvflow.paths import cache_dir  # noqa: E402
from qkvflow.schemes.parts import remat  # noqa: E402

# A thread for each of as many workers as there are cores: for sixteen tests of the contract a tenth
# less of the processor's time. Processes that tests start are not told.
if "PYTEST_XDIST_WORKER" in os.environ and not {"PJRT_NPROC", "NPROC"} & os.environ.keys():
    os.environ["PJRT_NPROC"] = "1"
    jax.devices()
    del os.environ["PJRT_NPROC"]

pytest_plugins = ["tiny_runs", "browser"]

jax.config.update("jax_numpy_rank_promotion", "raise")
# One cache for all workers, and for the processes that tests start: what one of them has compiled
# no other compiles again.
for name, value in {
    "jax_compilation_cache_dir": str(cache_dir("xla-tests")),
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}.items():
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)


def pytest_collection_finish() -> None:
    """What is there before the first test stays: looking through it for garbage is in vain. And
    tracing makes much that is young, which is looked through less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture
def cold_compilation() -> Iterator[None]:
    """Compilation as users have it, optimised and with no cache: for tests that time it."""
    settings = {"jax_enable_compilation_cache": False, "jax_disable_most_optimizations": False}
    before = {name: jax.config.values[name] for name in settings}
    jax.clear_caches()
    for name, value in settings.items():
        jax.config.update(name, value)
    reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    reset_cache()


@pytest.fixture(scope="module")
def rolled() -> Iterator[None]:
    """Depth as a loop and not written out, which is a third less to trace and to compile.

    For tests of what models compute; `test_written_out_or_not` in tests/test_contract.py says
    that it is the same. Tests that train, or compare with another process, do without, and do not
    find its programs.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remat, "MAX_UNROLLED", 1)
        yield
    jax.clear_caches()


made_since = 0
"""Programs that were compiled or loaded since the memory maps were looked at."""


def _count_programs(event: str, duration_secs: float, **kwargs: Any) -> None:
    global made_since
    made_since += event.endswith("backend_compile_duration")


jax.monitoring.register_event_duration_secs_listener(_count_programs)


@pytest.fixture(autouse=True)
def few_programs() -> Iterator[None]:
    """Forget compiled programs before they use up the memory maps a process may have.

    Linux allows 65,530 of them by default, every program takes dozens, and XLA crashes without.
    Reading thousands of them takes a while, so that it is not done after every test.
    """
    global made_since
    yield
    maps = Path("/proc/self/maps")
    if made_since > 100 and maps.exists():
        made_since = 0
        if maps.read_bytes().count(b"\n") > 25_000:
            jax.clear_caches()


@pytest.fixture
def key() -> jax.Array:
    """A fixed random key."""
    return jax.random.key(0)
