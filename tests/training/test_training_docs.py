"""The documentation names options that exist."""

import re
from pathlib import Path

from qkvflow.cli import eval as eval_verb
from qkvflow.cli import resume as resume_verb
from qkvflow.cli import train as train_verb
from qkvflow.cli.parser import Parser

DOCS = Path(__file__).parents[2] / "docs" / "training.md"


def test_every_option_in_the_documentation_exists():
    known = {"--help"}
    for verb in (train_verb, resume_verb, eval_verb):
        parser = Parser()
        verb.configure(parser)
        known |= {name for action in parser._actions for name in action.option_strings}
    known |= {"--to", "--format", "--plugin"}  # of export; of every verb
    text = DOCS.read_text()
    guide = text.split("## From the training guide of zaphrode/qkvflow")[1]
    ours = text.replace(guide, "") + "".join(
        line.split("|")[2] for line in guide.splitlines() if line.startswith("|")
    )
    named = set(re.findall(r"--[a-z][\w.-]*\w", ours))
    assert named - known == set()
    assert len(named) > 30


def test_every_option_of_the_guide_has_an_equivalent():
    guide = DOCS.read_text().split("## From the training guide of zaphrode/qkvflow")[1]
    rows = [line.split("|")[1:3] for line in guide.splitlines() if line.startswith("|")]
    options = "ssm_state_size time_embedding_dim sinusoidal_dim max_tokens batch_size learning_rate"
    options += " warmup_steps weight_decay grad_clip eval_every save_every log_every model config"
    for option in options.split():
        found = [right for left, right in rows if f"--{option}" in left]
        assert found, option
        assert all(right.strip() for right in found)
