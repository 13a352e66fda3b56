"""Messages stored once, in the log: over clients, restarts, clears, crashes and takeovers; and what damage costs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_capture.errors import DamagedLog
from gym_capture.model.codec import FrameFlag, encode_rows
from gym_capture.model.rows import ClaimRow, CommitRow, HistoryRow, Outcome, Part, PartFlag, PartKind, Row, SenderRow
from gym_capture.storage.log_reader import Frame
from gym_capture.storage.log_scan import LogScan, scan_log
from gym_capture.storage.names import SegmentName
from gym_capture.storage.repair import repair
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import CrashMode, FaultyDisk, FaultyFiles, Stopped
from gym_capture.testing.manual_clock import ManualClock
from tests.storage.conversing import Talker, fresh, turn_of
from tests.storage.owners import CLIENT, OTHER_CLIENT, Batch, Owner, identity

SEGMENT_BYTES = 4000


def noise(seed: object, size: int) -> str:
    """Text that hardly compresses."""
    return random.Random(str(seed)).randbytes(size // 2).hex()


def text_of(messages: list[object]) -> bytes:
    return json.dumps({"model": "m", "messages": messages, "temperature": 1.0}).encode()


def conversation(turns: int, size: int = 300) -> list[bytes]:
    """The requests of a conversation that grows by two messages each turn."""
    messages = [{"role": "user", "content": noise(number, size)} for number in range(2 * turns)]
    return [text_of(list(messages[: 2 * turn + 1])) for turn in range(turns)]


def requests(store: CaptureStore, rollout: str) -> dict[str, bytes]:
    """The exact requests that can be read, by model_call_id."""
    found = {}
    for index, exchange in store.read_indexed(rollout)[0]:
        found[exchange["model_call_id"]] = store.read_bytes(rollout, index, "request")
    return found


def frames(disk: FaultyDisk) -> list[Frame]:
    return [item for item in scan_log(disk.view()) if isinstance(item, Frame)]


def talk(owner: Owner, talker: Talker, rollout: str, texts: list[bytes], first: int = 0) -> None:
    for number, text in enumerate(texts, first):
        talker.say(rollout, turn_of(f"{rollout}{number}", text))
        talker.send(owner)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(0, 1), st.integers(0, 1)),
        st.tuples(st.just("say"), st.integers(0, 1), st.integers(0, 1)),
        st.tuples(st.just("say"), st.just(0), st.just(0)),
        st.tuples(st.just("send"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("new client"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("crash"), st.integers(0, 3), st.integers(0, 9)),
        st.tuples(st.just("clear"), st.integers(0, 1), st.just(0)),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(ACTIONS, st.sampled_from([1 << 20, 3000]))
def test_every_acknowledged_request_comes_back_byte_for_byte(
    actions: list[tuple[str, int, int]], capacity_bytes: int
) -> None:
    """Two clients of two rollouts; requests grow, clients are replaced, the host crashes, rollouts are cleared.

    The answer names the generation that an exchange was committed in: what is acknowledged as of the current one is
    there, what is acknowledged as of an earlier one (before the clear, or when it came again after) is not.
    """
    disk = FaultyDisk()
    owner = Owner(disk.view(), segment_bytes=SEGMENT_BYTES)
    talkers = [Talker(CLIENT, capacity_bytes), Talker(OTHER_CLIENT, capacity_bytes)]
    spoken: dict[str, list[object]] = {"a": [], "b": []}
    sent: dict[str, dict[str, bytes]] = {"a": {}, "b": {}}
    acknowledged: dict[tuple[str, int], set[str]] = {}
    generations = {"a": 0, "b": 0}
    left: set[str] = set()
    clients = 0

    def send(talker: Talker) -> None:
        for rollout, generation, exchange in talker.send(owner):
            acknowledged.setdefault((rollout, generation), set()).add(exchange["model_call_id"])

    for action, which, other in actions:
        if action == "say":
            rollout = "ab"[other]
            said = len(sent["a"]) + len(sent["b"])
            messages = spoken[rollout]
            messages += [noise((rollout, said), 200), {"role": "tool", "content": noise((said, "t"), 60), "n": said}]
            if said % 7 == 6:
                del messages[1]
            sent[rollout][f"call-{said}"] = text_of(messages)
            talkers[which].say(rollout, turn_of(f"call-{said}", text_of(messages)))
        elif action == "send":
            send(talkers[which])
        elif action == "new client":
            clients += 1
            left |= {given["model_call_id"] for _, given, *_ in talkers[which].unanswered.values()}
            talkers[which] = Talker(b"client-%09d" % (100 + clients), capacity_bytes)
        elif action == "crash":
            for talker in talkers:
                for number, (batch, *_) in talker.unanswered.items():
                    owner.append(fresh(batch), number, talker.id)
            disk.crash(list(CrashMode)[which % len(CrashMode)], other)
            owner = Owner(disk.view(), segment_bytes=SEGMENT_BYTES)
            assert not owner.report.damaged
        else:
            rollout = "ab"[which]
            generations[rollout] += 1
            number = sum(generations.values())
            [cleared] = owner.send(Batch().clear(rollout, f"clear-{number}"), 1, b"collector-%06d" % number)
            assert cleared.generation == generations[rollout]
    for talker in talkers:
        while talker.unanswered:
            send(talker)
    disk.crash()
    store = CaptureStore(disk.view())
    for rollout, generation in generations.items():
        found = requests(store, rollout)
        expected = acknowledged.get((rollout, generation), set())
        assert found == {call: sent[rollout][call] for call in found}
        assert expected <= found.keys()
        # Nobody heard of what a client had under way that is gone: it may be there or not.
        assert found.keys() - expected <= left
    assert (sent["a"].keys() | sent["b"].keys()) - left <= set().union(*acknowledged.values())
    report = store.verify()
    # What a client that is gone had under way may rest on what never reached the disk, and then is not there either.
    assert report.broken == []


def test_a_turn_costs_what_it_adds() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    talker = Talker(CLIENT)
    texts = conversation(40, 1000)
    sizes = []
    for number, text in enumerate(texts):
        talker.say("a", turn_of(f"a{number}", text))
        talker.send(owner)
        sizes.append(owner.writer.position)
    steps = [later - earlier for earlier, later in pairwise(sizes)]
    assert max(steps[2:]) < 2 * 1000 + 700
    assert requests(CaptureStore(disk.view()), "a") == {f"a{n}": text for n, text in enumerate(texts)}
    messages = [row for frame in frames(disk) for row in frame.rows if isinstance(row, HistoryRow)]
    assert sum(row.count for row in messages) == 79  # each of them once, the first of all where it was stored
    assert [bool(row.source) for row in messages] == [True, *([False] * 39)]


def test_a_single_turn_is_stored_as_without_history() -> None:
    sizes = []
    for whole in (False, True):
        disk = FaultyDisk()
        owner = Owner(disk.view())
        talker = Talker(CLIENT)
        for rollout in "abc":
            talker.say(rollout, turn_of("one", conversation(1, 2000)[0]), whole=whole)
            talker.send(owner)
        sizes.append(owner.writer.position)
    assert sizes[0] == sizes[1]


def test_a_clear_carries_nothing_over() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    talker = Talker(CLIENT)
    texts = conversation(5)
    talk(owner, talker, "a", texts[:4])
    owner.send(Batch().clear("a", "again"), 1, OTHER_CLIENT)
    assert owner.ledger.rollouts["a"].histories == {}
    # Without a token the client learns it by what the owner lacks; with one it begins anew by itself.
    talk(owner, talker, "a", texts[4:], 4)
    talker.send(owner)
    assert talker.lacked == 1
    assert requests(CaptureStore(disk.view()), "a") == {"a4": texts[4]}
    talker.say("a", turn_of("t", texts[3]), 1)
    talker.say("a", turn_of("u", texts[4]), 1)
    talker.send(owner)
    assert talker.lacked == 1
    assert requests(CaptureStore(disk.view()), "a") == {"a4": texts[4], "t": texts[3], "u": texts[4]}


def test_owners_and_clients_with_history_and_without_follow_each_other_in_one_directory() -> None:
    disk = FaultyDisk()
    texts = conversation(12)
    talker = Talker(CLIENT)
    for number, text in enumerate(texts):
        if number % 3 == 0:
            owner = Owner(disk.view())
        if number == 6:
            talker = Talker(OTHER_CLIENT)
        whole = 3 <= number < 9
        talker.say("a", turn_of(f"a{number}", text), whole=whole)
        talker.send(owner)
        if number % 3 == 2:
            owner.stop()
    assert talker.lacked == 0
    store = CaptureStore(disk.view())
    assert requests(store, "a") == {f"a{n}": text for n, text in enumerate(texts)}
    referring = [row.messages > 0 for frame in frames(disk) for row in frame.rows if isinstance(row, CommitRow)]
    assert referring == [False, True, True, *([False] * 7), True, True]
    assert store.verify().sound


def test_messages_do_not_depend_on_what_becomes_of_the_exchange_that_brought_them() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    talker = Talker(CLIENT)
    texts = conversation(4)
    talk(owner, talker, "a", texts[:2])
    # Another client was faster with the same call, so this one is a duplicate; what it brought is there all the same.
    owner.send(Batch().commit("a", turn_of("a2", texts[2])), 1, OTHER_CLIENT)
    talk(owner, talker, "a", texts[2:], 2)
    assert talker.lacked == 0
    assert requests(CaptureStore(disk.view()), "a") == {f"a{n}": text for n, text in enumerate(texts)}


def test_a_first_exchange_that_was_not_kept_is_referred_to_by_nobody() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    talker = Talker(CLIENT)
    texts = conversation(3)
    owner.send(Batch().commit("a", turn_of("a0", b"another exchange under this id")), 1, OTHER_CLIENT)
    talker.say("a", turn_of("a0", texts[0]))
    batch = talker.unanswered[1][0]
    owner.append(batch, 1, CLIENT)
    assert owner.acknowledge(1, CLIENT)[-1].outcome == Outcome.CONFLICT
    talker.unanswered.clear()
    talk(owner, talker, "a", texts[1:], 1)
    assert talker.lacked == 1
    while talker.unanswered:
        talker.send(owner)
    found = requests(CaptureStore(disk.view()), "a")
    assert (found["a1"], found["a2"]) == (texts[1], texts[2])


# -- damage -----------------------------------------------------------------------------------------------------------

A0 = {"role": "user", "content": noise("a0", 250)}
A1, A2, A3 = ({"role": "tool", "content": noise(f"a{number}", 40)} for number in (1, 2, 3))
TURNS = {
    "a0": text_of([A0]),
    "a1": text_of([A0, A1]),
    "a2": text_of([A0, A1, A2]),
    "side": text_of([A0, A2, noise("side", 60)]),
    "a3": text_of([A0, A1, A2, A3]),
}
REFERS = {"a0": {"a0", "a1", "a2", "side", "a3"}, "a1": {"a1", "a2", "a3"}, "a2": {"a2", "side", "a3"}, "a3": {"a3"}}
"""Which exchanges refer to the message that each turn brought."""


def damaged_log() -> FaultyDisk:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    talker = Talker(CLIENT)
    for call, text in TURNS.items():
        talker.say("a", turn_of(call, text))
        talker.send(owner)
        beside = {"model_call_id": call, "dialect": "chat", "request": "q"}
        owner.send(Batch().commit("b", beside), talker.number, OTHER_CLIENT)
    owner.stop()
    return disk


@pytest.fixture(scope="module")
def disk() -> FaultyDisk:
    return damaged_log()


def parts_in(disk: FaultyDisk) -> Iterator[tuple[Frame, str, str, Part]]:
    """Every stored part: its frame, the turn that brought it, what it is, and where it lies."""
    for frame in frames(disk):
        calls = [row.model_call_id for row in frame.rows if isinstance(row, CommitRow) and row.rollout == "a"]
        for row in frame.rows:
            if isinstance(row, CommitRow | HistoryRow) and row.rollout == "a":
                for part in row.parts:
                    yield frame, calls[0], PartKind(part.kind).name, part


def costs(call: str, kind: str) -> set[str]:
    """The exchanges that a bit of that part costs. The first request is where its message is stored."""
    if kind == "MESSAGE":
        return REFERS.get(call, {"side"})
    return REFERS["a0"] if (call, kind) == ("a0", "REQUEST") else {call}


def test_every_bit_of_a_message_costs_exactly_the_exchanges_that_refer_to_it(disk: FaultyDisk) -> None:
    store = CaptureStore(disk.view())
    assert store.verify().sound
    checked: dict[str, int] = {}
    for frame, call, kind, part in parts_in(disk):
        lost = costs(call, kind)
        name = SegmentName(frame.ref.epoch, frame.ref.segment).file
        for bit in range(0, part.length * 8, 1 if kind == "MESSAGE" or part.flags & PartFlag.HISTORY else 37):
            place = (frame.ref.body_offset + part.offset) * 8 + bit
            disk.flip_bit(name, place)
            exchanges, damaged = store.read_available("a")
            assert [each["model_call_id"] for each in exchanges] == [each for each in TURNS if each not in lost]
            assert damaged == len(lost)
            disk.flip_bit(name, place)
            checked[kind] = checked.get(kind, 0) + 1
        disk.flip_bit(name, (frame.ref.body_offset + part.offset) * 8)
        assert len(store.read_available("b")[0]) == len(TURNS)
        broken = [each for each in store.verify().broken if each.call_index >= 0]
        assert {list(TURNS)[each.call_index] for each in broken} == lost
        payloads = store.read_payloads("a", range(9))
        unreadable = {"RECORD": set(), "META": set()}.get(kind, lost)
        assert payloads.keys() == {index for index, each in enumerate(TURNS) if each not in unreadable}
        with pytest.raises(DamagedLog):
            store.read("a")
        disk.flip_bit(name, (frame.ref.body_offset + part.offset) * 8)
    assert checked["MESSAGE"] > 2000
    assert store.verify().sound


def test_a_lost_head_costs_its_frame_and_what_refers_to_its_messages(disk: FaultyDisk) -> None:
    for frame in frames(disk):
        calls = [row.model_call_id for row in frame.rows if isinstance(row, CommitRow) and row.rollout == "a"]
        if not calls:
            continue
        (call,) = calls
        place = (frame.offset + 20) * 8
        name = SegmentName(frame.ref.epoch, frame.ref.segment).file
        disk.flip_bit(name, place)
        store = CaptureStore(disk.view())
        # With the second turn's frame it is forgotten where in the first request its message lies.
        lost = {"a1", "a2", "side", "a3"} if call == "a1" else REFERS.get(call, {"side"})
        exchanges, damaged = store.read_available("a")
        assert [each["model_call_id"] for each in exchanges] == [each for each in TURNS if each not in lost], call
        # That there was a last one shows only in the mark.
        assert damaged == len(lost) - (call == "a3")
        assert store.is_incomplete("a")
        assert len(store.read_available("b")[0]) == len(TURNS)
        disk.flip_bit(name, place)


def test_messages_lost_before_a_restart_are_noticed_and_what_follows_is_sent_whole() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    talker = Talker(CLIENT)
    texts = conversation(6)
    talk(owner, talker, "a", texts[:4])
    lost = next(frame for frame in frames(disk) for row in frame.rows if isinstance(row, HistoryRow))
    disk.flip_bit(SegmentName(1, 0).file, (lost.offset + 20) * 8)
    owner = Owner(disk.view())
    talk(owner, talker, "a", texts[4:5], 4)
    assert talker.lacked == 1
    talker.send(owner)
    talk(owner, talker, "a", texts[5:], 5)
    assert talker.lacked == 1
    found = requests(CaptureStore(disk.view()), "a")
    assert found == {"a0": texts[0], "a4": texts[4], "a5": texts[5]}


def test_a_repair_keeps_what_can_be_read_and_says_the_same_of_the_rest() -> None:
    disk = damaged_log()
    lost = next(f for f in frames(disk) for row in f.rows if getattr(row, "model_call_id", "") == "a2")
    disk.flip_bit(SegmentName(1, 0).file, (lost.offset + 20) * 8)
    before = requests(CaptureStore(disk.view()), "a")
    clock = ManualClock()

    class Beating:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            pass

    repair(disk.view(), identity("repairer"), lambda ownership: Beating(), clock=clock, wait=clock.advance)
    store = CaptureStore(disk.view())
    assert requests(store, "a") == before == {call: TURNS[call] for call in ("a0", "a1")}
    assert {each.call_index for each in store.verify().broken} == {3, 4}
    assert store.verify().holes == {"a": 1}


# -- crashes and takeovers --------------------------------------------------------------------------------------------


def life(files: FaultyFiles, talker: Talker, texts: list[bytes], kept: dict[str, bytes]) -> None:
    """An owner's life with one client: it recovers, takes every turn that was not acknowledged, and ends."""
    owner = Owner(files, segment_bytes=SEGMENT_BYTES)
    for number, text in enumerate(texts):
        if f"a{number}" not in kept:
            if not talker.unanswered:
                talker.say("a", turn_of(f"a{number}", text))
            while talker.unanswered:
                for _, _, exchange in talker.send(owner):
                    kept[exchange["model_call_id"]] = exchange["request"]
    owner.stop()


