"""Train a small model from Python, load it again and score some text."""

import sys

import qkvflow
from qkvflow.evaluation.losses import evaluate
from qkvflow.runs.config import make_config
from qkvflow.runs.corpus import load_split
from qkvflow.training import train

out = sys.argv[1] if len(sys.argv) > 1 else "runs/from-python"
config = make_config(
    {
        "model": {"name": "time-indexed-mlp", "d_model": 32, "num_heads": 2, "context": 32},
        "data": {"spec": "source:markov?states=4&order=1"},
        "train": {"steps": 100, "batch_size": 8, "eval_every": 50},
    }
)
record = train(config, out)
print(f"validation loss {record['losses']['validation']['nats']:.3f} nats per token")

trained = qkvflow.load(out)
test, floor = load_split(trained, "test")
deeper = trained.model.at_depth(2 * trained.model.num_steps)
print(f"test loss at twice the depth {evaluate(deeper, test).nats:.3f}; best possible {floor:.3f}")
