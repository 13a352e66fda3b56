"""A run as a whole and two of its rollouts: timelines, differences, figures, health, new calls, near ids."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gym_capture.errors import ConfigError, InputRowError
from gym_capture.reading.call_figures import CallFigures
from gym_capture.reading.conversation import read_conversation
from gym_capture.reading.difference import Change, difference_of
from gym_capture.reading.health import check_health, expected_ids
from gym_capture.reading.nearest import nearest_ids
from gym_capture.reading.new_calls import NewCalls
from gym_capture.reading.rollout_overview import RolloutOverview
from gym_capture.reading.run_stats import distribution, run_stats
from gym_capture.reading.timeline import timeline_of
from gym_capture.storage.names import nemo_gym_file
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.standing import OpenClaim
from gym_capture.storage.store import CaptureStore
from tests.cases import ROOT
from tests.reading.calls import assistant, chat, flip, user, written
from tests.storage.owners import Batch, Owner

RATE_LIMIT: dict[str, Any] = {"status_code": 429, "error_category": "rate_limit", "response": {"error": "slow down"}}


def call(index: int, start: float | None, seconds: float = 1.0) -> CallFigures:
    return CallFigures(call_index=index, started_at=start, latency_total_ms=seconds * 1000)


def test_calls_side_by_side_get_lanes_and_a_lane_is_used_again() -> None:
    calls = [call(0, 10.0, 3), call(1, 11.0, 1), call(2, 12.0, 5), call(3, 13.0, 1), call(4, None)]
    found = timeline_of("r", calls, [OpenClaim("r", "waiting", 16.0)])
    assert [(bar.call_index, bar.lane, bar.start_s, bar.duration_ms) for bar in found.bars] == [
        (0, 0, 0.0, 3000.0),
        (1, 1, 1.0, 1000.0),
        (2, 1, 2.0, 5000.0),
        (3, 0, 3.0, 1000.0),
        (None, 0, 6.0, None),
    ]
    assert (found.origin, found.length_s, found.lanes, found.unplaced) == (10.0, 7.0, 2, [4])


def test_a_timeline_of_nothing_is_empty() -> None:
    found = timeline_of("r", [])
    assert (found.origin, found.length_s, found.lanes, found.bars) == (None, 0.0, 0, [])


def test_two_rollouts_that_part_at_their_second_call(tmp_path: Path) -> None:
    def rollout(second: str, tokens: int, **others: object) -> list[dict[str, object]]:
        later = chat("x", [user("one"), assistant("same"), user(second)], assistant("end"), at=2)
        later["response"]["usage"]["prompt_tokens"] = tokens
        later["request"] |= others
        return [chat("y", [user("one")], assistant("same")), later]

    rollouts = {"a": rollout("two", 10), "b": rollout("other", 14, temperature=0.5), "c": rollout("two", 10)}
    rollouts["a"].append(chat("z", [user("more")], at=4))
    store = written(tmp_path, rollouts)
    found = difference_of(read_conversation(store, "a"), read_conversation(store, "b"))
    assert (found.same, found.parts_at) == (False, 1)
    assert [(pair.same_request, pair.same_answer, pair.tokens_in) for pair in found.pairs] == [
        (True, True, 0),
        (False, True, 4),
        (False, False, None),
    ]
    assert found.pairs[1].changes == [Change("temperature", None, "0.5")]
    assert (found.pairs[2].left, found.pairs[2].right) == (2, None)
    assert Change("calls", 3, 2) in found.totals
    again = difference_of(read_conversation(store, "c"), read_conversation(store, "c"))
    assert (again.same, again.parts_at) == (True, None)


def test_ids_that_a_server_makes_up_are_no_difference(tmp_path: Path) -> None:
    def rollout(name: str, call_id: str) -> list[dict[str, object]]:
        use = {"role": "assistant", "tool_calls": [{"id": call_id, "function": {"name": "f", "arguments": "{}"}}]}
        return [chat(name, [user("one")], use)]

    store = written(tmp_path, {"a": rollout("1", "call-x"), "b": rollout("2", "call-y")})
    assert difference_of(read_conversation(store, "a"), read_conversation(store, "b")).same


def test_damaged_calls_are_never_the_same(tmp_path: Path) -> None:
    store = written(tmp_path, {"a": [chat("1", [user("flip me")])]})
    flip(tmp_path, b"flip me")
    found = read_conversation(CaptureStore(store.directory), "a")
    assert not difference_of(found, found).same


def test_a_runs_figures(tmp_path: Path) -> None:
    rollouts = {
        "a": [chat(str(n), [], at=n, latency_ms=100.0 * n, latency_ttft_ms=None) for n in range(1, 5)],
        "b": [chat("5", [], **RATE_LIMIT)],
    }
    found = run_stats(written(tmp_path, rollouts, Batch().claim("c", 1).claim("b", 2).release("b", 2)))
    assert (found.rollouts, found.calls, found.failed, found.outstanding, found.damaged) == (3, 5, 1, 1, 0)
    assert found.statuses == {"observed": 1, "open": 1, "incomplete": 1, "unobserved": 0}
    assert (found.errors, found.reasons) == ({"rate_limit": 1}, {"released": 1})
    assert found.gaps == {
        "model_call_capture_incomplete": 1,
        "model_call_capture_no_records": 1,
        "model_call_capture_pending": 1,
    }
    assert (found.tokens_in, found.tokens_out, found.tokens_reasoning) == (40, 8, None)
    assert [(each.model, each.calls, each.failed) for each in found.models] == [("m", 5, 1)]
    assert dict(found.latency_ms.quantiles)[0.5] == 300.0
    assert (found.latency_ms.count, found.ttft_ms.count, found.calls_per_rollout.mean) == (5, 1, 2.5)
    assert (found.first_at, found.last_at) == (1000.0, 1005.0)


def test_where_no_call_can_be_read_nobody_knows_how_many_failed(tmp_path: Path) -> None:
    rollouts = {"a": [chat("1", [user("one")], **RATE_LIMIT)], "b": [chat("2", [], error_category="timeout")]}
    written(tmp_path, rollouts)
    flip(tmp_path, b"rate_limit")
    store = CaptureStore(tmp_path)
    assert [(row.damaged, row.failed) for row in RolloutOverview(store).rows()] == [(1, None), (0, 1)]
    assert run_stats(store).failed == 1  # of the calls that can be read
    [damaged] = check_health(store).unhealthy
    assert (damaged.calls, damaged.damaged, damaged.failed) == (1, 1, None)
    flip(tmp_path, b"timeout")
    found = run_stats(CaptureStore(tmp_path))
    assert (found.calls, found.damaged, found.failed) == (2, 2, None)


def test_quantiles_are_interpolated_and_nothing_has_none() -> None:
    assert dict(distribution([4.0, 1.0, 2.0]).quantiles)[0.25] == 1.5
    assert distribution([]).quantiles == []
    assert distribution([7.0]).quantiles[0] == (0.0, 7.0)


def test_a_run_is_healthy_only_if_every_rollout_is_observed(tmp_path: Path) -> None:
    store = written(tmp_path, {"a": [chat("1", [])]})
    assert check_health(store).healthy
    assert check_health(store, ["a"]).healthy
    missing = check_health(store, ["a", "b"])
    assert not missing.healthy
    assert [(each.rollout_id, each.status, each.expected) for each in missing.unhealthy] == [("b", "unobserved", True)]
    assert missing.counts == {"observed": 1, "open": 0, "incomplete": 0, "unobserved": 1}
    assert check_health(store, ["b"]).unexpected == ["a"]


def test_an_empty_capture_is_not_a_quiet_run(tmp_path: Path) -> None:
    found = check_health(written(tmp_path, {}))
    assert (found.healthy, found.empty) == (False, True)
    begun = check_health(written(tmp_path, {}, Batch().clear("a", "request")))
    assert (begun.healthy, begun.empty) == (False, False)
    assert [(each.rollout_id, each.status) for each in begun.unhealthy] == [("a", "unobserved")]


def test_expected_ids_from_rows_records_and_plain_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [
        {"_ng_task_index": 7, "_ng_rollout_index": 0},
        {"_ng_rollout_id": "r", "_ng_attempt_index": 2},
    ]
    path.write_text("\ufeff" + "\n".join([*map(json.dumps, rows), "", '"quoted"', "plain", "plain"]) + "\n")
    assert expected_ids(path) == ["7-0", "r-a2", "quoted", "plain"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}\n", "line 1 names no rollout"),
        ("a\n{\n", "line 2 is not JSON"),
        ("-bad\n", "line 1: '-bad' is not a rollout id"),
    ],
)
def test_a_line_that_names_no_rollout_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(InputRowError, match=said):
        expected_ids(path)


def test_a_file_that_names_nobody_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n")
    with pytest.raises(ConfigError, match="names no rollout"):
        expected_ids(path)


def test_new_calls_come_once_each_and_those_of_a_new_generation_too(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    owner = Owner(PosixFiles(tmp_path))
    owner.send(Batch().commit("r", chat("1", [])), 1)
    following = NewCalls(CaptureStore(tmp_path))
    assert [new.call.model_call_id for new in following.last(5)] == ["1"]
    assert following.last(0) == following.take() == []
    owner.send(Batch().commit("r", chat("3", [], at=9)).commit("s", chat("2", [], at=5)), 2)
    assert [(new.rollout_id, new.call.model_call_id) for new in following.take()] == [("s", "2"), ("r", "3")]
    owner.send(Batch().clear("r", "again").commit("r", chat("4", [])), 3)
    assert [(new.generation, new.call.call_index, new.call.model_call_id) for new in following.take()] == [(1, 0, "4")]
    assert following.take() == []
    path = tmp_path / nemo_gym_file("n")
    path.write_text(json.dumps(chat("5", [])) + "\n")
    assert [new.rollout_id for new in following.take()] == ["n"]
    with path.open("a") as lines:
        lines.write(json.dumps(chat("6", [])) + "\n")
    assert [new.call.model_call_id for new in following.take()] == ["6"]
    owner.stop()


def test_nothing_is_read_where_none_is_asked_for_or_nothing_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("m", "n"):
        (tmp_path / nemo_gym_file(name)).write_text(json.dumps(chat(name, [])) + "\n")
    following = NewCalls(CaptureStore(tmp_path))
    read: list[str] = []
    real = CaptureStore.records

    def records(self: CaptureStore, rollout_id: str, first: int = 0) -> Any:
        read.append(rollout_id)
        return real(self, rollout_id, first)

    monkeypatch.setattr(CaptureStore, "records", records)
    assert following.last(0) == following.take() == []
    assert read == []
    with (tmp_path / nemo_gym_file("n")).open("a") as lines:
        lines.write(json.dumps(chat("2", [])) + "\n")
    assert [new.call.model_call_id for new in following.take()] == ["2"]
    assert following.take() == []
    assert read == ["n"]


def test_of_the_last_calls_those_that_ended_together_keep_their_order(tmp_path: Path) -> None:
    store = written(
        tmp_path, {"a": [chat("1", [], at=5), chat("2", [])], "b": [chat("3", [], at=5), chat("4", [], at=5)]}
    )
    assert [new.call.model_call_id for new in NewCalls(store).last(3)] == ["1", "3", "4"]
    assert [new.call.model_call_id for new in NewCalls(store).last(2)] == ["3", "4"]


def test_the_nearest_ids() -> None:
    known = ["7-0", "7-0-a1", "17-0", "train-0001", "train-0002"]
    assert nearest_ids("train-0003", known) == ["train-0002", "train-0001"]
    assert nearest_ids("7-", known) == ["7-0", "7-0-a1", "17-0"]
    assert nearest_ids("zzz", known) == []


def test_the_documents_snippet_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "after_the_run.md").read_text(encoding="utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    [snippet] = [each for each in snippets if "page_of_failures" in each]
    space: dict[str, Any] = {}
    exec(snippet, space)
    written(tmp_path, {"a": [chat("1", [], **RATE_LIMIT)], "b": [chat("2", [])]})
    [(rollout_id, errors, conversation)] = space["page_of_failures"](tmp_path)
    assert (rollout_id, errors, conversation["status"]) == ("a", {"rate_limit": 1}, "observed")
