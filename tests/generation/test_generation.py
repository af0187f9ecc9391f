"""Generation equals the full forward pass, for every model, scheme, batch and window."""

import dataclasses
import math
import re
import threading
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sharp_models import VOCAB, full_logits, greedy, prompt_of, tiny

from qkvflow.data.tokenizers import CharTokenizer
from qkvflow.distributed import memory
from qkvflow.errors import OutOfMemory, UserError
from qkvflow.generation import (
    Session,
    cache_bytes,
    cores,
    decoding,
    generate,
    generate_speculative,
    make_early_exit,
    make_sampler,
    sample_text,
    stream,
)
from qkvflow.generation.caches import share_equal, slot_sizes
from qkvflow.generation.decoding import Request, prefill, steps
from qkvflow.generation.prompts import Window, groups
from qkvflow.generation.recompute import recompute
from qkvflow.lm import LanguageModel
from qkvflow.schemes import AbstractSolver, make_scheme
from qkvflow.zoo import configure, entry, names


def scheme_of(name: str) -> str:
    return configure(entry(name), {}).scheme


SCHEMES = ("midpoint", "heun", "rk4", "strang")
SOLVED = [n for n in names() if isinstance(make_scheme(scheme_of(n)), AbstractSolver)]
CACHED = [name for name in names() if name not in SOLVED]


@pytest.mark.parametrize("name", SOLVED)
def test_models_with_a_solver_keep_no_caches(name: str):
    """They compute the sequence anew for every token, as `recompute` does, and draft nothing."""
    model = tiny(name, init_std=0.02, tolerance=1e-5)
    with pytest.raises(UserError, match="cannot keep caches"):
        model.init_caches(1, 4)
    with pytest.raises(UserError, match="no steps to draft with"):
        generate_speculative(model, [prompt_of(5)], draft_steps=1, draft_length=2, num_tokens=2)
    [new] = generate(model, [prompt_of(5)], num_tokens=3, temperature=0.0)
    assert new == greedy(model, prompt_of(5), new)


