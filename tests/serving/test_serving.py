"""The server as a process, asked by the `openai` client, by many at once, and by a browser."""

import asyncio
import dataclasses
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jax
import numpy as np
import openai
import pytest
from browser import Browser
from sharp_models import TINY, VOCAB, full_logits, prompt_of, tiny

from qkvflow.cli import main
from qkvflow.data.tokenizers import CharTokenizer
from qkvflow.generation import generate
from qkvflow.runs.config import make_config
from qkvflow.runs.export import write_export
from qkvflow.runs.load import Trained
from qkvflow.serving.engine import Scores
from qkvflow.serving.protocol import Limits, Refusal, read
from qkvflow.serving.text import Choice

# Characters of one to four bytes.
TOKENIZER = CharTokenizer("\nabcdefghijklé€😀𝕏")
UNTIED = {"tied": False}  # Else the last token is the next.

LIMITS = Limits("tiny", 32, VOCAB, 2, 8, 32, 64)


class Server(NamedTuple):
    process: subprocess.Popen[str]
    url: str

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)


def start(directory: Path, *options: str) -> Server:
    command = [sys.executable, "-m", "qkvflow", "serve", str(directory), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("serving exported on http://127.0.0.1:"), line or process.communicate()
    return Server(process, line.split()[-1])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("serving") / "exported"
    config = make_config(
        {"model": {"name": "tong", **TINY, **UNTIED}, "data": {"tokenizer": "char"}}
    )
    write_export(Trained(tiny("tong", **UNTIED), TOKENIZER, config), directory, None)
    return directory


@pytest.fixture(scope="module")
def server(exported: Path) -> Iterator[Server]:
    made = start(exported, "--batch-size", "64", "--max-body", "20000")
    yield made
    made.process.send_signal(signal.SIGTERM)
    _, err = made.process.communicate(timeout=60)
    assert (made.process.returncode, err) == (0, "")


def expected(prompt: list[int], count: int, *, num_steps: int = 2, **options: Any) -> str:
    model = tiny("tong", **UNTIED).at_depth(num_steps)
    return TOKENIZER.decode(generate(model, [prompt], num_tokens=count, **options)[0])


def test_client(server: Server):
    client, prompt = server.client(), TOKENIZER.decode(prompt_of(5))
    [about] = client.models.list().data
    assert (about.id, about.model_extra) == (
        "exported",
        {"context": 32, "num_steps": 2, "max_steps": 8},
    )
    assert client.models.retrieve("exported").id == "exported"
    ask: dict[str, Any] = {"model": "exported", "prompt": prompt, "max_tokens": 12, "seed": 3}
    done = client.completions.create(**ask, temperature=0.7, top_p=0.9, n=2)
    assert [each.text for each in done.choices] == [
        expected(prompt_of(5), 12, temperature=0.7, top_p=0.9, seed=3 + j) for j in range(2)
    ]
    assert {each.finish_reason for each in done.choices} == {"length"}
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (5, 24)

    # The depth dial, and what is streamed.
    deep = {**ask, "temperature": 0, "extra_body": {"num_steps": 5}}
    whole = client.completions.create(**deep).choices[0].text
    assert whole == expected(prompt_of(5), 12, num_steps=5, temperature=0.0)
    assert whole != expected(prompt_of(5), 12, temperature=0.0)
    parts = list(client.completions.create(**deep, stream=True))
    assert "".join(part.choices[0].text for part in parts) == whole
    assert len(parts) > 1
    assert [part.choices[0].finish_reason for part in parts] == [None] * (len(parts) - 1) + [
        "length"
    ]

    # Stops end the text before them.
    stop = whole[6:8]
    stopped = client.completions.create(**deep, stop=[stop, "no such text"]).choices[0]
    assert (stopped.text, stopped.finish_reason) == (whole[: whole.index(stop)], "stop")
    parts = list(client.completions.create(**deep, stop=stop, stream=True))
    assert "".join(part.choices[0].text for part in parts) == whole[: whole.index(stop)]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_those_of_a_full_pass(server: Server, stream: bool):
    prompt = prompt_of(6, seed=4)
    asked: dict[str, Any] = {
        "model": "exported",
        "prompt": [prompt],  # Token ids.
        "max_tokens": 10,
        "temperature": 0,
        "logprobs": 3,
        "echo": True,
        "stream": stream,
    }
    answer = server.client().completions.create(**asked)
    parts = [part.choices[0] for part in answer] if stream else [answer.choices[0]]
    text = "".join(part.text for part in parts)
    tokens = TOKENIZER.encode(text).tolist()
    assert tokens[:6] == prompt
    found = [part.logprobs for part in parts]
    assert [each for part in found for each in part.tokens] == list(text)
    assert [each for part in found for each in part.text_offset] == list(range(16))
    logits = full_logits(tiny("tong", **UNTIED), tokens)[:-1]
    want = np.asarray(jax.nn.log_softmax(logits))
    got = [each for part in found for each in part.token_logprobs]
    assert got[0] is None
    np.testing.assert_allclose(got[1:], want[np.arange(15), tokens[1:]], atol=2e-5)
    tops = [each for part in found for each in part.top_logprobs][1:]
    for row, token, top in zip(want, tokens[1:], tops, strict=True):
        best = {*np.argsort(-row)[:3].tolist(), token}
        assert set(top) == {TOKENIZER.decode([each]) for each in best}
        for each in best:
            assert top[TOKENIZER.decode([each])] == pytest.approx(row[each], abs=2e-5)


def test_load(server: Server):
    """200 at once, some streamed: each gets the text it would get alone, and all an answer."""
    cases = [
        (prompt_of((5, 11, 17)[i % 3], seed=i % 24), 3 + i % 11, (2, 5)[i % 7 == 0])
        for i in range(200)
    ]

    @cache
    def alone(prompt: tuple[int, ...], depth: int) -> str:
        return expected(list(prompt), 13, num_steps=depth, temperature=0.0)

    async def one(client: openai.AsyncOpenAI, prompt: list[int], count: int, depth: int) -> str:
        ask: dict[str, Any] = {"model": "exported", "prompt": prompt, "max_tokens": count}
        ask |= {"temperature": 0, "extra_body": {"num_steps": depth}}
        if count % 2:
            return (await client.completions.create(**ask)).choices[0].text
        parts = await client.completions.create(**ask, stream=True)
        return "".join([part.choices[0].text async for part in parts])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120
        ) as client:
            return await asyncio.gather(*(one(client, *case) for case in cases))

    texts = asyncio.run(all_of_them())
    for (prompt, count, depth), text in zip(cases, texts, strict=True):
        # A character is a token, and the likeliest ones do not depend on how many are asked for.
        assert text == alone(tuple(prompt), depth)[:count]
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok", "waiting": 0, "running": 0}


