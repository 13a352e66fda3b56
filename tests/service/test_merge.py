"""Merge, clear and reading back: a consistent view, journaled, of what is durable."""

from __future__ import annotations

import asyncio

import pytest

from gym_capture.client.payload_reader import KnownMessages, open_entries
from gym_capture.errors import Fenced, GymCaptureError, InvalidRolloutId
from gym_capture.model.exchange import open_exchange, open_part
from gym_capture.model.messages import Merge, PartsReply, ReadParts
from gym_capture.model.rows import CURRENT, ClearRow, Outcome, Part, PartKind, Result
from gym_capture.service.part_reader import read_records
from gym_capture.service.settings import OwnerSettings
from gym_capture.storage.names import SegmentName
from tests.service.harness import merged_calls, serving, turns


async def test_a_merge_returns_what_was_applied_before_it_and_waits_until_that_is_durable() -> None:
    async with serving() as bench:
        client = await bench.client()
        bench.executor.hold()
        before = client.commit("r", "c1")
        await turns()
        merge = asyncio.create_task(bench.service.merge("r"))
        await turns()
        after = client.commit("r", "c2")
        await turns()
        assert not merge.done()
        bench.executor.let_go()
        reply = await merge
        assert merged_calls(reply) == ["c1"]
        assert (reply.generation, reply.damaged, reply.reasons, reply.outstanding) == (0, 0, None, 0)
        await asyncio.gather(before, after)
        assert bench.service.stats("r")["rollout"]["late"] == 1
        assert bench.service.stats()["late"] == 1
        assert merged_calls(await bench.service.merge("r")) == ["c1", "c2"]
        assert bench.service.stats()["late"] == 0


async def test_a_merge_says_what_is_open_and_what_was_issued_and_is_nowhere() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.claim("r")
        await client.commit("r", "c1")
        reply = await bench.service.merge("r", issued=5)
        assert reply.outstanding == 1
        assert reply.reasons == {"unaccounted": 3}


async def test_a_merge_of_another_generation_is_fenced() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.commit("r", "c1")
        assert await bench.service.clear(["r"], "k") == [1]
        with pytest.raises(Fenced, match="generation 0"):
            await bench.service.merge("r", 0)
        with pytest.raises(Fenced):
            await client.call(Merge("r", 0, 0))
        assert (await bench.service.merge("r", 1)).records == []
        assert (await bench.service.merge("r", CURRENT)).generation == 1
        with pytest.raises(Fenced):
            await bench.service.merge("unknown", 3)


async def test_a_merge_of_an_unknown_rollout_is_empty_and_of_an_impossible_one_refused() -> None:
    async with serving() as bench:
        reply = await bench.service.merge("nobody")
        assert (reply.records, reply.damaged, reply.reasons) == ([], 0, None)
        with pytest.raises(InvalidRolloutId):
            await bench.service.merge("a/b")


async def test_damaged_records_are_counted_and_the_others_keep_their_index() -> None:
    async with serving() as bench:
        client = await bench.client()
        for number in range(5):
            await client.commit("r", f"c{number}")
        entry = bench.service.ledger.view("r").entries[2]
        record = next(part for part in entry.parts if part.kind == PartKind.RECORD)
        name = SegmentName(entry.ref.epoch, entry.ref.segment).file
        bench.disk.flip_bit(name, 8 * (entry.ref.body_offset + record.offset + 3))
        reply = await bench.service.merge("r")
        assert [index for index, _ in reply.records] == [0, 1, 3, 4]
        assert reply.damaged == 1
        assert bench.service.stats()["connections"]["damaged_records"] == 1


async def test_a_payload_that_is_damaged_costs_no_record() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.commit("r", "c0")
        entry = bench.service.ledger.view("r").entries[0]
        request = next(part for part in entry.parts if part.kind == PartKind.REQUEST)
        name = SegmentName(entry.ref.epoch, entry.ref.segment).file
        bench.disk.flip_bit(name, 8 * (entry.ref.body_offset + request.offset))
        assert merged_calls(await bench.service.merge("r")) == ["c0"]
        listed, body = await bench.service.read_parts("r", 0, [0])
        [found] = listed.entries
        kinds = {part.kind for part in found.parts}
        assert (kinds, found.intact) == ({PartKind.RECORD, PartKind.META, PartKind.RESPONSE}, False)
        assert sum(map(len, body)) == sum(part.length for part in found.parts)
        assert open_entries(listed, b"".join(body), KnownMessages()) == {}


