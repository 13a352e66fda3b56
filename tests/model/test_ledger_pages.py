"""A ledger that is in part on disk is the ledger that has all of it in memory, whatever happened in between."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from gym_capture.model.codec import FrameRef
from gym_capture.model.ledger import Repeated
from gym_capture.model.pages import is_incomplete, unpack_archived
from gym_capture.model.rows import CURRENT, CommitRow, HistoryRow, Outcome, Part
from tests.model.ledgers import A, B, R, claim, clear, commit, mark, release, replayed, state_of
from tests.model.paged_owner import PagedOwner
from tests.model.test_ledger_machine import STEPS, Choices, History, Seeded

PART = Part(6, 0, 0, 1, 1, 1)


class PagedHistory(History):
    """The histories of the model, with checkpoints and evictions at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.paged = PagedOwner()
        self.owner = self.paged

    def take(self, _choose: Choices) -> None:
        self.paged.take()

    def written(self, choose: Choices) -> None:
        self.paged.written(failed=choose.one([True, False, False, False]))

    def merge(self, choose: Choices) -> None:
        self.paged.bring_back(set(self.paged.ledger.archived))  # `merge_row` is asked before the row is written
        super().merge(choose)

    def fail(self, choose: Choices) -> None:
        super().fail(choose)
        self.seen["restarts from a checkpoint"] += bool(self.paged.checkpoints)

    def check(self) -> None:
        ledger = self.paged.ledger
        self.seen["archived"] += bool(len(ledger.archived))
        assert ledger.archived.incomplete == sum(map(is_incomplete, ledger.archived.packed.values()))
        for rollout_id, packed in ledger.archived.packed.items():
            state = self.paged.load(packed)
            found = unpack_archived(packed)
            assert (found.generation, found.incomplete) == (state.generation, state.view().reasons is not None)
            assert (found.evidence, found.known, found.busy) == (state.has_evidence, state.known, False)
            lacking = state.view().reasons is not None or state.holes or state.late
            assert (found.calls, found.plain) == (state.next_index, not lacking)
            assert ledger.outstanding_of(rollout_id) == 0
        self.paged.ledger = self.paged.whole()
        try:
            super().check()
        finally:
            self.paged.ledger = ledger


def paged(seed: int, steps: int = 250) -> PagedHistory:
    choose, history = Seeded(seed), PagedHistory()
    for _ in range(steps):
        getattr(history, choose.one([*STEPS, *["take"] * 4, *["written"] * 6]))(choose)
        history.check()
    history.seen["evicted"] += history.paged.evicted
    history.seen["brought back"] += history.paged.brought_back
    return history


@pytest.mark.parametrize("seed", range(12))
def test_a_ledger_in_part_on_disk_follows_the_model(seed: int) -> None:
    paged(seed)


def test_the_histories_evict_bring_back_and_start_from_checkpoints() -> None:
    seen: Counter[str] = Counter()
    for seed in range(40, 46):
        seen += paged(seed).seen
    expected = ["evicted", "brought back", "archived", "restarts from a checkpoint", "repeated", "losses"]
    assert {name: seen[name] for name in expected if seen[name] < 5} == {}


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_messages_and_everything_else_come_back_as_a_full_replay_has_them(data: st.DataObject) -> None:
    owner = PagedOwner()
    numbers = {A: 0, B: 0}
    for step in data.draw(st.lists(st.sampled_from("hhhCCCckmxlrSTWWR"), min_size=5, max_size=40)):
        client = data.draw(st.sampled_from([A, B]))
        rollout = data.draw(st.sampled_from([R, "8-0", "9-0"]))
        call = data.draw(st.sampled_from(["1", "2", "3", "4"]))
        number = data.draw(st.integers(1, 2))
        if step == "h":
            first = data.draw(st.integers(0, 3))
            owner.send(client, HistoryRow(rollout, number, first, b"", [PART] * data.draw(st.integers(1, 2))))
        elif step == "C":
            row = CommitRow(rollout, numbers[client], call, b"d", [PART], history=number)
            row.messages = data.draw(st.integers(0, 4))
            owner.send(client, row)
        elif step == "c":
            numbers[client] += 1
            owner.send(client, claim(numbers[client], rollout))
        elif step == "k":
            owner.send(client, clear(data.draw(st.sampled_from(["", "again"])), rollout))
        elif step == "m":
            owner.bring_back({rollout})
            owner.write([owner.ledger.merge_row(rollout, data.draw(st.integers(0, 3)))])
        elif step == "x":
            owner.expire(owner.now + 6.0)
        elif step == "l" and numbers[client]:
            owner.send(client, release(numbers[client], "released", rollout), mark("dropped", 1, rollout))
        elif step == "r":
            owner.write(owner.ledger.leave(client))
        elif step == "S":
            owner.sync()
        elif step == "T":
            owner.take()
        elif step == "W":
            owner.written(failed=data.draw(st.booleans()))
        elif step == "R":
            owner.restart()
        assert state_of(owner.whole()) == state_of(replayed(owner.frames))


