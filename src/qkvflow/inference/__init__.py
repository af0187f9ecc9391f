"""Generation: caches, sampling, early exit and speculation."""

from qkvflow.inference.caches import cache_bytes
from qkvflow.inference.generation import generate, stream
from qkvflow.inference.sampling import Sampler, make_sampler
from qkvflow.inference.text import sample_text

__all__ = ["Sampler", "cache_bytes", "generate", "make_sampler", "sample_text", "stream"]
