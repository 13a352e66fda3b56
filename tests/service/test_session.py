"""What a session accepts, and what happens to what it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest

from gym_capture.errors import DirectoryHeld, HandshakeRefused, OwnerUnavailable
from gym_capture.model.messages import (
    PREFIX_BYTES,
    PROTOCOL_VERSION,
    Answers,
    Batch,
    Beat,
    BeatReply,
    Call,
    Cancel,
    Failure,
    Goodbye,
    Hello,
    Merge,
    Quiesce,
    Refused,
    Reply,
    Stats,
    Stop,
    Welcome,
    decode_from_owner,
    encode_message,
)
from gym_capture.model.rows import (
    ClaimRow,
    ClearRow,
    ClientRow,
    CommitRow,
    MarkRow,
    Outcome,
    Part,
    PartKind,
    ReleaseRow,
    Result,
)
from gym_capture.service.session import Session
from gym_capture.service.settings import OwnerSettings
from gym_capture.service.state import State
from gym_capture.storage.ownership import Ownership
from gym_capture.testing.faulty_files import FaultyDisk
from tests.service.harness import Bench, eventually, identity, serving, turns
from tests.service.raw_client import RawClient, commit_row, sealed

ID = b"i" * 16


class Wire:
    """A session with both ends in the test's hand."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.sent: list[Any] = []
        self.closed = 0
        self.holds: list[bool] = []
        self.session: Session = bench.service.connect(self._send, self._close, self.holds.append)

    def _send(self, buffers: Sequence[bytes | memoryview]) -> None:
        self.sent.append(decode_from_owner(bytes(buffers[0])[PREFIX_BYTES:]))

    def _close(self) -> None:
        self.closed += 1

    def say(self, message: Any, body: bytes = b"") -> None:
        self.session.receive(bytes(encode_message(message)[0])[PREFIX_BYTES:], body)

    def hello(self, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "protocol": PROTOCOL_VERSION,
            "version": "test",
            "token": self.bench.service.token,
            "run": self.bench.service.run,
            "client": ID,
            "open_claims": [],
            "place": "here",
        }
        self.say(Hello(**(fields | changes)))


async def test_a_welcome_names_the_owner_and_its_bounds() -> None:
    async with serving() as bench:
        wire = Wire(bench)
        wire.hello()
        welcome = wire.sent[0]
        assert isinstance(welcome, Welcome)
        assert (welcome.run, welcome.epoch, welcome.lease_s) == (bench.service.run, 1, 6.0)
        assert (welcome.window_bytes, welcome.max_exchange_bytes) == (8 << 20, 64 << 20)
        wire.say(Beat())
        assert wire.sent[1] == BeatReply(1)


async def test_an_owner_that_cannot_look_whether_it_still_is_the_owner_welcomes_nobody_until_it_can() -> None:
    async with serving() as bench:
        bench.clock.advance(bench.service.settings.lease_s / 3 + 0.1)
        bench.executor.hold()  # a disk that does not answer
        waiting, gone = Wire(bench), Wire(bench)
        waiting.hello()
        waiting.say(Beat())
        gone.hello(client=b"g" * 16)
        await turns()
        gone.session.lost()
        assert (waiting.sent, bench.service.connections.sessions) == ([], {})
        bench.executor.let_go()
        await eventually(lambda: bool(waiting.sent))
        assert [type(each) for each in waiting.sent] == [Welcome, BeatReply]
        assert (gone.sent, list(bench.service.connections.sessions)) == ([], [ID])


async def test_an_owner_that_cannot_look_whether_it_still_is_the_owner_answers_no_call_until_it_can() -> None:
    async with serving() as bench:
        wire = Wire(bench)
        wire.hello()
        wire.say(Call(1, Stats(None)))
        await eventually(lambda: len(wire.sent) == 2)
        bench.clock.advance(bench.service.settings.lease_s / 3 + 0.1)
        bench.executor.hold()
        wire.say(Call(2, Stats(None)))
        wire.say(Call(3, Quiesce("r", 0.0)))
        await turns()
        assert len(wire.sent) == 2
        bench.executor.let_go()
        await eventually(lambda: len(wire.sent) == 4)
        assert sorted(each.number for each in wire.sent[1:]) == [1, 2, 3]


