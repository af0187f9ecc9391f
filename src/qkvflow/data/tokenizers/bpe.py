"""Tokenizers of the `tokenizers` library: byte-level BPE trained here, and any `tokenizer.json`.

That of a pretrained model is saved with what else is known of it: the size of the model's table,
which may be larger than the vocabulary, and its special tokens.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, SupportsInt

import numpy as np
import tokenizers as hf

from qkvflow.data.cache import building, is_complete
from qkvflow.data.split import Split
from qkvflow.data.tokenizers.base import TextStream, Tokenizer, write_tokenizer
from qkvflow.data.tokenizers.char import decoding
from qkvflow.errors import UserError, one_line
from qkvflow.files import write_whole
from qkvflow.paths import cache_dir
from qkvflow.zoo.registry import TOKENIZERS

END_OF_TEXT = "<|endoftext|>"
_SEPARATORS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
# BPE merges settle long before this much text; more would only cost memory.
_TRAINING_BYTES = 1 << 28
_FORMAT = 2
MOST_IDS = 1 << 24


@TOKENIZERS.register("bpe")
class SubwordTokenizer(Tokenizer):
    """A `tokenizers.Tokenizer`. With `lines`, cutting text between lines keeps its encoding.

    `pretrained` has the `vocab_size` of a pretrained model, and `special`: its special tokens and
    other settings, as a `tokenizer_config.json` has them.
    """

    def __init__(
        self,
        backend: hf.Tokenizer,
        *,
        name: str,
        lines: bool = False,
        pretrained: dict[str, Any] | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.name = name
        self.backend = backend
        # Ids may have gaps in a foreign vocabulary: the table must reach the largest.
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        self.identity = hashlib.sha256(backend.to_str().encode()).hexdigest()
        found = (backend.token_to_id(token) for token in _SEPARATORS)
        self.separator = next((i for i in found if i is not None), None)
        self._lines = lines
        self.pretrained = pretrained
        if pretrained is not None:
            self._take(pretrained["vocab_size"], pretrained["special"])

    def _take(self, vocab_size: int, special: dict[str, Any]) -> None:
        """What a pretrained model says of its tokenizer."""
        if vocab_size < self.vocab_size:
            raise UserError(
                f"the tokenizer has ids up to {self.vocab_size - 1}, the model only {vocab_size}; "
                "they do not belong together"
            )
        self.vocab_size = vocab_size
        end = special.get("eos_token")
        self.separator = None if end is None else self.backend.token_to_id(end)
        plain, marked = (
            self.backend.encode("a", add_special_tokens=each).ids for each in (False, True)
        )
        places = range(len(marked) - len(plain) + 1)
        start = next((i for i in places if marked[i : i + len(plain)] == plain), 0)
        self.prefix = tuple(marked[:start])
        described = json.dumps([self.identity, vocab_size, self.separator])
        self.identity = hashlib.sha256(described.encode()).hexdigest()

    @classmethod
    def fit(cls, argument: str, corpus: Any) -> "SubwordTokenizer":
        if not argument.isdecimal():
            written = f"bpe:{argument}" if argument else "bpe"
            raise UserError(f"tokenizer '{written}' has no vocabulary size; write e.g. bpe:4096")
        return train_bpe(corpus.train, int(argument))

    @classmethod
    def size_of(cls, argument: str) -> int | None:
        """The most it can learn."""
        return int(argument) if argument.isdecimal() else None

    @classmethod
    def read(cls, content: dict[str, Any]) -> "SubwordTokenizer":
        """One of a pretrained model; the rest are saved as the library saves them."""
        vocab_size, special = content["vocab_size"], content["special"]
        good = isinstance(vocab_size, int) and isinstance(special, dict)
        if not good or not 0 < vocab_size <= MOST_IDS:
            raise ValueError("not what was written")
        _check_ids(Path("tokenizer.json"), content["tokenizer"])
        backend = hf.Tokenizer.from_str(json.dumps(content["tokenizer"]))
        known = {"vocab_size": vocab_size, "special": special}
        return cls(backend, name=str(content["name"]), pretrained=known)

    def encode(self, text: str | bytes) -> np.ndarray:
        return self.encode_many([text])[0]

    def encode_many(self, texts: list[str | bytes]) -> list[np.ndarray]:
        """Several texts at once, on all cores: the library's threads run outside the
        interpreter lock, so no processes are needed."""
        decoded = [t.decode("utf-8") if isinstance(t, bytes) else t for t in texts]
        encodings = self.backend.encode_batch_fast(decoded, add_special_tokens=False)
        return [np.asarray(encoding.ids, dtype=self.dtype) for encoding in encodings]

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def stream(self) -> TextStream:
        return _SubwordStream(self)

    def cut(self, data: bytes) -> int:
        return _between_lines(data) if self._lines else 0

    def save(self, directory: Path) -> Path:
        if self.pretrained is not None:
            content = {"name": self.name, **self.pretrained}
            content["tokenizer"] = json.loads(self.backend.to_str())
            return write_tokenizer(directory, "bpe", content)
        path = Path(directory) / "tokenizer.json"
        write_whole(path, self.backend.to_str(pretty=True))
        return path


class _SubwordStream(TextStream):
    """Decodes a short tail of tokens again with each new one: a token's text may depend on the
    one before it, and a character may be spread over several tokens."""

    def __init__(self, tokenizer: SubwordTokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown: list[int] = []
        self._held: list[int] = []

    def push(self, token: SupportsInt) -> str:
        self._held.append(int(token))
        text = self._pending()
        if not text or text.endswith("\ufffd"):
            return ""
        self._shown, self._held = self._held, []
        return text

    def finish(self) -> str:
        text = self._pending()
        self._shown, self._held = [], []
        return text

    def _pending(self) -> str:
        before = self._tokenizer.decode(self._shown)
        return self._tokenizer.decode(self._shown + self._held)[len(before) :]


def train_bpe(split: Split, vocab_size: int) -> SubwordTokenizer:
    """Byte-level BPE (the GPT-2 recipe) on a train split, kept by the hash of that split."""
    name = f"bpe:{vocab_size}"
    if vocab_size < 257:
        raise UserError(f"{name} is too small: 256 bytes and the end of text need bpe:257 or more")
    if vocab_size > MOST_IDS:
        raise UserError(f"{one_line(name, 40)} is too large; a vocabulary has at most {MOST_IDS}")
    key = hashlib.sha256(f"{_FORMAT}:{hf.__version__}:{split.sha256}:{vocab_size}".encode())
    directory = cache_dir("tokenizers") / key.hexdigest()[:32]
    if not is_complete(directory):
        backend = hf.Tokenizer(hf.models.BPE())
        backend.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = hf.decoders.ByteLevel()
        trainer = hf.trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=sorted(hf.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        backend.train_from_iterator(_training_text(split, name), trainer)
        with building(directory) as temporary:
            backend.save(str(temporary / "tokenizer.json"))
    return SubwordTokenizer(_load(directory / "tokenizer.json"), name=name, lines=True)


def read_subword(path: Path, content: Any) -> SubwordTokenizer:
    """Any `tokenizer.json` the library can read; `content` is what the file says."""
    _check_ids(path, content)
    return SubwordTokenizer(_load(path), name=str(path))


def _load(path: Path) -> hf.Tokenizer:
    try:
        return hf.Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises plain Exception for every fault.
        first = str(error).splitlines()[0] if str(error) else "unreadable"
        raise UserError(f"{path} is not a tokenizer.json: {first}; export it again") from None


def _check_ids(path: Path, content: Any) -> None:
    """The library gives memory to whatever ids a file names, and ends the process without it."""
    content = content if isinstance(content, dict) else {}
    model, added = content.get("model"), content.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    ids += [each.get("id") for each in added or [] if isinstance(each, dict)]
    if not vocabulary:
        raise UserError(f"{path} is not a tokenizer.json: it has no vocabulary; export it again")
    wrong = [each for each in ids if not isinstance(each, int) or not 0 <= each < MOST_IDS]
    if wrong:
        raise UserError(
            f"{path} is not a tokenizer.json: {one_line(repr(wrong[0]), 40)} is no id of a token; "
            "export it again"
        )


def _training_text(split: Split, name: str) -> Iterator[str]:
    stride = -(-split.bytes // _TRAINING_BYTES) or 1
    for index, chunk in enumerate(split.chunks(_between_lines)):
        if index % stride == 0:
            with decoding(chunk.document, chunk.offset, name):
                yield chunk.data.decode("utf-8")


def _between_lines(data: bytes) -> int:
    """The last line break with something that is no white space on both sides.

    GPT-2's pattern treats a run of white space by what follows it, so only a lone line break
    is sure to be a token of its own on either side of a cut.
    """
    position = len(data)
    while (position := data.rfind(b"\n", 1, position)) > 0:
        before, after = data[position - 1 : position], data[position + 1 : position + 2]
        around = before + after
        # Beyond ASCII a byte does not tell white space, so such a place is passed over.
        if len(around) == 2 and around.isascii() and not (before.isspace() or after.isspace()):
            return position + 1
    return 0
