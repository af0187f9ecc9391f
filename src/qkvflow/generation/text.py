"""Text in, text out."""

from qkvflow.data.tokenizers import Tokenizer
from qkvflow.generation.decoding import Request, precompute, run_group
from qkvflow.generation.prompts import check
from qkvflow.generation.sampling import make_sampler
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
    before = tokenizer.encode_prompt(prompt)
    text = check(model, [before], num_tokens, window=True)[0]
    # Where positions go on, so does the text, and nobody is warned: this is only a look.
    request = Request(num_tokens, sampler, seed, model.positions is not None, 64)
    parts = run_group(precompute(model), [text], [0], request)
    return tokenizer.decode_after(before, [token for part in parts for token in part.tokens[0]])