async def test_an_owner_that_cannot_look_whether_it_still_is_the_owner_refuses_no_call_either_until_it_can() -> None:
    async with serving() as bench:
        wire = Wire(bench)
        wire.hello()
        bench.clock.advance(bench.service.settings.lease_s / 3 + 0.1)
        bench.executor.hold()
        wire.say(Call(1, Quiesce("not/valid", 0.0)))
        wire.say(Call(2, Merge("not/valid", -1, 0)))
        await turns()
        assert len(wire.sent) == 1
        bench.executor.let_go()
        await eventually(lambda: len(wire.sent) == 3)
        assert [(type(each), each.number) for each in wire.sent[1:]] == [(Failure, 1), (Failure, 2)]


async def test_an_owner_that_cannot_look_whether_it_still_is_the_owner_repeats_no_answer_until_it_can() -> None:
    async with serving() as bench:
        first, again = Wire(bench), Wire(bench)
        batch = Batch(1, 0, [ClaimRow("r", 1)])
        first.hello()
        first.say(batch)
        await eventually(lambda: len(first.sent) == 2)
        again.hello(open_claims=[1])
        bench.clock.advance(bench.service.settings.lease_s / 3 + 0.1)
        bench.executor.hold()
        again.say(batch)
        await turns()
        assert len(again.sent) == 1
        bench.executor.let_go()
        await eventually(lambda: len(again.sent) == 2)
        assert again.sent[1] == first.sent[1]


async def test_a_look_that_is_half_a_lease_old_lets_nothing_out() -> None:
    """A successor that came just after it takes the claims of all who are not with it in two leases for lost."""
    async with serving() as bench:
        wire = Wire(bench)
        wire.hello()
        lease_s = bench.service.settings.lease_s
        bench.clock.advance(lease_s / 3 + 0.1)
        log = bench.service.tenure.log
        assert log is not None
        look = log.check
        looks = 0

        def slow() -> None:
            nonlocal looks
            looks += 1
            look()
            if looks == 1:
                Ownership.take(bench.disk.view(), identity("other"), bench.clock, takeover=True)
                bench.clock.advance(lease_s / 2 + 0.1)

        with mock.patch.object(log, "check", slow):
            wire.say(Beat())
            await eventually(lambda: bench.service.state is not State.SERVING)
        assert looks == 2
        assert len(wire.sent) == 1


async def test_an_owner_that_was_frozen_after_the_look_looks_again_before_it_says_what_is_quiescent() -> None:
    async with serving() as bench:
        wire = Wire(bench)
        wire.hello()
        check = bench.service.tenure.check

        async def frozen_after_it() -> bool:
            ours = await check()
            bench.clock.advance(bench.service.settings.lease_s)
            bench.executor.hold()
            return ours

        bench.service.waiters._check = frozen_after_it
        wire.say(Call(1, Quiesce(None, 10.0, standing=True)))
        await turns()
        assert len(wire.sent) == 1
        bench.executor.let_go()
        await eventually(lambda: len(wire.sent) == 2)
        assert wire.sent[1] == Reply(1, [1, 0])


async def test_an_owner_that_was_frozen_after_a_groups_look_looks_again_before_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as bench:
        wire = Wire(bench)
        wire.hello()
        log = bench.service.tenure.log
        assert log is not None
        check = log.check

        def frozen_after_it() -> None:
            monkeypatch.undo()
            check()
            bench.clock.advance(bench.service.settings.lease_s)
            bench.executor.hold()

        monkeypatch.setattr(log, "check", frozen_after_it)
        wire.say(Batch(1, 0, [ClaimRow("r", 1)]))
        await turns()
        assert len(wire.sent) == 1
        bench.executor.let_go()
        await eventually(lambda: len(wire.sent) == 2)
        assert wire.sent[1] == Answers(1, [Result(Outcome.APPLIED, 0)])


