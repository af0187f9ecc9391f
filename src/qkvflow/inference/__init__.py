"""Generation: caches, sampling, early exit and speculation."""

from qkvflow.inference.caches import cache_bytes
from qkvflow.inference.early_exit import (
    EarlyExit,
    Exited,
    Quality,
    exit_quality,
    generate_early_exit,
    make_early_exit,
)
from qkvflow.inference.generation import generate, stream
from qkvflow.inference.sampling import Sampler, make_sampler
from qkvflow.inference.session import Session
from qkvflow.inference.speculative import Speculation, generate_speculative
from qkvflow.inference.text import sample_text

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
