"""Every tokenizer: round trips, streams, files; and what each alone does."""

from pathlib import Path

import numpy as np
import pytest
import tokenizers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvflow.data import Corpus, encode_corpus, get_tokenizer, load_corpus, load_tokenizer
from qkvflow.data.split import StoredSplit
from qkvflow.data.tokenizers import TOKENIZERS, ByteTokenizer, CharTokenizer, Tokenizer
from qkvflow.data.tokenizers.bpe import SubwordTokenizer
from qkvflow.errors import UserError

TEXT = "the naïve cat sat. On 🙂 €5\n"


@pytest.fixture(params=["byte", "char", "bpe:300"])
def tokenizer(request: pytest.FixtureRequest, tiny: Corpus) -> Tokenizer:
    return get_tokenizer(request.param, tiny)


def test_every_member_is_tested():
    members = {"byte": ByteTokenizer, "char": CharTokenizer, "bpe": SubwordTokenizer}
    assert dict(TOKENIZERS) == members


def test_decode_inverts_encode(tokenizer: Tokenizer):
    ids = tokenizer.encode(TEXT)
    assert ids.dtype == tokenizer.dtype
    assert int(ids.max()) < tokenizer.vocab_size
    assert tokenizer.decode(ids) == TEXT
    assert np.array_equal(tokenizer.encode(TEXT.encode()), ids)
    assert tokenizer.decode([]) == ""


def test_a_stream_gives_the_same_text(tokenizer: Tokenizer):
    stream = tokenizer.stream()
    parts = [stream.push(int(i)) for i in tokenizer.encode(TEXT)]
    assert "".join(parts) + stream.finish() == TEXT
    assert all("\ufffd" not in part for part in parts)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=20))
def test_a_byte_stream_of_any_bytes_is_their_decoding(data: bytes):
    tokenizer = ByteTokenizer()
    stream = tokenizer.stream()
    text = "".join(stream.push(byte) for byte in data) + stream.finish()
    assert text == tokenizer.decode(data) == data.decode("utf-8", "replace")


def test_a_subword_stream_holds_nothing_back_in_the_end(tiny: Corpus):
    tokenizer = get_tokenizer("bpe:300", tiny)
    rng = np.random.default_rng(0)
    for _ in range(20):
        ids = rng.integers(tokenizer.vocab_size, size=15).tolist()
        stream = tokenizer.stream()
        text = "".join(stream.push(i) for i in ids) + stream.finish()
        assert text == tokenizer.decode(ids)


def test_after_a_prompt_the_text_goes_on(tokenizer: Tokenizer):
    ids = tokenizer.encode(TEXT).tolist()
    for place in range(len(ids) + 1):
        before, after = ids[:place], ids[place:]
        shown = tokenizer.decode(before)
        if TEXT.startswith(shown):  # A whole number of characters.
            assert shown + tokenizer.decode_after(before, after) == TEXT
    whole = [] if isinstance(tokenizer, CharTokenizer) else tokenizer.encode("ab\ufffd").tolist()
    assert tokenizer.decode_after(whole, tokenizer.encode("c")) == "c"
    assert tokenizer.decode_after(whole, []) == ""


def test_saved_and_loaded_it_is_the_same(tokenizer: Tokenizer, tmp_path: Path):
    path = tokenizer.save(tmp_path)
    assert path == tmp_path / "tokenizer.json"
    for where in (path, tmp_path, str(path)):
        loaded = load_tokenizer(where)
        assert loaded.identity == tokenizer.identity
        assert loaded.vocab_size == tokenizer.vocab_size
        assert np.array_equal(loaded.encode(TEXT), tokenizer.encode(TEXT))