@pytest.mark.parametrize(
    ("status", "param", "body"),
    [
        (400, None, "{"),
        (400, None, "[" * 5000),
        (400, None, "[]"),
        (400, "temprature", {"prompt": "a", "temprature": 1}),
        (400, "suffix", {"prompt": "a", "suffix": "b"}),
        (404, "model", {"prompt": "a", "model": "gpt-4"}),
        (400, "prompt", {}),
        (400, "prompt", {"prompt": ""}),
        (400, "prompt", {"prompt": "Z"}),
        (400, "prompt", {"prompt": "\ud800"}),
        (400, "prompt", {"prompt": [[1], []]}),
        (400, "prompt", {"prompt": [99]}),
        (400, "prompt", {"prompt": [[1.5]]}),
        (400, "prompt", {"prompt": ["a"] * 65}),
        (400, "n", {"prompt": "a", "n": True}),
        (400, "max_tokens", {"prompt": "a", "max_tokens": 0}),
        (400, "max_tokens", {"prompt": "a", "max_tokens": 32}),
        (400, "num_steps", {"prompt": "a", "num_steps": 9}),
        (400, "temperature", {"prompt": "a", "temperature": -1}),
        (400, "logprobs", {"prompt": "a", "logprobs": 6}),
        (400, "seed", {"prompt": "a", "seed": 2**40}),
        (400, "stop", {"prompt": "a", "stop": [""]}),
        (400, "stream", {"prompt": "a", "stream": "yes"}),
        (413, None, {"prompt": "a" * 20000}),
    ],
)
def test_refusals(server: Server, status: int, param: str | None, body: Any):
    data = body if isinstance(body, str) else json.dumps(body)
    kind = {"Content-Type": "application/json"}
    answer = httpx.post(f"{server.url}/v1/completions", content=data, headers=kind)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert 10 < len(error["message"]) < 200
    assert "\n" not in error["message"]


def test_other_refusals(server: Server):
    answer = httpx.post(f"{server.url}/v1/completions", content="{}")
    assert answer.status_code == 415
    assert httpx.get(f"{server.url}/v1/chat").status_code == 404
    assert httpx.get(f"{server.url}/v1/completions").status_code == 405
    # A name that somebody else resolved to this machine.
    assert httpx.get(server.url, headers={"Host": "example.org"}).status_code == 400


