"""A trained model for EleutherAI's evaluation harness (extra `lm-eval`; no torch is needed).

The harness asks three things of a language model: log-likelihoods of continuations, rolling
log-likelihoods of whole texts, and text until a stop string. Windows of rolling log-likelihoods
are the harness's own: disjoint windows of a whole context, the first after a prefix token, and a
last one that is shifted back to a full context. Where the text is a whole number of contexts, this
is what `qkvflow eval` computes on the same text with the prefix in front.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from qkvflow.data.tokenizers import Tokenizer
from qkvflow.distributed.memory import check_program
from qkvflow.errors import UserError
from qkvflow.evaluation.losses import evaluation_batch
from qkvflow.generation.cores import lanes, side_by_side
from qkvflow.generation.decoding import FullDepth, Request, precompute, prepared, run_group
from qkvflow.generation.prompts import check, groups, round_up
from qkvflow.generation.sampling import make_sampler
from qkvflow.lm import LanguageModel

LENGTH_STEP = 32
"""Sequences are padded to a multiple of this, so that a few programs serve all lengths."""
NEW_TOKENS = 256
"""Of a generation whose task gives no number: the harness's default."""


class Score(NamedTuple):
    """Of one continuation."""

    log_likelihood: float
    is_greedy: bool


class HarnessModel(TemplateLM):
    """A model and its tokenizer, as the harness sees them."""

    def __init__(
        self, model: LanguageModel, tokenizer: Tokenizer, *, batch_size: int | None = None
    ) -> None:
        TemplateLM.__init__(self)
        self._model, self._tokenizer = model, tokenizer
        self._batch_size = batch_size or evaluation_batch(model.context, model.vocab_size)
        self._fitting: set[tuple[int, ...]] = set()
        """Shapes of batches that are known to fit into memory."""

    # What the harness's own tokenisation of pairs needs

    @property
    def eot_token_id(self) -> int:
        """The separator of documents, or a line break: what the first token is predicted from."""
        if self._tokenizer.separator is not None:
            return self._tokenizer.separator
        return int(self._tokenizer.encode("\n")[0])

    @property
    def prefix_token_id(self) -> int:
        """The start token of a pretrained model that has one."""
        return (*self._tokenizer.prefix, self.eot_token_id)[0]

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **options: Any
    ) -> list[int]:
        return self._tokenizer.encode(string).tolist()

    # What it asks

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **options: Any
    ) -> list[tuple[float, bool]]:
        scores = self._scores([pair for _, *pair in requests])
        return [(each.log_likelihood, each.is_greedy) for each in scores]

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        windows: list[Any] = []
        of_text: list[int] = []
        for index, request in enumerate(requests):
            for window in get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self._model.context,
                context_len=1,
            ):
                windows.append(make_disjoint_window(window))
                of_text.append(index)
        totals = [0.0] * len(requests)
        for index, score in zip(of_text, self._scores(windows), strict=True):
            totals[index] += score.log_likelihood
        return totals

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        made = [""] * len(requests)
        by_options: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            by_options.setdefault(repr(sorted(request.args[1].items())), []).append(index)
        for members in by_options.values():
            prompts = [requests[index].args[0] for index in members]
            texts = self._continue(prompts, dict(requests[members[0]].args[1]))
            for index, text in zip(members, texts, strict=True):
                made[index] = text
        return made

    # How it is computed

    def _scores(self, pairs: Sequence[Sequence[list[int]]]) -> list[Score]:
        """Batches of similar lengths, the longest first, so that running out of memory is soon."""
        context = self._model.context
        sequences = []
        for before, continuation in pairs:
            if len(continuation) > context:
                raise UserError(
                    f"a continuation of {len(continuation)} tokens is longer than the model's "
                    f"context of {context}; leave this task out"
                )
            sequences.append(np.asarray([*before, *continuation][-(context + 1) :], np.int32))
        order = sorted(range(len(pairs)), key=lambda index: -len(sequences[index]))
        scores: list[Score] = [Score(0.0, True)] * len(pairs)
        rows = min(self._batch_size, len(pairs))  # Not more at once than there are.
        for first in range(0, len(order), rows):
            members = order[first : first + rows]
            longest = len(sequences[members[0]]) - 1
            length = min(round_up(max(longest, 1), LENGTH_STEP), context)
            # Causal models do not see the padding behind a text.
            padded = np.zeros((rows, length + 1), np.int32)
            for row, index in enumerate(members):
                padded[row, : len(sequences[index])] = sequences[index]
            inputs, targets = jnp.asarray(padded[:, :-1]), jnp.asarray(padded[:, 1:])
            self._check(inputs, targets)
            found = jax.device_get(_score(self._model, inputs, targets))
            for row, index in enumerate(members):
                end = len(sequences[index]) - 1
                own = slice(end - len(pairs[index][1]), end)
                total = float(found[0][row, own].astype(np.float64).sum())
                scores[index] = Score(total, bool(found[1][row, own].all()))
        return scores

    def _check(self, inputs: Array, targets: Array) -> None:
        """Refuse a batch that does not fit into memory, before it is computed."""
        if inputs.shape in self._fitting:
            return
        batch, length = inputs.shape
        what = f"a batch of {batch} sequences of {length} tokens"
        check_program(
            _score, self._model, inputs, targets, what=what, instead="give a smaller --batch-size"
        )
        self._fitting.add(inputs.shape)

    def _continue(self, prompts: list[str], options: dict[str, Any]) -> list[str]:
        """Text after each prompt, up to its end or to the first of the stop strings."""
        until, end = _listed(options.get("until")), self._tokenizer.separator
        most = int(options.get("max_gen_toks", options.get("max_tokens", NEW_TOKENS)))
        sampled = bool(options.get("do_sample", float(options.get("temperature", 0.0)) > 0.0))
        sampler = make_sampler(
            temperature=float(options.get("temperature", 1.0)) if sampled else 0.0,
            top_k=options.get("top_k") if sampled else None,
            top_p=options.get("top_p") if sampled else None,
        )
        encoded = [self.tok_encode(prompt) or [self.prefix_token_id] for prompt in prompts]
        texts = check(self._model, encoded, most, window=True)
        at_once = lanes(min(self._batch_size, len(texts)))
        model = precompute(self._model)
        decoder = prepared(FullDepth(), model)
        request = Request(most, sampler, 0, True, decoder=decoder, lanes=at_once)
        new: list[list[int]] = [[] for _ in texts]

        def complete(group: list[int]) -> Iterator[None]:
            for parts in run_group(model, texts, group, request):
                for index, part in zip(group, parts.tokens, strict=True):
                    new[index] += part
                if all(end in new[index] or self._stops(new[index], until) for index in group):
                    return
                yield

        side_by_side(map(complete, groups(texts, self._batch_size, at_once)), at_once)
        whole = [each[: each.index(end)] if end in each else each for each in new]
        return [_cut(self._tokenizer.decode(each), until) for each in whole]

    def _stops(self, tokens: list[int], until: list[str]) -> bool:
        text = self._tokenizer.decode(tokens)
        return any(stop in text for stop in until)


@eqx.filter_jit
def _score(
    model: LanguageModel, inputs: Int[Array, "batch seq"], targets: Int[Array, "batch seq"]
) -> tuple[Float[Array, "batch seq"], Bool[Array, "batch seq"]]:
    """Log-likelihood of every target, and whether it is the most likely token."""
    logits = model(inputs)
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    best = jnp.argmax(logits, axis=-1) == targets
    return picked - jax.nn.logsumexp(logits, axis=-1), best


def _listed(until: str | Iterable[str] | None) -> list[str]:
    return [until] if isinstance(until, str) else [each for each in until or () if each]


def _cut(text: str, until: list[str]) -> str:
    """Up to the first place where any of the stop strings begins."""
    places = [place for stop in until if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text
