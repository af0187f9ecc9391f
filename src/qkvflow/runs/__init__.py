"""The run directory: what it holds and who may read and write it.

`config.yaml` says what the run is, `checkpoints/` where it stands, `metrics.jsonl` what happened on
the way, and `record.json` what came out. Configurations import no JAX; `runs.load` does.
"""

from qkvflow.runs.config import RunConfig, make_config
from qkvflow.runs.config_files import load_config, parse_overrides, read_yaml, write_yaml

__all__ = [
    "RunConfig",
    "load_config",
    "make_config",
    "parse_overrides",
    "read_yaml",
    "write_yaml",
]
