"""All benchmarks, one after another: `python -m benchmarks`."""

import subprocess
import sys

for name in ("training_step", "weight_generation", "state_space", "generation", "loops", "start"):
    print(f"\n== {name}", flush=True)
    # A process each, so that none inherits another's memory.
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)