async def test_a_group_on_disk_tells_as_much_as_a_look_and_all_that_waited_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as bench:
        wire = Wire(bench)
        wire.hello()
        monkeypatch.setattr(bench.service.tenure, "check", asyncio.Event().wait)  # a look that never ends
        bench.clock.advance(bench.service.settings.lease_s / 3 + 0.1)
        wire.say(Beat())
        await turns()
        assert len(wire.sent) == 1
        wire.say(Batch(1, 0, [ClaimRow("r", 1)]))
        await eventually(lambda: len(wire.sent) == 3)
        assert wire.sent[1:] == [BeatReply(1), Answers(1, [Result(Outcome.APPLIED, 0)])]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token": "wrong"}, "token"),
        ({"token": ""}, "token"),
        ({"token": "tökén"}, "token"),
        ({"protocol": 99}, "protocol 99"),
        ({"run": "0" * 32}, "serves run"),
        ({"client": b"short"}, "16 bytes"),
    ],
)
async def test_a_hello_that_is_not_right_is_refused_and_the_connection_closed(
    changes: dict[str, Any], words: str
) -> None:
    async with serving() as bench:
        wire = Wire(bench)
        wire.hello(**changes)
        assert len(wire.sent) == 1
        assert isinstance(wire.sent[0], Refused)
        assert wire.sent[0].code == HandshakeRefused.__name__
        assert words in wire.sent[0].message
        assert wire.closed == 1
        assert bench.service.stats()["connections"]["refused_connections"] == 1
        wire.hello()
        assert len(wire.sent) == 1


async def test_who_cannot_show_the_token_learns_nothing_of_the_run() -> None:
    async with serving() as bench:
        wire = Wire(bench)
        wire.hello(token="wrong", run="0" * 32, protocol=99)
        assert bench.service.run not in wire.sent[0].message
        assert "protocol" not in wire.sent[0].message


async def test_an_earlier_owners_token_only_means_that_the_client_has_to_look_again() -> None:
    disk = FaultyDisk()
    async with serving(disk) as first:
        early = first.service.token
    async with serving(disk, pid=2) as second:
        second.service._taking.earlier_token = early + "x"
        wire = Wire(second)
        wire.hello(token=early + "x")
        assert wire.sent[0].code == OwnerUnavailable.__name__


async def test_the_token_outlives_a_failed_write() -> None:
    async with serving() as bench:
        token = bench.service.token
        client = await bench.client()
        bench.files.fail_at("before sync")
        await client.commit("r", "c1")
        assert bench.service.epoch == 2
        assert bench.service.token == token
        assert bench.service.endpoint.token == token


async def test_before_it_is_open_and_while_it_takes_the_directory_it_is_unavailable() -> None:
    disk = FaultyDisk()
    bench = Bench(disk)
    wire = Wire(bench)
    wire.hello(token="whatever")
    assert wire.sent[0].code == OwnerUnavailable.__name__
    async with serving(disk, "another"):
        bench.clock.advance(0)
        with pytest.raises(DirectoryHeld):
            # The other one's beat moves while it is watched.
            await bench_open_while_beating(bench, disk)
    await bench.close()


async def bench_open_while_beating(bench: Bench, disk: FaultyDisk) -> None:
    other = disk.view()
    beats = iter(range(1000))

    def wait(seconds: float) -> None:
        other.overwrite("beat-00000001", b"%020d\n" % (1000 + next(beats)), "beat")

    bench.service._taking._wait = wait
    await bench.service.open()


@pytest.mark.parametrize("head", [b"", b"\x00", b"garbage", b"\x92\x02", b"\xc1" * 50, b"\x91\x63"])
async def test_what_is_no_message_closes_the_connection_and_is_counted(head: bytes) -> None:
    async with serving() as bench:
        for welcome in (False, True):
            wire = Wire(bench)
            if welcome:
                wire.hello()
            wire.session.receive(head, b"")
            assert wire.closed == 1
            wire.say(Beat())
        assert bench.service.stats()["connections"]["protocol_errors"] == 2
        client = await bench.client()
        assert await client.commit("r", "c1") == [Result(Outcome.APPLIED, 0, 0)]


@pytest.mark.parametrize(
    "message",
    [Batch(1, 0, []), Beat(), Call(1, Stats(None)), Cancel(1)],
    ids=["batch", "beat", "call", "cancel"],
)
async def test_nothing_but_a_hello_comes_first(message: Any) -> None:
    async with serving() as bench:
        wire = Wire(bench)
        wire.say(message)
        assert (wire.closed, wire.sent) == (1, [])


async def test_a_second_hello_and_impossible_numbers_are_refused() -> None:
    async with serving() as bench:
        for message in (
            Batch(0, 0, []),
            Batch(3, 3, []),
            Batch(2, -1, []),
            Call(1, Quiesce("r", float("nan"))),
            Hello(PROTOCOL_VERSION, "", bench.service.token, "", ID, [], ""),
        ):
            wire = Wire(bench)
            wire.hello()
            wire.say(message)
            assert wire.closed == 1, message


