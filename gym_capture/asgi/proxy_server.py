"""The proxy's HTTP server: uvicorn on a socket of its own, and an end that leaves no claim open.

Told to stop, it accepts nothing more and lets running requests finish for `drain_s`. What still runs then is cancelled,
which the capture around it commits as `cancelled`. Last the capture client is closed: all it was handed is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn

from gym_capture.asgi.messages import App, Message, Receive, Scope, Send
from gym_capture.asgi.middleware import CaptureMiddleware
from gym_capture.asgi.proxy_app import ProxyApp
from gym_capture.asgi.proxy_errors import LocalAnswer, UpstreamBroken, error_body
from gym_capture.config import ProxyConfig
from gym_capture.errors import ProxyUnavailable

if TYPE_CHECKING:
    from gym_capture.client.client import CaptureClient

logger = logging.getLogger(__name__)

T = TypeVar("T")

BACKLOG = 4096
KEEP_ALIVE_S = 75
"""Longer than the pools of the usual clients keep a connection that idles, so that it is they who close it."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

UNWIND_S = 5.0
"""How long cancelled requests may take to end."""

FLUSH_S = 30.0
FLUSH_AT_ONCE_S = 5.0
"""How long what was captured may take to reach the disk at the end; the shorter one after a second stop."""


class _CutAnswers(logging.Filter):
    """Answers that break off are told here, with their cause; uvicorn's line about each adds nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line of uvicorn's is to be seen."""
        return not str(record.msg).startswith("ASGI callable returned without completing response")


_cut_answers = _CutAnswers()


class ProxyServer:
    """One listening socket and the requests that came in by it.

    Args:
        app: what answers them.
        drain_s: how long running requests may go on once a stop is asked for, seconds.
    """

    def __init__(self, app: App, drain_s: float) -> None:
        self._requests = _Requests(app)
        self._drain_s = drain_s
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._asked = 0
        self.asked_again = asyncio.Event()
        """Set by a second stop."""
        self.address: tuple[str, int] = ("", 0)

    async def start(self, host: str, port: int) -> None:
        """Listen. `address` tells host and port then, also of port 0.

        Raises:
            ProxyUnavailable: that address cannot be listened on.
        """
        listener = listen(host, port)
        self.address = (host, listener.getsockname()[1])
        config = uvicorn.Config(
            self._requests,
            http="httptools",
            loop="none",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="warning",
            server_header=False,  # the upstream's own Server and Date pass, and none is added where it sends none
            date_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(self._drain_s + UNWIND_S) + 1,
        )
        logging.getLogger("uvicorn.error").addFilter(_cut_answers)
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))

    def stop(self) -> None:
        """Accept nothing more; what runs has `drain_s`. Asked for again: it has none."""
        self._asked += 1
        if self._asked > 1:
            self.asked_again.set()
        if self._server is None:
            return
        self._server.should_exit = True
        if self._asked == 1:
            running = len(self._requests.tasks)
            if running:
                logger.info("%d requests that run have %g s to finish", running, self._drain_s)
            asyncio.get_running_loop().call_later(self._drain_s, self._requests.cancel)
        else:
            self._server.force_exit = True
            self._requests.cancel()

    async def ended(self) -> None:
        """Return once a stop was asked for and no request runs any more."""
        if self._task is not None:
            await asyncio.shield(self._task)
        self._requests.cancel()
        if self._requests.tasks:
            await asyncio.wait(self._requests.tasks, timeout=UNWIND_S)


