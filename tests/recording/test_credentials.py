"""Secrets of a request, in whatever is stored of it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from gym_capture.recording.credentials import Credentials

KEY = "sk-proj/abc+DEF=0123456789"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"Authorization", f"Bearer {KEY}"),
        (b"authorization", f"bearer   {KEY} "),
        (b"authorization", KEY),
        (b"x-api-key", KEY),
        (b"API-KEY", KEY),
        (b"x-goog-api-key", KEY),
        (b"ocp-apim-subscription-key", KEY),
        (b"x-auth-token", KEY),
        (b"proxy-authorization", f"Bearer {KEY}"),
        (b"cookie", f"theme=dark; session={KEY}; other=1"),
        (b"cookie", f'session="{KEY}"'),
        (b"authorization", "Basic " + base64.b64encode(f"someone:{KEY}".encode()).decode()),
    ],
)
def test_secrets_are_found_in_every_form_that_a_text_may_show(name: bytes, value: str) -> None:
    credentials = Credentials([(b"accept", b"*/*"), (name, value.encode())])
    assert credentials
    quoted = KEY.replace("/", "%2F").replace("+", "%2B").replace("=", "%3D")
    texts = [KEY, json.dumps(KEY), KEY.replace("/", "\\/"), quoted]
    for text in texts:
        assert credentials.scrub_text(f"key {text}.") == f"key {text.replace(text.strip(chr(34)), '[redacted]')}."
        assert credentials.scrub_bytes(f"key {text}.".encode()).count(b"[redacted]") == 1


def test_a_cookie_in_url_form_is_found_as_what_it_means() -> None:
    credentials = Credentials([(b"cookie", b"session=a%20long%20enough%20secret")])
    assert credentials.scrub_text("it is a long enough secret!") == "it is [redacted]!"
    assert credentials.scrub_text("it is a%20long%20enough%20secret!") == "it is [redacted]!"


def test_short_values_and_other_headers_are_no_secrets() -> None:
    credentials = Credentials(
        [(b"authorization", b"Bearer EMPTY"), (b"x-request-id", KEY.encode()), (b"cookie", b"theme=dark")]
    )
    assert not credentials
    text = f"EMPTY dark {KEY}"
    assert credentials.scrub_text(text) is text
    data = text.encode()
    assert credentials.scrub_bytes(data) is data


def test_a_secret_within_another_leaves_nothing_of_either() -> None:
    credentials = Credentials([(b"x-api-key", KEY.encode()), (b"authorization", f"Bearer {KEY}-and-more".encode())])
    assert credentials.scrub_text(f"{KEY}-and-more {KEY}") == "[redacted] [redacted]"


def test_values_are_searched_at_any_depth_and_the_given_one_stays() -> None:
    credentials = Credentials([(b"x-api-key", KEY.encode())])
    given: dict[str, Any] = {"a": [1, None, {"b": f"x{KEY}y", KEY: True}], "c": 2.5}
    assert credentials.scrub_json(given) == {"a": [1, None, {"b": "x[redacted]y", "[redacted]": True}], "c": 2.5}
    assert given["a"][2]["b"] == f"x{KEY}y"
    deep: Any = KEY
    for _ in range(100_000):
        deep = [deep]
    scrubbed = credentials.scrub_json(deep)
    for _ in range(100_000):
        scrubbed = scrubbed[0]
    assert scrubbed == "[redacted]"


@pytest.mark.parametrize("raw", ["пароль-пароль-пароль".encode(), b"caf\xe9-caf\xe9-caf\xe9-1"])
def test_secrets_beyond_ascii_are_found_as_they_came_and_as_text(raw: bytes) -> None:
    credentials = Credentials([(b"x-api-key", raw)])
    assert credentials.scrub_bytes(b"<" + raw + b">") == b"<[redacted]>"
    text = raw.decode("utf-8") if raw[0] > 127 else raw.decode("latin-1")
    assert credentials.scrub_text(f"<{text}>") == "<[redacted]>"
    assert credentials.scrub_bytes(json.dumps(text).encode()) == b'"[redacted]"'
    assert credentials.scrub_bytes(json.dumps(text, ensure_ascii=False).encode()) == b'"[redacted]"'
