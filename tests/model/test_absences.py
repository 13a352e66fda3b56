"""What a rollout lacks (released, lost, refused) goes into pages as it came, and comes back as the log has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from gym_capture.model.ledger import Ledger
from gym_capture.model.rows import CURRENT, HistoryRow, Outcome, Part
from tests.model.ledgers import A, B, R, claim, clear, commit, release, replayed, state_of
from tests.model.paged_owner import PagedOwner

CALLS_A_PAGE = 20
PART = Part(6, 0, 0, 1, 1, 1)


def checkpoint(owner: PagedOwner) -> None:
    owner.take()
    owner.sync()
    owner.written()


def call_of(number: int) -> str:
    return f"call-{number:04d}"


def released(owner: PagedOwner, numbers: range) -> None:
    for number in numbers:
        owner.send(A, claim(number, call=call_of(number)), release(number))


def lost(owner: PagedOwner, numbers: range) -> None:
    owner.send(A, *(claim(number, call=call_of(number)) for number in numbers))
    owner.write(owner.ledger.leave(A))


def lost_and_back(owner: PagedOwner, numbers: range) -> None:
    lost(owner, numbers)
    owner.send(A, *(commit(number, call_of(number)) for number in numbers))


def in_conflict(owner: PagedOwner, numbers: range) -> None:
    owner.send(A, *(commit(0, "call", call_of(number).encode()) for number in numbers))


def too_large(owner: PagedOwner, numbers: range) -> None:
    rows = [commit(0, call_of(number)) for number in numbers]
    for row in rows:
        row.outcome = int(Outcome.TOO_LARGE)
    owner.send(A, *rows)


def under_no_token(owner: PagedOwner, numbers: range) -> None:
    owner.send(A, *(claim(number, generation=9, call=call_of(number)) for number in numbers))


@pytest.mark.parametrize(
    "happens", [released, lost, lost_and_back, in_conflict, too_large, under_no_token], ids=lambda each: each.__name__
)
def test_a_page_has_only_what_came_since_the_page_before(happens: Callable[[PagedOwner, range], None]) -> None:
    owner = PagedOwner()
    for page in range(10):
        owner.bring_back({R})
        happens(owner, range(1 + page * CALLS_A_PAGE, 1 + (page + 1) * CALLS_A_PAGE))
        checkpoint(owner)
        held = owner.ledger.rollouts[R]
        assert not held.absences
    sizes = [place.length for place in owner.pages][2:]
    assert len(sizes) == 8
    assert max(sizes) < min(sizes) + 4 * CALLS_A_PAGE  # numbers get longer
    state = owner.load(owner.checkpoints[-1].packed[R])
    assert rollout_of(owner.ledger) == rollout_of(ledger_of(state)) == rollout_of(replayed(owner.frames))


def test_only_the_first_page_of_a_generation_names_the_clears() -> None:
    owner = PagedOwner()
    for number in range(100):
        owner.send(A, clear(call_of(number)))
    for number in range(3):
        owner.send(A, commit(0, call_of(number)))
        checkpoint(owner)
    first, second, third = (place.length for place in owner.pages)
    assert first > 64 * len(call_of(0))
    assert max(second, third) < 150
    owner.restart()
    owner.bring_back({R})
    assert rollout_of(owner.ledger) == rollout_of(replayed(owner.frames))
    assert len(owner.ledger.rollouts[R].clears) == 64


def test_what_is_missing_after_a_clear_is_kept_though_a_page_of_before_is_written_then() -> None:
    owner = WatchedOwner()
    released(owner, range(1, 4))
    owner.take()
    owner.send(A, clear("c"))
    released(owner, range(4, 6))
    owner.sync()
    owner.written()
    checkpoint(owner)
    state = owner.load(owner.checkpoints[-1].packed[R])
    assert (state.generation, state.absent) == (1, {call_of(4), call_of(5)})


def test_a_call_that_was_released_and_then_lost_and_retracted_comes_back_as_the_log_has_it() -> None:
    owner = WatchedOwner()
    owner.send(A, claim(1, call="x"), release(1), claim(2, call="x"))
    owner.write(owner.ledger.leave(A))
    owner.send(A, commit(2, "y"))
    checkpoint(owner)
    owner.send(A, claim(3, call="x"), release(3))
    checkpoint(owner)
    first, second = (owner.load(each.packed[R]) for each in owner.checkpoints)
    assert (first.absent, second.absent) == (set(), {"x"})


def test_what_could_not_be_written_is_in_the_next_page() -> None:
    owner = WatchedOwner()
    released(owner, range(1, 4))
    checkpoint(owner)
    released(owner, range(4, 6))
    owner.take()
    owner.sync()
    owner.written(failed=True)
    released(owner, range(6, 8))
    checkpoint(owner)
    last = owner.load(owner.checkpoints[-1].packed[R])
    assert last.absent == {call_of(number) for number in range(1, 8)}


def test_histories_are_named_in_the_page_of_the_interval_in_which_they_began() -> None:
    owner = WatchedOwner()
    for page in range(4):
        owner.send(A, *(HistoryRow(R, 10 * page + number, 0, b"", [PART]) for number in range(1, 11)))
        owner.send(A, HistoryRow(R, 1, page + 1, b"", [PART]))
        checkpoint(owner)
    sizes = [place.length for place in owner.pages]
    assert max(sizes) < min(sizes) + 60
    assert rollout_of(owner.ledger) == rollout_of(replayed(owner.frames))


def rollout_of(ledger: Ledger, rollout: str = R) -> dict[str, Any]:
    """All that a ledger says of a rollout."""
    found: dict[str, Any] = state_of(ledger)["rollouts"][rollout]
    return found


def ledger_of(state: Any) -> Ledger:
    """A ledger that has this rollout alone."""
    ledger = Ledger()
    ledger.rollouts[state.id] = state
    return ledger


class WatchedOwner(PagedOwner):
    """Says of each checkpoint, when it is written, whether its pages are what the log says up to its frame."""

    def written(self, *, failed: bool = False) -> None:
        taken, before = self.taken, len(self.checkpoints)
        super().written(failed=failed)
        if taken is not None and len(self.checkpoints) > before:
            log = replayed(frame for frame in self.frames if frame.sequence <= taken.state.sequence)
            for rollout_id, packed in self.checkpoints[-1].packed.items():
                state = self.load(packed)
                assert rollout_of(ledger_of(state), rollout_id) == rollout_of(log, rollout_id)
                assert list(state.lost) == list(log.rollouts[rollout_id].lost)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_at_each_checkpoint_the_pages_say_what_the_log_says(data: st.DataObject) -> None:
    owner = WatchedOwner()
    numbers = {A: 0, B: 0}
    for step in data.draw(st.lists(st.sampled_from("ccccttCCbrrLLxwkuSTTWWWKR"), min_size=5, max_size=60)):
        client = data.draw(st.sampled_from([A, B]))
        rollout = data.draw(st.sampled_from([R, R, R, "8-0"]))
        call = data.draw(st.sampled_from(["", "1", "2", "3"]))
        number = data.draw(st.integers(0, numbers[client]))
        if step == "c":
            numbers[client] += 1
            owner.send(client, claim(numbers[client], rollout, call=call))
        elif step == "t" and numbers[client]:
            owner.send(client, claim(max(number, 1), rollout, call=call))
        elif step == "C":
            owner.send(client, commit(number, call or "4", data.draw(st.sampled_from([b"d", b"e"])), rollout))
        elif step == "b":
            row = commit(number, call or "4", b"d", rollout)
            row.outcome = int(data.draw(st.sampled_from([Outcome.TOO_LARGE, Outcome.INVALID])))
            owner.send(client, row)
        elif step == "r" and number:
            owner.send(client, release(number, data.draw(st.sampled_from(["", "released", "dropped"])), rollout))
        elif step == "L":
            owner.write(owner.ledger.leave(client))
        elif step == "x":
            owner.expire(owner.now + 6.0)
        elif step == "w":
            owner.bring_back({rollout})
            owner.write([owner.ledger.merge_row(rollout, data.draw(st.integers(0, 3)))])
        elif step == "k":
            owner.send(client, clear(data.draw(st.sampled_from(["", "again", "and again"])), rollout))
        elif step == "u":
            numbers[client] += 1
            owner.send(client, claim(numbers[client], rollout, data.draw(st.sampled_from([CURRENT, 0, 1, 9])), call))
        elif step == "S":
            owner.sync()
        elif step == "T":
            owner.take()
        elif step == "W":
            owner.written(failed=data.draw(st.sampled_from([False, False, True])))
        elif step == "K":
            checkpoint(owner)
        elif step == "R":
            owner.restart()
    checkpoint(owner)
    checkpoint(owner)
    assert state_of(owner.whole()) == state_of(replayed(owner.frames))