def test_full_queue_and_the_end(exported: Path):
    """Refused beyond the queue; what was accepted is answered before a process ends."""
    server = start(exported, "--max-queue", "1", "--batch-size", "1")
    url = f"{server.url}/v1/completions"
    ask = {"prompt": "a", "max_tokens": 31, "temperature": 0}

    async def flood() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=120) as client:
            return await asyncio.gather(*(client.post(url, json=ask) for _ in range(24)))

    answers = asyncio.run(flood())
    want = expected(TOKENIZER.encode("a").tolist(), 31, temperature=0.0)
    for each in answers:
        if each.status_code == 200:
            assert each.json()["choices"][0]["text"] == want
        else:
            assert (each.status_code, each.headers["retry-after"]) == (429, "1")
            assert each.json()["error"]["code"] == "queue_full"
    assert {each.status_code for each in answers} == {200, 429}
    with httpx.stream("POST", url, json={**ask, "stream": True}, timeout=120) as answer:
        lines = answer.iter_lines()
        events = [next(lines)]
        server.process.send_signal(signal.SIGINT)
        events += [line for line in lines if line]
    assert events.pop() == "data: [DONE]"
    parts = [json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events]
    assert "".join(parts) == want
    _, err = server.process.communicate(timeout=60)
    assert (server.process.returncode, err) == (0, "")


def test_gone_clients_are_not_served(server: Server):
    ask = {"prompt": "a", "max_tokens": 31, "num_steps": 8, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=ask) as answer:
        next(answer.iter_lines())
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json={**ask, "stream": False}, timeout=0.001)
    deadline = time.monotonic() + 30
    while httpx.get(f"{server.url}/health").json()["running"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_page(server: Server, chromium: Browser):
    chromium.open(f"{server.url}/")
    assert chromium.value("document.querySelector('h1').textContent") == "exported"
    assert chromium.value("[depth.min, depth.max, depth.value].join()") == "1,8,2"
    prompt = TOKENIZER.decode(prompt_of(5))
    chromium.value(
        f"at('prompt').value = {json.dumps(prompt)}; at('tokens').value = 12;"
        "at('temperature').value = 0; depth.value = 5; depth.dispatchEvent(new Event('input'))"
    )
    assert chromium.value("steps.textContent") == "5"
    chromium.value("go.click()")
    deadline = time.monotonic() + 30
    while chromium.value("state.textContent") != "done":
        assert time.monotonic() < deadline, chromium.value("state.textContent")
        time.sleep(0.05)
    want = expected(prompt_of(5), 12, num_steps=5, temperature=0.0)
    assert chromium.value("at('text').textContent") == prompt + want
    # It came in parts.
    assert chromium.count("#text .new") > 1
    chromium.value("at('prompt').value = 'Z'; go.click()")
    while "alphabet" not in chromium.value("state.textContent"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    refused = "Failed to load resource: the server responded with a status of 400 (Bad Request)"
    assert set(chromium.errors) <= {refused}
    assert {url.split("/", 3)[2] for url in chromium.requests if url.startswith("http")} == {
        server.url.split("/")[2]
    }


def test_stops_that_begin_in_vain():
    """Text that turns out not to be a stop is sent after all, with its tokens."""
    asked = dataclasses.replace(
        read({"prompt": "a", "max_tokens": 6, "logprobs": 0, "stop": "bcd"}, TOKENIZER, LIMITS),
        echo=False,
    )
    choice = Choice(TOKENIZER, asked, 0)
    pieces = []
    for character in "abceba":
        scores = Scores(np.zeros(1), np.zeros((1, 0), int), np.zeros((1, 0)))
        pieces.append(choice.push(TOKENIZER.encode(character).tolist(), scores))
    assert [piece.text for piece in pieces] == ["a", "", "", "bce", "", "ba"]
    assert [len((piece.logprobs or {})["tokens"]) for piece in pieces] == [1, 0, 0, 3, 0, 2]
    assert pieces[-1].finish_reason == "length"
    with pytest.raises(Refusal):
        read({"prompt": "a", "stop": ["a"] * 5}, TOKENIZER, LIMITS)


def test_mistakes_are_one_line(exported: Path, capsys: pytest.CaptureFixture[str]):
    with_port = ["serve", str(exported), "--port"]
    for wrong in ([*with_port, "70000"], [*with_port, "0", "--max-queue", "0"]):
        assert main(wrong) == 2
        assert capsys.readouterr().err.count("\n") == 1
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main([*with_port, str(taken.getsockname()[1])]) == 2
    err = capsys.readouterr().err
    assert "cannot listen on 127.0.0.1" in err
    assert err.count("\n") == 1
