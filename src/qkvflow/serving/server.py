"""The process: a listening socket, and an end in good order.

SIGINT and SIGTERM close the socket; what was accepted is answered, for at most `GRACE` seconds. A
second signal does not wait.
"""

import asyncio
import contextlib
import signal
import socket

import uvicorn
from starlette.applications import Starlette

from qkvflow.errors import UserError

GRACE = 30


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, or the reason why there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        reason = (error.strerror or str(error)).lower()
        raise UserError(
            f"cannot listen on {host} port {port}: {reason}; choose another --host or --port"
        ) from None
    return made


class _Server(uvicorn.Server):
    def capture_signals(self) -> contextlib.AbstractContextManager[None]:
        # uvicorn would raise the signal again at the end, and the process would not exit with 0.
        return contextlib.nullcontext()


def serve(app: Starlette, socket: socket.socket, ready: str) -> None:
    """Answer until a signal comes; prints `ready` when requests are accepted."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="on",
        backlog=2048,
        timeout_graceful_shutdown=GRACE,
    )

    async def main() -> None:
        server, loop = _Server(config), asyncio.get_running_loop()

        def end() -> None:
            server.force_exit = server.should_exit
            server.should_exit = True

        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, end)
        # The kernel queues what comes before the first accept.
        socket.listen(config.backlog)
        print(ready, flush=True)
        await server.serve([socket])

    asyncio.run(main())
