"""Faults of the package itself, planted: what is known may be wrong then, so the state comes from the log again."""

from __future__ import annotations

from typing import Any

import pytest

from gym_capture.errors import ConfigError, GymCaptureError
from gym_capture.model import codec
from gym_capture.model.rows import Outcome, Result
from gym_capture.service import session
from gym_capture.service.settings import OwnerSettings
from gym_capture.service.waiters import Waiters
from gym_capture.testing.faulty_files import FaultyDisk
from tests.service.harness import assert_acknowledged_is_kept, serving


async def test_a_batch_that_was_applied_and_not_logged_is_forgotten_and_done_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = FaultyDisk()
    async with serving(disk) as bench:
        client = await bench.client()
        await client.commit("r", "c0")
        faults: list[int] = []

        def stumble(rows: Any) -> bytes:
            if not faults:
                faults.append(1)
                raise ZeroDivisionError("planted")
            monkeypatch.undo()
            return encode(rows)

        encode = codec.encode_rows
        monkeypatch.setattr(session, "encode_rows", stumble)
        assert await client.commit("r", "c1") == [Result(Outcome.APPLIED, 0, 1)]
        assert bench.service.epoch == 2
        assert bench.service.connections.counts["faults"] == 1
        assert bench.service.ledger.counts["repeated_batches"] == 0
    assert_acknowledged_is_kept(disk, {"r": ["c0", "c1"]})


async def test_a_fault_after_the_sync_leaves_no_client_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    async with serving(disk) as bench:
        client = await bench.client()
        claim = await client.claim("r")

        def stumble(*_: Any) -> None:
            monkeypatch.undo()
            raise ZeroDivisionError("planted")

        monkeypatch.setattr(Waiters, "settled", stumble)
        assert await client.commit("r", "c0", claim) == [Result(Outcome.APPLIED, 0, 0)]
        assert bench.service.epoch == 2
        assert await bench.service.quiesce(None, 0.0) is True
    assert_acknowledged_is_kept(disk, {"r": ["c0"]})


@pytest.mark.parametrize("request_id", ["\ud800", "x" * 5000, "line\nbreak"])
async def test_a_clear_request_that_cannot_be_logged_is_refused_before_it_is_applied(request_id: str) -> None:
    async with serving() as bench:
        with pytest.raises(GymCaptureError, match="request"):
            await bench.service.clear(["r"], request_id)
        assert bench.service.ledger.rollouts == {}
        assert await bench.service.clear(["r"], "fine") == [1]


@pytest.mark.parametrize(("issued", "missing"), [(-5, None), (1 << 80, (1 << 31))])
async def test_a_count_of_issued_calls_that_cannot_be_is_bounded(issued: int, missing: int | None) -> None:
    async with serving() as bench:
        reply = await bench.service.merge("r", issued=issued)
        assert reply.reasons == ({"unaccounted": missing} if missing else None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lease_s": 0.0}, "lease_s"),
        ({"beat_s": float("inf")}, "beat_s"),
        ({"window_bytes": -1}, "window_bytes"),
        ({"tick_s": float("nan")}, "tick_s"),
        ({"tick_s": 4.0}, "tick_s is 4.0"),
        ({"max_exchange_bytes": 1 << 30}, "max_exchange_bytes"),
    ],
)
def test_settings_that_cannot_work_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        OwnerSettings(**changes).checked()