async def test_a_call_number_is_used_once_at_a_time() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.claim("r")
        wire = Wire(bench)
        wire.hello()
        wire.say(Call(5, Quiesce("r", 1000.0)))
        wire.say(Call(5, Quiesce("r", 1000.0)))
        assert wire.closed == 1
        assert bench.service.waiters.count == 0


def broken_commits() -> list[tuple[CommitRow, bytes, Outcome]]:
    exchange = sealed("bad")
    body = b"".join(exchange.body)

    def changed(**changes: Any) -> CommitRow:
        row = commit_row("r", exchange)
        for name, value in changes.items():
            setattr(row, name, value)
        return row

    record = exchange.parts[0]
    return [
        (changed(parts=[]), body, Outcome.INVALID),
        (changed(parts=exchange.parts[1:]), body, Outcome.INVALID),
        (changed(parts=[Part(99, 0, 0, 1, 1, 0)]), body, Outcome.INVALID),
        (changed(parts=[Part(PartKind.RECORD, 0, -5, record.length, record.raw, record.crc)]), body, Outcome.INVALID),
        (changed(parts=[Part(PartKind.RECORD, 0, 0, 10**9, 1, 0)]), body, Outcome.INVALID),
        (changed(), b"", Outcome.INVALID),
        (changed(digest=b""), body, Outcome.INVALID),
        (changed(model_call_id=""), body, Outcome.INVALID),
        (changed(model_call_id="x" * 10_000), body, Outcome.INVALID),
        (changed(generation=-7), body, Outcome.INVALID),
        (changed(parts=[*exchange.parts, Part(PartKind.REQUEST_RAW, 0, 0, 0, 1 << 40, 0)]), body, Outcome.TOO_LARGE),
        (changed(parts=[Part(PartKind.RECORD, 0, 0, 0, 1 << 40, 0)]), body, Outcome.TOO_LARGE),
    ]


@pytest.mark.parametrize("index", range(12))
async def test_a_row_that_breaks_a_rule_costs_itself_only_and_marks_its_rollout(index: int) -> None:
    row, body, expected = broken_commits()[index]
    async with serving() as bench:
        client = await bench.client()
        good, after = sealed("good"), len(body)
        # What has no body of its own points into the other's: damaged however often it comes, and refused in the end.
        rows: list[ClientRow] = [client.claim_row("r"), row, commit_row("r", good, at=after), client.claim_row("s")]
        results = await client.batch(rows, body + b"".join(good.body))
        assert results is not None
        assert [Outcome(result.outcome) for result in results] == [
            Outcome.APPLIED,
            expected,
            Outcome.APPLIED,
            Outcome.APPLIED,
        ]
        view = bench.service.ledger.view("r")
        assert view.reasons == {"refused": 1}
        assert [entry.model_call_id for entry in view.entries] == ["good"]
        await client.close()
        await bench.service.stop()
        async with serving(bench.disk) as second:
            again = RawClient(second.transport, client.id)
            second.clients.append(await again.start())
            assert await again.batch(rows, body) == results


async def test_a_refused_commit_closes_its_claim() -> None:
    async with serving() as bench:
        client = await bench.client()
        claim = await client.claim("r")
        row = commit_row("r", sealed("c1"), claim)
        row.parts = [Part(PartKind.RECORD, 0, 0, 0, 1 << 40, 0)]
        assert await client.batch([row]) == [Result(Outcome.TOO_LARGE, 0)]
        assert await bench.service.quiesce("r", 0.0) is True
        assert bench.service.stats("r")["rollout"]["reasons"] == {"refused": 1}


