"""Rollouts as a list: rows, filters, orders, pages, and what is read for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gym_capture.directory.sealing import seal_at_rest
from gym_capture.model.ids import rollout_id_from_record
from gym_capture.reading.call_figures import CallFigures, figures_of
from gym_capture.reading.plain_json import plain_json
from gym_capture.reading.rollout_overview import OverviewQuery, RolloutOverview
from gym_capture.storage.names import nemo_gym_file, nemo_gym_incomplete_file
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.store import CaptureStore
from tests.cases import read_cases
from tests.reading.calls import chat, flip, user, written
from tests.storage.owners import Batch, Owner

RATE_LIMIT: dict[str, Any] = {"status_code": 429, "error_category": "rate_limit", "response": {"error": "slow down"}}


@pytest.fixture
def store(tmp_path: Path) -> CaptureStore:
    """Four rollouts of each status, and NeMo Gym's file of a fifth."""
    calls = [user("one")]
    rollouts = {
        "a-0": [chat("1", calls, latency_ms=100.0), chat("2", calls, at=2, latency_ms=300.0)],
        "b-0": [chat("3", calls, at=10, **RATE_LIMIT), chat("4", calls, at=20, model="big")],
    }
    rollouts["b-0"][1]["response"]["model"] = "big"
    batch = Batch().claim("b-0", 1).release("b-0", 1).claim("c-0", 2).clear("d-0", "request")
    found = written(tmp_path, rollouts, batch)
    (tmp_path / nemo_gym_file("e-0")).write_text(json.dumps(chat("5", calls, at=5)) + "\n")
    return found


def ids(overview: RolloutOverview, **query: Any) -> list[str]:
    return [row.rollout_id for row in overview.page(OverviewQuery(**query)).rows]


def test_a_row_says_what_is_known_of_its_rollout(store: CaptureStore) -> None:
    row = plain_json(RolloutOverview(store).row("b-0"))
    assert row.pop("stored_bytes") > 500
    assert row == {
        "rollout_id": "b-0",
        "generation": 0,
        "status": "incomplete",
        "calls": 2,
        "damaged": 0,
        "outstanding": 0,
        "late": 0,
        "reasons": {"released": 1},
        "gaps": [{"code": "model_call_capture_incomplete", "detail": "released=1"}],
        "models": ["big", "m"],
        "first_at": 1010.0,
        "last_at": 1021.0,
        "tokens_in": 10,
        "tokens_out": 2,
        "tokens_reasoning": None,
        "cached_tokens": None,
        "failed": 1,
        "errors": {"rate_limit": 1},
        "verifier_calls": 0,
        "latency_sum_ms": 2000.0,
        "latency_median_ms": 1000.0,
        "latency_max_ms": 1000.0,
    }


def test_every_status_and_those_that_were_begun_and_captured_nothing(store: CaptureStore) -> None:
    page = RolloutOverview(store).page()
    assert [(row.rollout_id, row.status, row.calls) for row in page.rows] == [
        ("a-0", "observed", 2),
        ("b-0", "incomplete", 2),
        ("c-0", "open", 0),
        ("d-0", "unobserved", 0),
        ("e-0", "observed", 1),
    ]
    assert (page.matching, page.known, page.rows[4].stored_bytes) == (5, 5, None)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"text": "A-"}, ["a-0"]),
        ({"model": "BIG"}, ["b-0"]),
        ({"status": "unobserved"}, ["d-0"]),
        ({"errors": True}, ["b-0"]),
        ({"gaps": True}, ["b-0", "c-0", "d-0"]),
        ({"open": True}, ["c-0"]),
        ({"offset": 1, "limit": 2}, ["b-0", "c-0"]),
        ({"offset": 4, "limit": None}, ["e-0"]),
        ({"sort": "id", "descending": True, "limit": 1}, ["e-0"]),
        ({"sort": "first", "descending": True}, ["b-0", "e-0", "a-0", "c-0", "d-0"]),
        ({"sort": "last"}, ["a-0", "e-0", "b-0", "c-0", "d-0"]),
        ({"sort": "latency"}, ["a-0", "e-0", "b-0", "c-0", "d-0"]),
        ({"sort": "tokens_in", "descending": True, "limit": 1}, ["a-0"]),
        ({"sort": "errors", "descending": True, "limit": 1}, ["b-0"]),
        ({"sort": "calls", "descending": True}, ["a-0", "b-0", "e-0", "c-0", "d-0"]),
        ({"sort": "open", "descending": True, "limit": 1}, ["c-0"]),
    ],
)
def test_filters_orders_and_pages(store: CaptureStore, query: dict[str, Any], expected: list[str]) -> None:
    assert ids(RolloutOverview(store), **query) == expected


