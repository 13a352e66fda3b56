"""An ASGI app served over HTTP: in this thread until it is told to stop, or in one of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gym_capture.errors import MissingExtra
from gym_capture.extras import how_to_install

try:
    import uvicorn
except ImportError as error:
    raise MissingExtra(f"uvicorn is not installed, and serves the example; {how_to_install('proxy')}") from error

_STOPS_WITHIN_S = 10.0
_BACKLOG = 2048


def listening_socket(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A socket that takes connections from now on; they wait until somebody serves them."""
    # asyncio turns Nagle's algorithm off (40 ms an answer) only for sockets that name their protocol.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def run_server(app: Any, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM."""
    _server(app).run(sockets=[listener])


@contextmanager
def served(app: Any, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve the app in a thread; the block gets its URL. Requests that are under way at the end are cut off."""
    server = _server(app)
    with listening_socket(host, port) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="served", daemon=True)
        thread.start()
        try:
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            thread.join(_STOPS_WITHIN_S)


def serve_from_now_on(app: Any) -> str:
    """Serve the app in a thread for as long as this process lives; returns its URL."""
    listener = listening_socket()
    threading.Thread(target=_server(app).run, kwargs={"sockets": [listener]}, name="served", daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def _server(app: Any) -> uvicorn.Server:
    # A response that is cut on purpose is an error to uvicorn, which would fill the terminal.
    config = uvicorn.Config(
        app,
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="critical",
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)
