"""What is taken out of exchanges, and that nothing of it is left wherever it stood."""

from __future__ import annotations

import json
import pickle
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from gym_capture.model.exchange import open_exchange, open_part, open_record, pack, snapshot
from gym_capture.model.redaction import Redaction, redaction_of
from gym_capture.model.redaction_rules import RedactionRules, compile_path, compile_pattern
from gym_capture.model.rows import PartKind

SECRET = "sk-7F3aQ9zT"
PATTERN = r"sk-\w{8}"


def rules(*paths: str, patterns: tuple[str, ...] = ()) -> Redaction:
    return redaction_of(RedactionRules(paths, patterns))


BY_PATTERN = rules(patterns=(PATTERN,))


def stored(exchange: dict[str, Any], redaction: Redaction) -> dict[PartKind, bytes]:
    """An exchange's parts as they would be written, before compression."""
    sealed = pack(snapshot({"dialect": "chat", "model_call_id": "c", **exchange}, redaction=redaction))
    body = b"".join(sealed.body)
    return {PartKind(part.kind): open_part(part, body[part.offset :][: part.length]) for part in sealed.parts}


def kept(exchange: dict[str, Any], redaction: Redaction) -> dict[str, Any]:
    """The exchange as it is read back."""
    sealed = pack(snapshot({"dialect": "chat", "model_call_id": "c", **exchange}, redaction=redaction))
    body = b"".join(sealed.body)
    return open_exchange([(part, open_part(part, body[part.offset :][: part.length])) for part in sealed.parts])


def record(exchange: dict[str, Any], redaction: Redaction) -> dict[str, Any]:
    return open_record(stored(exchange, redaction)[PartKind.RECORD])[0]


def escaped(text: str) -> str:
    """Every character as JSON may write it."""
    return "".join(f"\\u{ord(character):04x}" for character in text)


# -- paths ----------------------------------------------------------------------------------------------------------


def test_a_path_replaces_the_whole_value() -> None:
    request = {"metadata": {"user": {"name": "Ada", "mail": "a@b"}, "task": 1}, "messages": []}
    found = kept({"request": request}, rules("$.request.metadata.user"))
    assert found["request"] == {"metadata": {"user": "[redacted]", "task": 1}, "messages": []}
    assert request["metadata"] == {"user": {"name": "Ada", "mail": "a@b"}, "task": 1}, "the caller's object is theirs"


def test_a_descendant_path_reaches_every_payload_and_field() -> None:
    found = kept(
        {
            "request": {"api_key": "a", "tools": [{"api_key": {"api_key": 1}}]},
            "response": b'{"x": {"api_key": [1, 2]}}',
            "headers": {"api_key": 7},
            "api_key": "top",
        },
        rules("$..api_key"),
    )
    assert found["request"] == {"api_key": "[redacted]", "tools": [{"api_key": "[redacted]"}]}
    assert found["response"] == {"x": {"api_key": "[redacted]"}}
    assert (found["headers"], found["api_key"]) == ({"api_key": "[redacted]"}, "[redacted]")


def test_several_paths_see_the_exchange_as_it_was_given() -> None:
    request = {"users": [{"kind": "human", "mail": "a"}, {"kind": "bot", "mail": "b"}]}
    found = kept({"request": request}, rules("$..kind", "$.request.users[?@.kind == 'human'].mail"))
    assert found["request"]["users"] == [
        {"kind": "[redacted]", "mail": "[redacted]"},
        {"kind": "[redacted]", "mail": "b"},
    ]


def test_what_tells_one_exchange_from_another_stays() -> None:
    found = kept({"request": {"a": 1}, "status_code": 200, "note": "x"}, rules("$.*"))
    assert (found["dialect"], found["model_call_id"]) == ("chat", "[redacted]"), "the id was the caller's"
    assert (found["request"], found["status_code"], found["note"]) == ("[redacted]", "[redacted]", "[redacted]")
    made_up = snapshot({"dialect": "chat", "request": {}}, lambda: "id", rules("$..*"))
    assert made_up.model_call_id == "id"


