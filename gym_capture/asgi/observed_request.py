"""One request of a rollout, observed while an app answers it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from gym_capture.asgi.messages import App, Message, Receive, Scope, Send
from gym_capture.asgi.redirect import Redirects
from gym_capture.model.error_category import error_category_for_exception
from gym_capture.recording.captured_call import UNOBSERVED, CapturedCall
from gym_capture.recording.recorder import CATEGORIES

logger = logging.getLogger("gym_capture.asgi")

_NO_SUCH_CALL = (404, 405)

_LEFT = {"ClientDisconnect", "ClientDisconnected", "BrokenResourceError", "ClosedResourceError"}
"""How servers and frameworks name a client that left where it is no OSError: Starlette's, uvicorn's, AnyIO's."""


class ObservedRequest:
    """Stands between a server and an app, for one request.

    Args:
        call: what records it; None: nothing does (a request that calls no model), and only redirects are seen to.
        recorded: whether the call is one that can be committed (of a known dialect).
        redirects: where the app may send its caller.
        receive, send: the server's.
    """

    def __init__(
        self, call: CapturedCall | None, recorded: bool, redirects: Redirects, receive: Receive, send: Send
    ) -> None:
        self._call = call
        self._recorded = recorded
        self._redirects = redirects
        self._receive_next = receive
        self._send_on = send
        self._status = 0
        self._redirected = False
        self._started = False
        self._ended = False
        self._gone = False

    async def run(self, app: App, scope: Scope) -> None:
        """Claim, let the app answer, and see to it that the claim is closed however that ends."""
        call = self._call
        if call is None:
            await app(scope, self._receive_next, self.send)
            return
        await call.begin()
        try:
            await app(scope, self.receive, self.send)
        except BaseException as error:
            self._let_go(call, "cancelled" if self._gone else cause_of(error))
            raise
        # Nothing was raised, and still the response may have no end: a client that left, or an app that forgot.
        unended = "stream_truncated" if self._started else "incomplete"
        self._let_go(call, "cancelled" if self._gone else unended)

    def _let_go(self, call: CapturedCall, cause: str) -> None:
        if self._recorded:
            call.detach(cause)
        else:
            call.abandon(UNOBSERVED)

    # -- the server's side --------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """The next message of the server, seen as the app takes it."""
        message = await self._receive_next()
        kind = message["type"]
        if kind == "http.request":
            if self._call is not None:
                self._call.request_body(bytes(message.get("body", b"")))
        elif kind == "http.disconnect":
            self._gone = True
        return message

    async def send(self, message: Message) -> None:
        """Pass on what the app says; its last word waits until the exchange is on disk."""
        kind = message["type"]
        if kind == "http.response.start" and not self._started:
            await self._forward(self._begun(message))
        elif kind == "http.response.body" and self._started and not self._ended and self._call is not None:
            hold, data = self._seen(self._call, message)
            if hold is None:
                await self._forward(message)
            else:
                await self._last(self._call, message, data, hold)
        else:
            await self._forward(message)

    async def _forward(self, message: Message) -> None:
        try:
            await self._send_on(message)
        except Exception as error:
            self._gone = self._gone or _says_that_the_client_left(error)
            raise

    # -- the response -------------------------------------------------------------------------------------------

    def _begun(self, message: Message) -> Message:
        self._started = True
        try:
            status = self._status = message["status"]
            headers = [(bytes(name), bytes(value)) for name, value in message.get("headers") or ()]
            if 300 <= status < 400:
                message = self._redirect(message, headers)
        except Exception as error:  # noqa: BLE001 - what is wrong with a head is the server's to say
            logger.debug("a response's head is passed on as it is: %r", error)
            return message
        if self._call is not None:
            self._call.response_started(status, headers)
        return message

    def _redirect(self, message: Message, headers: Sequence[tuple[bytes, bytes]]) -> Message:
        changed = False
        kept: list[tuple[bytes, bytes]] = []
        for name, value in headers:
            if name.lower() == b"location":
                location = value.decode("latin-1")
                followed = self._redirects.follow(location)
                self._redirected = followed is not None
                if followed is not None and followed != location:
                    changed, value = True, followed.encode("latin-1")
            kept.append((name, value))
        return {**message, "headers": kept} if changed else message

    def _seen(self, call: CapturedCall, message: Message) -> tuple[int | None, bytes]:
        """Take a piece of the body: from where on it waits for the commit (None: nothing of it does), and its bytes."""
        data = message.get("body", b"")
        if not isinstance(data, bytes):
            data = bytes(data)  # its owner may change a bytearray afterwards
        hold = call.response_body(data)
        if not message.get("more_body", False):
            self._ended = True
            call.response_ended()
            hold = hold or 0
        return (None if call.closed else hold), data

    async def _last(self, call: CapturedCall, message: Message, data: bytes, hold: int) -> None:
        if hold:
            # What comes before the terminal event does not wait with it.
            await self._forward({**message, "body": data[:hold], "more_body": True})
            message = {**message, "body": data[hold:]}
        await self._settle(call)
        await self._forward(message)

    async def _settle(self, call: CapturedCall) -> None:
        if self._redirected:
            # The caller asks again, under the prefix: this request made no call.
            await call.release("")
        elif self._recorded and not 300 <= self._status < 400:
            await call.commit()
        else:
            await call.release("" if self._status in _NO_SUCH_CALL else UNOBSERVED)


def _says_that_the_client_left(error: Exception) -> bool:
    """Whether a server, or a middleware around this one, cannot send; what else it raises is the app's error."""
    return isinstance(error, OSError) or any(kind.__name__ in _LEFT for kind in type(error).__mro__)


def cause_of(error: BaseException) -> str:
    """The category of a call whose app raised; an error may name its own."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "cancelled"
    told = getattr(error, "error_category", None)
    return told if isinstance(told, str) and told in CATEGORIES else error_category_for_exception(error)
