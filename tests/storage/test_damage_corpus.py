"""Whatever is done to a directory's bytes: what is intact comes back, what is lost is told, owner and reader agree.

A sample of all cases runs with the tests; `make damage` runs every one.
"""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from gym_capture.errors import CaptureDirectoryError, FormatError
from gym_capture.model.codec import SEGMENT_HEAD_BYTES
from gym_capture.model.rows import MembersRow
from gym_capture.storage import names
from gym_capture.storage.names import SegmentName
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.faulty_files import FaultyDisk
from tests.storage.damage_corpus import (
    ROLLOUTS,
    WHOLE,
    Damage,
    Known,
    check_reader,
    fold,
    frames_of,
    is_intact,
    known_exchanges,
    log_damages,
    removed,
    rewritten,
    said,
    sampled,
    segments,
    small_file_damages,
    written,
)
from tests.storage.owners import Owner, calls

SAMPLE = 200


@pytest.fixture(scope="module")
def stopped() -> FaultyDisk:
    return written()


@pytest.fixture(scope="module")
def known(stopped: FaultyDisk) -> list[Known]:
    return known_exchanges(stopped)


def test_the_corpus_log_is_sound_and_holds_what_it_should(stopped: FaultyDisk, known: list[Known]) -> None:
    store = CaptureStore(stopped.view())
    assert {r: [each["model_call_id"] for each in store.read(r)] for r in ROLLOUTS} == WHOLE
    assert store.verify().sound
    assert sorted(each.exchange["model_call_id"] for each in known) == sorted(
        call for calls_of in WHOLE.values() for call in calls_of
    )
    assert [store.evidence(r).incomplete for r in ROLLOUTS] == [None, None, {"lost": 1, "dropped": 2}, {"released": 1}]


@pytest.fixture(scope="module")
def cases(stopped: FaultyDisk) -> list[Damage]:
    return log_damages(stopped)


def test_what_is_intact_comes_back_and_what_is_lost_is_counted_or_marked(
    stopped: FaultyDisk, known: list[Known], cases: list[Damage]
) -> None:
    for damage in sampled(cases, SAMPLE):
        after = stopped.copy()
        damage.apply(after)
        check_reader(damage, stopped, after, known)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_what_a_segment_lost_together_with_its_list_of_rollouts_is_told(
    stopped: FaultyDisk, known: list[Known]
) -> None:
    frames = frames_of(stopped)
    lists = [(frame, row) for frame in frames for row in frame.rows if isinstance(row, MembersRow)]
    tried = 0
    for (listing, row), frame in product(lists, frames):
        if (row.epoch, row.segment) != (frame.ref.epoch, frame.ref.segment) or listing is frame:
            continue
        after = stopped.copy()
        for each in (listing, frame):
            file = SegmentName(each.ref.epoch, each.ref.segment).file
            after.put(file, flipped(after.content(file), each.offset + 60))  # within its rows
        damage = Damage(f"frame at {frame.offset} of {(row.epoch, row.segment)} and its list", file, lambda _: None)
        check_reader(damage, stopped, after, known)
        tried += 1
    assert tried > 10


