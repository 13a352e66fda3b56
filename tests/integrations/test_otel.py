"""Captured rollouts as OpenTelemetry spans: what they say, what they keep to themselves, and that none is lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode
from typer.testing import CliRunner

from gym_capture.cli.main import app
from gym_capture.directory.carrying import seal_and_carry
from gym_capture.errors import GymCaptureError
from gym_capture.integrations.otel import BATCH_SPANS, Exported, export_spans
from gym_capture.storage.names import nemo_gym_file
from gym_capture.storage.store import CaptureStore
from tests.reading.calls import SYSTEM, assistant, chat, user, written
from tests.storage.owners import Batch

SECRET = "the password is 42"
RESPONSES = {
    "model_call_id": "r1",
    "dialect": "responses",
    "status_code": 200,
    "started_at": 1010.0,
    "completed_at": 1012.5,
    "request": {"model": "asked", "input": SECRET, "max_output_tokens": 64, "temperature": 1, "stream": True},
    "response": {
        "id": "resp_1",
        "model": "answered-0613",
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": SECRET}]}],
        "usage": {
            "input_tokens": 20,
            "output_tokens": 5,
            "input_tokens_details": {"cached_tokens": 8},
            "output_tokens_details": {"reasoning_tokens": 3},
        },
    },
}
MESSAGES = {
    "model_call_id": "m1",
    "dialect": "messages",
    "status_code": 429,
    "error_category": "rate_limit",
    "started_at": 1020.0,
    "latency_ms": 1500,
    "request": {"model": "claude", "messages": [user(SECRET)], "max_tokens": 7, "stop_sequences": ["END"]},
    "response": {"type": "error"},
}


@pytest.fixture
def store(tmp_path: Path) -> CaptureStore:
    """One rollout with a call in each dialect, and one that lost a call."""
    call = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"at": "' + SECRET + '"}'}}
    first = chat("c1", [SYSTEM, user(SECRET)], {"role": "assistant", "content": None, "tool_calls": [call]})
    first["response"]["choices"].append({"message": assistant("or so"), "finish_reason": "length"})
    first["request"] |= {"n": 2, "seed": 5, "stop": "END", "top_p": 0.5}
    marked = Batch().claim("7-1", 1).release("7-1", 1)
    return written(
        tmp_path / "captures", {"7-0": [first, RESPONSES, MESSAGES], "7-1": [chat("c2", [user("hi")])]}, marked
    )


def exported(store: CaptureStore, **how: Any) -> tuple[Exported, list[ReadableSpan]]:
    exporter = InMemorySpanExporter()
    counted = export_spans(store, exporter, **how)
    return counted, list(exporter.get_finished_spans())


def ids(span: ReadableSpan) -> tuple[int, int]:
    """Of its trace and its own."""
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in (span.attributes or {}).items()}


def test_a_rollout_is_a_trace_whose_calls_have_their_own_times(store: CaptureStore) -> None:
    counted, spans = exported(store)
    assert counted == Exported(rollouts=2, calls=4, damaged=0)
    root, *calls = spans[:4]
    assert (root.name, root.kind, root.parent) == ("rollout", SpanKind.INTERNAL, None)
    assert [call.name for call in calls] == ["chat m", "chat asked", "chat claude"]
    assert {call.kind for call in calls} == {SpanKind.CLIENT}
    assert [call.parent for call in calls] == [root.context] * 3
    assert {ids(call)[0] for call in calls} == {ids(root)[0]}
    seconds = [(call.start_time, call.end_time) for call in calls]
    assert seconds == [(1000 * 10**9, 1001 * 10**9), (1010 * 10**9, 1012500 * 10**6), (1020 * 10**9, 1021500 * 10**6)]
    assert (root.start_time, root.end_time) == (1000 * 10**9, 1021500 * 10**6)
    assert len({ids(span)[1] for span in spans}) == len(spans) == 6
    assert ids(spans[4])[0] != ids(root)[0]
    assert root.resource.attributes["service.name"] == "gym_capture"
    run = json.loads((Path(store.directory) / "RUN").read_text())
    assert root.resource.attributes["gym_capture.run"] in run.values()


def test_a_call_says_its_models_tokens_settings_and_end_in_the_conventions_words(store: CaptureStore) -> None:
    _, (_, first, second, third, *_) = exported(store)
    mine = {"gym_capture.rollout_id": "7-0", "gym_capture.generation": 0, "gen_ai.conversation.id": "7-0"}
    assert attributes(first) == {
        **mine,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.seed": 5,
        "gen_ai.request.top_p": 0.5,
        "gen_ai.request.stop_sequences": ["END"],
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ["stop", "length"],
        "gen_ai.response.time_to_first_chunk": 0.1,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 2,
        "http.response.status_code": 200,
        "gym_capture.model_call_id": "c1",
        "gym_capture.call_index": 0,
    }
    assert attributes(second) == {
        **mine,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "asked",
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.stream": True,
        "gen_ai.response.id": "resp_1",
        "gen_ai.response.model": "answered-0613",
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 8,
        "gen_ai.usage.reasoning.output_tokens": 3,
        "http.response.status_code": 200,
        "gym_capture.model_call_id": "r1",
        "gym_capture.call_index": 1,
    }
    assert (first.status.status_code, third.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    failed = attributes(third)
    assert (failed["error.type"], failed["gen_ai.provider.name"]) == ("rate_limit", "anthropic")
    assert (failed["gen_ai.request.max_tokens"], failed["http.response.status_code"]) == (7, 429)


def test_every_name_is_one_of_the_conventions_or_our_own(store: CaptureStore) -> None:
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    _, spans = exported(store, content=True)
    names = {name for span in spans for name in attributes(span)}
    assert {name for name in names if name.startswith("gen_ai.")} <= known
    assert {name.partition(".")[0] for name in names} == {"gen_ai", "gym_capture", "http", "error"}


def test_what_was_said_stays_here_unless_it_is_asked_for(store: CaptureStore) -> None:
    _, spans = exported(store)
    assert SECRET not in json.dumps([attributes(span) for span in spans])
    _, (_, first, second, *_) = exported(store, content=True)
    said = attributes(first)
    assert json.loads(said["gen_ai.input.messages"]) == [
        {"role": "system", "parts": [{"type": "text", "content": "be brief"}]},
        {"role": "user", "parts": [{"type": "text", "content": SECRET}]},
    ]
    arguments = '{"at": "' + SECRET + '"}'
    assert json.loads(said["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "t1", "name": "look", "arguments": arguments}]},
        {"role": "assistant", "parts": [{"type": "text", "content": "or so"}]},
    ]
    assert json.loads(attributes(second)["gen_ai.output.messages"])[0]["parts"] == [{"type": "text", "content": SECRET}]


def test_a_rollouts_own_span_says_how_whole_it_is(store: CaptureStore) -> None:
    _, spans = exported(store)
    whole, lacking = (attributes(span) for span in spans if span.parent is None)
    assert (whole["gym_capture.status"], whole["gym_capture.gaps"]) == ("observed", [])
    assert (lacking["gym_capture.status"], lacking["gym_capture.gaps"]) == (
        "incomplete",
        ["model_call_capture_incomplete"],
    )


def test_a_rollout_that_captured_nothing_is_a_trace_without_a_call(tmp_path: Path) -> None:
    counted, [span] = exported(written(tmp_path / "captures", {}, Batch().clear("7-0", "retry")))
    assert counted == Exported(1, 0, 0)
    assert attributes(span) == {
        "gym_capture.rollout_id": "7-0",
        "gym_capture.generation": 1,
        "gym_capture.status": "unobserved",
        "gym_capture.gaps": ["model_call_capture_no_records"],
    }


def test_exported_again_it_is_the_same_trace_and_of_one_rollout_only_that(store: CaptureStore) -> None:
    _, spans = exported(store)
    _, again = exported(store)
    assert list(map(ids, again)) == list(map(ids, spans))
    counted, alone = exported(store, rollout_ids=["7-1"])
    assert counted == Exported(1, 1, 0)
    assert list(map(ids, alone)) == list(map(ids, spans[4:]))


def runs(spans: Sequence[ReadableSpan]) -> set[Any]:
    """The runs that spans say they are of."""
    return {span.resource.attributes["gym_capture.run"] for span in spans}


def test_where_the_marker_cannot_be_read_the_logs_headers_name_the_run(store: CaptureStore) -> None:
    _, before = exported(store)
    (Path(store.directory) / "RUN").write_bytes(b"garbage")
    counted, spans = exported(CaptureStore(store.directory))
    assert (counted, runs(spans)) == (Exported(2, 4, 0), runs(before))
    assert list(map(ids, spans)) == list(map(ids, before))


def test_a_sealed_run_that_lies_elsewhere_gives_the_same_traces(store: CaptureStore, tmp_path: Path) -> None:
    _, before = exported(store)
    uri = f"file://{tmp_path / 'elsewhere'}"
    seal_and_carry(store.directory, uri)
    counted, spans = exported(CaptureStore(uri))
    assert (counted, runs(spans)) == (Exported(2, 4, 0), runs(before))
    assert list(map(ids, spans)) == list(map(ids, before))


def test_a_folder_of_nemo_gyms_files_is_known_by_its_path(tmp_path: Path) -> None:
    (tmp_path / nemo_gym_file("7-0")).write_text(json.dumps(chat("a", [user("hi")])) + "\n")
    counted, spans = exported(CaptureStore(tmp_path))
    assert (counted, runs(spans)) == (Exported(1, 1, 0), {str(tmp_path)})


def test_whatever_a_model_said_can_be_encoded(tmp_path: Path) -> None:
    call = chat("c\ud800", [user("lone \udfff")], assistant("\ud83d"), error_category="\ud800")
    call["response"]["usage"] = {"prompt_tokens": 2**80, "completion_tokens": -1}
    call["request"] |= {"model": "m\ud800", "seed": 2**70}
    call["request"] |= {"temperature": "hot", "stop": [1, "END"], "n": None, "max_tokens": True}
    strange = [{"model_call_id": "c2", "dialect": "chat", "latency_ms": 10**400, "started_at": -5, "request": [1]}]
    strange += [{"model_call_id": "c3", "dialect": "chat", "completed_at": 5, "latency_ms": 2000, "response": {}}]
    store = written(tmp_path / "captures", {"7-0": [call, *strange]})
    with Receiver() as receiver:
        receiver.export(store, content=True)
    spans = receiver.spans()
    assert [span.name for span in spans] == ["rollout", "chat m?", "chat", "chat"]
    told = {each.key: each.value for each in spans[1].attributes}
    assert told["gen_ai.usage.input_tokens"].string_value == str(2**80)
    assert told["gen_ai.request.seed"].string_value == str(2**70)
    assert told["error.type"].string_value == r"\ud800"
    assert not told.keys() & {
        "gen_ai.request.temperature",
        "gen_ai.request.stop_sequences",
        "gen_ai.request.max_tokens",
    }
    assert [(span.start_time_unix_nano, span.end_time_unix_nano) for span in spans[2:]] == [
        (3 * 10**9, 3 * 10**9),
        (3 * 10**9, 5 * 10**9),
    ]


class Receiver:
    """A collector on the loopback: keeps what OTLP over HTTP brings, and answers as told."""

    def __init__(self, status: int = 200) -> None:
        self.bodies: list[bytes] = []
        received = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                received.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def export(self, store: CaptureStore, **how: Any) -> Exported:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", self.url)
            return export_spans(store, **how)

    def spans(self) -> list[Any]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        scopes = [scope for each in requests for found in each.resource_spans for scope in found.scope_spans]
        return [span for scope in scopes for span in scope.spans]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def test_the_command_sends_them_to_a_collector_and_says_how_many(
    store: CaptureStore, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    ran = CliRunner().invoke(app, ["spans", store.directory])
    assert (ran.exit_code, ran.stdout) == (0, "sent 2 rollouts with 4 calls\n")
    assert [span.name for span in receiver.spans()] == [
        *("rollout", "chat m", "chat asked", "chat claude"),
        *("rollout", "chat m"),
    ]
    assert SECRET.encode() not in b"".join(receiver.bodies)
    ran = CliRunner().invoke(app, ["spans", store.directory, "--rollout", "7-0", "--content", "--json"])
    assert json.loads(ran.stdout) == {"rollouts": 1, "calls": 3, "damaged": 0}
    assert SECRET.encode() in receiver.bodies[-1]
    assert CliRunner().invoke(app, ["spans", store.directory, "--rollout", "7-9"]).exit_code == 1


def test_a_collector_that_refuses_ends_the_export_with_an_error(store: CaptureStore) -> None:
    with Receiver(status=400) as refusing, pytest.raises(GymCaptureError, match="did not take them, after 0 spans"):
        refusing.export(store)


class Batches(SpanExporter):
    """Counts the spans of each batch; refuses the second."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.sizes: list[int] = []
        self.refuses = refuses

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.sizes.append(len(spans))
        return SpanExportResult.FAILURE if self.refuses and len(self.sizes) == 2 else SpanExportResult.SUCCESS


def test_spans_travel_in_batches_bounded_in_number_and_text_and_none_is_dropped(tmp_path: Path) -> None:
    short = [chat(f"c{number}", [user("hi")], at=number) for number in range(BATCH_SPANS)]
    long = [chat(f"l{number}", [user("x" * 1_500_000)], at=number) for number in range(3)]
    store = written(tmp_path / "captures", {"a": short, "b": long})
    batches = Batches()
    assert export_spans(store, batches, content=True) == Exported(2, BATCH_SPANS + 3, 0)
    assert batches.sizes == [BATCH_SPANS, 4, 1]
    with pytest.raises(GymCaptureError, match=f"after {BATCH_SPANS} spans"):
        export_spans(store, Batches(refuses=True))