@pytest.mark.parametrize(
    "row",
    [
        ClaimRow("not/valid", 1),
        ClaimRow("", 1),
        ClaimRow("x" * 300, 1),
        ClaimRow("r", 0),
        ClaimRow("r", -4),
        ClaimRow("r", 1, "y" * 10_000),
        ClaimRow("r", 1, "", -9),
        ReleaseRow("r", 0),
        ReleaseRow("r", 1, "with spaces"),
        MarkRow("r", "dropped", 0),
        MarkRow("r", "dropped", -1),
        MarkRow("r", "dropped", 1 << 60),
        MarkRow("r", "x" * 100),
        ClearRow("../r", "k"),
        ClearRow("r", "k" * 10_000),
        CommitRow("not valid", 0, "c", b"d" * 16, []),
    ],
    ids=repr,
)
async def test_an_impossible_row_is_answered_as_invalid_and_leaves_no_trace(row: Any) -> None:
    async with serving() as bench:
        client = await bench.client()
        results = await client.batch([row, MarkRow("s", "dropped", 2)])
        assert results is not None
        assert results[0].outcome == Outcome.INVALID
        assert results[1] == Result(Outcome.APPLIED, 0)
        assert set(bench.service.ledger.rollouts) == {"s"}
        assert bench.service.ledger.outstanding == 0


async def test_bytes_that_were_damaged_on_the_way_are_not_believed_and_come_again() -> None:
    async with serving() as bench:
        client = await bench.client()
        exchange = sealed("c1", "x" * 500)
        body = b"".join(exchange.body)
        damaged = bytes([body[0] ^ 1]) + body[1:]
        wire = Wire(bench)
        wire.hello()
        wire.say(Batch(1, 0, [client.claim_row("r"), commit_row("r", exchange)]), damaged)
        assert wire.closed == 1
        assert bench.service.ledger.rollouts == {}
        again = Wire(bench)
        again.hello()
        again.say(Batch(1, 0, [commit_row("r", exchange)]), body)
        await eventually(lambda: len(again.sent) == 2)
        assert again.sent[1] == Answers(1, [Result(Outcome.APPLIED, 0, 0)])


async def test_bytes_of_batches_that_were_not_kept_do_not_go_to_the_log() -> None:
    async with serving() as bench:
        client = await bench.client()
        await client.commit("r", "c1", text="z" * 50)
        before = bench.service.tenure.counters.bytes
        await client.commit("r", "c1", text="z" * 50)
        duplicate = bench.service.tenure.counters.bytes - before
        assert duplicate < sealed("c1", "z" * 50).body_bytes


async def test_reading_stops_at_two_windows_and_goes_on_below_one() -> None:
    async with serving(settings=OwnerSettings(window_bytes=5000)) as bench:
        wire = Wire(bench)
        wire.hello()
        bench.executor.hold()
        number = 0
        while not wire.holds:
            number += 1
            exchange = sealed(f"c{number}")
            wire.say(Batch(number, 0, [commit_row("r", exchange)]), b"".join(exchange.body))
        assert wire.session.unanswered > 10_000
        assert bench.service.stats()["paused"] == 1
        bench.executor.let_go()
        await eventually(lambda: wire.holds == [True, False])
        assert wire.session.unanswered <= 5000


async def test_reading_stops_for_everyone_at_the_owners_bound() -> None:
    settings = OwnerSettings(owner_buffer_bytes=3000, group_bytes=1)
    async with serving(settings=settings) as bench:
        wires = [Wire(bench), Wire(bench), Wire(bench)]
        bench.executor.hold()
        for index, wire in enumerate(wires):
            wire.hello(client=bytes([index]) * 16)
        number = 0
        while not all(wire.holds for wire in wires):
            number += 1
            for wire in wires:
                if not wire.session.paused:
                    exchange = sealed(f"c{number}")
                    wire.say(Batch(number, 0, [commit_row("r", exchange)]), b"".join(exchange.body))
        buffered = bench.service.connections.buffered
        assert buffered > 3000
        bench.executor.let_go()
        await eventually(lambda: all(wire.holds == [True, False] for wire in wires))
        assert bench.service.connections.buffered <= 0.75 * 3000


async def test_what_a_session_holds_back_counts_until_it_is_taken_and_stops_reading() -> None:
    async with serving(settings=OwnerSettings(owner_buffer_bytes=3000)) as bench:
        bench.clock.advance(bench.service.settings.lease_s / 3 + 0.1)
        bench.executor.hold()  # so nobody is welcomed yet
        waiting, gone = Wire(bench), Wire(bench)
        for wire, client in ((waiting, ID), (gone, b"g" * 16)):
            wire.hello(client=client)
            for number in range(1, 20):
                exchange = sealed(f"c{number}")
                wire.say(Batch(number, 0, [commit_row("r", exchange)]), b"".join(exchange.body))
            assert wire.holds == [True]
        both = bench.service.stats()["buffered_bytes"]
        assert both > 3000
        gone.session.lost()
        left = bench.service.stats()["buffered_bytes"]
        assert 3000 < left < both
        bench.executor.let_go()
        await eventually(lambda: len(waiting.sent) > 1 and isinstance(waiting.sent[-1], Answers))
        await eventually(lambda: bench.service.stats()["buffered_bytes"] == 0)
        assert waiting.holds == [True, False]
        assert bench.service.stats()["paused"] == 0


