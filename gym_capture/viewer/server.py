"""The viewer's HTTP server: uvicorn on a socket of the loopback interface, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import uvicorn

from gym_capture.errors import ViewerUnavailable
from gym_capture.service.executor import ThreadExecutor
from gym_capture.viewer.app import viewer_app

HOST = "127.0.0.1"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
LAST_ANSWERS_S = 2
"""How long answers that are under way may take at the end, seconds."""


class _Server(uvicorn.Server):
    """Leaves the process's signals to `serve`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(place: str | Path, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. Call it in a process's main thread.

    Args:
        place: the capture directory, absolute, or the URI of a sealed run.
        port: 0: any free one.
        on_ready: told the address, token included, once the viewer listens.

    Raises:
        ViewerUnavailable: the port is taken.
    """
    try:
        listener = socket.create_server((HOST, port))
    except (OSError, OverflowError) as error:
        raise ViewerUnavailable(
            f"the viewer cannot listen on {HOST}:{port} ({error}). Nothing was started; give another --port, or 0 "
            "for any free one."
        ) from error
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(24)
    loop = asyncio.get_running_loop()
    executor = ThreadExecutor("gym-capture-viewer")
    with closing(executor), listener:
        server = _Server(
            uvicorn.Config(
                viewer_app(place, token, hosts_of(port), executor),
                ws="none",
                lifespan="off",
                access_log=False,  # its lines would have the token in them
                log_config=None,
                log_level="warning",
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=LAST_ANSWERS_S,
            )
        )

        def stop() -> None:
            server.should_exit = True

        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, stop)
        try:
            on_ready(f"http://{HOST}:{port}/{token}/")  # the socket listens already: a request waits for the loop
            await server.serve(sockets=[listener])
        finally:
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)


def hosts_of(port: int) -> list[str]:
    """What a browser on this machine says as Host."""
    bare = [HOST, "localhost"]
    return [f"{name}:{port}" for name in bare] + (bare if port == 80 else [])


__all__ = ["HOST", "hosts_of", "serve"]
