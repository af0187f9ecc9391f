"""Generation: caches, sampling, early exit and speculation."""

from qkvflow.generation.caches import cache_bytes
from qkvflow.generation.decoding import generate, stream
from qkvflow.generation.early_exit import (
    EarlyExit,
    Exited,
    Quality,
    exit_quality,
    generate_early_exit,
    make_early_exit,
)
from qkvflow.generation.sampling import Sampler, make_sampler
from qkvflow.generation.session import Session
from qkvflow.generation.speculative import Speculation, generate_speculative
from qkvflow.generation.text import sample_text

__all__ = [
    "EarlyExit",
    "Exited",
    "Quality",
    "Sampler",
    "Session",
    "Speculation",
    "cache_bytes",
    "exit_quality",
    "generate",
    "generate_early_exit",
    "generate_speculative",
    "make_early_exit",
    "make_sampler",
    "sample_text",
    "stream",
]
