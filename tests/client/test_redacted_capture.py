"""What `redact` takes out never reaches the capture directory: by claims, records, failures, buffered or not."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gym_capture.client.client import CaptureClient
from gym_capture.client.host import CoreHost
from gym_capture.client.options import ClientOptions
from gym_capture.client.verifier import verifier
from gym_capture.errors import ConflictingExchange
from gym_capture.model.client_settings import ClientSettings
from gym_capture.model.redaction_rules import RedactionRules
from gym_capture.reach.source import client_options
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.threaded_owner import ThreadedOwner

SECRET = "sk-7F3aQ9zT"
ESCAPED = "".join(f"\\u{ord(character):04x}" for character in SECRET)
RULES = RedactionRules(("$..api_key",), (r"sk-\w{8}",))
ONLY_PATTERNS = RedactionRules((), RULES.patterns)

Open = Callable[..., CaptureClient]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[ThreadedOwner]:
    made = ThreadedOwner(tmp_path / "captures")
    made.start()
    yield made
    made.close()


@pytest.fixture
def open_client(owner: ThreadedOwner) -> Iterator[Open]:
    clients = []

    def opened(rules: RedactionRules | None = RULES, **options: Any) -> CaptureClient:
        made = ClientOptions(redact=rules, drain_timeout_s=20.0, **options)
        clients.append(CaptureClient(CoreHost(owner.stream_transport(), made)))
        return clients[-1]

    yield opened
    for client in clients:
        client.sync.close(5.0)


def leaks(directory: Path) -> list[str]:
    """Where the secret stands: in a file's bytes, or in anything that is read back from them."""
    found = [path.name for path in directory.rglob("*") if path.is_file() and _holds(path.read_bytes())]
    store = CaptureStore(directory)
    for rollout in store.rollout_ids():
        read = [*store.read(rollout), *store.evidence(rollout).records]
        found += [f"{rollout}: {one}" for one in read if _holds(json.dumps(one, default=str).encode())]
    return found


def _holds(data: bytes) -> bool:
    text = data.decode("utf-8", "replace").replace("\\\\", "\\").lower()
    return SECRET.lower() in text or ESCAPED.lower() in text


