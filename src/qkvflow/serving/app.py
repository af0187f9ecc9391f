"""The web application: `/v1/models`, `/v1/completions`, `/health` and a page at `/`."""

import asyncio
import base64
import contextlib
import hashlib
import json
import time
import uuid
from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from qkvflow.data import Tokenizer
from qkvflow.errors import UserError, one_line, out_of_memory
from qkvflow.serving.engine import Engine, Scores, Sequence
from qkvflow.serving.protocol import Asked, Limits, Refusal, read
from qkvflow.serving.text import Choice, Piece

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Application:
    """One model and what it answers."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, limits: Limits, max_body: int):
        self.engine, self.tokenizer, self.limits = engine, tokenizer, limits
        self.max_body, self.created = max_body, int(time.time())
        self.page, self.policy = _page(limits)

    def asgi(self, host: str) -> Starlette:
        # A page elsewhere that names this machine as its own host gets no answer.
        hosts = ["127.0.0.1", "localhost", "[::1]"] if host in LOOPBACK else ["*"]
        return Starlette(
            routes=[
                Route("/", self.index),
                Route("/health", self.health),
                Route("/v1/models", self.models),
                Route("/v1/models/{name:path}", self.model),
                Route("/v1/completions", self.completions, methods=["POST"]),
            ],
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)],
            exception_handlers={Refusal: _refused, HTTPException: _http, Exception: _failed},
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.engine.start()
        yield
        await asyncio.to_thread(self.engine.stop)

    async def index(self, _: Request) -> Response:
        return HTMLResponse(self.page, headers={"Content-Security-Policy": self.policy})

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", **self.engine.load()})

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._about()]})

    async def model(self, request: Request) -> Response:
        if (name := request.path_params["name"]) != self.limits.model:
            message = f"the model {one_line(name, 80)!r} is not served; use {self.limits.model!r}"
            raise Refusal(404, message, "model", "model_not_found")
        return JSONResponse(self._about())

    def _about(self) -> dict[str, Any]:
        limits = self.limits
        return {
            "id": limits.model,
            "object": "model",
            "created": self.created,
            "owned_by": "qkvflow",
            "context": limits.context,
            "num_steps": limits.num_steps,
            "max_steps": limits.max_steps,
        }

    async def completions(self, request: Request) -> Response:
        asked = read(await self._body(request), self.tokenizer, self.limits)
        answer = Answer(self, asked)
        if not self.engine.submit(answer.sequences):
            raise Refusal(429, "too many requests wait already; try again", None, "queue_full")
        if asked.stream:
            return StreamingResponse(answer.events(), media_type="text/event-stream")
        whole = asyncio.ensure_future(answer.whole())
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait((whole, gone), return_when=asyncio.FIRST_COMPLETED)
            return JSONResponse(whole.result()) if whole.done() else Response(status_code=499)
        finally:
            answer.leave()
            whole.cancel()
            gone.cancel()

    async def _body(self, request: Request) -> Any:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refusal(415, "send JSON, with Content-Type: application/json")
        data = b""
        async for part in request.stream():
            data += part
            if len(data) > self.max_body:
                raise Refusal(413, f"the body is larger than {self.max_body} bytes; send less")
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise Refusal(400, "the body is not JSON") from None


class Answer:
    """One request on its way through the engine."""

    def __init__(self, app: Application, asked: Asked):
        self.asked = asked
        self.choices = [Choice(app.tokenizer, asked, i) for i in range(len(asked.prompts))]
        self.head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": app.limits.model,
        }
        loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[tuple[int, list[int], Scores | None, Exception | None]]
        self._arrived = asyncio.Queue()

        def deliver(sequence: Sequence, *what: Any) -> None:
            with contextlib.suppress(RuntimeError):  # The loop has ended: nobody listens.
                loop.call_soon_threadsafe(self._arrived.put_nowait, (places[id(sequence)], *what))

        self.sequences = [
            Sequence(
                prompt,
                asked.max_tokens,
                deliver,
                asked.num_steps,
                asked.temperature,
                asked.top_p,
                asked.seed + index,
                scored=asked.logprobs is not None,
                echo=asked.echo,
                streamed=asked.stream,
            )
            for index, prompt in enumerate(asked.prompts)
        ]
        places = {id(sequence): index for index, sequence in enumerate(self.sequences)}

    def leave(self) -> None:
        for sequence in self.sequences:
            sequence.done = True

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        left = len(self.choices)
        while left:
            index, tokens, scores, error = await self._arrived.get()
            if self.choices[index].finish_reason is not None:
                continue
            if error is not None:
                known = isinstance(error, UserError) or out_of_memory(error) is not None
                message = str(out_of_memory(error) or error) if known else "the model failed"
                raise Refusal(500, one_line(message), None, "generation_failed") from error
            piece = self.choices[index].push(tokens, scores)
            if piece.finish_reason is not None:
                self.sequences[index].done = True
                left -= 1
            yield index, piece

    async def whole(self) -> dict[str, Any]:
        parts: list[list[Piece]] = [[] for _ in self.choices]
        async for index, piece in self.pieces():
            parts[index].append(piece)
        choices = [_choice(index, _joined(each)) for index, each in enumerate(parts)]
        return {**self.head, "choices": choices, "usage": self.usage()}

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events."""
        try:
            async for index, piece in self.pieces():
                if piece.text or piece.finish_reason or (piece.logprobs or {}).get("tokens"):
                    yield _event({**self.head, "choices": [_choice(index, piece)]})
            if self.asked.include_usage:
                yield _event({**self.head, "choices": [], "usage": self.usage()})
            yield "data: [DONE]\n\n"
        except Refusal as refusal:
            yield _event(refusal.body())
        finally:
            self.leave()

    def usage(self) -> dict[str, int]:
        repeats = len(self.choices) // self.asked.num_prompts
        given = sum(len(each) for each in self.asked.prompts[::repeats])
        made = sum(each.tokens for each in self.choices)
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        return dict(zip(names, (given, made, given + made), strict=True))