def test_a_page_by_id_reads_the_records_of_that_page_alone_and_each_once(
    store: CaptureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, int]] = []
    real = CaptureStore.records

    def records(self: CaptureStore, rollout_id: str, first: int = 0) -> Any:
        read.append((rollout_id, first))
        return real(self, rollout_id, first)

    monkeypatch.setattr(CaptureStore, "records", records)
    overview = RolloutOverview(store)
    for _ in range(2):
        assert ids(overview, limit=2) == ["a-0", "b-0"]
        assert read == [("a-0", 0), ("b-0", 0)]


def test_what_comes_later_is_read_from_where_reading_ended(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    owner = Owner(PosixFiles(tmp_path))
    owner.send(Batch().commit("r", chat("1", [user("one")])), 1)
    store = CaptureStore(tmp_path)
    overview = RolloutOverview(store)
    assert overview.row("r").calls == 1
    owner.send(Batch().commit("r", chat("2", [user("two")])).commit("s", chat("3", [user("one")])), 2)
    store.refresh()
    assert [(row.rollout_id, row.calls, row.tokens_in) for row in overview.rows()] == [("r", 2, 20), ("s", 1, 10)]
    owner.send(Batch().clear("r", "again").commit("r", chat("4", [user("new")])), 3)
    store.refresh()
    row = overview.row("r")
    assert (row.generation, row.calls, row.tokens_in) == (1, 1, 10)
    owner.stop()


def test_a_row_of_a_run_that_is_sealed_meanwhile_is_made_anew(tmp_path: Path) -> None:
    store = written(tmp_path, {"r": [chat("1", [user("one")])]})
    overview = RolloutOverview(store)
    assert [row.stored_bytes is None for row in overview.rows()] == [False]
    seal_at_rest(tmp_path)
    store.refresh()
    assert [(row.calls, row.stored_bytes) for row in overview.rows()] == [(1, None)]


def test_a_damaged_record_is_counted_and_is_a_gap(tmp_path: Path) -> None:
    store = written(tmp_path, {"r": [chat("1", [user("one")]), chat("2", [user("two")], finish="x")]})
    flip(tmp_path, b"finish_reason")
    overview = RolloutOverview(CaptureStore(store.directory))
    row = overview.row("r")
    assert (row.status, row.calls, row.damaged, row.tokens_in) == ("incomplete", 2, 1, 10)
    assert row.gaps == [{"code": "model_call_capture_records_unreadable", "detail": "count=1"}]
    assert ids(overview, gaps=True) == ["r"], "also where the log's rows do not know of it"


def test_a_nemo_gym_file_that_grows_or_is_marked_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / nemo_gym_file("r")
    path.write_text(json.dumps(chat("1", [])) + "\n")
    overview = RolloutOverview(CaptureStore(tmp_path))
    assert (overview.row("r").calls, overview.row("r").status) == (1, "observed")
    path.write_text("\n".join([json.dumps(chat("1", [])), "{", json.dumps(chat("2", []))]))
    (tmp_path / nemo_gym_incomplete_file("r")).touch()
    row = overview.row("r")
    assert (row.calls, row.damaged, row.status, row.tokens_in) == (3, 1, "incomplete", 20)


def test_rows_of_real_rollouts_have_the_sums_of_their_merges(tmp_path: Path) -> None:
    cases = read_cases("real_rollouts.jsonl")[:8]
    store = written(tmp_path, {str(rollout_id_from_record(case["record"])): case["exchanges"] for case in cases})
    overview = RolloutOverview(store)
    merged = [each["ok"]["ng_model_call_capture"] for each in read_cases("real_rollouts.expected.jsonl")]
    expected = {each["rollout_id"]: each["metrics"] for each in merged}
    for row in overview.rows():
        metrics = expected[row.rollout_id]
        assert (row.calls, row.latency_sum_ms) == (metrics["num_calls"], metrics["latency_total_ms"])
        for name in ("tokens_in", "tokens_out", "tokens_reasoning", "cached_tokens"):
            assert getattr(row, name) == metrics[name]


def test_figures_of_records_that_msgpack_cannot_hold_or_that_are_damaged() -> None:
    huge = figures_of(
        3, b'{"tokens_in": 99999999999999999999999, "model": "m", "latency_total_ms": 5, "status_code": true}'
    )
    assert (huge.call_index, huge.tokens_in, huge.model, huge.latency_total_ms) == (
        3,
        99999999999999999999999,
        "m",
        5.0,
    )
    assert huge.status_code is None
    assert figures_of(4, None) == figures_of(4, b"\xc1") == CallFigures(call_index=4, damaged=True)