class _Server(uvicorn.Server):
    """Leaves the process's signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Requests:
    """The outermost application: knows what runs, and turns broken answers into broken connections."""

    def __init__(self, app: App) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._app = app
        self._cancelling = False

    def cancel(self) -> None:
        """End every request that runs, and each that may still come."""
        self._cancelling = True
        for task in self.tasks:
            task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is served outside any task")
        self.tasks.add(task)
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            if self._cancelling:
                await _stopping(scope, send)
            else:
                await self._app(scope, receive, sending)
        except UpstreamBroken as error:
            # Returning with the answer incomplete makes the server close the connection: no client takes it as whole.
            logger.warning("%s %s: %s", scope["method"], scope["path"], error)
        except asyncio.CancelledError:
            if not self._cancelling:
                raise
            task.uncancel()
            if not begun:
                await _stopping(scope, send)
        finally:
            self.tasks.discard(task)


async def _stopping(scope: Scope, send: Send) -> None:
    body = error_body(scope["path"], LocalAnswer(503, "proxy_stopping", "this capturing proxy is stopping"))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def allow_open_files() -> None:
    """Let this process have as many connections as the system permits it: each stream takes two.

    The usual soft limit, 1,024, would stop the proxy from accepting at 500 streams.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # where no limit is permitted that the kernel cannot count to
        logger.info("the limit of %d open files stays (%s): about half as many streams at once", soft, error)


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to an address; a port whose last connections have only just closed is no obstacle.

    Raises:
        ProxyUnavailable: it is taken, or not an address of this machine.
    """
    listener: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except (OSError, UnicodeError) as error:
        if listener is not None:
            listener.close()
        raise ProxyUnavailable(
            f"the proxy cannot listen on {host} port {port} ({error}). Nothing was started; give another proxy.port "
            "(0: any free one) or proxy.host.",
            host=host,
            port=port,
        ) from error
    return listener


class CapturingProxy:
    """A proxy with the capture around it: what `serve` runs, and a Ray actor too.

    Args:
        settings: the `proxy` section; its `upstream` is set.
        capture: a client of the run's owner; closed with the proxy.

    Raises:
        ConfigError: the upstream is none that can be forwarded to.
    """

    def __init__(self, settings: ProxyConfig, capture: CaptureClient) -> None:
        self._forward = ProxyApp(settings.upstream or "", settings)
        self._capture = capture
        app = CaptureMiddleware(
            self._forward,
            capture,
            model_ref=settings.model_ref,
            non_generating=settings.non_generating,
            keep_raw_streams=settings.keep_raw_streams,
        )
        self._server = ProxyServer(app, settings.drain_s)

    async def start(self, host: str, port: int, *, reached_at: str | None = None) -> str:
        """Listen.

        Args:
            host: address to listen on.
            port: 0: any free one.
            reached_at: the address that clients are told; None: the same.

        Returns:
            The URL that clients are told, `http://host:port`.

        Raises:
            ProxyUnavailable: that address cannot be listened on.
        """
        allow_open_files()
        await self._server.start(host, port)
        told = reached_at or host
        return f"http://{f'[{told}]' if ':' in told else told}:{self._server.address[1]}"

    def stop(self) -> None:
        """As `ProxyServer.stop`."""
        self._server.stop()

    async def ended(self) -> bool:
        """Return once it has stopped and all it captured is on disk; False when something could not be written."""
        try:
            await self._server.ended()
        finally:
            await self._forward.close()
            whole = await self._flush()
        if not whole:
            logger.error(
                "the capture owner was away when the proxy ended: some calls are not on disk. Their rollouts will be "
                "incomplete, and say so"
            )
        return whole

    async def _flush(self) -> bool:
        """Whether all that was captured reached the disk; a second stop leaves it less time, also once it has begun."""
        closing = asyncio.ensure_future(self._capture.close(FLUSH_S))
        hurried = asyncio.ensure_future(self._server.asked_again.wait())
        try:
            done, _ = await asyncio.wait({closing, hurried}, return_when=asyncio.FIRST_COMPLETED)
            if closing not in done:
                await asyncio.wait({closing}, timeout=FLUSH_AT_ONCE_S)
            if not closing.done():
                closing.cancel()
                await asyncio.wait({closing})
            return not closing.cancelled() and closing.result()
        finally:
            hurried.cancel()


async def serve(
    settings: ProxyConfig,
    capture: CaptureClient,
    host: str,
    *,
    reached_at: str | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> bool:
    """Run a capturing proxy until SIGINT or SIGTERM, and drain it. Call it in a process's main thread.

    Args:
        settings: the `proxy` section; its `upstream` is set, its `host` is not looked at.
        capture: a client of the run's owner; closed at the end.
        host: address to listen on.
        reached_at: the address that clients are told; None: the same.
        on_ready: told the proxy's URL once it listens.

    Returns:
        Whether all that it captured is on disk.

    Raises:
        ConfigError, ProxyUnavailable: it could not start.
    """
    proxy = CapturingProxy(settings, capture)
    loop = asyncio.get_running_loop()
    url = await proxy.start(host, settings.port, reached_at=reached_at)
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, proxy.stop)
    try:
        if on_ready is not None:
            on_ready(url)
        return await proxy.ended()
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on uvloop, or on asyncio's own loop where that is not installed."""
    try:
        import uvloop
    except ImportError:
        factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)