def test_encoding_in_small_chunks_changes_nothing(tokenizer: Tokenizer):
    text = ("".join(f"a{'b' * (i % 7)} €{i}.\n" + " \n\n" * (i % 3) for i in range(200))).encode()
    if isinstance(tokenizer, CharTokenizer):
        tokenizer = CharTokenizer("".join(sorted(set(text.decode()))))
    chunks = list(StoredSplit.of("test", [text]).chunks(tokenizer.cut, size=50))
    assert len(chunks) > 20
    joined = np.concatenate([tokenizer.encode(chunk.data) for chunk in chunks])
    assert np.array_equal(joined, tokenizer.encode(text))
    assert [chunk.ends_document for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_the_alphabet_is_that_of_the_train_split(tiny: Corpus):
    known = CharTokenizer.of(tiny.train, (tiny.validation, tiny.test))
    assert known.alphabet == "".join(sorted(set(b"".join(tiny.train).decode())))
    assert known.vocab_size == len(known.alphabet)
    with pytest.raises(UserError, match="'Z' is not in the alphabet"):
        known.encode("Z")


def test_one_id_stands_for_all_characters_never_trained_on(tiny: Corpus):
    strange = StoredSplit.of("test", ["the Ω and \U0010ffff\n".encode()])
    tokenizer = CharTokenizer.of(tiny.train, (strange,))
    assert tokenizer.vocab_size == len(tokenizer.alphabet) + 1
    ids = tokenizer.encode("tΩ\U0010ffff")
    assert ids.tolist()[1:] == [tokenizer.vocab_size - 1] * 2
    assert tokenizer.decode(ids) == "t\ufffd\ufffd"


def test_bpe_is_trained_on_the_train_split_only_and_kept(tiny: Corpus, cache: Path):
    first = get_tokenizer("bpe:260", tiny)
    other = Corpus("memory", tiny.train, StoredSplit.of("v", [b"zzzz zzzz zzzz"]), tiny.test)
    assert get_tokenizer("bpe:260", other).identity == first.identity
    kept = list((cache / "tokenizers").glob("*/tokenizer.json"))
    assert len(kept) == 1
    kept[0].write_text("{")  # Damaged: made again, not used.
    assert get_tokenizer("bpe:260", tiny).identity == first.identity
    assert get_tokenizer("bpe:262", tiny).identity != first.identity
    # Every byte has a token, trained on or not.
    assert first.decode(first.encode("\x00日本")) == "\x00日本"


def test_documents_end_with_the_end_of_text(tiny: Corpus):
    tokenizer = get_tokenizer("bpe:300", tiny)
    encoded = encode_corpus(tiny, tokenizer)
    parts = []
    for document in tiny.train:
        parts += [tokenizer.encode(document), [tokenizer.separator]]
    assert np.array_equal(encoded.train.tokens, np.concatenate(parts))
    assert encoded.train.bytes == sum(map(len, tiny.train))


def test_any_tokenizer_file_can_be_used(tiny: Corpus, tmp_path: Path):
    words = ["[UNK]", "the", "cat", "sat", "on", "mat", "</s>"]
    backend = hf.Tokenizer(hf.models.WordLevel({w: 3 * i for i, w in enumerate(words)}, "[UNK]"))
    backend.pre_tokenizer = hf.pre_tokenizers.Whitespace()
    backend.enable_truncation(2)
    backend.save(str(tmp_path / "words.json"))
    tokenizer = get_tokenizer(str(tmp_path / "words.json"), tiny)
    assert tokenizer.vocab_size == 19, "ids have gaps; the table reaches the largest"
    assert tokenizer.separator == 18
    assert tokenizer.encode("the cat sat on the mat").tolist() == [3, 6, 9, 12, 3, 15]


def test_bytes_that_are_not_utf8(tmp_path: Path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"plain text\n" * 50 + b"caf\xe9 au lait\n" + b"plain text\n" * 50)
    corpus = load_corpus(f"file:{path}")
    encoded = encode_corpus(corpus, get_tokenizer("byte", corpus))
    assert bytes(np.concatenate([encoded.train.tokens, encoded.validation.tokens]))[553] == 0xE9
    for spec in ("char", "bpe:300"):
        with pytest.raises(UserError) as caught:
            get_tokenizer(spec, corpus)
        message = str(caught.value)
        assert "latin.txt is not UTF-8: byte 0xe9 at offset 553" in message
        assert "--tokenizer byte" in message
    # The file's own offset is named although another split holds the byte.
    words = get_tokenizer("byte", corpus)
    late = load_corpus(f"file:train={path}[0.9:],validation={path}[:0.9]")
    assert encode_corpus(late, words).train.bytes > 0
    with pytest.raises(UserError, match="offset 553"):
        encode_corpus(late, CharTokenizer("plaintex \nc f"))


def test_long_text_that_is_not_utf8_is_refused_where_it_is_wrong():
    data = b"\x80" * 100
    split = StoredSplit.of("bad", [data])
    corpus = Corpus("memory", split, split, split)
    with pytest.raises(UserError, match="document 0 of bad is not UTF-8: byte 0x80 at offset 0"):
        get_tokenizer("char", corpus)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("bite", "did you mean byte"),
        ("bpe", "write e.g. bpe:4096"),
        ("bpe:many", "write e.g. bpe:4096"),
        ("bpe:100", "bpe:257 or more"),
        ("missing/tokenizer.json", "no tokenizer at"),
    ],
)
def test_mistakes_have_one_line(spec: str, says: str, tiny: Corpus):
    with pytest.raises(UserError) as caught:
        get_tokenizer(spec, tiny)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"qkvflow": "char"}',
        '{"qkvflow": "word"}',
        '{"qkvflow": "char", "alphabet": "aa", "unknown": false}',
        '{"model": {"type": "X"}}',
    ],
)
def test_a_damaged_or_foreign_file_is_refused(content: str, tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        load_tokenizer(path)
    assert "tokenizer.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tiny_shakespeare_has_65_characters(shared_data: Path):
    corpus = load_corpus(f"file:{shared_data}/tinyshakespeare/input.txt?split=0.9,0.1")
    tokenizer = get_tokenizer("char", corpus)
    encoded = encode_corpus(corpus, tokenizer)
    assert tokenizer.vocab_size == 65
    assert (len(encoded.train), len(encoded.validation)) == (1003854, 111540)
