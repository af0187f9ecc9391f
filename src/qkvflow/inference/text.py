"""Text in, text out."""

from qkvflow.data.tokenizers import Tokenizer
from qkvflow.inference.generation import stream_checked
from qkvflow.inference.prompts import check
from qkvflow.inference.sampling import make_sampler
from qkvflow.lm import LanguageModel


def sample_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    *,
    prompt: str = "\n",
    num_tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> str:
    """A sample that continues the prompt, without the prompt.

    Made for looking at a model while it trains: the weights are arguments of compiled programs,
    so only the first call for a model's shapes compiles. Longer than the context, it goes on with
    a sliding window where positions are learned.
    """
    sampler = make_sampler(temperature=temperature, top_k=top_k, top_p=top_p)
    text = check(model, [tokenizer.encode(prompt)], num_tokens, window=True)[0]
    window = model.positions is not None
    parts = stream_checked(model, text, num_tokens, sampler, seed, window, 64)
    return tokenizer.decode([token for part in parts for token in part])