async def test_a_segment_that_is_gone_counts_as_damage() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.commit("r", "c0")
        entries = bench.service.ledger.view("r").entries
        bench.disk.view().remove(SegmentName(entries[0].ref.epoch, entries[0].ref.segment).file)
        assert read_records(bench.files, entries) == ([], 1)


async def test_records_are_read_from_all_segments_and_after_restarts() -> None:
    settings = OwnerSettings(segment_bytes=2000)
    expected = [f"c{number}" for number in range(30)]
    async with serving(settings=settings) as bench:
        client = await bench.client()
        for call in expected[:20]:
            await client.commit("r", call)
        await client.close()
        await bench.service.stop()
        async with serving(bench.disk, settings=settings) as second:
            client = await second.client("another")
            for call in expected[20:]:
                await client.commit("r", call)
            assert merged_calls(await second.service.merge("r")) == expected
            segments = {(entry.ref.epoch, entry.ref.segment) for entry in second.service.ledger.view("r").entries}
            assert len(segments) > 3


async def test_stored_parts_come_back_as_they_were_sent() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.commit("r", "c0", text="first")
        await client.commit("r", "c1", text="second " * 100)
        value, body = await client.call(ReadParts("r", 0, [1, 0, 7]))
        entries = [(each["call_index"], [Part(*part) for part in each["parts"]]) for each in value["entries"]]
        assert [index for index, _ in entries] == [0, 1]
        for (_, parts), text in zip(entries, ["first", "second " * 100], strict=True):
            opened = [(part, open_part(part, body[part.offset : part.offset + part.length])) for part in parts]
            assert open_exchange(opened)["request"]["messages"][0]["content"] == text


async def test_more_than_one_answer_can_hold_is_refused_with_what_to_do() -> None:
    async with serving(settings=OwnerSettings(read_bytes=100)) as bench:
        client = await bench.client()
        await client.commit("r", "c0")
        with pytest.raises(GymCaptureError, match="fewer calls"):
            await bench.service.read_parts("r", 0, [0])
        assert await bench.service.read_parts("r", 0, []) == (PartsReply([]), [])


async def test_a_clear_is_once_per_request_and_durable_before_it_is_answered() -> None:
    async with serving() as bench:
        service = bench.service
        bench.executor.hold()
        clearing = asyncio.create_task(service.clear(["a", "b", "a"], "first"))
        await turns()
        assert not clearing.done()
        bench.executor.let_go()
        assert await clearing == [1, 1, 1]
        assert await service.clear(["a", "b"], "first") == [1, 1]
        assert await service.clear(["a"], "second") == [2]
        assert await service.clear(["a", "b"], "") == [3, 2]
        assert await service.clear([], "x") == []
        with pytest.raises(InvalidRolloutId):
            await service.clear(["c", "not valid"], "third")
        assert service.ledger.rollouts.get("c") is None


async def test_work_of_a_cleared_generation_is_fenced_and_never_shows() -> None:
    async with serving() as bench:
        client = await bench.client()
        held = await client.claim("r", 0)
        await client.commit("r", "old", generation=0)
        assert await client.batch([ClearRow("r", "k")]) == [Result(Outcome.APPLIED, 1)]
        assert await bench.service.quiesce("r", 0.0) is True
        assert await client.commit("r", "late", held, generation=0) == [Result(Outcome.FENCED, 0)]
        assert await client.batch([client.claim_row("r", 0)]) == [Result(Outcome.FENCED, 0)]
        assert merged_calls(await bench.service.merge("r")) == []
        assert (await bench.service.merge("r")).reasons is None
        assert await client.batch([client.claim_row("r", 9)]) == [Result(Outcome.UNKNOWN_GENERATION, 9)]
        assert (await bench.service.merge("r")).reasons == {"refused": 1}