@pytest.mark.parametrize("mode", [None, CrashMode.DROP, CrashMode.TORN], ids=str)
def test_a_crash_at_any_fault_point_loses_no_message(mode: CrashMode | None) -> None:
    texts = conversation(6, 900)
    whole = {f"a{number}": text for number, text in enumerate(texts)}
    counted = FaultyDisk().view()
    life(counted, Talker(CLIENT), texts, {})
    reached: dict[str, int] = {}
    for point in counted.points:
        reached[point] = reached.get(point, 0) + 1
        disk = FaultyDisk()
        talker, kept = Talker(CLIENT), dict[str, bytes]()
        files = disk.view()
        files.stop_at(point, reached[point])
        with pytest.raises(Stopped):
            life(files, talker, texts, kept)
        if mode is not None:
            disk.crash(mode, reached[point])
        life(disk.view(), talker, texts, kept)
        disk.crash()
        store = CaptureStore(disk.view())
        assert requests(store, "a") == whole, point
        assert store.verify().sound, point
        assert talker.lacked == 0


def test_a_group_torn_page_by_page_comes_back_whole_when_it_is_sent_again() -> None:
    partial = left_out = 0
    texts = conversation(7, 9000)
    for seed in range(20):
        disk = FaultyDisk()
        owner = Owner(disk.view())
        talker = Talker(CLIENT)
        talk(owner, talker, "a", texts[:2])
        for number in range(2, 7):
            talker.say("a", turn_of(f"a{number}", texts[number]))
        for number, (batch, *_) in talker.unanswered.items():
            owner.append(fresh(batch), number, CLIENT)
        disk.crash(CrashMode.TORN, seed)
        owner = Owner(disk.view())
        partial += owner.report.broken_parts > 0
        store = CaptureStore(disk.view())
        kept, damaged = store.read_available("a")
        left_out += len(kept) + damaged < 7
        # What rests on messages that are not there was left out with them; whole frames behind a lost one may wait.
        talker.send(owner)
        assert talker.lacked == 0
        disk.crash()
        store = CaptureStore(disk.view())
        assert requests(store, "a") == {f"a{n}": text for n, text in enumerate(texts)}, seed
        assert store.verify().broken == []
    assert partial > 2
    assert left_out > 2


