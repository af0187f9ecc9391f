"""The files in `configs/`: each is read, built without allocating it, and planned."""

import dataclasses
from functools import cache
from pathlib import Path

import pytest

from qkvflow.distributed.mesh import MeshShape
from qkvflow.lm import abstract, count_parameters
from qkvflow.planning.program import CompiledStep, compile_step
from qkvflow.runs.config import RunConfig
from qkvflow.runs.config_files import load_config

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
# Blocks of a hypernetwork as published: (d_time + 1) matrices of 12 d_model^2, and little more.
BLOCKS = {
    "wikitext-103-small": 21 * 12 * 768**2,
    "wikitext-103-medium": 49 * 12 * 1024**2,
    "openwebtext-small": 21 * 12 * 768**2,
    "openwebtext-medium": 97 * 12 * 1024**2,
    "openwebtext-large": 97 * 12 * 1280**2,
    "llama-1b": 97 * (4 * 2048**2 + 3 * 2048 * 8192),
    "wiki-to-web": 101 * 12 * 1024**2,
    "web-to-wiki": 101 * 12 * 1024**2,
    # Attention, and B and C of the state space.
    "ssm-small": 65 * (4 * 256**2 + 2 * 64 * 256),
    "ssm-medium": 129 * (4 * 512**2 + 2 * 128 * 512),
    "ssm-large": 257 * (4 * 1024**2 + 2 * 256 * 1024),
}


def test_every_setting_is_there():
    assert [path.stem for path in CONFIGS] == sorted(BLOCKS)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_published_settings_are_read_and_built(path: Path):
    config = load_config(path)
    vocab_size = int(config.data.tokenizer.removeprefix("bpe:"))
    counts = count_parameters(abstract(config.model.config, vocab_size=vocab_size))
    assert counts.blocks == pytest.approx(BLOCKS[path.stem], rel=0.02)
    assert counts.embedding >= vocab_size * config.model.config.d_model
    assert config.train.steps >= 600
    assert f"`{path.name}`" in (path.parent / "README.md").read_text("utf-8")


@cache
def planned(config: RunConfig, vocab_size: int) -> CompiledStep:
    return compile_step(config, vocab_size=vocab_size, mesh=MeshShape())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_published_settings_are_planned(path: Path):
    config = load_config(path)
    vocab_size = int(config.data.tokenizer.removeprefix("bpe:"))
    # The two directions of fine-tuning differ in their data alone, which no step depends on.
    program = planned(dataclasses.replace(config, data=load_config(None).data), vocab_size)
    assert program.memory.parameters == 4 * program.parameters
    assert program.memory.optimiser == pytest.approx(8 * program.parameters, abs=100)
    assert program.memory.generated >= 2 * 2 * program.in_effect
    # Where steps are computed again, products that the backward pass has no use for are not. The
    # whole square of attention's scores is counted, of which half may be left out.
    shape, tokens = config.model.config, config.tokens_per_step
    passes = {"none": 3, "block": 4, "everything": 5}[shape.remat]
    square = passes * shape.num_steps * 4 * shape.context * shape.d_model * tokens
    left_out = 0.5 * square / program.analytic_flops
    compiled = program.work.products / program.analytic_flops
    assert (0.99 if shape.remat == "none" else 0.9) - left_out < compiled < 1.01
