"""A log with holes in it: whatever damage swallowed, a replay neither raises nor counts below nothing."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from gym_capture.model.codec import FrameHead, FrameKind, FrameRef
from gym_capture.model.ledger import Ledger
from gym_capture.model.rollout_state import DAMAGED, LOST, Entry
from gym_capture.model.rows import CURRENT, LossRow, MarkRow, MergeRow, OpenRow, Outcome, Result, Row
from tests.model.ledgers import (
    LEASE_S,
    A,
    B,
    Frame,
    Owner,
    R,
    claim,
    clear,
    commit,
    mark,
    partial,
    release,
    replay,
    replayed,
)
from tests.model.test_ledger_machine import run


def log_of(data: st.DataObject) -> Owner:
    """A busy log of two clients and two rollouts."""
    owner = Owner()
    numbers = {A: 0, B: 0}
    for step in data.draw(st.lists(st.sampled_from("cccCCCCrmkKxg"), min_size=4, max_size=25)):
        client = data.draw(st.sampled_from([A, B]))
        rollout = data.draw(st.sampled_from([R, "8-0"]))
        generation = data.draw(st.sampled_from([CURRENT, CURRENT, 0, 1]))
        number = max(0, numbers[client] - data.draw(st.integers(0, 3)))
        call = data.draw(st.sampled_from(["1", "2", "3"]))
        digest = data.draw(st.sampled_from([b"x", b"x", b"y"]))
        if step == "c":
            # A number may be used again, as only a faulty client would.
            numbers[client] += data.draw(st.sampled_from([1, 1, 1, 0]))
            owner.send(client, claim(max(1, numbers[client]), rollout, generation))
        elif step == "C":
            owner.send(
                client, commit(number, call, digest, rollout, generation), commit(0, call + "b", digest, rollout)
            )
        elif step == "r" and number:
            owner.send(client, release(number, "released", rollout, generation), mark("dropped", 1, rollout))
        elif step == "m":
            owner.write([owner.ledger.merge_row(rollout, data.draw(st.integers(0, 5)))])
        elif step == "k":
            owner.send(client, clear(data.draw(st.sampled_from(["", "r"])), rollout))
        elif step == "K":
            owner.write([clear("", rollout)])
        elif step == "x":
            owner.expire(owner.now + LEASE_S)
        elif step == "g":
            owner.write(owner.ledger.leave(client))
    return owner


def check(ledger: Ledger) -> None:
    """What holds of any state."""
    open_claims = {(c.client, c.number): c.rollout for c in ledger.open_claims()}
    by_rollout = {key: rollout for rollout in ledger.rollouts.values() for key in rollout.open}
    assert open_claims == by_rollout
    assert ledger.outstanding == len(open_claims)
    assert ledger.late == sum(rollout.late for rollout in ledger.rollouts.values())
    for rollout in ledger.rollouts.values():
        view = rollout.view()
        assert rollout.closing == 0
        assert view.holes == rollout.next_index - len(view.entries) >= 0
        assert rollout.late >= 0
        assert all(count > 0 for count in (view.reasons or {}).values())
        assert len(rollout.lost) <= rollout.reasons.get(LOST, 0)
        assert not rollout.lost & rollout.open.keys()
        indexes = [entry.call_index for entry in view.entries]
        assert indexes == sorted(set(indexes))
        assert len({entry.model_call_id for entry in view.entries}) == len(indexes) == len(rollout.calls)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_frames_may_be_missing_or_partial(data: st.DataObject) -> None:
    owner = log_of(data)
    frames: list[Frame] = []
    for frame in owner.frames:
        fate = data.draw(st.sampled_from(["kept", "kept", "kept", "lost", "partial", "twice"]))
        if fate == "partial":
            frames.append(partial(frame, sorted(data.draw(st.sets(st.integers(0, frame.row_count - 1))))))
        elif fate != "lost":
            frames += [frame] * (2 if fate == "twice" and frame.kind == FrameKind.BATCH else 1)
    ledger = replayed(frames)
    ledger.replay_damage([R])
    check(ledger)

    # And it goes on from there.
    owner.frames, owner.ledger = frames, ledger
    owner.send(A, claim(1000), commit(1000, "after"), batch=1000)
    owner.write(ledger.expire(owner.now + 2 * LEASE_S))
    owner.sync()
    check(ledger)
    assert ledger.outstanding == 0
    assert ledger.view(R).entries[-1].model_call_id == "after"


@pytest.mark.parametrize("seed", range(25))
def test_a_long_log_with_holes_replays_to_a_sound_state(seed: int) -> None:
    frames = run(seed, 150).owner.frames
    choices = random.Random(seed)
    for share in (0.05, 0.3, 0.7):
        kept: list[Frame] = []
        for frame in frames:
            if choices.random() >= share:
                kept.append(frame)
            elif choices.random() < 0.5:
                kept.append(partial(frame, [i for i in range(frame.row_count) if choices.random() < 0.6]))
        ledger = replayed(kept)
        check(ledger)
        # What is there is there as it was committed: damage loses, and never makes anything up.
        whole = {(e.ref.sequence, e.call_index, e.model_call_id, e.digest) for e in entries_ever(frames)}
        assert {(e.ref.sequence, e.call_index, e.model_call_id, e.digest) for e in entries_of(ledger)} <= whole


def entries_of(ledger: Ledger) -> list[Entry]:
    return [entry for rollout in ledger.rollouts.values() for entry in rollout.entries]


def entries_ever(frames: list[Frame]) -> list[Entry]:
    """Every entry that was there at any time (clears forget them)."""
    ledger, found = Ledger(), []
    for frame in frames:
        replay(ledger, frame)
        found += entries_of(ledger)
    return found


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_whole_log_replays_to_a_sound_state(data: st.DataObject) -> None:
    owner = log_of(data)
    owner.sync()
    check(owner.ledger)
    check(replayed(owner.frames))


def test_a_commit_that_damage_swallowed_leaves_a_hole_and_the_others_keep_their_index() -> None:
    owner = Owner()
    for call in ("0", "1", "2"):
        owner.send(A, commit(0, call))
    ledger = replayed([owner.frames[0], owner.frames[2]])
    view = ledger.view(R)
    assert [entry.call_index for entry in view.entries] == [0, 2]
    assert view.holes == 1


def test_a_later_duplicate_or_merge_shows_what_damage_swallowed_at_the_end() -> None:
    owner = Owner()
    owner.send(A, commit(0, "0"))
    owner.send(A, commit(0, "0"))
    owner.send(A, commit(0, "1"))
    owner.write([owner.ledger.merge_row(R, 0)])
    assert replayed(owner.frames[1:2]).view(R).holes == 1
    assert replayed(owner.frames[3:]).view(R).holes == 2
    assert replayed(owner.frames[3:]).late == 0


def test_a_clear_that_damage_swallowed_is_seen_in_what_follows_it() -> None:
    owner = Owner()
    owner.send(A, claim(1))
    owner.send(A, commit(0, "old"))
    owner.send(A, clear())
    owner.send(A, commit(0, "new"))
    ledger = replayed([*owner.frames[:2], owner.frames[3]])
    view = ledger.view(R)
    assert (view.generation, [entry.model_call_id for entry in view.entries]) == (1, ["new"])
    assert view.reasons == {DAMAGED: 1}
    assert ledger.outstanding == 0


def test_no_generation_is_handed_out_twice_after_damage() -> None:
    owner = Owner()
    owner.send(A, commit())
    owner.send(A, clear("swallowed"))
    ledger = replayed(owner.frames[:1])
    ledger.replay_damage([R])
    owner.ledger = ledger
    (result,) = owner.send(A, clear(), batch=9)
    assert result.generation > 1
    assert owner.send(B, commit(generation=1)) == [Result(Outcome.FENCED, 1)]


def test_rot_that_a_recovery_marked_counts_as_damage_for_whoever_reads_the_log_later() -> None:
    owner = Owner()
    owner.send(A, commit())
    ledger = replayed(owner.frames)
    marked: list[Row] = [MarkRow(R, DAMAGED, 1, 0)]
    ledger.replay(FrameHead(FrameKind.OWNER, 0, 2, 1, 9, 1, 0, 0), marked, FrameRef(9, 2))
    assert ledger.view(R).reasons == {DAMAGED: 1}
    owner.ledger = ledger
    (result,) = owner.send(A, clear(), batch=9)
    assert result.generation > 1, "the rot may have swallowed a clear that handed out generation 1"


def test_damage_marks_the_rollouts_that_it_may_concern() -> None:
    owner = Owner()
    owner.send(A, commit())
    ledger = replayed(owner.frames)
    ledger.replay_damage([R, "unseen"])
    ledger.replay_damage([R])
    assert ledger.view(R).reasons == {DAMAGED: 2}
    assert ledger.view("unseen").reasons == {DAMAGED: 1}


def test_a_loss_or_a_merge_of_what_is_unknown_is_harmless() -> None:
    ledger = Ledger()
    rows: list[Row] = [LossRow(R, 0, A, 1), MergeRow("8-0", 2, 0, 3), OpenRow(3, 0.0, "owner")]
    ledger.replay(FrameHead(FrameKind.OWNER, 0, 1, 1, 5, 3, 0, 0), rows, FrameRef(5, 1))
    assert ledger.view(R).reasons is None
    assert ledger.view("8-0").reasons == {DAMAGED: 1, "unaccounted": 3}
    assert (ledger.last_sequence, ledger.durable_sequence, ledger.outstanding) == (5, 5, 0)


def test_a_partial_frame_does_not_count_as_its_batch() -> None:
    owner = Owner()
    owner.send(A, claim(1), claim(2))
    owner.frames[0] = partial(owner.frames[0], [0, 1])
    owner.ledger = replayed(owner.frames)
    assert owner.send(A, claim(1), claim(2), batch=1) == [Result(Outcome.DUPLICATE, 0), Result(Outcome.APPLIED, 0)]
    assert owner.ledger.outstanding_of(R) == 2


def test_a_frame_without_its_sender_keeps_its_exchanges() -> None:
    owner = Owner()
    owner.send(A, claim(1))
    owner.send(A, commit(1, "kept"), claim(2))
    ledger = replayed([owner.frames[0], partial(owner.frames[1], [1, 2])])
    assert [entry.model_call_id for entry in ledger.view(R).entries] == ["kept"]
    assert [claim.number for claim in ledger.open_claims()] == [1]
    assert ledger.clients[A].answers.keys() == {1}


def test_an_exchange_that_was_unreadable_for_a_while_is_there_once() -> None:
    owner = Owner()
    owner.send(A, commit(0, "call", b"1"))
    readable = owner.frames[0]
    owner.frames, owner.ledger = [], Ledger()
    owner.send(B, commit(0, "call", b"1"), commit(0, "other"))
    ledger = replayed([readable, *owner.frames])
    assert [(entry.call_index, entry.model_call_id) for entry in ledger.view(R).entries] == [(0, "call"), (1, "other")]
    assert ledger.view(R).reasons is None


def test_a_number_used_twice_loses_the_first_claim_only() -> None:
    owner = Owner()
    owner.send(A, claim(1))
    owner.send(A, commit(1, rollout=R))
    owner.send(A, claim(1, "8-0"))
    ledger = replayed([owner.frames[0], owner.frames[2]])
    assert [(claim.number, claim.rollout.id) for claim in ledger.open_claims()] == [(1, "8-0")]
    assert ledger.view(R).reasons == {DAMAGED: 1}
    check(ledger)


def test_the_open_time_of_a_claim_survives_a_restart() -> None:
    owner = Owner()
    owner.send(A, claim(1, call="c"))
    owner.sync()
    owner.restart()
    assert [(claim.at, claim.model_call_id) for claim in owner.ledger.open_claims()] == [(owner.wall, "c")]