def test_a_message_that_rotted_in_the_last_group_takes_with_it_what_rests_on_it_until_it_comes_again() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    talker = Talker(CLIENT)
    texts = conversation(4)
    talk(owner, talker, "a", texts[:2])
    for number in (2, 3):
        talker.say("a", turn_of(f"a{number}", texts[number]))
    for number, (batch, *_) in talker.unanswered.items():
        owner.append(fresh(batch), number, CLIENT)
    owner.writer.sync()
    group = [frame for frame in frames(disk) if frame.head.body_bytes][-2]
    messages = next(row for row in group.rows if isinstance(row, HistoryRow))
    disk.flip_bit(SegmentName(1, 0).file, (group.ref.body_offset + messages.parts[0].offset) * 8)

    owner = Owner(disk.view())
    assert set(requests(CaptureStore(disk.view()), "a")) == {"a0", "a1"}
    copies = [frame for frame in LogScan(disk.view()) if isinstance(frame, Frame) and frame.head.body_bytes]
    assert [frame.head.flags for frame in copies[-2:]] == [FrameFlag.COPIED | FrameFlag.PARTIAL] * 2
    assert CaptureStore(disk.view()).verify().broken == []
    talker.send(owner)
    assert requests(CaptureStore(disk.view()), "a") == {f"a{n}": text for n, text in enumerate(texts)}