def test_with_paths_raw_text_is_withheld_with_its_length() -> None:
    found = kept({"request": b"not { json", "response_raw": "raw text"}, rules("$..api_key"))
    assert found["request"] is None
    assert found["request_raw"] == "[redacted] 10 bytes withheld: JSON paths do not reach into raw text"
    assert found["response_raw"] == "[redacted] 8 bytes withheld: JSON paths do not reach into raw text"


# -- patterns -------------------------------------------------------------------------------------------------------


def test_a_pattern_replaces_its_match_in_values_and_keys() -> None:
    found = kept(
        {"request": {"messages": [f"use {SECRET}, please"], SECRET: 1, f"{SECRET}!": 2, "n": 12}, SECRET: "x"},
        BY_PATTERN,
    )
    assert found["request"] == {
        "messages": ["use [redacted], please"],
        "[redacted]": 1,
        "[redacted]!": 2,
        "n": 12,
    }
    assert found["[redacted]"] == "x"


def test_keys_that_become_the_same_are_told_apart() -> None:
    found = kept({"request": {"sk-aaaaaaaa": 1, "sk-bbbbbbbb": 2, "[redacted]": 3}}, BY_PATTERN)
    assert found["request"] == {"[redacted] (2)": 1, "[redacted] (3)": 2, "[redacted]": 3}