@eqx.filter_jit
def pieces_and_whole(model: LanguageModel, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Logits of five tokens and then of the rest, with caches; and by one full forward pass."""
    session, (batch, seq) = model.precomputed(), tokens.shape
    first, caches = session.extend(tokens[:, :5], session.init_caches(batch, seq), 0)
    then, _ = session.extend(tokens[:, 5:], caches, 5)
    return jnp.concatenate([first, then], axis=1), model(tokens)


def check_pieces(model: LanguageModel, text: list[int]) -> list[int]:
    """Logits in pieces against the full pass, whose choices after five tokens are returned."""
    tokens = jnp.asarray([text, prompt_of(len(text), seed=1)], jnp.int32)
    pieces, whole = pieces_and_whole(model, tokens)
    np.testing.assert_allclose(pieces, whole, atol=1e-4)
    return np.argmax(whole[0, 4:-1], axis=-1).tolist()


@pytest.mark.parametrize("name", CACHED)
def test_pieces_greedy_and_drafts_equal_the_full_pass(name: str):
    model, prompt = tiny(name), prompt_of(5)
    [new] = generate(model, [prompt], num_tokens=10, temperature=0.0)
    assert len(new) == 10
    assert new == check_pieces(model, prompt + new)
    # Drafted with half the steps and verified with all, two at a time.
    drafted = generate_speculative(
        model, [prompt], draft_steps=1, draft_length=2, num_tokens=10, temperature=0.0
    )
    assert drafted.tokens == [new]
    assert drafted.drafted >= 2 * drafted.rounds > 0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes(scheme: str):
    """In pieces; and greedily one whose stages are at other depths, and one of steps in steps."""
    model, prompt = tiny("tong", scheme=scheme), prompt_of(5)
    if scheme not in ("heun", "strang"):
        check_pieces(model, prompt_of(15))
        return
    [new] = generate(model, [prompt], num_tokens=10, temperature=0.0)
    assert len(new) == 10
    assert new == check_pieces(model, prompt + new)


def test_the_past_matters():
    # The tests above would pass for a model that ignored its caches and its past.
    logits = [full_logits(tiny("standard"), [*prompt_of(5, seed), 3])[-1] for seed in (0, 1)]
    assert np.abs(logits[0] - logits[1]).max() > 0.1


@pytest.mark.parametrize("name", ["standard", "time-indexed-selective-ssm"])
def test_a_batch_is_its_sequences_alone(name: str):
    model = tiny(name)
    prompts = [prompt_of(n, seed=seed) for seed, n in enumerate((4, 7, 7, 4))]
    together = generate(model, prompts, num_tokens=7, temperature=0.9, top_k=9, seed=3)
    # One at a time, each keeps its place among the prompts and so its randomness.
    assert together == generate(
        model, prompts, num_tokens=7, temperature=0.9, top_k=9, seed=3, batch_size=1
    )
    again = generate(model, prompts[:1] * 4, num_tokens=7, temperature=0.9, top_k=9, seed=3)
    assert again[0] == together[0]
    assert again[3] != together[0]


def test_groups_side_by_side_are_the_same(monkeypatch: pytest.MonkeyPatch):
    model = tiny("standard")
    prompts = [prompt_of(n, seed=n) for n in (5, 3, 9, 5, 4, 2, 7)]
    options: dict[str, Any] = {"num_tokens": 12, "temperature": 0.9, "seed": 3}
    options["stop"] = generate(model, prompts[:1], **options)[0][3]
    made = {}
    for number in (1, 3):
        monkeypatch.setattr(decoding, "lanes", lambda sequences, number=number: number)
        made[number] = generate(model, prompts, **options)
    assert made[1] == made[3]
    assert len(made[1][0]) <= 4
    assert [len(group) for group in groups(prompts, 64, 3)] == [3, 3, 1]
    assert [len(group) for group in groups(prompts, 2, 3)] == [1] * 7


def test_as_many_groups_as_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cores, "cpu_limit", lambda: 8)
    wanted = {0: 1, 1: 1, 2: 2, 8: 2, 16: 4, 32: 8, 64: 8}
    assert {count: cores.lanes(count) for count in wanted} == wanted
    monkeypatch.setattr(cores.jax, "device_count", lambda: 2)
    assert cores.lanes(64) == 1


def test_what_is_side_by_side_runs_at_once_and_fails_together():
    meet, seen = threading.Barrier(2, timeout=60), []

    def work(name: int, *, fails: bool = False) -> Iterator[None]:
        meet.wait()  # For the other: alone it would wait for ever.
        if fails:
            raise UserError("no more")
        while True:
            seen.append(name)
            yield
            if not endless:
                return

    endless = False
    cores.side_by_side([work(0), work(1)], 2)
    assert sorted(seen) == [0, 1]
    endless = True
    with pytest.raises(UserError, match="no more"):
        cores.side_by_side([work(0, fails=True), work(1)], 2)


@pytest.fixture(scope="module")
def runs_to_go_on() -> dict[str, tuple[Any, Any]]:
    """What `steps` is given, after a prompt, for one sequence and two and each decoder."""
    model, made = decoding.precompute(tiny("standard", num_heads=2)), {}
    for decoder in (decoding.FullDepth(), make_early_exit(entropy=0.1)):
        for batch in (1, 2):
            request = Request(8, make_sampler(), 0)
            start, _, _, job = decoding.lay_out([prompt_of(5)] * batch, list(range(batch)), request)
            tokens = jnp.asarray(start)
            run = prefill((model, job, jnp.int32(0)), tokens, jnp.zeros_like(tokens), 5, 24)
            job = dataclasses.replace(job, decoder=decoding.prepared(decoder, model))
            fixed = (model, job, jnp.int32(0), jnp.int32(4))
            name = f"{type(decoder).__name__}, {batch} at once"
            made[name] = fixed, decoding.arrange(model, run, 24)
    return made


@pytest.mark.usefixtures("cold_compilation")
def test_caches_are_written_where_they_are(runs_to_go_on: dict[str, tuple[Any, Any]]):
    """A copy of them for every token would cost as much as the model."""
    program: Any = steps
    for name, (fixed, run) in runs_to_go_on.items():
        [slots] = {leaf.shape for leaf in jax.tree.leaves(run.caches)}
        text = program.lower(fixed, run).compile().compiled.as_text()
        shape = ",".join(map(str, slots))
        assert f"f32[{shape}]" in text, name
        # In any shape with as many entries, and transposed or not.
        copied = re.findall(r"= f32\[([\d,]+)\]\S* copy\(", text)
        sizes = [math.prod(map(int, each.split(","))) for each in copied]
        assert math.prod(slots) not in sizes, name


def test_sampling_is_a_function_of_seed_sequence_and_position():
    model, prompt = tiny("standard"), prompt_of(5)
    short, long = (generate(model, [prompt] * 2, num_tokens=n, seed=1) for n in (6, 12))
    assert [text[:6] for text in long] == short
    assert long[0] != long[1]
    assert generate(model, [prompt], num_tokens=12, seed=2)[0] != long[0]
    streamed = [*stream(model, prompt, num_tokens=12, seed=1, group=3)]
    assert [len(part) for part in streamed] == [1, 3, 3, 3, 2]
    assert [token for part in streamed for token in part] == long[0]


@pytest.mark.parametrize("name", ["standard", "mamba"])
def test_window(name: str):
    model = tiny(name, context=8)
    prompts = [prompt_of(n, seed=n) for n in (3, 11)]
    together = generate(model, prompts, num_tokens=12, temperature=0.0, window=True)
    for prompt, new in zip(prompts, together, strict=True):
        assert new == list(recompute(model, prompt, 12, make_sampler(temperature=0.0), 0, 0, True))
        text = prompt + new
        for position in (len(prompt), len(text) - 1):
            start = Window(model, True, 64).offset(position)
            seen = text[start:position]
            assert 4 < len(seen) <= 8 or start == 0
            # What comes after the last token cannot be seen.
            logits = full_logits(model, seen + [0] * (8 - len(seen)))
            assert logits[len(seen) - 1].argmax() == text[position]


def test_beyond_the_context():
    with pytest.raises(UserError, match="learned positions"):
        generate(tiny("standard", context=8), [prompt_of(5)], num_tokens=4)
    for name in ("standard-llama", "mamba"):
        model, prompt = tiny(name, context=8), prompt_of(5)
        with pytest.warns(UserWarning, match="beyond the 8"):
            [new] = generate(model, [prompt], num_tokens=8, temperature=0.0)
        assert new == greedy(model, prompt, new)


def test_the_last_learned_position_is_used():
    model, prompt = tiny("standard", context=8), prompt_of(5)
    [new] = generate(model, [prompt], num_tokens=3, temperature=0.0)
    assert new == greedy(model, prompt, new)


def test_adaptive_recomputes():
    pytest.importorskip("diffrax")
    model, prompt = tiny("tong", scheme="adaptive", tolerance=1e-5), prompt_of(5)
    new = generate(model, [prompt, prompt_of(5, seed=1)], num_tokens=3, temperature=0.0)
    assert new[0] == greedy(model, prompt, new[0])
    assert len(new[1]) == 3


def test_stop_and_long_batches():
    model, prompt = tiny("standard"), prompt_of(5)
    [free] = generate(model, [prompt], num_tokens=12, seed=4)
    [stopped] = generate(model, [prompt], num_tokens=12, seed=4, stop=free[3])
    assert stopped == free[: free.index(free[3]) + 1]
    lengths = [3, 40, 5, 41, 64]
    assert groups([[0] * n for n in lengths], 2) == [[0, 2], [1, 3], [4]]


def test_caches_that_do_not_fit_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch):
    model = tiny("standard", positions="rope")
    with pytest.raises(OutOfMemory, match=r"generating 64 sequences of .* tokens takes"):
        Session(model, batch=64, length=10**9)
    monkeypatch.setattr(memory, "memory_limit", lambda: 1000)
    with pytest.raises(OutOfMemory, match="generate fewer at once"):
        generate(model, [prompt_of(5)], num_tokens=10)
    with pytest.raises(OutOfMemory, match="generate fewer at once"):
        generate_speculative(model, [prompt_of(5)], num_tokens=10, draft_steps=1)


def test_state_space_memory_is_constant_in_length():
    mamba, standard = tiny("mamba"), tiny("standard")
    assert cache_bytes(mamba, 2, 10) == cache_bytes(mamba, 2, 10_000)
    assert cache_bytes(standard, 2, 20) == 2 * cache_bytes(standard, 2, 10)


@pytest.mark.parametrize("name", ["standard", "time-indexed-selective-ssm"])
def test_caches_that_grow_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    """Also where a part ends just before they are full, and after the window has moved."""
    model, prompts = tiny(name), [prompt_of(5), prompt_of(7)]
    options: dict[str, Any] = {"num_tokens": 34, "window": True}
    wanted = generate(model, prompts, **options)
    asked: list[int] = []

    def sizes(model: LanguageModel, batch: int, length: int) -> list[int]:
        asked.append(length)
        return [6, 7, 12, length]

    monkeypatch.setattr(decoding, "slot_sizes", sizes)
    assert generate(model, prompts, **options) == wanted
    assert set(asked) == {model.context}
    streamed = stream(model, prompts[0], group=3, **options)
    assert [token for part in streamed for token in part] == wanted[0]


@pytest.mark.parametrize(("name", "steps", "different"), [("shared", 4, 1), ("standard", 4, 4)])
def test_weights_that_repeat_are_one_array(name: str, steps: int, different: int):
    model = decoding.precompute(tiny(name, num_steps=steps))
    [made] = decoding.prepared(decoding.FullDepth(), model).blocks
    matrices = [leaf for step in made for leaf in jax.tree.leaves(step) if leaf.ndim == 2]
    assert len(made) == steps
    assert len({id(leaf) for leaf in matrices}) == different * len(matrices) // steps
    wanted = jax.tree.leaves(decoding.take_apart(model))
    assert all(map(np.array_equal, jax.tree.leaves(made), wanted))


def test_equal_arrays_become_one():
    a, b, zero = jnp.array([1.0, 2.0]), jnp.array([1.0, 3.0]), jnp.zeros(0)
    steps = [{"x": each, "n": zero + 0} for each in (a, b, a + 0, b + 0)]
    made = share_equal(steps)
    assert [id(step["x"]) for step in made] == [id(a), id(b), id(a), id(b)]
    assert len({id(step["n"]) for step in made}) == 1


def test_caches_grow_where_they_are_more_to_read_than_the_weights():
    model = tiny("standard").precomputed()
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array)))
    slot = cache_bytes(model, 1, 1)
    assert slot_sizes(model, 1, 200) == [200]
    assert slot_sizes(model, weights // (200 * slot), 1000) == [256, 512, 1000]
    assert slot_sizes(model, weights // slot, 1000) == [128, 256, 512, 1000]
    assert slot_sizes(tiny("mamba").precomputed(), 1000, 1000) == [1000]


def test_new_weights_compile_nothing_again():
    tokenizer = CharTokenizer("\nabcdefghijklmnop")
    model = tiny("time-indexed-mlp")
    first = sample_text(model, tokenizer, num_tokens=40)
    assert len(first) == 40
    programs: list[Any] = [prefill, steps]
    sizes = [program._cached._cache_size() for program in programs]
    other = jax.tree.map(lambda leaf: leaf * 1.01, model)
    second = sample_text(other, tokenizer, num_tokens=40, temperature=0.7, seed=1)
    assert [program._cached._cache_size() for program in programs] == sizes
    assert first == sample_text(model, tokenizer, num_tokens=40)
    assert first != second


@pytest.mark.parametrize(
    ("prompts", "options", "reason"),
    [
        ([[]], {}, "empty"),
        ([[1, VOCAB]], {}, f"token {VOCAB} is not in"),
        ([[-1]], {}, "token -1 is not in"),
        ([[1]], {"num_tokens": 0}, "at least 1"),
        ([[1]], {"temperature": -1.0}, "temperature"),
        ([[1]], {"temperature": float("nan")}, "temperature"),
        ([[1]], {"top_p": 0.0}, "top_p"),
        ([[1]], {"top_p": 1.5}, "top_p"),
        ([[1]], {"top_k": 0}, "top_k"),
        ([[1] * 40], {}, "learned positions"),
    ],
)
def test_bad_requests(prompts: list[list[int]], options: dict, reason: str):
    with pytest.raises(UserError, match=reason):
        generate(tiny("standard"), prompts, **{"num_tokens": 2, **options})


def test_sampler_cuts():
    logits = jnp.log(jnp.array([[0.5, 0.2, 0.15, 0.1, 0.05]]))

    def kept(**options: Any) -> list[float]:
        return np.asarray(make_sampler(**options).probabilities(logits)[0]).round(4).tolist()

    assert kept(temperature=0.0) == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert kept(top_k=2) == pytest.approx([5 / 7, 2 / 7, 0, 0, 0], abs=1e-4)
    assert kept(top_p=0.69) == pytest.approx([5 / 7, 2 / 7, 0, 0, 0], abs=1e-4)
    assert kept(top_p=0.71) == pytest.approx([50 / 85, 20 / 85, 15 / 85, 0, 0], abs=1e-4)
    assert kept(top_p=1e-6) == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert kept(top_k=2, top_p=0.6) == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert kept(temperature=0.5)[0] == pytest.approx(0.25 / 0.325, abs=1e-4)
    assert kept() == pytest.approx([0.5, 0.2, 0.15, 0.1, 0.05], abs=1e-4)
