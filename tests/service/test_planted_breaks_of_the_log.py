"""More breaks planted on purpose, in what the log keeps: a takeover without a cut, claims that are not journaled."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gym_capture.model.codec import PendingFrame, encode_rows
from gym_capture.model.rows import ClaimRow, CutRow, MarkRow, Row
from gym_capture.service import session
from gym_capture.storage import recovery
from gym_capture.storage.files import Files
from gym_capture.storage.log_plan import LogPlan, plan_log
from gym_capture.storage.segments import owner_frame
from gym_capture.testing.faulty_files import FaultyDisk
from tests.service.harness import on_disk, serving
from tests.storage.owners import Batch, Owner, calls, exchange


def frozen_owner_writes_on(disk: FaultyDisk) -> None:
    """What the first owner appends after the takeover must not come back, after a restart either."""
    old = Owner(disk.view())
    old.send(Batch().commit("r", exchange("before")), 1)
    new = Owner(disk.view(), "actor-2", takeover=True)
    new.send(Batch().commit("r", exchange("after")), 1, b"another client--")
    old.append(Batch().commit("r", exchange("ghost")), 2)
    old.writer.sync()
    assert calls(new.ledger, "r") == ["before", "after"]
    new.stop()
    read = calls(on_disk(disk), "r")
    assert read == ["before", "after"], f"read after the takeover: {read}"


def test_without_the_cut_a_frozen_owners_later_bytes_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen_owner_writes_on(FaultyDisk())

    def forgetful(files: Files, below_epoch: int | None = None) -> LogPlan:
        plan = plan_log(files, below_epoch)
        plan.cuts.clear()
        return plan

    def uncut(rows: Sequence[Row], sequence: int, epoch: int) -> PendingFrame:
        return owner_frame([row for row in rows if not isinstance(row, CutRow)], sequence, epoch)

    monkeypatch.setattr(recovery, "owner_frame", uncut)
    monkeypatch.setattr(recovery, "plan_log", forgetful)
    with pytest.raises(AssertionError, match=r"read after the takeover: .*ghost"):
        frozen_owner_writes_on(FaultyDisk())


async def restart_with_an_open_claim(disk: FaultyDisk) -> None:
    """A restarted owner knows every call that may be under way."""
    async with serving(disk) as bench:
        client = await bench.client()
        await client.claim("r")
        await client.close()
        disk.crash()
    outstanding = on_disk(disk).outstanding_of("r")
    assert outstanding == 1, f"{outstanding} of 1 acknowledged claims are known after the restart"


async def test_without_journaling_claims_a_restart_calls_a_busy_rollout_quiescent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await restart_with_an_open_claim(FaultyDisk())

    def without_claims(rows: Sequence[Row]) -> bytes:
        return encode_rows([MarkRow(row.rollout, "none", 0, 0) if isinstance(row, ClaimRow) else row for row in rows])

    monkeypatch.setattr(session, "encode_rows", without_claims)
    with pytest.raises(AssertionError, match="0 of 1 acknowledged claims"):
        await restart_with_an_open_claim(FaultyDisk())
