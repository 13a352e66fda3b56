"""The example's server, asked over HTTP: the three dialects, whole and streamed, and its faults."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from gym_capture.examples.model_faults import BROKEN, CUT, FAULTS, RATE_LIMITED, check_likelihoods
from gym_capture.examples.model_server import ModelServer
from gym_capture.examples.server_thread import served
from gym_capture.model.record import derive_fields
from tests.cli.commands import environment

TASK = "Find out about bolts, then order them."
TOOLS = ("stock_of", "price_of", "place_order")
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": TASK}],
        "tools": [{"type": "function", "function": {"name": name}} for name in TOOLS],
    },
    "/v1/responses": {"input": TASK, "tools": [{"type": "function", "name": name} for name in TOOLS]},
    "/v1/messages": {
        "messages": [{"role": "user", "content": TASK}],
        "max_tokens": 100,
        "tools": [{"name": name} for name in TOOLS],
    },
}
DIALECTS = {"/v1/chat/completions": "chat", "/v1/responses": "responses", "/v1/messages": "messages"}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx2.Client]:
    with served(ModelServer(seed=7, faults={})) as url, httpx2.Client(base_url=url, verify=False) as made:
        yield made


def derived(path: str, response: httpx2.Response) -> dict[str, Any]:
    """What capture makes of a whole answer."""
    exchange = {"model_call_id": "x", "dialect": DIALECTS[path], "status_code": response.status_code}
    return derive_fields({**exchange, "request": {}, "response": response.json()})


@pytest.mark.parametrize("path", list(REQUESTS))
def test_an_answer_has_reasoning_parallel_tools_and_usage(client: httpx2.Client, path: str) -> None:
    record = derived(path, client.post(path, json=REQUESTS[path]))
    assert [call["name"] for call in record["tool_calls"]] == ["stock_of", "price_of"]
    assert record["reasoning_content"] == "bolts come next."
    assert record["tokens_in"] > 0
    assert record["tokens_out"] > 0
    assert record["cached_tokens"] == 0
    if path != "/v1/messages":
        assert record["tokens_reasoning"] == 4


def next_request(path: str, answer: dict[str, Any]) -> dict[str, Any]:
    """The request after an answer's tools were used."""
    request = json.loads(json.dumps(REQUESTS[path]))
    if path == "/v1/chat/completions":
        message = answer["choices"][0]["message"]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "1"} for call in message.get("tool_calls", ())
        ]
        request["messages"] += [message, *results]
    elif path == "/v1/messages":
        uses = [part for part in answer["content"] if part["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "1"} for use in uses]
        request["messages"] += [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    else:
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "1"} for call in calls]
        request["input"] = [{"role": "user", "content": TASK}, *answer["output"], *results]
    return dict(request)


@pytest.mark.parametrize("path", list(REQUESTS))
def test_the_next_turn_goes_on_and_finds_the_last_one_in_the_cache(client: httpx2.Client, path: str) -> None:
    first = client.post(path, json=REQUESTS[path])
    record = derived(path, client.post(path, json=next_request(path, first.json())))
    assert [call["name"] for call in record["tool_calls"]] == ["place_order"]
    assert 0 < record["cached_tokens"] <= derived(path, first)["tokens_in"]
    assert record["tokens_in"] > record["cached_tokens"]


@pytest.mark.parametrize("path", list(REQUESTS))
def test_the_same_seed_and_request_get_the_same_answer(client: httpx2.Client, path: str) -> None:
    first = client.post(path, json=REQUESTS[path]).content
    assert client.post(path, json=REQUESTS[path]).content == first
    assert client.post(path, json=REQUESTS[path], headers={"x-script-seed": "other"}).content != first
    with served(ModelServer(seed=8, faults={})) as url:
        assert httpx2.post(url + path, json=REQUESTS[path], verify=False).content != first


def test_a_stream_numbers_its_events_and_ends_with_the_whole_response(client: httpx2.Client) -> None:
    body = client.post("/v1/responses", json={**REQUESTS["/v1/responses"], "stream": True}).text
    events = [json.loads(data) for data in re.findall(r"^data: (.*)$", body, re.MULTILINE)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert re.findall(r"^event: (.*)$", body, re.MULTILINE) == [event["type"] for event in events]
    assert events[-1]["type"] == "response.completed"
    assert [item["type"] for item in events[-1]["response"]["output"]] == [
        "reasoning",
        "function_call",
        "function_call",
    ]


def test_a_chat_stream_has_usage_only_where_it_is_asked_for(client: httpx2.Client) -> None:
    asked = {**REQUESTS["/v1/chat/completions"], "stream": True}
    without = client.post("/v1/chat/completions", json=asked).text
    usage = client.post("/v1/chat/completions", json={**asked, "stream_options": {"include_usage": True}}).text
    assert '"usage"' not in without
    assert '"prompt_tokens"' in usage.split("\n\n")[-3]
    assert usage.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [(RATE_LIMITED, 429, None), (BROKEN, 500, None), ("context_length", 400, "context_length_exceeded")],
)
@pytest.mark.parametrize("path", list(REQUESTS))
def test_a_request_may_ask_for_a_fault(
    client: httpx2.Client, path: str, fault: str, status: int, code: str | None
) -> None:
    response = client.post(path, json=REQUESTS[path], headers={"x-script-fault": fault})
    assert response.status_code == status
    assert response.json()["error"].get("code") == code


def test_a_fault_may_be_over_after_some_tries(client: httpx2.Client) -> None:
    asked = {"x-script-fault": "broken*2"}
    statuses = [
        client.post("/v1/responses", json={"input": "hi"}, headers={**asked, "x-stainless-retry-count": str(number)})
        for number in range(3)
    ]
    assert [response.status_code for response in statuses] == [500, 500, 200]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_cut_response_ends_without_an_end(client: httpx2.Client, stream: bool) -> None:
    asked = {"input": "hi", "stream": stream}
    with pytest.raises(httpx2.RemoteProtocolError):
        client.post("/v1/responses", json=asked, headers={"x-script-fault": CUT})


def test_faults_by_chance_follow_from_seed_and_request() -> None:
    likely = {RATE_LIMITED: 0.3, BROKEN: 0.3}
    told = []
    for _ in range(2):
        with served(ModelServer(seed=3, faults=likely)) as url, httpx2.Client(base_url=url, verify=False) as client:
            asked = [client.post("/v1/responses", json={"input": f"hi {number}"}) for number in range(40)]
        told.append([response.status_code for response in asked])
    assert told[0] == told[1]
    assert set(told[0]) == {200, 429, 500}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", b"{"),
        ("/v1/chat/completions", b"[]"),
        ("/v1/messages", b'{"messages": 3}'),
        ("/v1/responses", b"{}"),
        ("/v1/responses", b'{"input": ["text"]}'),
    ],
)
def test_what_cannot_be_understood_is_the_callers_fault(client: httpx2.Client, path: str, body: bytes) -> None:
    assert client.post(path, content=body).status_code == 400


def test_an_unknown_fault_or_route_is_told(client: httpx2.Client) -> None:
    asked = client.post("/v1/responses", json={"input": "hi"}, headers={"x-script-fault": "typo"})
    assert (asked.status_code, "rate_limited" in asked.text) == (400, True)
    assert client.get("/v1/nothing").status_code == 404
    with pytest.raises(ValueError, match=f"no such fault: typo; there are {FAULTS[0]}"):
        check_likelihoods({"typo": 0.1})
    with pytest.raises(ValueError, match="between 0 and 1"):
        check_likelihoods({CUT: 0.7, BROKEN: 0.7})


def test_it_serves_from_the_command_line_and_says_where() -> None:
    command = [sys.executable, "-m", "gym_capture.examples.model_server", "--seed", "7", "--no-faults", "--gzip"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            response = httpx2.get(f"{url}/v1/models", verify=False)
        finally:
            process.terminate()
    assert response.headers["content-encoding"] == "gzip"
    assert [card["id"] for card in response.json()["data"]] == ["scripted-7b"]
    # uvicorn ends as the signal asks, once it has closed its connections.
    assert process.returncode in (0, -15)