def response(text: str) -> dict[str, Any]:
    return {
        "id": text,
        "model": "m",
        "choices": [
            {
                "finish_reason": "stop",
                "message": {
                    "content": f"it is {text}",
                    "reasoning_content": f"so {text}",
                    "tool_calls": [{"id": "t", "function": {"name": "f", "arguments": json.dumps({"key": text})}}],
                },
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }


class Unwritable:
    def __repr__(self) -> str:
        return f"<a client with {SECRET}>"


def capture_everything(client: CaptureClient) -> None:
    """Every way an exchange may come, with the secret wherever it can stand."""
    sync = client.sync
    rollout = sync.rollout("r")
    body = json.dumps({"messages": [SECRET], "api_key": "anything"}).encode()
    with rollout.claim(dialect="chat", model_call_id=f"call {SECRET}", request={"prompt": SECRET}) as call:
        call.complete(response=response(SECRET), headers={SECRET: [SECRET]})
    assert call.model_call_id == "call [redacted]"
    with rollout.claim(dialect="chat", model_ref={"type": "model", "name": SECRET}, client_session_id=SECRET) as call:
        call.complete(request=body, response=json.dumps(response(SECRET)).encode(), request_raw=body.decode())
    with suppress(ValueError), rollout.claim(dialect="chat", request=body.replace(SECRET.encode(), ESCAPED.encode())):
        raise ValueError(SECRET)
    with suppress(ValueError), rollout.claim(dialect="chat") as call:
        call.note(response=Unwritable(), error_message=str(ValueError(SECRET)))
        raise ValueError(SECRET)
    with rollout.claim(dialect="chat") as call:
        call.complete(request=Unwritable(), response=f"<{SECRET}>".encode(), note=Unwritable())
    with verifier(f"judge {SECRET}", f"v {SECRET}"), rollout.claim(dialect="messages") as call:
        call.complete(request={}, response={"content": [{"type": "text", "text": SECRET}]})
    with rollout.claim(dialect="chat", request={"prompt": SECRET}) as call:
        call.note(response=f"data: {SECRET[:5]}\n\ndata: {SECRET[5:]}\n\n".encode())
        call.detach()
    sync.record("r", {"dialect": "chat", "model_call_id": f"{SECRET}-2", "request": body, "response": response(SECRET)})
    sync.record("r", {"dialect": "chat", "verifier_invocation": {"invocation_id": SECRET, "name": SECRET}})
    with suppress(ConflictingExchange):
        sync.record("r", {"dialect": "chat", "model_call_id": f"{SECRET}-2", "response": SECRET})
    assert sync.quiesce("r", 20.0)


@pytest.mark.parametrize("rules", [RULES, ONLY_PATTERNS], ids=["paths and patterns", "patterns"])
def test_no_byte_of_the_directory_holds_it(owner: ThreadedOwner, open_client: Open, rules: RedactionRules) -> None:
    client = open_client(rules)
    capture_everything(client)
    merged = client.sync.merge({"_ng_rollout_id": "r"}, include_payloads=True)
    assert not _holds(json.dumps(merged).encode())
    value = merged["ng_model_call_capture"]
    assert (len(value["calls"]), value["metrics"]["num_calls"]) == (9, 7)
    assert sorted(each["name"] for each in value["verifiers"]) == ["[redacted]", "judge [redacted]"]
    first = value["calls"][0]
    assert (first["response_id"], first["reasoning_content"]) == ("[redacted]", "so [redacted]")
    assert first["tool_calls"][0]["arguments"] == {"key": "[redacted]"}
    assert (first["request"], first["finish_reason"]) == ({"prompt": "[redacted]"}, "stop")
    assert leaks(owner.directory) == []


def test_without_rules_it_would_be_there(owner: ThreadedOwner, open_client: Open) -> None:
    client = open_client(None)
    client.sync.record("r", {"dialect": "chat", "request": {"prompt": SECRET}})
    assert [found[:3] for found in leaks(owner.directory)] == ["seg", "r: "]
    client.sync.record("e", {"dialect": "chat", "request": b'{"prompt": "' + ESCAPED.encode() + b'"}'})
    assert [found[:3] for found in leaks(owner.directory)] == ["seg", "e: ", "r: "]


def test_what_was_buffered_while_the_owner_was_away_holds_nothing_either(
    owner: ThreadedOwner, open_client: Open
) -> None:
    client = open_client(patience_s=0.05)
    client.sync.stats()
    owner.kill()
    with client.sync.rollout("r").claim(dialect="chat", model_call_id=SECRET) as call:
        call.complete(request={"prompt": SECRET}, response=response(SECRET))
    assert call.outcome == "buffered"
    owner.start()
    assert client.sync.quiesce("r", 20.0)
    assert [one["model_call_id"] for one in CaptureStore(owner.directory).read("r")] == ["[redacted]"]
    assert leaks(owner.directory) == []


def test_a_made_up_id_keeps_calls_apart_whatever_the_pattern(owner: ThreadedOwner, open_client: Open) -> None:
    client = open_client(RedactionRules((), (r"[0-9a-f]{32}",)))
    for _ in range(2):
        with client.sync.rollout("r").claim(dialect="chat") as call:
            call.complete(request={"key": "0" * 32}, response={})
        assert call.outcome == "durable"
        client.sync.record("r", {"dialect": "chat"})
    read = CaptureStore(owner.directory).read("r")
    assert len({one["model_call_id"] for one in read}) == 4
    assert read[0]["request"] == {"key": "[redacted]"}


def test_rules_travel_with_the_options_and_are_compiled_where_they_arrive() -> None:
    options = client_options("run", ClientSettings(redact=RULES, patience_s=7.0))
    assert pickle.loads(pickle.dumps(options)) == options
    assert (options.patience_s, options.redact) == (7.0, RULES)
    assert client_options("run", ClientSettings()).redact is None
    with pytest.raises(ValueError, match=re.escape("'(' is not a regular expression")):
        CoreHost(object(), replace(options, redact=RedactionRules((), ("(",))))  # type: ignore[arg-type]


def test_no_rules_cost_nothing(owner: ThreadedOwner, open_client: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*_: object) -> None:
        raise AssertionError("nothing is to be redacted")

    monkeypatch.setattr("gym_capture.client.options.redaction_of", unwanted)
    monkeypatch.setattr("gym_capture.model.exchange._redacted", unwanted)
    client = open_client(None)
    with client.sync.rollout("r").claim(dialect="chat") as call:
        call.complete(request={}, response={})
    assert call.outcome == "durable"
    assert PosixFiles(owner.directory).names()