def test_the_record_is_derived_from_what_is_left() -> None:
    response = {
        "model": f"m-{SECRET}",
        "choices": [
            {
                "finish_reason": "tool_calls",
                "message": {
                    "reasoning_content": f"the key is {SECRET}",
                    "tool_calls": [
                        {"id": "t", "function": {"name": "f", "arguments": json.dumps({"key": SECRET, "n": 1})}}
                    ],
                },
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    for given_as in (response, json.dumps(response).encode()):
        found = record({"response": given_as}, BY_PATTERN)
        assert found["model"] == "m-[redacted]"
        assert found["reasoning_content"] == "the key is [redacted]"
        assert found["tool_calls"][0]["arguments"] == {"key": "[redacted]", "n": 1}
        assert (found["tokens_total"], found["finish_reason"]) == (5, "tool_calls")


def test_what_derivation_joins_is_searched_again() -> None:
    thinking = [{"type": "thinking", "thinking": SECRET[:5]}, {"type": "thinking", "thinking": SECRET[5:]}]
    exchange = {"dialect": "messages", "response": {"content": thinking}}
    joined = record(exchange, rules(patterns=(r"sk-.{0,3}\s?.{0,3}\w{5}",)))["reasoning_content"]
    assert SECRET[5:] not in joined


@pytest.mark.parametrize("times", [1, 2, 3])
def test_escapes_hide_nothing(times: int) -> None:
    text = escaped(SECRET)
    for _ in range(times - 1):
        text = text.replace("\\", "\\\\")
    arguments = '{"key": "' + text + '"}'
    response = {"choices": [{"message": {"tool_calls": [{"id": "t", "function": {"arguments": arguments}}]}}]}
    assert kept({"response": response}, BY_PATTERN)["response"]["choices"][0]["message"]["tool_calls"] == [
        {"id": "t", "function": {"arguments": "[redacted]"}}
    ]
    body = f'{{"whole": "{escaped(SECRET)}"}}'.encode()
    assert kept({"request": body}, BY_PATTERN)["request"] == {"whole": "[redacted]"}
    cut = kept({"request": body[:-2]}, BY_PATTERN)
    assert cut["request_raw"] == f"[redacted] {len(body) - 2} bytes withheld: a rule matches what it escapes"


def test_escapes_without_a_match_stay() -> None:
    text = 'C:\\new\\users "quoted\\" \\u0041'
    assert kept({"request": {"t": text}, "response_raw": text}, BY_PATTERN)["request"] == {"t": text}
    assert kept({"response_raw": text}, BY_PATTERN)["response_raw"] == text


# -- bytes ----------------------------------------------------------------------------------------------------------


def test_bytes_without_a_match_stay_byte_for_byte_and_others_are_written_again() -> None:
    plain = b'{ "a" : 1.50, "b":"\\u0041", "c": NaN, "d": 123456789012345678901234567890 }'
    assert stored({"request": plain}, BY_PATTERN)[PartKind.REQUEST] == plain
    assert stored({"request": plain}, rules("$..api_key"))[PartKind.REQUEST] == plain
    with_secret = plain.replace(b"\\u0041", SECRET.encode())
    written = stored({"request": with_secret}, BY_PATTERN)[PartKind.REQUEST]
    assert written == b'{"a":1.5,"b":"[redacted]","c":NaN,"d":123456789012345678901234567890}'


@pytest.mark.parametrize("redaction", [BY_PATTERN, rules("$..api_key")], ids=["pattern", "path"])
def test_a_key_that_stands_twice_hides_nothing(redaction: Redaction) -> None:
    body = f'{{"api_key": "{SECRET}", "api_key": "fine", "b": 1}}'.encode()
    assert SECRET.encode() not in stored({"request": body}, redaction)[PartKind.REQUEST]
    found = kept({"request": body}, redaction)["request"]
    assert found == {"api_key": "fine" if redaction is BY_PATTERN else "[redacted]", "b": 1}


def test_patterns_apply_to_bytes_that_are_not_json() -> None:
    assert kept({"response": f"<h1>{SECRET}</h1>".encode()}, BY_PATTERN)["response_raw"] == "<h1>[redacted]</h1>"
    cut_character = f"{SECRET} ü".encode()[:-1]
    assert stored({"response_raw": cut_character}, BY_PATTERN)[PartKind.RESPONSE_RAW] == b"[redacted] \xc3"
    fine = b"<h1>fine</h1>"
    assert stored({"response": fine}, BY_PATTERN)[PartKind.RESPONSE] == fine
    assert record({"response": b"<h1>"}, BY_PATTERN)["error_category"] == "capture_parse_error"


@pytest.mark.parametrize(
    "data", [f"<{SECRET}".encode("utf-16"), f"\xff{SECRET}".encode("latin-1"), b"\x1f\x8b\x08\0\0\0"]
)
def test_bytes_that_are_no_text_are_withheld(data: bytes) -> None:
    found = kept({"response": data}, BY_PATTERN)["response_raw"]
    assert found == f"[redacted] {len(data)} bytes withheld: it is no text that rules can search"
    assert kept({"response": f'"{SECRET}"'.encode("utf-16")}, BY_PATTERN)["response_raw"].startswith("[redacted] ")


@pytest.mark.parametrize("key", ["response", "response_raw"])
def test_an_event_stream_is_withheld(key: str) -> None:
    stream = f'data: {{"d": "{SECRET[:4]}"}}\r\n\r\ndata: {{"d": "{SECRET[4:]}"}}\r\n\r\n'
    found = kept({key: stream.encode()}, BY_PATTERN)["response_raw"]
    assert found.startswith(f"[redacted] {len(stream)} bytes withheld: what a rule matches may be split")
    assert kept({"response_raw": stream}, BY_PATTERN)["response_raw"] == found


@pytest.mark.parametrize(
    "lines",
    [
        '{{"c":"{0}"}}\n{{"c":"{1}"}}\n',
        '{{"c":"{0}"}}{{"c":"{1}"}}',
        '\x1e{{"c":"{0}"}}\n\x1e{{"c":"{1}',
        'tail of a line {0}"}}\r\n{{"c":"{1}"}}\r\n',
        '["{0}"],\n["{1}"],\n',
        '"{0}"\n"{1}"\n',
        "id: 1\ntext: {0}\n\ntext: {1}\n\n",
        "text: {0}\n\ntext: {1}\n\n",
        '{{"x": "tail of an event {0}"}}\n\nretry: 5\n\n',
        "data : {0}\n\n: beat\n\n",
    ],
)
def test_several_values_and_events_of_any_fields_are_withheld_for_a_match_may_be_split_over_them(lines: str) -> None:
    text = lines.format(SECRET[:5], SECRET[5:])
    found = kept({"response": text.encode()}, BY_PATTERN)["response_raw"]
    assert found.startswith(f"[redacted] {len(text)} bytes withheld: what a rule matches may be split")
    assert kept({"response_raw": text}, BY_PATTERN)["response_raw"] == found


@pytest.mark.parametrize(
    "text",
    [
        "502 Bad gateway",
        "<html>\n<p>{0}</p>\n</html>",
        '{{"error": "{0}", ',
        "Traceback (most recent call last):\n  File: x\nValueError: {0}",
        '{{"a": 1}} is what {0} said',
    ],
)
def test_other_text_is_searched_and_kept(text: str) -> None:
    found = kept({"response": text.format(SECRET).encode()}, BY_PATTERN)["response_raw"]
    assert found == text.format("[redacted]")


def test_keys_that_become_the_same_are_told_apart_in_time_that_grows_with_their_number() -> None:
    # Were each number tried for each key, and the object copied, these would take minutes.
    many = {f"sk-{number:08d}": number for number in range(20_000)}
    found = kept({"request": json.dumps(many).encode()}, BY_PATTERN)["request"]
    assert len(found) == 20_000
    assert found["[redacted] (20000)"] == 19_999


# -- identity, failures ---------------------------------------------------------------------------------------------


def test_an_id_of_the_callers_is_redacted_and_one_that_was_made_up_is_not() -> None:
    given_id = snapshot({"dialect": "chat", "model_call_id": f"call {SECRET} 1"}, redaction=BY_PATTERN)
    assert given_id.model_call_id == "call [redacted] 1"
    assert json.loads(given_id.meta.data)["model_call_id"] == "call [redacted] 1"
    digits = rules(patterns=(r"[0-9a-f]{32}",))
    made_up = snapshot({"dialect": "chat"}, lambda: "0" * 32, digits)
    assert (made_up.model_call_id, json.loads(made_up.meta.data)["model_call_id"]) == ("0" * 32, "0" * 32)


def nested(depth: int, value: Any) -> Any:
    for _ in range(depth):
        value = {"k": value}
    return value


@pytest.mark.parametrize("redaction", [BY_PATTERN, rules("$..api_key")], ids=["pattern", "path"])
@pytest.mark.parametrize("as_bytes", [True, False])
def test_what_a_rule_fails_on_is_withheld_and_the_rest_is_kept(redaction: Redaction, as_bytes: bool) -> None:
    deep: Any = nested(450 if not as_bytes else 900, {"api_key": SECRET})
    if as_bytes:
        deep = (b'{"k":' * 900) + b'{"api_key":"' + SECRET.encode() + b'"}' + b"}" * 900
    parts = stored({"request": deep, "response": {"id": "r", "x": "fine"}}, redaction)
    assert not any(SECRET.encode() in data for data in parts.values())
    assert json.loads(parts[PartKind.RESPONSE]) == {"id": "r", "x": "fine"}


def test_a_fault_withholds_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError

    redaction = Redaction(RedactionRules((), (PATTERN,)))
    monkeypatch.setattr(redaction, "exchange", fault)
    parts = stored({"request": {"a": SECRET}, "response": b"x", "note": SECRET, "model_call_id": SECRET}, redaction)
    assert not any(SECRET.encode() in data for data in parts.values())
    assert parts[PartKind.REQUEST] == b"[redacted] 19 bytes withheld"
    monkeypatch.setattr(redaction, "_in_text", fault)
    assert redaction.identity(SECRET) == "[redacted]"


def test_the_same_exchange_is_the_same_again() -> None:
    exchange = {"dialect": "chat", "model_call_id": SECRET, "request": {"a": SECRET}, "response": b'{"b":"x"}'}
    one, other = (pack(snapshot(exchange, redaction=BY_PATTERN)) for _ in range(2))
    assert (one.digest, one.model_call_id) == (other.digest, other.model_call_id)


# -- rules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "request.user", "$.a[", "$", "$.a | $.b", " $.a", "$.~a", "^.a", "$[?@.x=1]"])
def test_a_path_that_is_none_is_refused_and_says_what_to_write(path: str) -> None:
    with pytest.raises(ValueError, match=r"\$\.request\.user"):
        compile_path(path)


@pytest.mark.parametrize("pattern", ["(", "[a", "a*", "", "^", "(?P<x>a)(?P<x>b)", "a{2,1}"])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"is not a regular expression|matches the empty text"):
        compile_pattern(pattern)


def test_rules_travel() -> None:
    one = RedactionRules(("$..a",), ("b",))
    assert pickle.loads(pickle.dumps(one)) == one
    assert redaction_of(pickle.loads(pickle.dumps(one))) is redaction_of(one)


# -- wherever it stood ----------------------------------------------------------------------------------------------

_TEXTS = st.one_of(
    st.text(max_size=6),
    st.builds(lambda before, after: f"{before}{SECRET}{after}", st.text(max_size=4), st.text(max_size=4)),
    st.builds(
        lambda n: "".join(f"\\u{ord(c):04x}" if i % n == 0 else c for i, c in enumerate(SECRET)), st.integers(1, 3)
    ),
    st.builds(lambda depth: _dumped(SECRET, depth), st.integers(1, 4)),
)
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_TEXTS, inner, max_size=4)),
    max_leaves=12,
)