async def test_what_was_held_back_and_is_taken_no_more_does_not_count_either() -> None:
    async with serving() as bench:
        bench.clock.advance(bench.service.settings.lease_s / 3 + 0.1)
        bench.executor.hold()
        wire = Wire(bench)
        wire.hello()
        wire.session.receive(b"garbage", b"")
        wire.say(Beat())
        assert bench.service.stats()["buffered_bytes"] > 0
        bench.executor.let_go()
        await eventually(lambda: wire.closed == 1)
        assert bench.service.stats()["buffered_bytes"] == 0


async def test_where_a_client_says_it_is_is_kept_short_and_only_while_it_has_something_open() -> None:
    async with serving() as bench:
        holder = await bench.client("holder", steady=False)
        await holder.claim("r")
        for number in range(20):
            wire = Wire(bench)
            wire.hello(client=bytes([number]) * 16, place="x" * 1_000_000)
            assert wire.session.place == "x" * 256
            wire.say(Goodbye())
        await holder.close()
        await eventually(lambda: not bench.service.connections.sessions)
        bench.tick()
        assert bench.service.connections._places == {holder.id: "a test"}
        assert bench.service.stats()["oldest_claims"][0]["place"] == "a test"
        bench.tick(20)
        assert bench.service.connections._places == {}


async def test_a_fault_of_a_call_reaches_the_caller_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as bench:
        client = await bench.client()

        def broken(*_: Any) -> None:
            raise ZeroDivisionError("planted")

        monkeypatch.setattr("gym_capture.service.capture_service.service_stats", broken)
        with pytest.raises(Exception, match="planted"):
            await client.call(Stats(None))
        assert bench.service.connections.counts["faults"] == 1
        assert await client.commit("r", "c1") == [Result(Outcome.APPLIED, 0, 0)]


async def test_a_client_can_stop_the_owner_and_is_answered() -> None:
    async with serving() as bench:
        client = await bench.client(steady=False)
        await client.commit("r", "c1")
        value, _ = await client.call(Stop())
        assert value is True
        await turns()
        assert bench.service.connections.sessions == {}
        with pytest.raises(OwnerUnavailable):
            await bench.client("late", steady=False)
        bench.service._leave("stopped")
        assert bench.left == ["stopped"]


async def test_stats_are_plain_and_say_who_holds_what() -> None:
    import json

    async with serving() as bench:
        client = await bench.client()
        await client.claim("r")
        bench.clock.advance(2.5)
        stats, _ = await client.call(Stats("r"))
        assert json.loads(json.dumps(stats)) == stats
        assert stats["oldest_claims"][0] | {"client": None} == {
            "rollout_id": "r",
            "model_call_id": "",
            "age_s": 2.5,
            "client": None,
            "place": "a test",
        }
        assert (stats["outstanding"], stats["rollout"]["open_claims"], stats["rows_without_token"]) == (1, 1, 1)
        assert stats["clients"] == {"known": 1, "live": 1, "connected": 1}


async def test_calls_of_a_client_that_went_away_are_dropped() -> None:
    async with serving() as bench:
        wire = Wire(bench)
        wire.hello()
        bench.executor.hold()
        wire.say(Call(1, Merge("r", -1, 0)))
        await turns()
        wire.session.lost()
        bench.executor.let_go()
        await turns(50)
        assert [type(message).__name__ for message in wire.sent] == ["Welcome"]
        assert wire.closed == 0


async def test_a_link_in_the_process_is_cut_though_its_clients_loop_has_ended() -> None:
    async with serving() as bench:
        link = await asyncio.to_thread(asyncio.run, bench.transport.connect())
        bench.transport.cut_all()
        await turns()
        with pytest.raises(OwnerUnavailable):
            await link.receive()
