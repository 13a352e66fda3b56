"""The middleware between a server and an app, message by message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_capture.asgi import CaptureMiddleware, current_rollout_id
from gym_capture.asgi.messages import App, Message
from gym_capture.asgi.routed_scope import NOTES_KEY
from gym_capture.model.rows import ReleaseRow
from gym_capture.reach.disabled import disabled_client
from gym_capture.recording.recorder import ExchangeRecorder
from tests.asgi.server_side import DISCONNECT, Replaying, ServerSide, body, http_scope, request, start
from tests.client.harness import Harness, harness
from tests.client.virtual_time import run_virtual, settle
from tests.recording.exchanges import DONE, EVENT_STREAM, JSON, REASSEMBLED, REQUEST, RESPONSE, STREAM, delta

CHAT = "/ng-rollout/7-0/v1/chat/completions"


def wrapped(app: App, made: Harness, **options: Any) -> CaptureMiddleware:
    return CaptureMiddleware(app, made.client, **options)


def kept(made: Harness, rollout: str = "7-0") -> list[dict[str, Any]]:
    return made.owner.exchanges(rollout)


def released(made: Harness) -> list[str]:
    return [row.reason for row in made.owner.sent_rows() if isinstance(row, ReleaseRow)]


def merged(messages: Sequence[Message]) -> list[Any]:
    """Messages as a client may tell them apart: the pieces that a body came in are one."""
    told: list[Any] = []
    for message in messages:
        if message["type"] == "http.response.body" and told and isinstance(told[-1], tuple) and told[-1][2]:
            told[-1] = ("body", told[-1][1] + message.get("body", b""), message.get("more_body", False))
        elif message["type"] == "http.response.body":
            told.append(("body", message.get("body", b""), message.get("more_body", False)))
        else:
            told.append(dict(message))
    return told


# -- the order of things ----------------------------------------------------------------------------------------


def test_the_terminal_event_waits_for_the_durable_commit_and_nothing_else_does() -> None:
    async def scenario() -> None:
        async with harness() as made:
            app = Replaying(
                start(EVENT_STREAM), body(STREAM[0], more=True), body(STREAM[1] + DONE, more=True), body(b"")
            )
            server = ServerSide()
            made.owner.deaf_to_batches = True
            serving = asyncio.ensure_future(server.run(wrapped(app, made), http_scope(CHAT)))
            await settle()
            assert (app.scopes, made.owner.ledger.outstanding) == ([], 1)  # claimed, and not told so yet
            made.owner.answer_held()
            await settle()
            # Committed, and not told so yet: all but the terminal event has passed, that one cut off its chunk.
            assert len(kept(made)) == 1
            assert server.sent == [start(EVENT_STREAM), body(STREAM[0], more=True), body(STREAM[1], more=True)]
            await asyncio.sleep(1.0)
            assert len(server.sent) == 3
            made.owner.answer_held()
            await settle()
            assert server.sent[3:] == [body(DONE, more=True), body(b"")]
            await serving
            assert kept(made)[0]["response"] == REASSEMBLED

    run_virtual(scenario())


@pytest.mark.parametrize("more", [True, False])
def test_the_last_chunk_of_a_body_waits_also_where_its_length_gives_it_away(more: bool) -> None:
    async def scenario() -> None:
        async with harness() as made:
            headers = [*JSON, (b"content-length", b"%d" % len(RESPONSE))] if more else JSON
            last = [body(RESPONSE[9:], more=True), body(b"")] if more else [body(RESPONSE[9:])]
            server = ServerSide()
            app = Replaying(start(headers), body(RESPONSE[:9], more=True), *last)
            made.owner.on_batch = lambda: setattr(made.owner, "deaf_to_batches", True)
            serving = asyncio.ensure_future(server.run(wrapped(app, made), http_scope(CHAT)))
            await settle()
            assert len(kept(made)) == 1
            assert server.sent == [start(headers), body(RESPONSE[:9], more=True)]
            made.owner.answer_held()
            await serving
            assert server.sent[2:] == last

    run_virtual(scenario())


def test_chunks_pass_as_they_come_while_the_model_still_works() -> None:
    async def scenario() -> None:
        async with harness() as made:
            thinking = [asyncio.Event(), asyncio.Event()]
            app = Replaying(
                start(EVENT_STREAM),
                thinking[0],
                body(STREAM[0], more=True),
                thinking[1],
                body(STREAM[1] + DONE),
            )
            server = ServerSide()
            serving = asyncio.ensure_future(server.run(wrapped(app, made), http_scope(CHAT)))
            await settle()
            assert server.sent == [start(EVENT_STREAM)]
            await asyncio.sleep(3.0)
            thinking[0].set()
            await settle()
            assert server.sent[1:] == [body(STREAM[0], more=True)]
            thinking[1].set()
            await serving
            assert server.sent[2:] == [body(STREAM[1], more=True), body(DONE)]
            assert kept(made)[0]["latency_ttft_ms"] == 3000.0

    run_virtual(scenario())


def test_the_request_is_read_only_as_the_app_reads_it() -> None:
    async def scenario() -> None:
        async with harness() as made:
            server = ServerSide(request(REQUEST[:10], more=True), request(REQUEST[10:]), DISCONNECT)
            app = Replaying(start(JSON), body(RESPONSE))
            await server.run(wrapped(app, made), http_scope(CHAT))
            assert app.seen == [request(REQUEST[:10], more=True), request(REQUEST[10:])]
            assert kept(made)[0]["request"]["model"] == "policy"
            assert await server.receive() == DISCONNECT
            unread = ServerSide()
            await unread.run(wrapped(Replaying(start(JSON, 429), body(b"{}"), reads=False), made), http_scope(CHAT))
            assert await unread.receive() == request()
            assert (kept(made)[1]["request"], kept(made)[1]["error_category"]) == (None, "rate_limit")

    run_virtual(scenario())


# -- what passes untouched --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["http", "websocket", "lifespan", "custom"])
def test_what_is_no_rollouts_request_is_handed_on_as_it_is(kind: str) -> None:
    async def scenario() -> None:
        async with harness() as made:
            given: list[Any] = []

            async def app(*arguments: Any) -> None:
                given.extend(arguments)
                assert current_rollout_id() is None

            server = ServerSide()
            receive, send = server.receive, server.send
            path = "/v1/chat/completions" if kind == "http" else CHAT
            scope = {**http_scope(path), "type": kind} if kind != "lifespan" else {"type": "lifespan"}
            before = dict(scope)
            await wrapped(app, made)(scope, receive, send)
            assert (given[0], given[1], given[2]) == (scope, receive, send)
            assert given[0] is scope
            assert scope == before
            assert made.owner.hellos == []

    run_virtual(scenario())


def test_the_app_sees_its_own_path_and_a_copy_of_the_scope() -> None:
    async def scenario() -> None:
        async with harness() as made:
            app = Replaying(start(JSON), body(RESPONSE))
            scope = http_scope("/ng-rollout/7-0~0/v1/chat/completions")
            scope["path"], scope["raw_path"] = scope["path"] + "é", scope["raw_path"] + b"%C3%A9"
            scope["extensions"] = {"http.response.pathsend": {}, "http.response.trailers": {}}
            before = dict(scope)
            await ServerSide().run(wrapped(app, made), scope)
            assert scope == before
            (seen,) = app.scopes
            assert seen.pop(NOTES_KEY) == {}
            assert seen == {
                **before,
                "path": "/v1/chat/completionsé",
                "raw_path": b"/v1/chat/completions%C3%A9",
                "extensions": {"http.response.trailers": {}},
            }

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("root", "path", "raw", "seen", "seen_raw"),
    [
        ("/api", "/api" + CHAT, b"/api" + CHAT.encode(), "/api/v1/chat/completions", b"/api/v1/chat/completions"),
        ("/api", CHAT, CHAT.encode(), "/v1/chat/completions", b"/v1/chat/completions"),
        ("/a b", "/a b" + CHAT, b"/a%20b" + CHAT.encode(), "/a b/v1/chat/completions", b"/a%20b/v1/chat/completions"),
        ("/", CHAT, CHAT.encode(), "/v1/chat/completions", b"/v1/chat/completions"),
        ("/api/", "/api" + CHAT, b"/api" + CHAT.encode(), "/api/v1/chat/completions", b"/api/v1/chat/completions"),
        ("/ng", CHAT, CHAT.encode(), "/v1/chat/completions", b"/v1/chat/completions"),
        ("", CHAT, CHAT.encode() + b"?q=1", "/v1/chat/completions", b"/v1/chat/completions"),
        ("", CHAT, None, "/v1/chat/completions", None),
    ],
)
def test_the_path_is_found_below_a_root_and_without_a_raw_one(
    root: str, path: str, raw: bytes | None, seen: str, seen_raw: bytes | None
) -> None:
    async def scenario() -> None:
        async with harness() as made:
            app = Replaying(start(JSON), body(RESPONSE))
            scope = {**http_scope(path), "raw_path": raw, "root_path": root}
            await ServerSide().run(wrapped(app, made), scope)
            assert (app.scopes[0]["path"], app.scopes[0]["raw_path"]) == (seen, seen_raw)
            assert app.scopes[0]["root_path"] == root
            assert len(kept(made)) == 1

    run_virtual(scenario())


def test_a_path_that_no_text_can_hold_is_handed_on() -> None:
    async def scenario() -> None:
        async with harness() as made:
            app = Replaying(start(JSON), body(RESPONSE))
            scope = http_scope(CHAT)
            scope["path"], scope["raw_path"] = CHAT + "\udcff", None
            server = ServerSide()
            await server.run(wrapped(app, made), scope)
            assert (app.scopes, server.body) == ([scope], RESPONSE)

    run_virtual(scenario())


def test_where_observability_is_off_only_the_prefix_is_taken_away() -> None:
    async def scenario() -> None:
        app = Replaying(start(EVENT_STREAM), body(b"".join(STREAM)))
        server = ServerSide()
        await server.run(CaptureMiddleware(app, disabled_client()), http_scope(CHAT))
        assert (app.scopes[0]["path"], server.sent) == (
            "/v1/chat/completions",
            [start(EVENT_STREAM), body(b"".join(STREAM))],
        )

    run_virtual(scenario())


def test_trailers_hints_and_what_capture_does_not_know_pass() -> None:
    async def scenario() -> None:
        async with harness() as made:
            said: list[Message] = [
                {"type": "http.response.early_hint", "links": [b"</a>"]},
                {**start(EVENT_STREAM), "trailers": True},
                body(b"".join(STREAM)[:-3], more=True),
                body(b"".join(STREAM)[-3:]),
                {"type": "http.response.trailers", "headers": [(b"a", b"b")], "more_trailers": False},
                {"type": "http.response.made_up", "x": object()},
            ]
            server = ServerSide()
            await server.run(wrapped(Replaying(*said), made), http_scope(CHAT))
            assert server.sent == said
            assert kept(made)[0]["response"] == REASSEMBLED

    run_virtual(scenario())


_messages = st.lists(
    st.one_of(
        st.builds(
            start,
            st.sampled_from([JSON, EVENT_STREAM, [*JSON, (b"content-length", b"20")], [(b"Location", b"http://x/")]]),
            st.sampled_from([200, 204, 302, 404, 500]),
        ),
        st.builds(
            body, st.one_of(st.binary(max_size=20), st.sampled_from([*STREAM, b"".join(STREAM)])), more=st.booleans()
        ),
        st.just({"type": "http.response.body"}),
        st.just({"type": "http.response.trailers", "headers": []}),
        st.just({"type": "http.response.pathsend", "path": "/x"}),
        st.just({"type": "something.else"}),
    ),
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(_messages, st.sampled_from([CHAT, "/ng-rollout/7-0/v1/unknown", "/ng-rollout/7-0/v1/responses"]))
def test_whatever_an_app_says_reaches_the_client_byte_for_byte(said: list[Message], path: str) -> None:
    async def scenario() -> None:
        async with harness() as made:
            server = ServerSide()
            await server.run(wrapped(Replaying(*said), made), http_scope(path))
            await settle()
            assert merged(server.sent) == merged(said)
            assert made.owner.ledger.outstanding == 0

    run_virtual(scenario())


# -- how calls end ----------------------------------------------------------------------------------------------


class OwnTrouble(Exception):
    error_category = "stream_truncated"


class OddTrouble(Exception):
    error_category = "odd"


@pytest.mark.parametrize(
    ("trouble", "category"),
    [
        (RuntimeError("boom"), "exception"),
        (TimeoutError("slow"), "timeout"),
        (ConnectionResetError("gone"), "connection"),
        (OwnTrouble(), "stream_truncated"),
        (OddTrouble(), "exception"),
        (asyncio.CancelledError(), "cancelled"),
        (KeyboardInterrupt(), "exception"),
    ],
)
@pytest.mark.parametrize("begun", [True, False])
def test_an_app_that_raises_leaves_its_category_and_what_there_was(
    trouble: BaseException, category: str, begun: bool
) -> None:
    async def scenario() -> None:
        async with harness() as made:
            said = [start(EVENT_STREAM), body(delta("hel"), more=True)] if begun else []
            server = ServerSide()
            with pytest.raises(type(trouble)) as raised:
                await server.run(wrapped(Replaying(*said, trouble), made), http_scope(CHAT))
            assert raised.value is trouble
            assert server.sent == said
            assert current_rollout_id() is None
            assert await made.client.quiesce("7-0")
            (call,) = kept(made)
            assert (call["error_category"], call["status_code"]) == (category, 200 if begun else None)
            assert call["request"]["model"] == "policy"
            if begun:
                assert call["response"]["choices"][0]["message"]["content"] == "hel"

    run_virtual(scenario())


def test_a_task_that_is_cancelled_in_the_middle_of_a_stream_is_committed_behind_it() -> None:
    async def scenario() -> None:
        async with harness() as made:
            app = Replaying(start(EVENT_STREAM), body(delta("hel"), more=True), asyncio.Event())
            server = ServerSide()
            serving = asyncio.ensure_future(server.run(wrapped(app, made), http_scope(CHAT)))
            await settle()
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            assert await made.client.quiesce("7-0")
            assert [call["error_category"] for call in kept(made)] == ["cancelled"]

    run_virtual(scenario())


def test_cancelled_while_the_commit_is_awaited_the_whole_exchange_lands() -> None:
    async def scenario() -> None:
        async with harness() as made:
            server = ServerSide()
            made.owner.on_batch = lambda: setattr(made.owner, "deaf_to_batches", True)
            app = Replaying(start(JSON), body(RESPONSE))
            serving = asyncio.ensure_future(server.run(wrapped(app, made), http_scope(CHAT)))
            await settle()
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            made.owner.answer_held()
            await settle()
            assert [call["error_category"] for call in kept(made)] == [None]
            assert (made.owner.ledger.outstanding, server.sent) == (0, [start(JSON)])

    run_virtual(scenario())


def test_a_client_that_leaves_is_noticed_by_what_the_app_hears() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(start(EVENT_STREAM))
        await send(body(delta("hel"), more=True))
        assert (await receive())["type"] == "http.disconnect"

    async def scenario() -> None:
        async with harness() as made:
            await ServerSide(request(), DISCONNECT).run(wrapped(app, made), http_scope(CHAT))
            await settle()
            (call,) = kept(made)
            assert call["error_category"] == "cancelled"
            assert call["response"]["choices"][0]["message"]["content"] == "hel"

    run_virtual(scenario())


def test_a_client_that_leaves_is_noticed_by_what_sending_raises() -> None:
    async def scenario() -> None:
        async with harness() as made:
            server = ServerSide()
            going = asyncio.Event()
            app = Replaying(start(EVENT_STREAM), body(delta("hel"), more=True), going, body(delta("lo"), more=True))
            serving = asyncio.ensure_future(server.run(wrapped(app, made), http_scope(CHAT)))
            await settle()
            server.broken = OSError("the client is gone")
            going.set()
            with pytest.raises(OSError, match="the client is gone"):
                await serving
            await settle()
            (call,) = kept(made)
            assert call["error_category"] == "cancelled"
            assert call["response"]["choices"][0]["message"]["content"] == "hello"

    run_virtual(scenario())


class ClientDisconnect(Exception):
    """As Starlette names it."""


@pytest.mark.parametrize(
    ("raised", "category"),
    [(RuntimeError("Expected 'http.response.body'"), "exception"), (ClientDisconnect(), "cancelled")],
)
def test_what_a_server_raises_about_the_apps_messages_is_the_apps_error_and_no_client_that_left(
    raised: Exception, category: str
) -> None:
    async def scenario() -> None:
        async with harness() as made:
            server = ServerSide()
            going = asyncio.Event()
            app = Replaying(start(EVENT_STREAM), going, start(EVENT_STREAM))
            serving = asyncio.ensure_future(server.run(wrapped(app, made), http_scope(CHAT)))
            await settle()
            server.broken = raised
            going.set()
            with pytest.raises(type(raised)):
                await serving
            await settle()
            assert [call["error_category"] for call in kept(made)] == [category]

    run_virtual(scenario())


@pytest.mark.parametrize("said", [[], [start(JSON)], [start(JSON), body(RESPONSE[:9], more=True)]])
def test_an_app_that_does_not_end_its_response_leaves_it_incomplete_or_cut(said: list[Message]) -> None:
    async def scenario() -> None:
        async with harness() as made:
            server = ServerSide()
            await server.run(wrapped(Replaying(*said), made), http_scope(CHAT))
            await settle()
            assert server.sent == said
            assert [call["error_category"] for call in kept(made)] == ["stream_truncated" if said else "incomplete"]

    run_virtual(scenario())


def test_what_an_app_does_after_its_end_changes_nothing_that_is_recorded() -> None:
    async def scenario() -> None:
        async with harness() as made:
            said = [start(JSON), body(RESPONSE), start(JSON, 500), body(b"again")]
            server = ServerSide()
            with pytest.raises(RuntimeError):
                await server.run(wrapped(Replaying(*said, RuntimeError("late")), made), http_scope(CHAT))
            await settle()
            assert server.sent == said
            assert [(call["status_code"], call["error_category"]) for call in kept(made)] == [(200, None)]

    run_virtual(scenario())


# -- claims -----------------------------------------------------------------------------------------------------


def test_a_fenced_call_goes_on_and_is_not_written() -> None:
    async def scenario() -> None:
        async with harness() as made:
            await made.client.clear(["7-0"])
            await made.client.clear(["7-0"])
            server = ServerSide()
            app = Replaying(start(JSON), body(RESPONSE))
            await server.run(wrapped(app, made), http_scope("/ng-rollout/7-0~1/v1/chat/completions"))
            assert (server.body, kept(made)) == (RESPONSE, [])
            await ServerSide().run(wrapped(app, made), http_scope("/ng-rollout/7-0~2/v1/chat/completions"))
            assert len(kept(made)) == 1

    run_virtual(scenario())


def test_while_the_owner_is_away_calls_go_on_and_are_written_when_it_is_back() -> None:
    async def scenario() -> None:
        async with harness(patience_s=2.0) as made:
            made.owner.go_away()
            server = ServerSide()
            await server.run(wrapped(Replaying(start(JSON), body(RESPONSE)), made), http_scope(CHAT))
            assert (server.body, asyncio.get_running_loop().time()) == (RESPONSE, 2.0)
            made.owner.come_back()
            assert await made.client.quiesce("7-0")
            assert len(kept(made)) == 1

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("method", "path", "status", "reasons"),
    [
        ("POST", "/v1/completions", 200, ["unobserved"]),
        ("POST", "/v1/completions", 500, ["unobserved"]),
        ("POST", "/generate", 400, ["unobserved"]),
        ("POST", "/v1/completions", 404, [""]),
        ("GET", "/v1/chat", 405, [""]),
        ("GET", "/v1/models", 200, []),
        ("GET", "/any/v1/models/m", 200, []),
        ("POST", "/v1/embeddings", 200, []),
        ("OPTIONS", "/v1/chat/completions", 200, []),
        ("HEAD", "/v1/chat/completions", 200, []),
    ],
)
def test_what_may_have_called_a_model_unseen_marks_the_rollout(
    method: str, path: str, status: int, reasons: list[str]
) -> None:
    async def scenario() -> None:
        async with harness() as made:
            outstanding: list[int] = []

            async def app(scope: Any, receive: Any, send: Any) -> None:
                outstanding.append(made.owner.ledger.outstanding_of("7-0"))
                assert current_rollout_id() == "7-0"
                await send(start(JSON, status))
                await send(body(RESPONSE))

            server = ServerSide()
            scope = http_scope(f"/ng-rollout/7-0{path}", method=method)
            await server.run(wrapped(app, made, non_generating=["/v1/embeddings"]), scope)
            assert (server.sent, current_rollout_id()) == ([start(JSON, status), body(RESPONSE)], None)
            assert (released(made), outstanding) == (reasons, [len(reasons)])
            assert kept(made) == []

    run_virtual(scenario())


def test_an_unobserved_call_that_never_ends_marks_the_rollout_too() -> None:
    async def scenario() -> None:
        async with harness() as made:
            app = Replaying(start(JSON), RuntimeError("boom"))
            with pytest.raises(RuntimeError):
                await ServerSide().run(wrapped(app, made), http_scope("/ng-rollout/7-0/generate"))
            await ServerSide().run(wrapped(Replaying(), made), http_scope("/ng-rollout/7-0/generate"))
            await settle()
            assert released(made) == ["unobserved", "unobserved"]

    run_virtual(scenario())


@pytest.mark.parametrize("token", ["", "..", "a%2Fb", "%2e%2e%2f", "a" * 10_240, "7-0~x", "a\tb"])
@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS"])
def test_an_id_that_is_none_is_refused_and_goes_no_further(token: str, method: str) -> None:
    async def scenario() -> None:
        async with harness() as made:
            app = Replaying(start(JSON), body(RESPONSE))
            server = ServerSide()
            await server.run(wrapped(app, made), http_scope(f"/ng-rollout/{token}/v1/chat/completions", method=method))
            assert (app.scopes, made.owner.hellos) == ([], [])
            assert server.sent[0]["status"] == 400
            headers = dict(server.sent[0]["headers"])
            assert headers[b"content-length"] == str(len(server.body)).encode()
            assert b'"code": "invalid_rollout"' in server.body
            assert len(server.body) < 1000

    run_virtual(scenario())


# -- headers, notes, limits -------------------------------------------------------------------------------------


def test_headers_and_notes_become_fields_of_the_exchange() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        scope[NOTES_KEY].update(upstream_attempted=True, response_source="upstream", model_call_id="mine")
        await send(start(JSON, 502))
        scope[NOTES_KEY].update(error_category="connection", upstream_status_code=502)
        await send(body(b"{}"))

    async def scenario() -> None:
        async with harness() as made:
            headers = [(b"x-claude-code-session-id", b"s1"), (b"x-ng-verifier-invocation-id", b"judge-1")]
            middleware = wrapped(app, made, model_ref={"type": "model", "name": "policy"})
            await ServerSide().run(middleware, http_scope(CHAT, headers))
            (call,) = kept(made)
            assert call["model_ref"] == {"type": "model", "name": "policy"}
            assert call["client_session_id"] == "s1"
            assert call["verifier_invocation"] == {"invocation_id": "judge-1", "name": "verifier"}
            assert (call["upstream_attempted"], call["response_source"]) == (True, "upstream")
            assert (call["upstream_status_code"], call["error_category"]) == (502, "connection")
            assert call["model_call_id"] != "mine"

    run_virtual(scenario())


def test_limits_and_raw_streams_are_configuration() -> None:
    async def scenario() -> None:
        async with harness() as made:
            app = Replaying(start(EVENT_STREAM), body(b"".join(STREAM)))
            await ServerSide().run(wrapped(app, made, keep_raw_streams=True), http_scope(CHAT))
            assert kept(made)[0]["response_raw"] == b"".join(STREAM).decode()
            await ServerSide().run(wrapped(app, made, max_body_bytes=100), http_scope(CHAT))
            assert (kept(made)[1]["request"], kept(made)[1]["request_bytes"]) == (None, len(REQUEST))
            assert kept(made)[1]["error_category"] == "capture_parse_error"

    run_virtual(scenario())
    with pytest.raises(TypeError, match="give a list"):
        CaptureMiddleware(Replaying(), non_generating="/v1/embeddings")


def test_a_fault_of_capture_leaves_the_response_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with harness() as made:
            app = Replaying(start(EVENT_STREAM), body(STREAM[0], more=True), body(STREAM[1] + DONE))
            faults: list[str] = []
            for step in ("request_body", "response_started", "response_body", "exchange_fields"):
                with monkeypatch.context() as patch:

                    def fault(*args: object, step: str = step) -> None:
                        faults.append(step)
                        raise RuntimeError(f"a planted fault in {step}")

                    patch.setattr(ExchangeRecorder, step, fault)
                    server = ServerSide()
                    await server.run(wrapped(app, made), http_scope(CHAT))
                    assert server.body == b"".join(STREAM)
            with monkeypatch.context() as patch:

                def no_rollout(*args: object) -> None:
                    faults.append("rollout")
                    raise RuntimeError("a planted fault in rollout")

                patch.setattr(made.client, "rollout", no_rollout)
                server = ServerSide()
                await server.run(wrapped(app, made), http_scope(CHAT))
                assert server.body == b"".join(STREAM)
            assert faults == ["request_body", "response_started", "response_body", "exchange_fields", "rollout"]
            assert made.owner.ledger.view("7-0").reasons == {"recorder": 4}

    with caplog.at_level(logging.DEBUG, logger="gym_capture"):
        run_virtual(scenario())
    assert "a planted fault in response_body" in caplog.text
