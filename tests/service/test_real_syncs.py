"""A real service on real files: nothing is answered before the segment's descriptor was synced after the write."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from gym_capture.model.messages import Answers, Merge, Reply, decode_from_owner
from gym_capture.service.settings import OwnerSettings
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.testing.in_process import Way
from tests.service.harness import serving
from tests.storage.system_calls import BREAKS, SystemCalls

SETTINGS = OwnerSettings(segment_bytes=1500)


class RealDirectory:
    """What a `Bench` takes its files from."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def view(self) -> PosixFiles:
        return PosixFiles(self._path)


async def serve_a_client(directory: Path, calls: SystemCalls) -> None:
    """Claims, commits, a merge and a stop, one after another, each answer noted when it leaves the owner."""
    async with serving(cast(Any, RealDirectory(directory)), settings=SETTINGS) as bench:
        client = await bench.client()

        def note_answers(way: Way, head: bytes, body: bytes) -> float:
            if way is Way.TO_CLIENT and isinstance(decode_from_owner(head), Answers | Reply):
                calls.answer()
            return 0.0

        bench.transport.policy = note_answers
        for number in range(6):
            claim = await client.claim("r")
            await client.commit("r", f"call-{number}", claim)
        await client.call(Merge("r", 0, 0))
    calls.answer()


async def test_every_answer_follows_the_sync_of_what_it_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = SystemCalls(tmp_path, monkeypatch)
    await serve_a_client(tmp_path, calls)
    assert calls.breaches == []
    assert calls.log.count("answer") == 6 * 2 + 1 + 1
    segments = {each for each in calls.log if each.startswith("open segment")}
    assert len(segments) > 1
    first = calls.log.index("answer")
    assert [each.split("-")[0] for each in calls.log[first - 2 : first]] == ["write segment", "fdatasync segment"]


@pytest.mark.parametrize("without", BREAKS)
async def test_without_a_sync_an_answer_is_seen_to_come_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    calls = SystemCalls(tmp_path, monkeypatch, without)
    await serve_a_client(tmp_path, calls)
    assert calls.breaches != []
    if without == "fdatasync":
        early = [each for each in calls.breaches if each.startswith("answered while segment-00000001")]
        assert len(early) >= calls.log.count("answer")
