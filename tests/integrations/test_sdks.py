"""The real SDKs, set to a base URL or given a transport, and nothing else: what they return is what is captured."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import httpx
import httpx2
import pytest

import gym_capture
from gym_capture.client.rollout import RolloutHandle
from gym_capture.errors import MissingExtra
from gym_capture.integrations import httpx as over_httpx
from gym_capture.integrations import httpx2 as over_httpx2
from gym_capture.integrations.sdk import NO_KEY, anthropic_client, openai_client
from tests.integrations.sdk_calls import CHAT, DIALECTS, TASK, ask_async, ask_blocking
from tests.integrations.served_model import ServedModel, plain, without_nulls
from tests.lazily import lazily

if TYPE_CHECKING:
    import anthropic
    import openai
else:
    anthropic, openai = lazily("anthropic"), lazily("openai")

WAYS = ("base_url", "httpx", "httpx2")
WAYS_AND_DIALECTS = [
    (way, dialect)
    for way in WAYS
    for dialect in DIALECTS
    # anthropic takes httpx2's clients only; tests/integrations/test_httpx.py speaks messages over httpx.
    if (way, dialect) != ("httpx", "messages")
]
KEY = "sk-test-0123456789abcdef"
FAULT = "x-script-fault"


@asynccontextmanager
async def async_client(
    model: ServedModel, rollout: RolloutHandle, way: str, dialect: str, **options: Any
) -> AsyncIterator[Any]:
    given: dict[str, Any] = {"api_key": KEY, **options}
    url = model.prefixed_url(rollout) if way == "base_url" else model.bare_url
    if way == "httpx":
        given["http_client"] = httpx.AsyncClient(
            transport=over_httpx.AsyncCaptureTransport(rollout, httpx.AsyncHTTPTransport(verify=False))
        )
    elif way == "httpx2":
        given["http_client"] = httpx2.AsyncClient(
            transport=over_httpx2.AsyncCaptureTransport(rollout, httpx2.AsyncHTTPTransport(verify=False))
        )
    made: Any = (
        anthropic.AsyncAnthropic(base_url=url, **given)
        if dialect == "messages"
        else openai.AsyncOpenAI(base_url=f"{url}/v1", **given)
    )
    async with made as client:
        yield client


@contextmanager
def blocking_client(model: ServedModel, rollout: RolloutHandle, way: str, dialect: str) -> Iterator[Any]:
    given: dict[str, Any] = {"api_key": KEY}
    url = model.prefixed_url(rollout) if way == "base_url" else model.bare_url
    if way == "httpx":
        given["http_client"] = httpx.Client(
            transport=over_httpx.CaptureTransport(rollout, httpx.HTTPTransport(verify=False))
        )
    elif way == "httpx2":
        blocking = model.capture.sync.rollout(rollout.id, rollout.generation)
        given["http_client"] = httpx2.Client(
            transport=over_httpx2.CaptureTransport(blocking, httpx2.HTTPTransport(verify=False))
        )
    made: Any = (
        anthropic.Anthropic(base_url=url, **given)
        if dialect == "messages"
        else openai.OpenAI(base_url=f"{url}/v1", **given)
    )
    with made as client:
        yield client


def answers(dialect: str) -> list[tuple[str, dict[str, Any]]]:
    """What is asked: tools in parallel, a text, and where the dialect has them, several choices."""
    return [(TASK, {}), (CHAT, {}), *([(TASK, {"n": 3})] if dialect == "chat" else [])]


def assert_captured(exchanges: list[dict[str, Any]], returned: list[Any], dialect: str) -> None:
    assert [without_nulls(each["response"]) for each in exchanges] == [plain(each) for each in returned]
    assert [each["dialect"] for each in exchanges] == [dialect] * len(returned)
    assert {(each["status_code"], each["error_category"]) for each in exchanges} == {(200, None)}
    first = plain(returned[0])
    assert "place_order" in str(exchanges[0]["request"])
    if dialect == "chat":
        assert len(first["choices"][0]["message"]["tool_calls"]) == 2
        assert len(plain(returned[2])["choices"]) == 3
        assert first["choices"][0]["message"]["reasoning_content"]
    else:
        parts = first["output"] if dialect == "responses" else first["content"]
        kinds = ["reasoning", "function_call"] if dialect == "responses" else ["thinking", "tool_use"]
        assert [part["type"] for part in parts] == [kinds[0], kinds[1], kinds[1]]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("way", "dialect"), WAYS_AND_DIALECTS)
async def test_what_the_sdk_returned_is_what_is_captured(
    model: ServedModel, way: str, dialect: str, stream: bool
) -> None:
    rollout = model.rollout()
    async with async_client(model, rollout, way, dialect) as client:
        returned = [await ask_async(client, dialect, stream, task, **given) for task, given in answers(dialect)]
    assert_captured(model.exchanges(rollout), returned, dialect)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("way", "dialect"), WAYS_AND_DIALECTS)
def test_and_so_it_is_without_a_loop(model: ServedModel, way: str, dialect: str, stream: bool) -> None:
    rollout = model.rollout()
    with blocking_client(model, rollout, way, dialect) as client:
        returned = [ask_blocking(client, dialect, stream, task, **given) for task, given in answers(dialect)]
    assert_captured(model.exchanges(rollout), returned, dialect)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("way", "dialect"), WAYS_AND_DIALECTS)
async def test_a_compressed_answer_is_captured_in_the_clear(
    gzip_model: ServedModel, way: str, dialect: str, stream: bool
) -> None:
    rollout = gzip_model.rollout()
    async with async_client(gzip_model, rollout, way, dialect) as client:
        returned = await ask_async(client, dialect, stream, TASK)
    [exchange] = gzip_model.exchanges(rollout)
    assert without_nulls(exchange["response"]) == plain(returned)
    assert exchange["error_category"] is None


@pytest.mark.parametrize(
    ("fault", "status", "category"), [("rate_limited", 429, "rate_limit"), ("broken", 500, "upstream_error")]
)
@pytest.mark.parametrize(("way", "dialect"), WAYS_AND_DIALECTS)
async def test_what_the_sdk_tries_again_is_an_exchange_each(
    model: ServedModel, way: str, dialect: str, fault: str, status: int, category: str
) -> None:
    rollout = model.rollout()
    async with async_client(model, rollout, way, dialect) as client:
        returned = await ask_async(client, dialect, False, CHAT, extra_headers={FAULT: f"{fault}*2"})
    exchanges = model.exchanges(rollout)
    assert [(each["status_code"], each["error_category"]) for each in exchanges] == [
        (status, category),
        (status, category),
        (200, None),
    ]
    assert exchanges[0]["request"] == exchanges[2]["request"]
    assert "error" in exchanges[0]["response"]
    assert without_nulls(exchanges[2]["response"]) == plain(returned)


@pytest.mark.parametrize(("way", "dialect"), WAYS_AND_DIALECTS)
async def test_a_stream_that_is_cut_raises_in_the_sdk_and_is_captured_as_far_as_it_came(
    model: ServedModel, way: str, dialect: str
) -> None:
    rollout = model.rollout()
    async with async_client(model, rollout, way, dialect) as client:
        with pytest.raises((openai.APIConnectionError, httpx.RemoteProtocolError, httpx2.RemoteProtocolError)):
            await ask_async(client, dialect, True, TASK, extra_headers={FAULT: "cut"})
    [exchange] = model.exchanges(rollout)
    assert (exchange["status_code"], exchange["error_category"]) == (200, "stream_truncated")
    assert exchange["response"]["model"] == "scripted-7b"


@pytest.mark.parametrize(("way", "dialect"), WAYS_AND_DIALECTS)
async def test_an_error_in_a_stream_is_captured_with_what_came_before(
    model: ServedModel, way: str, dialect: str
) -> None:
    rollout = model.rollout()
    async with async_client(model, rollout, way, dialect) as client:
        with pytest.raises((openai.APIError, anthropic.APIStatusError, RuntimeError)):
            await ask_async(client, dialect, True, TASK, extra_headers={FAULT: "error_event"})
    [exchange] = model.exchanges(rollout)
    assert (exchange["status_code"], exchange["error_category"]) == (200, "upstream_error")
    assert "the model was lost" in str(exchange)


@pytest.mark.parametrize(("way", "dialect"), WAYS_AND_DIALECTS)
async def test_a_timeout_of_the_sdk_is_captured(model: ServedModel, way: str, dialect: str) -> None:
    rollout = model.rollout()
    async with async_client(model, rollout, way, dialect, timeout=0.5, max_retries=0) as client:
        with pytest.raises((openai.APITimeoutError, anthropic.APITimeoutError)):
            await ask_async(client, dialect, False, CHAT, extra_headers={FAULT: "hangs"})
    [exchange] = model.exchanges(rollout)
    # The server sees its client leave; the client knows why.
    assert exchange["error_category"] == ("cancelled" if way == "base_url" else "timeout")
    assert (exchange["status_code"], exchange["response"]) == (None, None)


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_that_runs_out_of_tokens_is_captured_as_the_sdk_returned_it(
    model: ServedModel, way: str
) -> None:
    rollout = model.rollout()
    async with async_client(model, rollout, way, "responses") as client:
        returned = await ask_async(client, "responses", False, CHAT, extra_headers={FAULT: "too_long"})
    [exchange] = model.exchanges(rollout)
    assert returned.status == exchange["response"]["status"] == "incomplete"


@pytest.mark.parametrize("way", WAYS)
async def test_what_the_api_is_asked_beside_model_calls_is_not_captured(model: ServedModel, way: str) -> None:
    rollout = model.rollout()
    if way != "httpx":
        async with async_client(model, rollout, way, "messages") as client:
            counted = await client.messages.count_tokens(model="m", messages=[{"role": "user", "content": CHAT}])
            assert counted.input_tokens > 0
    async with async_client(model, rollout, way, "chat") as client:
        assert [card.id async for card in client.models.list()] == ["scripted-7b"]
    assert model.exchanges(rollout) == []
    assert [gap["code"] for gap in model.merged(rollout)["gaps"]] == ["model_call_capture_no_records"]


@pytest.mark.parametrize("way", WAYS)
async def test_keys_are_never_stored(model: ServedModel, way: str) -> None:
    rollout = model.rollout()
    async with async_client(model, rollout, way, "chat") as client:
        await ask_async(client, "chat", False, f"my key is {KEY}")
    [exchange] = model.exchanges(rollout)
    assert exchange["request"]["messages"] == [{"role": "user", "content": "my key is [redacted]"}]


# -- the ready-made clients --------------------------------------------------------------------------------------


async def test_a_ready_made_client_sends_to_the_proxy_and_counts_what_it_sent(model: ServedModel) -> None:
    rollout = model.rollout()
    url = model.prefixed_url(rollout)
    async with openai_client(url, rollout) as chat, anthropic_client(url, rollout) as messages:
        for dialect, client in (("chat", chat), ("responses", chat), ("messages", messages)):
            await ask_async(client, dialect, False, CHAT)
            await ask_async(client, dialect, True, CHAT)
        await ask_async(chat, "chat", False, CHAT, extra_headers={FAULT: "rate_limited*1"})
        await chat.models.list()
    assert rollout.issued == len(model.exchanges(rollout)) == 8
    merged = model.merged(rollout)
    assert (merged["metrics"]["num_calls"], merged.get("gaps")) == (8, None)


async def test_without_a_proxy_a_ready_made_client_captures_in_this_process(model: ServedModel) -> None:
    rollout = model.rollout()
    given: dict[str, Any] = {"api_key": KEY}
    async with (
        openai_client(None, rollout, base_url=f"{model.bare_url}/v1", **given) as chat,
        anthropic_client(None, rollout, base_url=model.bare_url, **given) as messages,
    ):
        returned = [
            await ask_async(chat, "chat", True, TASK),
            await ask_async(chat, "responses", True, TASK),
            await ask_async(messages, "messages", True, TASK),
        ]
    exchanges = model.exchanges(rollout)
    assert [without_nulls(each["response"]) for each in exchanges] == [plain(each) for each in returned]
    assert rollout.issued == 3


async def test_a_call_that_could_not_connect_was_not_issued_and_one_that_was_cut_off_was(model: ServedModel) -> None:
    rollout = model.rollout()
    async with openai_client(f"http://127.0.0.1:9/ng-rollout/{rollout.id}", rollout, max_retries=0) as client:
        with pytest.raises(openai.APIConnectionError):
            await ask_async(client, "chat", False, CHAT)
    assert rollout.issued == 0
    async with openai_client(model.prefixed_url(rollout), rollout, max_retries=0, timeout=0.5) as client:
        with pytest.raises(openai.APITimeoutError):
            await ask_async(client, "chat", False, CHAT, extra_headers={FAULT: "hangs"})
    assert rollout.issued == len(model.exchanges(rollout)) == 1


async def test_a_call_that_never_arrived_is_a_gap(model: ServedModel) -> None:
    rollout = model.rollout()
    taken = asyncio.Event()

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        taken.set()
        writer.close()

    async with await asyncio.start_server(swallow, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        async with openai_client(f"http://127.0.0.1:{port}/ng-rollout/{rollout.id}", rollout, max_retries=0) as client:
            with pytest.raises(openai.APIConnectionError):
                await ask_async(client, "chat", False, CHAT)
        await asyncio.wait_for(taken.wait(), 60.0)
    assert rollout.issued == 1
    [gap] = (await asyncio.to_thread(model.merged, rollout))["gaps"]
    assert (gap["code"], gap["detail"]) == ("model_call_capture_incomplete", "unaccounted=1")


@pytest.mark.parametrize("proxied", [True, False], ids=["at_the_server", "in_the_worker"])
async def test_a_verifiers_calls_are_counted_apart(model: ServedModel, proxied: bool) -> None:
    rollout = model.rollout()
    url = model.prefixed_url(rollout) if proxied else None
    own: dict[str, Any] = {} if proxied else {"api_key": KEY}
    base: list[dict[str, Any]] = (
        [{}, {}] if proxied else [{"base_url": f"{model.bare_url}/v1"}, {"base_url": model.bare_url}]
    )
    async with (
        openai_client(url, rollout, **own, **base[0]) as chat,
        anthropic_client(url, rollout, **own, **base[1]) as messages,
    ):
        await ask_async(chat, "chat", False, TASK)
        with gym_capture.verifier("Richter über alles", "judge-1"):
            await ask_async(chat, "responses", True, CHAT)
            await ask_async(messages, "messages", False, CHAT)
        await ask_async(messages, "messages", True, TASK)
    merged = model.merged(rollout)
    assert merged["metrics"]["num_calls"] == 2
    [verifier] = merged["verifiers"]
    assert (verifier["invocation_id"], verifier["name"]) == ("judge-1", "Richter über alles")
    assert verifier["metrics"]["num_calls"] == 2
    assert [call.get("verifier_invocation_id") for call in merged["calls"]] == [None, "judge-1", "judge-1", None]


async def test_a_verifier_may_be_named_in_headers_by_any_client(model: ServedModel) -> None:
    rollout = model.rollout()
    headers = {"x-ng-verifier-invocation-id": "j%2F1", "x-ng-verifier-name": "r%C3%BCbe"}
    async with async_client(model, rollout, "base_url", "chat") as client:
        await ask_async(client, "chat", False, CHAT, extra_headers=headers)
    [verifier] = model.merged(rollout)["verifiers"]
    assert (verifier["invocation_id"], verifier["name"]) == ("j/1", "rübe")


@pytest.mark.parametrize(("name", "make"), [("openai", openai_client), ("anthropic", anthropic_client)])
def test_without_the_sdk_the_error_says_what_to_install(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch, name: str, make: Any
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'gym-capture\[{name}\]'"):
        make(None, model.rollout())


@pytest.mark.parametrize(("name", "how"), [("httpx", r"'gym-capture\[httpx\]'"), ("httpx2", "httpx2")])
def test_without_the_http_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"gym_capture.integrations.{name}")
    with pytest.raises(MissingExtra, match=f"pip install {how}"):
        importlib.import_module(f"gym_capture.integrations.{name}")


@pytest.mark.parametrize("proxied", [True, False], ids=["at_the_server", "in_the_worker"])
async def test_where_nothing_is_captured_the_clients_work_as_ever(model: ServedModel, proxied: bool) -> None:
    capture = gym_capture.start({"observability_enabled": False})
    rollout = capture.rollout("0-0", generation=1)
    given: dict[str, Any] = {} if proxied else {"base_url": f"{model.bare_url}/v1", "api_key": KEY}
    async with openai_client(model.bare_url if proxied else None, rollout, **given) as client:
        assert (await ask_async(client, "chat", True, CHAT)).choices[0].message.content
    await capture.close()


def test_the_environments_key_and_proxies_are_used(model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    rollout, url = model.rollout(), "http://127.0.0.1:9/ng-rollout/0-0"
    assert (openai_client(url, rollout).api_key, anthropic_client(url, rollout).api_key) == (NO_KEY, NO_KEY)
    assert openai_client(url, rollout, api_key="given").api_key == "given"
    with pytest.raises(openai.OpenAIError, match="OPENAI_API_KEY"):
        openai_client(None, rollout)
    monkeypatch.setenv("OPENAI_API_KEY", "from-outside")
    assert openai_client(url, rollout).api_key == "from-outside"


async def test_a_provider_behind_the_environments_proxy_is_captured_too(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The model server stands for the environment's proxy as well: it takes absolute paths as they come.
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", model.bare_url)
    rollout = model.rollout()
    async with openai_client(None, rollout, base_url="http://provider.invalid/v1", api_key=KEY) as client:
        returned = await ask_async(client, "chat", False, CHAT)
    [exchange] = model.exchanges(rollout)
    assert without_nulls(exchange["response"]) == plain(returned)
    monkeypatch.setenv("no_proxy", "provider.invalid")
    async with openai_client(
        None, rollout, base_url="http://provider.invalid/v1", api_key=KEY, max_retries=0
    ) as client:
        with pytest.raises(openai.APIConnectionError):
            await ask_async(client, "chat", False, CHAT)
    assert [each["error_category"] for each in model.exchanges(rollout)] == [None, "connection"]


def test_threads_share_a_client(model: ServedModel) -> None:
    rollout = model.rollout()
    heard: list[str] = []
    http_client = httpx2.Client(
        transport=over_httpx2.CaptureTransport(rollout, httpx2.HTTPTransport(verify=False)),
        event_hooks={
            "request": [lambda request: heard.append("request")],
            "response": [lambda response: heard.append(f"{response.status_code}")],
        },
    )
    with openai.OpenAI(base_url=f"{model.bare_url}/v1", api_key=KEY, http_client=http_client) as client:

        def ask(number: int) -> str:
            messages: Any = [{"role": "user", "content": f"question {number}"}]
            if number % 2:
                return client.chat.completions.create(model="m", messages=messages).id
            events = client.chat.completions.create(model="m", messages=messages, stream=True)
            return {event.id for event in events}.pop()

        with ThreadPoolExecutor(6) as threads:
            answers = list(threads.map(ask, range(24)))
    exchanges = model.exchanges(rollout)
    asked = [each["request"]["messages"][0]["content"] for each in exchanges]
    assert sorted(asked) == sorted(f"question {number}" for number in range(24))
    assert sorted(each["response"]["id"] for each in exchanges) == sorted(answers)
    assert {each["error_category"] for each in exchanges} == {None}
    assert (rollout.issued, sorted(heard)) == (24, ["200"] * 24 + ["request"] * 24)


def test_what_is_closed_in_another_loop_than_it_began_in_is_captured_as_cancelled(model: ServedModel) -> None:
    rollout = model.rollout()
    client = openai_client(None, rollout, base_url=f"{model.bare_url}/v1", api_key=KEY)
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}

    async def begin() -> Any:
        stream = await client.chat.completions.create(**asked, stream=True)
        await anext(aiter(stream))
        return stream

    async def end(stream: Any) -> None:
        with suppress(RuntimeError):  # httpx2's connection belongs to a loop that is closed
            await stream.close()
        await client.close()

    asyncio.run(end(asyncio.run(begin())))
    assert [each["error_category"] for each in model.exchanges(rollout)] == ["cancelled"]
    assert rollout.issued == 1


def test_a_client_of_ones_own_is_refused_with_the_way_to_go(model: ServedModel) -> None:
    with pytest.raises(TypeError, match="AsyncCaptureTransport"):
        openai_client("http://127.0.0.1:9", model.rollout(), http_client=httpx2.AsyncClient())