def test_what_a_frozen_owner_still_writes_is_in_no_history() -> None:
    disk = FaultyDisk()
    old = Owner(disk.view())
    talker = Talker(CLIENT)
    texts = conversation(5)
    talk(old, talker, "a", texts[:3])
    new = Owner(disk.view(), "new", takeover=True)
    talker.say("a", turn_of("a3", texts[3]))
    batch = talker.unanswered[4][0]
    old.append(fresh(batch), 4, CLIENT)
    old.writer.sync()
    [history] = new.ledger.rollouts["a"].histories.values()
    reach = history.reach
    ledger = Owner(disk.view(), "newer", takeover=True).ledger
    [history] = ledger.rollouts["a"].histories.values()
    assert history.reach == reach
    newest = Owner(disk.view(), "newest", takeover=True)
    talker.send(newest)
    talk(newest, talker, "a", texts[4:], 4)
    assert talker.lacked == 0
    assert requests(CaptureStore(disk.view()), "a") == {f"a{n}": text for n, text in enumerate(texts)}


def test_a_live_store_sees_what_was_appended_since() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view(), segment_bytes=SEGMENT_BYTES)
    talker = Talker(CLIENT)
    texts = conversation(8)
    store = CaptureStore(disk.view())
    for number, text in enumerate(texts):
        talk(owner, talker, "a", [text], number)
        store.refresh()
        assert requests(store, "a") == {f"a{n}": texts[n] for n in range(number + 1)}


