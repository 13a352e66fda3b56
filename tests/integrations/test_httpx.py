"""The transports of both HTTP libraries, without an SDK: bytes pass unchanged, ends are recorded as what they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import httpx2
import pytest

from gym_capture.client.rollout import RolloutHandle
from gym_capture.client.trouble_log import TroubleLog
from gym_capture.integrations import httpx as over_httpx
from gym_capture.integrations import httpx2 as over_httpx2
from gym_capture.integrations import observed_exchange
from gym_capture.integrations.generating_paths import dialect_of
from gym_capture.model.clock import SystemClock
from gym_capture.storage.store import CaptureStore
from tests.integrations.served_model import ServedModel

LIBRARIES: list[Any] = [pytest.param((httpx, over_httpx), id="httpx"), pytest.param((httpx2, over_httpx2), id="httpx2")]
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "hi"}],
        "stream_options": {"include_usage": True},
    },
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100},
}
COMPLETION = {"id": "c1", "object": "chat.completion", "model": "m", "choices": []}
ASKED = {"messages": [{"role": "user", "content": "hi"}]}
CHAT = "http://model/v1/chat/completions"


@pytest.mark.parametrize(
    ("method", "path", "dialect"),
    [
        ("POST", "/v1/chat/completions", "chat"),
        ("post", "/api/v1/chat/completions/", "chat"),
        ("POST", "/openai/deployments/d/chat/completions", "chat"),
        ("POST", "/v1/responses", "responses"),
        ("POST", "/any/prefix/v1/messages", "messages"),
        ("GET", "/v1/responses", None),
        ("POST", "/v1/messages/count_tokens", None),
        ("POST", "/v1/responses/r1/cancel", None),
        ("POST", "/v1/embeddings", None),
        ("POST", "/responses", "responses"),
        ("POST", "/api/responses", "responses"),
        ("POST", "/v1/threads/t/messages", None),
    ],
)
def test_a_model_call_is_known_by_method_and_path(method: str, path: str, dialect: str | None) -> None:
    assert dialect_of(method, path) == dialect


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", list(REQUESTS))
@pytest.mark.parametrize("library", LIBRARIES)
async def test_the_bytes_are_those_that_the_server_sent(
    gzip_model: ServedModel, library: Any, path: str, stream: bool
) -> None:
    http, ours = library
    rollout = gzip_model.rollout()
    sent = {"url": gzip_model.bare_url + path, "json": {"model": "m", **REQUESTS[path], "stream": stream}}

    async def raw(client: Any) -> tuple[Any, bytes]:
        async with client, client.stream("POST", **sent) as response:
            kept = {name: value for name, value in response.headers.multi_items() if name != "date"}
            return (response.status_code, kept), b"".join([piece async for piece in response.aiter_raw()])

    plain = await raw(http.AsyncClient(verify=False))
    sending = http.AsyncHTTPTransport(verify=False)
    assert await raw(http.AsyncClient(transport=ours.AsyncCaptureTransport(rollout, sending))) == plain
    assert plain[0][1]["content-encoding"] == "gzip"
    [exchange] = gzip_model.exchanges(rollout)
    assert exchange["request"] == sent["json"]
    assert exchange["response"]["model"] == "m"
    assert exchange["error_category"] is None

    def raw_blocking(client: Any) -> tuple[Any, bytes]:
        with client, client.stream("POST", **sent) as response:
            kept = {name: value for name, value in response.headers.multi_items() if name != "date"}
            return (response.status_code, kept), b"".join(response.iter_raw())

    blocking = http.Client(transport=ours.CaptureTransport(rollout, http.HTTPTransport(verify=False)))
    assert await asyncio.to_thread(raw_blocking, blocking) == plain
    assert gzip_model.exchanges(rollout)[1]["response"] == exchange["response"]


class Pieces(httpx.AsyncByteStream, httpx.SyncByteStream, httpx2.AsyncByteStream, httpx2.SyncByteStream):
    """A body in pieces; an exception among them is raised there. `closed`: by whoever reads."""

    def __init__(self, *pieces: bytes | BaseException) -> None:
        self.pieces = pieces
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


def transport(library: Any, rollout: RolloutHandle | Any, answer: Any, **options: Any) -> Any:
    """An async transport of ours over one that answers as `answer(request)` does."""
    http, ours = library
    return ours.AsyncCaptureTransport(rollout, http.MockTransport(answer), **options)


def reasons(model: ServedModel, rollout: RolloutHandle) -> str | None:
    """Why the rollout is incomplete, if it is."""
    gaps = model.merged(rollout).get("gaps", [])
    return next((gap["detail"] for gap in gaps if gap["code"] == "model_call_capture_incomplete"), None)


def event(content: str, finish: str | None = None) -> bytes:
    delta = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c1", "model": "m", "choices": [delta]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
EVENTS = {"content-type": "text/event-stream"}


@pytest.mark.parametrize("library", LIBRARIES)
async def test_only_the_terminal_event_waits_and_it_waits_until_the_exchange_is_on_disk(
    model: ServedModel, library: Any
) -> None:
    rollout = model.rollout()
    body = Pieces(event("a"), event("b", "stop") + DONE)
    async with library[0].AsyncClient(
        transport=transport(library, rollout, lambda request: library[0].Response(200, headers=EVENTS, stream=body))
    ) as client:
        got: list[tuple[bytes, int]] = []
        async with client.stream("POST", CHAT, json=ASKED) as response:
            async for piece in response.aiter_raw():
                got.append((piece, len(CaptureStore(model.directory).read(rollout.id))))
    assert got == [(event("a"), 0), (event("b", "stop"), 0), (DONE, 1)]
    assert body.closed


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("raised", "category"),
    [
        ("ConnectError", "connection"),
        ("ReadTimeout", "timeout"),
        ("RemoteProtocolError", "connection"),
        (None, "exception"),
    ],
)
async def test_a_request_that_fails_is_recorded_with_its_category(
    model: ServedModel, library: Any, raised: str | None, category: str
) -> None:
    http, ours = library
    rollout = model.rollout()
    error = RuntimeError("odd") if raised is None else getattr(http, raised)("it failed")

    def answer(request: Any) -> Any:
        raise error

    async with http.AsyncClient(transport=transport(library, rollout, answer)) as client:
        with pytest.raises(type(error)) as caught:
            await client.post(CHAT, json=ASKED)
    assert caught.value is error
    blocking = http.Client(transport=ours.CaptureTransport(rollout, http.MockTransport(answer)))
    with blocking, pytest.raises(type(error)):
        blocking.post(CHAT, json=ASKED)
    exchanges = model.exchanges(rollout)
    assert [(each["error_category"], each["status_code"], each["request"]) for each in exchanges] == [
        (category, None, ASKED)
    ] * 2


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("headers", "raised", "category"),
    [
        (EVENTS, "ReadError", "stream_truncated"),
        (EVENTS, "ReadTimeout", "timeout"),
        ({"content-type": "application/json"}, "RemoteProtocolError", "connection"),
    ],
)
async def test_a_response_that_breaks_off_is_recorded_as_far_as_it_came(
    model: ServedModel, library: Any, headers: dict[str, str], raised: str, category: str
) -> None:
    http, ours = library
    rollout = model.rollout()
    error = getattr(http, raised)("it broke")

    def answer(request: Any) -> Any:
        return http.Response(200, headers=headers, stream=Pieces(event("as far as"), error))

    async with http.AsyncClient(transport=transport(library, rollout, answer)) as client:
        with pytest.raises(type(error)):
            await client.post(CHAT, json=ASKED)
    blocking = http.Client(transport=ours.CaptureTransport(rollout, http.MockTransport(answer)))
    with blocking, pytest.raises(type(error)):
        blocking.post(CHAT, json=ASKED)
    exchanges = model.exchanges(rollout)
    assert [each["error_category"] for each in exchanges] == [category] * 2
    assert all("as far as" in str(each) for each in exchanges)


@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_stream_that_nobody_reads_to_its_end_is_recorded_as_cancelled(model: ServedModel, library: Any) -> None:
    http, ours = library
    rollout = model.rollout()

    def answer(request: Any) -> Any:
        return http.Response(200, headers=EVENTS, stream=Pieces(event("first"), event("second", "stop"), DONE))

    async with (
        http.AsyncClient(transport=transport(library, rollout, answer)) as client,
        client.stream("POST", CHAT, json=ASKED) as response,
    ):
        async for _ in response.aiter_raw():
            break
    with (
        http.Client(transport=ours.CaptureTransport(rollout, http.MockTransport(answer))) as blocking,
        blocking.stream("POST", CHAT, json=ASKED) as response,
    ):
        assert next(response.iter_raw()) == event("first")
    exchanges = model.exchanges(rollout)
    assert [each["error_category"] for each in exchanges] == ["cancelled"] * 2
    assert [each["response"]["choices"][0]["message"]["content"] for each in exchanges] == ["first"] * 2


@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_task_that_is_cancelled_while_it_waits_is_recorded(model: ServedModel, library: Any) -> None:
    rollout = model.rollout()
    asked = asyncio.Event()

    async def answer(request: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    async with library[0].AsyncClient(transport=transport(library, rollout, answer)) as client:
        call = asyncio.create_task(client.post(CHAT, json=ASKED))
        await asyncio.wait_for(asked.wait(), 60.0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    [exchange] = await asyncio.to_thread(model.exchanges, rollout)
    assert (exchange["error_category"], exchange["request"]) == ("cancelled", ASKED)


@pytest.mark.parametrize("library", LIBRARIES)
async def test_other_requests_pass_as_they_are(model: ServedModel, library: Any) -> None:
    http, ours = library
    rollout = model.rollout()
    answered = http.Response(200, json={"data": []})
    options = {"non_generating": ["/v1/embeddings"]}
    passing = transport(library, rollout, lambda request: answered, **options)
    blocking = ours.CaptureTransport(rollout, http.MockTransport(lambda _: answered), **options)
    for method, path in (
        ("POST", "/v1/embeddings"),
        ("POST", "/deployments/d/embeddings"),
        ("POST", "/api/v1/messages/count_tokens"),
        ("GET", "/v1/models"),
        ("DELETE", "/v1/files/f1"),
    ):
        request = http.Request(method, f"http://model{path}", json={})
        assert await passing.handle_async_request(request) is answered
        assert blocking.handle_request(request) is answered
    assert (rollout.issued, model.exchanges(rollout), reasons(model, rollout)) == (0, [], None)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("status", "marked"), [(200, "unobserved=2"), (500, "unobserved=2"), (404, None), (405, None), (307, None)]
)
async def test_a_post_of_another_kind_marks_the_rollout_for_it_may_have_called_a_model(
    model: ServedModel, library: Any, status: int, marked: str | None
) -> None:
    http, ours = library
    rollout = model.rollout()
    headers = {"location": "/v1/elsewhere"} if status == 307 else {}
    sent = Pieces(b"{}")
    passing = transport(library, rollout, lambda request: http.Response(status, headers=headers, stream=sent))
    async with http.AsyncClient(transport=passing) as client:
        assert (await client.post("http://model/v1/completions", json={"prompt": "hi"})).content == b"{}"
    answered = http.Response(status, headers=headers, json={})
    with http.Client(transport=ours.CaptureTransport(rollout, http.MockTransport(lambda _: answered))) as blocking:
        blocking.post("http://model/v1/completions", json={"prompt": "hi"})
    assert model.exchanges(rollout) == []
    assert reasons(model, rollout) == marked
    assert rollout.issued == (2 if marked else 0)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("raised", "marked"), [("ConnectError", None), ("ReadTimeout", "unobserved=2")])
async def test_a_post_of_another_kind_that_gets_no_answer_marks_the_rollout_if_it_was_sent(
    model: ServedModel, library: Any, raised: str, marked: str | None
) -> None:
    http, ours = library
    rollout = model.rollout()

    def answer(request: Any) -> Any:
        raise getattr(http, raised)("it failed")

    async with http.AsyncClient(transport=transport(library, rollout, answer)) as client:
        with pytest.raises(getattr(http, raised)):
            await client.post("http://model/v1/completions", json={})
    with (
        http.Client(transport=ours.CaptureTransport(rollout, http.MockTransport(answer))) as blocking,
        pytest.raises(getattr(http, raised)),
    ):
        blocking.post("http://model/v1/completions", json={})
    assert model.exchanges(rollout) == []
    assert reasons(model, rollout) == marked


@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_call_that_is_redirected_is_the_one_that_it_leads_to(model: ServedModel, library: Any) -> None:
    http, ours = library
    rollout = model.rollout()

    def answer(request: Any) -> Any:
        if request.url.path == "/v1/chat/completions":
            return http.Response(307, headers={"location": "http://model/moved/chat/completions"})
        return http.Response(200, json=COMPLETION)

    async with http.AsyncClient(transport=transport(library, rollout, answer), follow_redirects=True) as client:
        assert (await client.post(CHAT, json=ASKED)).json() == COMPLETION
    sending = http.MockTransport(answer)
    with http.Client(transport=ours.CaptureTransport(rollout, sending), follow_redirects=True) as blocking:
        assert blocking.post(CHAT, json=ASKED).json() == COMPLETION
    exchanges = model.exchanges(rollout)
    assert [(each["status_code"], each["error_category"], each["request"]) for each in exchanges] == [
        (200, None, ASKED)
    ] * 2
    assert (rollout.issued, reasons(model, rollout)) == (2, None)


@pytest.mark.parametrize("library", LIBRARIES)
async def test_where_the_rollout_cannot_be_told_the_request_goes_on_and_the_log_says_so(
    model: ServedModel, library: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    http, ours = library
    monkeypatch.setattr(observed_exchange, "_log", TroubleLog(SystemClock()))

    def nobody() -> RolloutHandle:
        raise LookupError("no rollout here")

    passing = transport(library, nobody, lambda request: http.Response(200, json=COMPLETION))
    async with http.AsyncClient(transport=passing) as client:
        assert (await client.post(CHAT, json=ASKED)).json() == COMPLETION
    sending = http.MockTransport(lambda request: http.Response(200, json=COMPLETION))
    with http.Client(transport=ours.CaptureTransport(nobody, sending)) as blocking:
        assert blocking.post(CHAT, json=ASKED).json() == COMPLETION
    assert [record.getMessage() for record in caplog.records if "UNCAPTURED" in record.getMessage()] == [
        "a request passes UNCAPTURED: its rollout cannot be told: LookupError('no rollout here')"
    ]


def test_several_patterns_are_asked_for_as_a_list(model: ServedModel) -> None:
    with pytest.raises(TypeError, match="give a list"):
        over_httpx.AsyncCaptureTransport(model.rollout(), non_generating="/v1/embeddings")


@pytest.mark.parametrize("library", LIBRARIES)
async def test_one_client_may_serve_several_rollouts(model: ServedModel, library: Any) -> None:
    rollouts = [model.rollout(), model.rollout()]
    current: list[RolloutHandle] = []
    passing = transport(
        library,
        lambda: current[-1] if current else None,
        lambda request: library[0].Response(200, json=COMPLETION),
        model_ref={"type": "model", "name": "policy"},
    )
    async with library[0].AsyncClient(transport=passing) as client:
        await client.post(CHAT, json=ASKED)
        for rollout in rollouts:
            current.append(rollout)
            assert (await client.post(CHAT, json={**ASKED, "user": rollout.id})).json() == COMPLETION
    for rollout in rollouts:
        [exchange] = model.exchanges(rollout)
        assert exchange["request"]["user"] == rollout.id
        assert exchange["model_ref"] == {"type": "model", "name": "policy"}


@pytest.mark.parametrize("library", LIBRARIES)
async def test_an_answer_without_json_is_recorded_as_what_it_is(model: ServedModel, library: Any) -> None:
    rollout = model.rollout()
    passing = transport(library, rollout, lambda request: library[0].Response(502, html="<h1>Bad gateway</h1>"))
    async with library[0].AsyncClient(transport=passing) as client:
        assert (await client.post(CHAT, json=ASKED)).text == "<h1>Bad gateway</h1>"
    [exchange] = model.exchanges(rollout)
    assert (exchange["status_code"], exchange["error_category"]) == (502, "upstream_error")
    assert "Bad gateway" in str(exchange)


@pytest.mark.parametrize("sent", [False, True])
async def test_a_connection_that_is_reset_while_it_is_made_is_a_connect_error_that_sdks_try_again(sent: bool) -> None:
    """AnyIO gives an AttributeError there, which no SDK knows."""

    class Reset(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if sent:
                await request.extensions["trace"]("http11.send_request_headers.started", {})
            raise AttributeError("'NoneType' object has no attribute 'getpeername'")

    class Counting:
        calls = 0

        def count_issued_elsewhere(self, calls: int = 1) -> None:
            self.calls += calls

    rollout = Counting()
    async with httpx2.AsyncClient(transport=over_httpx2.CountingTransport(rollout, Reset())) as client:
        with pytest.raises(AttributeError if sent else httpx2.ConnectError):
            await client.post("http://x/v1/chat/completions", json={})
    assert rollout.calls == sent