# -- one thing at a time ------------------------------------------------------------------------------------------


def evicted_rollout() -> PagedOwner:
    """An owner that has evicted a merged rollout with two exchanges."""
    owner = PagedOwner()
    owner.send(A, claim(1), commit(1, "one"), commit(0, "two"))
    owner.write([owner.ledger.merge_row(R, 0)])
    checkpoint(owner)
    assert R not in owner.ledger.rollouts
    assert R in owner.ledger.archived
    return owner


def checkpoint(owner: PagedOwner) -> None:
    owner.take()
    owner.sync()
    owner.written()


def test_a_late_commit_of_an_evicted_rollout_is_late_and_gets_the_next_index() -> None:
    owner = evicted_rollout()
    [result] = owner.send(A, commit(0, "three"))
    assert (result.outcome, result.call_index) == (Outcome.APPLIED, 2)
    assert owner.ledger.late == owner.ledger.rollouts[R].late == 1


def test_an_exchange_that_an_evicted_rollout_has_is_a_duplicate_with_its_index() -> None:
    owner = evicted_rollout()
    [again, other] = owner.send(A, commit(0, "two"), commit(0, "one", b"other"))
    assert (again.outcome, again.call_index) == (Outcome.DUPLICATE, 1)
    assert other.outcome == Outcome.CONFLICT


def test_a_clear_of_an_evicted_rollout_begins_a_chain_of_its_own() -> None:
    owner = evicted_rollout()
    owner.send(A, clear("c"))
    owner.send(A, commit(0, "one", b"anew"))
    owner.write([owner.ledger.merge_row(R, 0)])
    checkpoint(owner)
    state = owner.load(owner.ledger.archived.packed[R])
    assert (state.generation, [entry.digest for entry in state.entries]) == (1, [b"anew"])
    [result] = owner.send(A, clear("c"))
    assert (result.outcome, result.generation) == (Outcome.DUPLICATE, 1)


def test_a_batch_that_is_sent_again_after_the_eviction_is_answered_from_the_first_time() -> None:
    owner = evicted_rollout()
    for _ in range(2):
        answer = owner.apply(A, 1, 0, [claim(1), commit(1, "one"), commit(0, "two")])
        assert isinstance(answer, Repeated)
        assert [(each.outcome, each.call_index) for each in answer.results or ()] == [(0, -1), (0, 0), (0, 1)]
        owner.restart()


def test_a_rollout_with_an_open_claim_stays_and_survives_a_restart() -> None:
    owner = PagedOwner()
    owner.send(A, claim(1))
    owner.write([owner.ledger.merge_row(R, 0)])
    checkpoint(owner)
    checkpoint(owner)
    assert (R in owner.ledger.rollouts, owner.ledger.outstanding) == (True, 1)
    owner.restart()
    assert (R in owner.ledger.rollouts, owner.ledger.outstanding) == (True, 1)
    owner.expire(owner.now + 6.0)
    assert owner.ledger.view(R).reasons == {"lost": 1}


def test_a_rollout_that_was_not_merged_leaves_after_an_interval_without_a_row() -> None:
    owner = PagedOwner()
    owner.send(A, commit(0, "one"))
    checkpoint(owner)
    assert R in owner.ledger.rollouts
    owner.send(A, commit(0, "two", rollout="8-0"))
    checkpoint(owner)
    assert (R in owner.ledger.archived, "8-0" in owner.ledger.archived) == (True, False)


def test_a_page_has_only_what_is_new_and_a_rollout_is_all_of_its_pages() -> None:
    owner = PagedOwner()
    for index in range(5):
        owner.send(A, commit(0, str(index)))
        checkpoint(owner)
    sizes = [place.length for place in owner.pages]
    assert max(sizes) < min(sizes) + 20
    owner.send(A, commit(0, "other", rollout="8-0"))
    checkpoint(owner)
    owner.bring_back({R})
    assert [entry.model_call_id for entry in owner.ledger.rollouts[R].entries] == list("01234")
    assert not owner.ledger.changed


def test_an_archived_rollout_is_never_taken_for_a_new_one() -> None:
    owner = evicted_rollout()
    with pytest.raises(RuntimeError, match="archived"):
        owner.ledger.view(R)
    with pytest.raises(RuntimeError, match="archived"):
        owner.ledger.apply_batch(A, 9, 0, [commit(0, "x", generation=CURRENT)], FrameRef(99, 1), 0.0, 0.0)
