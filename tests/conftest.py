"""Set-up shared by all tests; it has to run before JAX or qkvflow is imported.

Shapes in the annotations of qkvflow are checked at every call (jaxtyping with beartype), rank
promotion raises, and compiled programs are kept between runs in `$QKVFLOW_CACHE` or the user's
cache directory.
"""

import os
import sys

assert "qkvflow" not in sys.modules, "imported too early for the shape checks"

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "PYTEST_XDIST_WORKER" in os.environ:
    # The workers share the cores: one XLA thread each, rather than all cores for everyone.
    os.environ.setdefault("NPROC", "1")

from collections.abc import Iterator  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402
from jax.experimental.compilation_cache.compilation_cache import reset_cache  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

install_import_hook("qkvflow", "beartype.beartype")

from qkvflow.paths import cache_dir  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", str(cache_dir("xla-tests")))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture
def cold_compilation() -> Iterator[None]:
    """No compilation cache, in memory or on disk: for tests that time compilation."""
    jax.clear_caches()
    jax.config.update("jax_enable_compilation_cache", False)
    reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    reset_cache()


@pytest.fixture
def key() -> jax.Array:
    """A fixed random key."""
    return jax.random.key(0)
