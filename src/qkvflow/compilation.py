"""Compiled programs kept between processes: JAX's persistent compilation cache."""

import os

from qkvflow.paths import cache_dir


def use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache directory, unless JAX is told otherwise."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" in os.environ or jax.config.values["jax_compilation_cache_dir"]:
        return
    jax.config.update("jax_compilation_cache_dir", str(cache_dir("xla")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