def _choice(index: int, piece: Piece) -> dict[str, Any]:
    return {
        "text": piece.text,
        "index": index,
        "logprobs": piece.logprobs,
        "finish_reason": piece.finish_reason,
    }


def _joined(pieces: list[Piece]) -> Piece:
    listed = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    names = listed[0] if listed else {}
    logprobs = {name: [entry for each in listed for entry in each[name]] for name in names}
    text = "".join(piece.text for piece in pieces)
    return Piece(text, logprobs or None, pieces[-1].finish_reason)


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    headers = {"Retry-After": "1"} if error.status == 429 else None
    return JSONResponse(error.body(), error.status, headers=headers)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = {404: "there is nothing at", 405: "this method is not for"}.get(error.status_code)
    path = one_line(request.url.path, 80)
    message = f"{said} {path}; POST /v1/completions" if said else error.detail
    return JSONResponse(Refusal(error.status_code, message).body(), error.status_code)


async def _failed(_: Request, error: Exception) -> Response:
    return JSONResponse(Refusal(500, "the server failed").body(), 500)


def _page(limits: Limits) -> tuple[str, str]:
    """The page, and the policy that allows its own script and style alone."""
    text = files("qkvflow.serving").joinpath("page.html").read_text("utf-8")
    about = json.dumps(
        {"model": limits.model, "num_steps": limits.num_steps, "max_steps": limits.max_steps}
    )
    text = text.replace("{{about}}", about.replace("<", "\\u003c"))
    own = [text.split(f"<{tag}>")[1].split(f"</{tag}>")[0] for tag in ("script", "style")]
    script, style = (base64.b64encode(hashlib.sha256(o.encode()).digest()).decode() for o in own)
    policy = (
        f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    return text, policy