def _dumped(value: Any, depth: int) -> str:
    for level in range(depth):
        value = json.dumps({"k\u00fc": value} if level % 2 else [value])
    return str(value)


def _as_given(draw: st.DrawFn, value: Any) -> Any:
    text = json.dumps(value, ensure_ascii=draw(st.booleans()))
    fully = text.replace(SECRET, escaped(SECRET)) if draw(st.booleans()) else text
    data = fully.encode("utf-8", "replace")
    return draw(st.sampled_from([value, data, data[: draw(st.integers(0, len(data)))], repr(value), text]))


@st.composite
def _exchanges(draw: st.DrawFn) -> dict[str, Any]:
    exchange: dict[str, Any] = {"dialect": draw(st.sampled_from(["chat", "messages", "responses"]))}
    for key in ("request", "response", "request_raw", "response_raw"):
        if draw(st.booleans()):
            exchange[key] = _as_given(draw, draw(_VALUES))
    exchange |= {
        key: value
        for key, value in draw(st.dictionaries(_TEXTS, _VALUES, max_size=2)).items()
        if key not in ("dialect", "model_call_id")
    }
    if draw(st.booleans()):
        exchange["verifier_invocation"] = {"invocation_id": draw(_TEXTS), "name": draw(_TEXTS)}
    exchange["model_call_id"] = draw(_TEXTS) or "c"
    return exchange


def _seen(text: str) -> list[str]:
    """A text as it stands, and as it reads once escapes are read, again and again."""
    seen = [text]
    for _ in range(12):
        if "\\" not in seen[-1]:
            break
        plain = seen[-1]
        for escape in {plain[i : i + 6] for i in range(len(plain)) if plain[i : i + 2] == "\\u"}:
            if len(escape) == 6 and all(c in "0123456789abcdefABCDEF" for c in escape[2:]):
                plain = plain.replace(escape, chr(int(escape[2:], 16)))
        seen.append(plain.replace('\\"', '"').replace("\\\\", "\\"))
    return seen


@given(_exchanges(), st.sampled_from([(), ("$..api_key",)]))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_output_contains_it_wherever_it_stood(exchange: dict[str, Any], paths: tuple[str, ...]) -> None:
    redaction = rules(*paths, patterns=(PATTERN,))
    sealed = pack(snapshot(exchange, redaction=redaction))
    assert SECRET not in sealed.model_call_id
    body = b"".join(sealed.body)
    for part in sealed.parts:
        data = open_part(part, body[part.offset :][: part.length])
        for text in _seen(data.decode("utf-8", "replace")):
            assert SECRET not in text, PartKind(part.kind)
