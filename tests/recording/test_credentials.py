"""Secrets of a request, in whatever is stored of it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from gym_capture.recording.credentials import MOST_SECRETS, Credentials

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


def escaped(text: str, way: str) -> str:
    """Every second character escaped, or all of them."""
    ways = {"\\u": lambda c: f"\\u{ord(c):04x}", "\\U": lambda c: f"\\u{ord(c):04X}", "%": lambda c: f"%{ord(c):02x}"}
    if way == "all":
        return "".join(map(ways["\\u"], text))
    if way == "mixed":
        return "".join((ways["\\u"], ways["%"], str)[at % 3](char) for at, char in enumerate(text))
    return "".join(ways[way](char) if at % 2 else char for at, char in enumerate(text))


@pytest.mark.parametrize("way", ["\\u", "\\U", "%", "all", "mixed"])
def test_secrets_are_found_however_they_are_escaped(way: str) -> None:
    credentials = Credentials([(b"x-api-key", KEY.encode())])
    body = f'{{"n": 1.50, "e": "say \\"{escaped(KEY, way)}\\" \\u00e9", "é": "\\/"}}'.encode()
    whole = credentials.scrub_bytes(body, is_json=True)
    assert whole == '{"n": 1.50, "e": "say \\"[redacted]\\" \\u00e9", "é": "\\/"}'.encode()
    assert credentials.scrub_bytes(body[:-9]) == whole[:-9]


def test_slashes_and_percent_signs_may_be_written_each_in_its_own_way() -> None:
    credentials = Credentials([(b"x-api-key", KEY.encode())])
    for text in (KEY.replace("/", "%2f").replace("+", "%2B"), KEY.replace("/", "\\/", 1), KEY.replace("=", "\\u003D")):
        assert credentials.scrub_bytes(f'"{text}"'.encode(), is_json=True) == b'"[redacted]"'
        assert credentials.scrub_text(f"<{text}>") == "<[redacted]>"


def test_json_stays_json_whatever_the_secret_is() -> None:
    digits = Credentials([(b"x-api-key", b"1234567890123456")])
    body = b'{"id": 1234567890123456, "text": "1234567890123456", "more": 9123456789012345678e1}'
    scrubbed = digits.scrub_bytes(body, is_json=True)
    assert scrubbed == body.replace(b'"1234567890123456"', b'"[redacted]"')
    within = Credentials([(b"x-api-key", b"nsk-0123456789abcdef")])
    assert within.scrub_bytes(b'["a\\nsk-0123456789abcdef"]', is_json=True) == b'["[redacted]"]'
    syntax = Credentials([(b"x-api-key", b'": "value", "next')])
    body = b'{"key": "value", "next": 1}'
    assert syntax.scrub_bytes(body, is_json=True) == body


def test_secrets_in_utf_16_and_utf_32_are_found() -> None:
    credentials = Credentials([(b"x-api-key", KEY.encode())])
    for encoding in ("utf-16-le", "utf-16-be", "utf-16", "utf-32"):
        scrubbed = credentials.scrub_bytes(json.dumps({"k": KEY}).encode(encoding))
        assert json.loads(scrubbed.decode(encoding)) == {"k": "[redacted]"}


def test_a_cookie_that_is_what_the_request_says_anyway_is_spared() -> None:
    model = "meta-llama/Llama-3.1-8B"
    credentials = Credentials([(b"cookie", f"model={model}; s={KEY}".encode())])
    assert credentials.of_cookies
    credentials.spare(model)
    assert credentials.scrub_text(f"{model} {KEY}") == f"{model} [redacted]"
    key = Credentials([(b"x-api-key", KEY.encode())])
    key.spare(KEY)
    assert key.scrub_text(KEY) == "[redacted]"


def test_so_many_secrets_are_looked_for_and_keys_before_cookies() -> None:
    cookies = "; ".join(f"c{number}=cookie-value-number-{number:05}" for number in range(2500))
    credentials = Credentials([(b"cookie", cookies.encode()), (b"x-api-key", KEY.encode())])
    kept = [number for number in range(2500) if credentials.scrub_text(f"cookie-value-number-{number:05}")[0] == "["]
    assert len(kept) == MOST_SECRETS - 1
    assert credentials.scrub_text(KEY) == "[redacted]"


@pytest.mark.parametrize(
    "name",
    [
        "x-functions-key",
        "x-portkey-virtual-key",
        "x-session-token",
        "x-token",
        "x-goog-iap-jwt-assertion",
        "cf-access-jwt-assertion",
        "x-csrf-token",
        "x-hf-token",
        "x-pinggy-password",
        "private-token",
        "x-vault-token",
        "x-jwt",
        "Authentication",
        "x-forwarded-access-token",
        "helicone-auth",
        "x-credential",
        "x-session-id",
        "cookie2",
    ],
)
def test_headers_that_are_called_like_secrets_are_taken_for_them(name: str) -> None:
    assert Credentials([(name.encode(), KEY.encode())]).scrub_text(KEY) == "[redacted]"


@pytest.mark.parametrize(
    "name",
    [
        "idempotency-key",
        "x-stainless-idempotency-key",
        "x-client-session-id",
        "x-claude-code-session-id",
        "sec-websocket-key",
        "x-author",
        ":authority",
        "openai-organization",
        "user-agent",
        "x-ng-verifier-name",
    ],
)
def test_headers_that_only_sound_like_it_are_none(name: str) -> None:
    assert not Credentials([(name.encode(), KEY.encode())])
