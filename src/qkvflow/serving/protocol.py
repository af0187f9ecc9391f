"""What is asked: the body of a completions request, checked field by field."""

import secrets
from dataclasses import dataclass
from typing import Any

from qkvflow.data import Tokenizer
from qkvflow.errors import UserError, one_line, unknown
from qkvflow.serving.engine import ALTERNATIVES

MOST_SEED = 2**31 - 1
MOST_STOPS = 4
# Fields of the protocol that change the distribution in ways this server does not know.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "suffix": (None, ""),
}
KNOWN = frozenset(NEUTRAL) | {
    "echo",
    "logprobs",
    "max_tokens",
    "model",
    "n",
    "num_steps",
    "prompt",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "user",
}


class Refusal(Exception):
    """A request that is not answered, as an error of the protocol."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str = ""):
        Exception.__init__(self, message)
        self.status, self.param = status, param
        self.code = code or ("invalid_value" if param else None)

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        about = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": about}


@dataclass(frozen=True)
class Limits:
    """What one request may ask for."""

    model: str
    context: int
    vocab_size: int
    num_steps: int
    max_steps: int
    max_tokens: int
    max_choices: int


@dataclass(frozen=True)
class Asked:
    """A checked request; `prompts` has one entry for each choice."""

    prompts: list[list[int]]
    texts: list[str]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    num_steps: int
    stop: tuple[str, ...]
    logprobs: int | None
    echo: bool
    stream: bool
    include_usage: bool
    num_prompts: int


def read(body: Any, tokenizer: Tokenizer, limits: Limits) -> Asked:
    """The request, or a `Refusal` that names the field and what it may be."""
    if not isinstance(body, dict):
        raise Refusal(400, "the body must be a JSON object")
    for name in body:
        if name not in KNOWN:
            raise Refusal(400, str(unknown("field", name, KNOWN)), one_line(name, 80))
    for name, allowed in NEUTRAL.items():
        if body.get(name) not in allowed:
            raise Refusal(400, f"{name} is not supported by this server; leave it out", name)
    if body.get("model") not in (None, limits.model):
        message = f"the model {one_line(body['model'], 80)!r} is not served; use {limits.model!r}"
        raise Refusal(404, message, "model", "model_not_found")
    echo, stream = _flag(body, "echo"), _flag(body, "stream")
    most = _number(body, "max_tokens", 16, 0 if echo else 1, limits.max_tokens, whole=True)
    prompts = _prompts(body.get("prompt"), tokenizer, limits)
    n = int(_number(body, "n", 1, 1, limits.max_choices, whole=True))
    if len(prompts) * n > limits.max_choices:
        message = f"{len(prompts)} prompts with n {n} are more than {limits.max_choices} choices"
        raise Refusal(400, f"{message}; send fewer at once", "prompt")
    longest = max(len(tokens) for tokens, _ in prompts)
    if longest + most > limits.context:
        raise Refusal(
            400,
            f"a prompt of {longest} tokens and max_tokens {most} do not fit the model's context "
            f"of {limits.context}; shorten the prompt or ask for fewer",
            "max_tokens",
            "context_length_exceeded",
        )
    logprobs = body.get("logprobs")
    if logprobs is not None:
        logprobs = int(_number(body, "logprobs", 0, 0, ALTERNATIVES, whole=True))
    options = body.get("stream_options") or {}
    if not isinstance(options, dict) or set(options) - {"include_usage", "include_obfuscation"}:
        raise Refusal(400, "stream_options takes include_usage alone", "stream_options")
    fresh = secrets.randbelow(MOST_SEED // 2)
    return Asked(
        prompts=[tokens for tokens, _ in prompts for _ in range(n)],
        texts=[text for _, text in prompts for _ in range(n)],
        max_tokens=int(most),
        temperature=_number(body, "temperature", 1.0, 0.0, 2.0),
        top_p=_number(body, "top_p", 1.0, 1e-6, 1.0),
        seed=int(_number(body, "seed", fresh, 0, MOST_SEED - limits.max_choices, whole=True)),
        num_steps=int(
            _number(body, "num_steps", limits.num_steps, 1, limits.max_steps, whole=True)
        ),
        stop=_stops(body.get("stop")),
        logprobs=logprobs,
        echo=echo,
        stream=stream,
        include_usage=bool(options.get("include_usage")),
        num_prompts=len(prompts),
    )


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value not in (None, True, False):
        raise Refusal(400, f"{name} must be true or false", name)
    return bool(value)


def _number(
    body: dict[str, Any],
    name: str,
    default: float | int,
    least: float | int,
    most: float | int,
    whole: bool = False,
) -> float | int:
    value = body.get(name)
    if value is None:
        return min(max(default, least), most)
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        kind = "a whole number" if whole else "a number"
        message = f"{name} must be {kind} from {least:g} to {most:g}"
        raise Refusal(400, f"{message}, not {one_line(repr(value), 40)}", name)
    return value


def _stops(stop: Any) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    good = isinstance(stops, list) and all(isinstance(each, str) and each for each in stops)
    if not good or len(stops) > MOST_STOPS:
        message = f"stop must be a text or a list of at most {MOST_STOPS}, none of them empty"
        raise Refusal(400, message, "stop")
    return tuple(stops)


def _prompts(prompt: Any, tokenizer: Tokenizer, limits: Limits) -> list[tuple[list[int], str]]:
    """Tokens and text of each: a string, strings, ids, or lists of ids."""
    if isinstance(prompt, str) or (prompt and isinstance(prompt, list) and _ids(prompt)):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt:
        message = "prompt must be a text, a list of texts, a list of token ids, or lists of them"
        raise Refusal(400, message, "prompt")
    return [_prompt(each, tokenizer, limits) for each in prompt]


def _ids(prompt: list[Any]) -> bool:
    return all(isinstance(each, int) and not isinstance(each, bool) for each in prompt)


def _prompt(prompt: Any, tokenizer: Tokenizer, limits: Limits) -> tuple[list[int], str]:
    if isinstance(prompt, str):
        try:
            tokens = tokenizer.encode_prompt(prompt)
        except UnicodeError:
            raise Refusal(400, "the prompt is not valid Unicode; send UTF-8", "prompt") from None
        except UserError as error:
            raise Refusal(400, str(error), "prompt") from None
    elif isinstance(prompt, list) and _ids(prompt):
        tokens = prompt
        for token in tokens:
            if not 0 <= token < limits.vocab_size:
                message = f"token {token} is not in the vocabulary of {limits.vocab_size}"
                raise Refusal(400, f"{message}; use the model's tokenizer", "prompt")
        prompt = tokenizer.decode(tokens)
    else:
        raise Refusal(400, "a prompt must be a text or a list of token ids", "prompt")
    if not tokens:
        message = "the prompt is empty; give at least one token to continue"
        raise Refusal(400, message, "prompt")
    return tokens, prompt
