"""What the transports of both HTTP libraries do: whose call a request is, and what passes of its response."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from gym_capture.client.blocking_mode import run_blocking
from gym_capture.client.rollout import BlockingRollout, RolloutHandle
from gym_capture.client.trouble_log import TroubleLog
from gym_capture.integrations.generating_paths import Unobserved, dialect_of
from gym_capture.model.clock import SystemClock
from gym_capture.model.error_category import error_category_for_exception
from gym_capture.recording.captured_call import UNOBSERVED, CapturedCall
from gym_capture.recording.recorder import RecordingPolicy

AnyRollout = RolloutHandle | BlockingRollout
Rollouts = AnyRollout | Callable[[], AnyRollout | None]
"""A rollout, or what gives the one that a request belongs to (None: the request is not captured)."""

logger = logging.getLogger("gym_capture.integrations")

_STREAM = "text/event-stream"
_NO_SUCH_CALL = (404, 405)
_NEVER_SENT = {"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol"}

_log = TroubleLog(SystemClock())


class Observer:
    """Makes the call for each request that is one.

    Args:
        rollouts: whose calls these are.
        model_ref: what the calls name as their model server, `{type, name}`.
        non_generating: further requests that call no model.
    """

    def __init__(
        self, rollouts: Rollouts, model_ref: Mapping[str, str] | None, non_generating: Sequence[str] = ()
    ) -> None:
        self._rollouts = rollouts
        self._model_ref = model_ref
        self._unobserved = Unobserved(non_generating)

    def call_of(self, request: Any) -> CapturedCall | None:
        """The call that a request of either library is, not begun yet; None for one that calls no model."""
        method, path = request.method, request.url.path
        dialect = dialect_of(method, path)
        if dialect is None and not self._unobserved.matches(method, path):
            return None
        try:
            rollout = self._rollouts() if callable(self._rollouts) else self._rollouts
            if rollout is None:
                return None
            handle = rollout.handle if isinstance(rollout, BlockingRollout) else rollout
            policy = RecordingPolicy(handle.max_exchange_bytes)
            return CapturedCall(handle, dialect, policy, request.headers.raw, model_ref=self._model_ref)
        except Exception as error:
            _log.warn("uncaptured", "a request passes UNCAPTURED: its rollout cannot be told: %r", error)
            logger.debug("the fault", exc_info=error)
            return None


class AsyncObservedBody:
    """A response's body on its way to the caller. What completes it waits until the exchange is on disk.

    Args:
        body: the transport's own stream.
        call: the call, whose response has started.
        streamed: is it a stream of events.
    """

    def __init__(self, body: Any, call: CapturedCall, streamed: bool) -> None:
        self._body = body
        self._call = call
        self._streamed = streamed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        call = self._call
        try:
            async for data in self._body:
                hold = call.response_body(data)
                if hold is None:
                    yield data
                    continue
                if hold:
                    yield data[:hold]
                await call.commit()
                yield data[hold:]
            call.response_ended()
            await call.commit()
        except Exception as error:
            await call.commit(broken_off(error, self._streamed))
            raise
        except BaseException:
            call.detach("cancelled")
            raise

    async def aclose(self) -> None:
        """The caller wants no more of it."""
        self._call.detach("cancelled")
        await self._body.aclose()


class ObservedBody:
    """The same for a client without a loop."""

    def __init__(self, body: Any, call: CapturedCall, streamed: bool) -> None:
        self._body = body
        self._call = call
        self._streamed = streamed

    def __iter__(self) -> Iterator[bytes]:
        call = self._call
        try:
            for data in self._body:
                hold = call.response_body(data)
                if hold is None:
                    yield data
                    continue
                if hold:
                    yield data[:hold]
                run_blocking(call.commit())
                yield data[hold:]
            call.response_ended()
            run_blocking(call.commit())
        except Exception as error:
            run_blocking(call.commit(broken_off(error, self._streamed)))
            raise
        except BaseException:
            call.detach("cancelled")
            raise

    def close(self) -> None:
        """The caller wants no more of it."""
        self._call.detach("cancelled")
        self._body.close()


async def send_async(call: CapturedCall, request: Any, send: Any) -> Any:
    """Claim a request's call, then send it. Afterwards it is closed where nothing of its response is recorded.

    Args:
        send: what sends it, and returns the response's head.
    """
    data = await request.aread() if call.recorded else b""
    await call.begin()
    call.request_body(data)
    try:
        response = await send(request)
    except Exception as error:
        if call.recorded:
            await call.commit(not_answered(error))
        else:
            call.abandon(unobserved_after(error))
        raise
    except BaseException:
        _leave_at_once(call)
        raise
    _answered(call, response)
    return response


def send_blocking(call: CapturedCall, request: Any, send: Any) -> Any:
    """`send_async` for a client without a loop."""
    data = request.read() if call.recorded else b""
    run_blocking(call.begin())
    call.request_body(data)
    try:
        response = send(request)
    except Exception as error:
        if call.recorded:
            run_blocking(call.commit(not_answered(error)))
        else:
            call.abandon(unobserved_after(error))
        raise
    except BaseException:
        _leave_at_once(call)
        raise
    _answered(call, response)
    return response


def _leave_at_once(call: CapturedCall) -> None:
    if call.recorded:
        call.detach("cancelled")
    else:
        call.abandon(UNOBSERVED)


def _answered(call: CapturedCall, response: Any) -> None:
    """A response's head has come. What it says may be that no call was made, or not this one."""
    status = response.status_code
    if 300 <= status < 400 and "location" in response.headers:
        call.abandon("")  # whoever follows it asks again, which is a request of its own
    elif call.recorded:
        call.response_started(status, response.headers.raw)
    else:
        call.abandon("" if status in _NO_SUCH_CALL else UNOBSERVED)


def unobserved_after(error: Exception) -> str:
    """What an unrecorded request that got no response leaves on its rollout: nothing where it never went out."""
    return "" if any(kind.__name__ in _NEVER_SENT for kind in type(error).__mro__) else UNOBSERVED


def is_streamed(response: Any) -> bool:
    """Whether a response is a stream of events."""
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower() == _STREAM


def not_answered(error: Exception) -> str:
    """The category of a call that got no response."""
    named = {kind.__name__ for kind in type(error).__mro__}
    if "TimeoutException" not in named and "TransportError" in named:
        return "connection"
    return error_category_for_exception(error)


def broken_off(error: Exception, streamed: bool) -> str:
    """The category of a call whose response ended early."""
    category = not_answered(error)
    return "stream_truncated" if streamed and category == "connection" else category
