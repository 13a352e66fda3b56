"""What request paths mean to capture."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_capture.recording.routes import InvalidPrefix, NonGenerating, Route, find_route


def found(raw: str | bytes) -> Route:
    route = find_route(raw)
    assert isinstance(route, Route)
    return route


def test_an_id_with_and_without_a_generation_is_cut_off() -> None:
    assert found("/ng-rollout/7-0/v1/models") == Route("7-0", None, "/ng-rollout/7-0", "/v1/models", "/v1/models")
    assert found(b"/ng-rollout/7-0~3/v1/models") == Route("7-0", 3, "/ng-rollout/7-0~3", "/v1/models", "/v1/models")


@pytest.mark.parametrize("raw", ["/ng-rollout/7-0%7E3/v1/x", "/ng-rollout/7-0%7e3/v1/x", "/ng%2Drollout/7-0~3/v1/x"])
def test_what_is_percent_encoded_without_need_means_the_same(raw: str) -> None:
    route = found(raw)
    assert (route.rollout_id, route.generation, route.path) == ("7-0", 3, "/v1/x")
    assert route.prefix + route.rest == raw


def test_what_the_app_sees_keeps_its_encoding_and_loses_the_query() -> None:
    route = found("/ng-rollout/7-0/v1/a%2Fb%20c?x=/ng-rollout/8-0/")
    assert (route.rest, route.path) == ("/v1/a%2Fb%20c", "/v1/a/b c")


@pytest.mark.parametrize("raw", ["/ng-rollout/7-0", "/ng-rollout/7-0/"])
def test_a_prefix_alone_leaves_the_root(raw: str) -> None:
    assert (found(raw).rest, found(raw).path) == ("/", "/")


@pytest.mark.parametrize(
    "raw", ["", "/", "/v1/chat/completions", "/x/ng-rollout/7-0/v1/models", "/ng-rollouts/7-0/v1", "ng-rollout/7-0/v1"]
)
def test_other_paths_are_of_no_rollout(raw: str) -> None:
    assert find_route(raw) is None


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "%2e%2e",
        "..%2f..%2fetc",
        "a%2Fb",
        "a%5Cb",
        "-a",
        "a b",
        "a%00",
        "a%0d%0aX-Evil:%201",
        "a" * 201,
        "a" * 10_240,
        "7-0~",
        "7-0~-1",
        "7-0~01",
        "7-0~1~2",
        "7-0~9223372036854775808",
        "日",
    ],
)
def test_an_id_that_is_none_is_told_in_few_words(token: str) -> None:
    route = find_route(f"/ng-rollout/{token}/v1/chat/completions")
    assert isinstance(route, InvalidPrefix)
    assert 0 < len(route.message) < 400


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/responses", "responses"),
        ("/v1/chat/completions", "chat"),
        ("/v1/messages", "messages"),
        ("/training-token-capture/v1/chat/completions", "chat"),
        ("//v1//messages", "messages"),
        ("/v1/chat%2Fcompletions", "chat"),
        ("/v1/chat/completions/", None),
        ("/a/b/v1/messages", None),
        ("/v1/completions", None),
        ("/v1/embeddings", None),
        ("/v1/messages/count_tokens", None),
        ("/v1/responses/resp_1", None),
    ],
)
def test_the_dialect_is_told_by_the_path(path: str, dialect: str | None) -> None:
    route = found(f"/ng-rollout/7-0{path}")
    assert route.dialect("POST") == dialect
    assert route.dialect("post") == dialect
    assert route.dialect("GET") is None


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        ("GET /v1/models", True),
        ("GET /v1/models/policy", True),
        ("GET /any-segment/v1/models", True),
        ("POST /v1/models/gemini:generateContent", False),
        ("GET /v1/responses/resp_1", True),
        ("DELETE /v1/responses/resp_1", True),
        ("POST /v1/responses/resp_1", False),
        ("POST /v1/messages/count_tokens", True),
        ("POST /training-token-capture/v1/messages/count_tokens", True),
        ("POST /tokenize", True),
        ("HEAD /v1/anything", True),
        ("OPTIONS /v1/chat/completions", True),
        ("POST /v1/completions", False),
        ("POST /v1/embeddings", True),
        ("GET /v1/embeddings", True),
        ("POST /v1/rerank", True),
        ("GET /v1/rerank", False),
        ("POST /generate", False),
    ],
)
def test_which_requests_call_no_model(request_line: str, expected: bool) -> None:
    method, _, path = request_line.partition(" ")
    assert NonGenerating(["/v1/embeddings*", "post /v1/rerank"]).matches(method, path) is expected


@given(st.text(max_size=60))
def test_any_path_is_a_route_an_error_or_neither(text: str) -> None:
    for raw in (text, f"/ng-rollout/{text}", f"/ng-rollout/7-0/{text}"):
        route = find_route(raw)
        if isinstance(route, Route):
            assert route.prefix + route.rest == raw.partition("?")[0] or raw.partition("?")[0] == route.prefix