def test_an_older_reader_stops_at_the_first_such_row() -> None:
    older = msgspec.msgpack.Decoder(list[SenderRow | ClaimRow | CommitRow])
    known: list[Row] = [SenderRow(CLIENT, 1, 0), ClaimRow("a", 1)]
    assert len(older.decode(encode_rows(known))) == 2
    with pytest.raises(msgspec.ValidationError):
        older.decode(encode_rows([*known, HistoryRow("a", 1, 0, b"d" * 16, [])]))


def test_a_commit_that_an_older_owner_wrote_refers_to_nothing() -> None:
    row = CommitRow("a", 1, "c", b"d" * 16, [])
    fields = msgspec.msgpack.decode(encode_rows([row]))[0]
    (read,) = msgspec.msgpack.decode(msgspec.msgpack.encode([fields[:-2]]), type=list[CommitRow])
    assert (read.history, read.messages) == (0, 0)


def test_a_commit_without_its_messages_is_lacking_and_changes_nothing() -> None:
    disk = FaultyDisk()
    owner = Owner(disk.view())
    owner.send(Batch().claim("a", 1), 1)
    batch = Batch().commit("a", turn_of("c", conversation(1)[0]), 1)
    row = batch.rows[0]
    assert isinstance(row, CommitRow)
    row.history, row.messages = 3, 1
    assert owner.send(batch, 2)[0].outcome == Outcome.LACKING
    assert owner.ledger.outstanding_of("a") == 1
    assert owner.ledger.view("a") == owner.ledger.view("a")._replace(entries=[], holes=0, reasons=None, outstanding=1)
    again = Owner(disk.view()).ledger
    assert (again.outstanding_of("a"), again.view("a").entries) == (1, [])