def test_an_owner_that_recovers_says_what_a_reader_says_before_and_after(
    stopped: FaultyDisk, cases: list[Damage]
) -> None:
    for damage in sampled(cases, SAMPLE // 2):
        after = stopped.copy()
        damage.apply(after)
        before_owner, _ = fold(after)
        owner = Owner(after.view(), "next")
        assert said(owner.ledger) == said(before_owner), damage.label
        owner.stop()
        assert said(fold(after)[0]) == said(owner.ledger), damage.label


def test_whose_rows_a_segment_has_is_known_though_its_own_list_is_cut_off(stopped: FaultyDisk) -> None:
    """The clean stop's note does not count where the segment is longer; so its last group, the seal, is copied."""
    last = segments(stopped)[-1].file
    after = stopped.copy()
    rewritten("prepend to", last, lambda data: b"\0" + data).apply(after)
    before_owner, _ = fold(after)
    marked = [rollout for rollout in ROLLOUTS if "damaged" in (before_owner.view(rollout).reasons or {})]
    assert "d" in marked
    assert "nowhere" not in marked
    owner = Owner(after.view(), "next")
    assert said(owner.ledger) == said(before_owner)
    owner.stop()
    assert said(fold(after)[0]) == said(owner.ledger)


def test_what_a_segment_says_was_synced_is_torn_for_the_next_owner_no_more_than_for_a_reader(
    stopped: FaultyDisk,
) -> None:
    """A segment's own seal stands before it once more, so all that it covers ends in the middle of a frame."""
    last = segments(stopped)[-1]
    seal = frames_of(stopped)[-1]
    after = stopped.copy()
    data = stopped.content(last.file)
    after.put(last.file, data[:SEGMENT_HEAD_BYTES] + data[seal.offset : seal.end] + data[SEGMENT_HEAD_BYTES:])
    before_owner, _ = fold(after)
    owner = Owner(after.view(), "next")
    assert owner.report.damaged
    assert said(owner.ledger) == said(before_owner)
    owner.stop()
    assert said(fold(after)[0]) == said(owner.ledger)


def test_of_a_log_that_died_only_its_end_may_be_missing_unsaid(cases: list[Damage]) -> None:
    died = written(stopped=False)
    whole = known_exchanges(died)
    for damage in sampled(log_damages(died), SAMPLE // 2):
        after = died.copy()
        damage.apply(after)
        owner = Owner(after.view(), "next")
        for rollout in ROLLOUTS:
            # Of a frame that was never finished nothing was acknowledged, whatever of it is whole.
            torn = segments(died)[-1] if damage.file == segments(died)[-1].file else None
            intact = [
                each
                for each in whole
                if each.rollout == rollout and each.head[0] != torn and is_intact(each, died, after)
            ]
            held = calls(owner.ledger, rollout)
            assert {each.exchange["model_call_id"] for each in intact} <= set(held), damage.label
            lost = [each for each in whole if each.rollout == rollout and each.exchange["model_call_id"] not in held]
            if lost and not owner.ledger.view(rollout).holes and owner.ledger.view(rollout).reasons is None:
                # Nothing stands behind it, so it looks like what never reached the disk.
                assert all(each.head[0] == segments(died)[-1] for each in lost), damage.label
        owner.stop()
        assert said(fold(after)[0]) == said(owner.ledger), damage.label


@pytest.mark.parametrize("index", [0, 1, 3, -1], ids=["first", "second", "middle", "last"])
def test_a_segment_that_is_missing_costs_what_was_in_it(stopped: FaultyDisk, known: list[Known], index: int) -> None:
    name = segments(stopped)[index]
    after = stopped.copy()
    removed(name.file).apply(after)
    check_reader(removed(name.file), stopped, after, known)
    report = CaptureStore(after.view()).verify()
    assert name in [place.segment for place in report.log.damages]


def test_two_segments_with_each_others_names_are_refused_by_everybody(stopped: FaultyDisk) -> None:
    found = segments(stopped)
    for one, other in pairwise(found):
        after = stopped.copy()
        first, second = after.content(one.file), after.content(other.file)
        after.put(one.file, second)
        after.put(other.file, first)
        for act in (lambda: CaptureStore(after.view()), lambda: Owner(after.view(), "next")):  # noqa: B023
            with pytest.raises(FormatError, match="give it its name back"):
                act()


def test_the_small_files_cost_no_exchange_and_raise_documented_errors_only(stopped: FaultyDisk) -> None:
    sound = said(fold(stopped)[0])
    for damage in sampled(small_file_damages(stopped), SAMPLE):
        after = stopped.copy()
        damage.apply(after)
        assert said(fold(after)[0]) == sound, damage.label
        report = CaptureStore(after.view()).verify()
        if not report.sound:
            assert [each.file for each in report.files] == [damage.file], damage.label
        # Of a beat only that it changes counts, and of what is gone only `RUN` has to be there.
        assert report.sound <= (damage.file.startswith("beat-") or "remove" in damage.label), damage.label
        try:
            owner = Owner(after.copy().view(), "next")
        except CaptureDirectoryError:
            assert damage.file in (names.RUN, names.OWNER), damage.label
        else:
            assert said(owner.ledger) == sound, damage.label


def test_damage_of_a_small_file_is_named_with_its_offset(stopped: FaultyDisk) -> None:
    for file, content, offset in [
        (names.RUN, b'{"run": "00', 11),
        (names.OWNER, b"", 0),
        (names.epoch_file(2), b'{"actor_id": 7}', 0),
        (names.token_file(3), b"secr\xe9t", 4),
        (names.beat_file(1), b"0000000x000000000001\n", 7),
        (names.beat_file(3), stopped.content(names.beat_file(3))[:-2] + b"x\n", 0),
    ]:
        after = stopped.copy()
        after.put(file, content)
        report = CaptureStore(after.view()).verify()
        assert not report.sound
        assert [(each.file, each.offset) for each in report.files] == [(file, offset)]


def test_a_beat_that_a_crash_of_the_host_emptied_is_no_damage(stopped: FaultyDisk) -> None:
    for content in (b"", bytes(21)):
        after = stopped.copy()
        after.put(names.beat_file(1), content)
        assert CaptureStore(after.view()).verify().sound
