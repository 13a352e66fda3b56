"""The ledger's rules, one by one, with values."""

from __future__ import annotations

import pytest

from gym_capture.model.codec import FrameRef
from gym_capture.model.ledger import ANSWERS_KEPT_S, NOTHING_SETTLED, Applied, Repeated, Settled
from gym_capture.model.rows import (
    CURRENT,
    ClaimRow,
    ClientRow,
    CommitRow,
    LossRow,
    MarkRow,
    MergeRow,
    Outcome,
    Part,
    Result,
)
from tests.model.ledgers import LEASE_S, A, B, Owner, R, claim, clear, commit, mark, release, replayed, state_of


@pytest.fixture
def owner() -> Owner:
    return Owner()


def calls(owner: Owner, rollout: str = R) -> list[tuple[int, str]]:
    return [(entry.call_index, entry.model_call_id) for entry in owner.ledger.view(rollout).entries]


# -- claims and commits -------------------------------------------------------------------------------------------


def test_a_claim_is_outstanding_from_the_moment_it_is_applied(owner: Owner) -> None:
    assert owner.send(A, claim(1)) == [Result(Outcome.APPLIED, 0)]
    assert owner.ledger.outstanding_of(R) == 1
    assert owner.sync() == NOTHING_SETTLED
    assert owner.ledger.outstanding == 1
    assert [(c.client, c.number, c.rollout.id, c.at) for c in owner.ledger.open_claims()] == [(A, 1, R, owner.wall)]


def test_a_committed_claim_stays_outstanding_until_the_commit_is_durable(owner: Owner) -> None:
    owner.send(A, claim(1))
    owner.sync()
    assert owner.send(A, commit(1)) == [Result(Outcome.APPLIED, 0, 0)]
    assert owner.ledger.outstanding_of(R) == 1
    assert owner.ledger.view(R).outstanding == 0
    assert owner.sync() == Settled([R], True)
    assert owner.ledger.outstanding == 0
    assert calls(owner) == [(0, "call")]
    assert owner.ledger.view(R).reasons is None


def test_only_what_is_durable_settles(owner: Owner) -> None:
    owner.send(A, claim(1), claim(2, "8-0"))
    owner.send(A, commit(1))
    first = owner.ledger.last_sequence
    owner.send(A, commit(2, rollout="8-0"))
    assert owner.sync(first) == Settled([R], False)
    assert owner.sync() == Settled(["8-0"], True)
    assert owner.sync() == NOTHING_SETTLED


def test_a_rollout_that_is_claimed_again_before_its_commit_is_durable_does_not_settle(owner: Owner) -> None:
    owner.send(A, claim(1))
    owner.send(A, commit(1))
    first = owner.ledger.last_sequence
    owner.send(A, claim(2))
    assert owner.sync(first) == Settled([], False)
    owner.send(A, commit(2, "other"))
    assert owner.sync() == Settled([R], True)


def test_call_indexes_count_the_durable_order_of_a_rollout(owner: Owner) -> None:
    owner.send(A, claim(1), claim(2), claim(3, "8-0"))
    results = owner.send(A, commit(2, "late"), commit(3, "x", rollout="8-0"), commit(1, "early"))
    assert [result.call_index for result in results] == [0, 0, 1]
    assert calls(owner) == [(0, "late"), (1, "early")]


def test_an_unclaimed_exchange_is_waited_for_on_its_way_to_disk(owner: Owner) -> None:
    assert owner.send(A, commit()) == [Result(Outcome.APPLIED, 0, 0)]
    assert owner.ledger.outstanding_of(R) == 1
    assert owner.sync() == Settled([R], True)


def test_the_same_exchange_again_is_a_duplicate_with_the_same_index(owner: Owner) -> None:
    owner.send(A, claim(1), claim(2))
    owner.send(A, commit(1))
    row = commit(2)
    assert owner.send(A, row) == [Result(Outcome.DUPLICATE, 0, 0)]
    assert row.parts == []
    assert owner.ledger.outstanding_of(R) == 2
    assert owner.sync() == Settled([R], True)
    assert calls(owner) == [(0, "call")]
    assert owner.ledger.view(R).reasons is None


def test_a_duplicate_waits_for_its_original(owner: Owner) -> None:
    owner.send(A, commit())
    original = owner.ledger.last_sequence
    owner.send(B, commit())
    assert owner.ledger.outstanding_of(R) == 1
    assert owner.sync(original) == Settled([R], True)


def test_another_payload_under_the_same_id_is_refused_and_marks_the_rollout(owner: Owner) -> None:
    owner.send(A, commit(digest=b"1"))
    owner.sync()
    row = commit(digest=b"2")
    assert owner.send(A, row) == [Result(Outcome.CONFLICT, 0)]
    assert row.parts == []
    assert owner.ledger.outstanding_of(R) == 1
    assert owner.sync() == Settled([R], True)
    assert owner.ledger.view(R).reasons == {"refused": 1}
    assert calls(owner) == [(0, "call")]


def test_the_same_conflict_again_is_no_further_loss(owner: Owner) -> None:
    owner.send(A, commit(digest=b"1"))
    for _ in range(3):
        assert owner.send(A, commit(digest=b"2")) == [Result(Outcome.CONFLICT, 0)]
    assert owner.ledger.view(R).reasons == {"refused": 1}
    owner.send(A, commit(digest=b"3"))
    assert owner.ledger.view(R).reasons == {"refused": 2}
    assert owner.ledger.counts["conflicts"] == 4


def test_a_conflict_closes_its_claim(owner: Owner) -> None:
    owner.send(A, commit(digest=b"1"), claim(1))
    owner.send(A, commit(1, digest=b"2"))
    assert owner.sync() == Settled([R], True)


def test_a_release_closes_the_claim_and_says_why_evidence_is_missing(owner: Owner) -> None:
    owner.send(A, claim(1), claim(2), claim(3))
    owner.send(A, release(1), release(2), release(3, "dropped"))
    assert owner.ledger.outstanding == 3
    assert owner.sync() == Settled([R], True)
    assert owner.ledger.view(R).reasons == {"released": 2, "dropped": 1}


def test_a_withdrawn_claim_leaves_nothing(owner: Owner) -> None:
    owner.send(A, claim(1))
    owner.send(A, release(1, ""))
    assert owner.sync() == Settled([R], True)
    assert owner.ledger.view(R).reasons is None


def test_releasing_what_is_not_open_changes_nothing(owner: Owner) -> None:
    owner.send(A, claim(1))
    owner.send(A, commit(1))
    assert owner.send(A, release(1), release(9)) == [Result(Outcome.APPLIED, 0)] * 2
    owner.sync()
    assert owner.ledger.view(R).reasons is None
    assert owner.ledger.outstanding == 0


def test_a_claim_that_is_open_is_claimed_again_as_a_duplicate(owner: Owner) -> None:
    owner.send(A, claim(1))
    assert owner.send(A, claim(1)) == [Result(Outcome.DUPLICATE, 0)]
    assert owner.send(B, claim(1)) == [Result(Outcome.APPLIED, 0)]
    assert owner.ledger.outstanding == 2


def test_marks_count_and_are_waited_for(owner: Owner) -> None:
    owner.send(A, mark("dropped", 3), mark(""))
    assert owner.ledger.outstanding_of(R) == 2
    assert owner.sync() == Settled([R], True)
    assert owner.ledger.view(R).reasons == {"dropped": 3, "": 1}


@pytest.mark.parametrize("outcome", [Outcome.TOO_LARGE, Outcome.INVALID])
def test_a_commit_that_was_refused_at_the_door_closes_its_claim_and_marks_the_rollout(
    owner: Owner, outcome: Outcome
) -> None:
    owner.send(A, claim(1))
    row = commit(1)
    row.outcome = outcome
    assert owner.send(A, row) == [Result(outcome, 0)]
    assert owner.sync() == Settled([R], True)
    assert owner.ledger.view(R).reasons == {"refused": 1}
    assert calls(owner) == []


def test_a_row_that_was_refused_at_the_door_concerns_no_rollout(owner: Owner) -> None:
    assert owner.send(A, MarkRow("", "", 0, 0, Outcome.INVALID)) == [Result(Outcome.INVALID, 0)]
    assert owner.ledger.rollouts == {}
    assert replayed(owner.frames).rollouts == {}


def test_what_a_client_writes_into_the_owners_fields_is_not_believed(owner: Owner) -> None:
    row = CommitRow(R, 0, "call", b"d", [Part(0, 0, 0, 3, 3, 7)], CURRENT, 17, Outcome.DUPLICATE)
    assert owner.send(A, row) == [Result(Outcome.APPLIED, 0, 0)]
    old = CommitRow(R, 0, "other", b"d", [Part(0, 0, 0, 3, 3, 7)], 5, 17)
    assert owner.send(A, old) == [Result(Outcome.UNKNOWN_GENERATION, 5, -1)]
    assert old.parts == []
    row_at = ClaimRow(R, 1, at=1.0)
    owner.send(A, row_at)
    assert row_at.at == owner.wall


# -- generations --------------------------------------------------------------------------------------------------


def test_a_clear_begins_an_empty_generation_and_answers_its_token(owner: Owner) -> None:
    owner.send(A, commit(), mark("dropped"))
    assert owner.send(A, clear()) == [Result(Outcome.APPLIED, 1)]
    view = owner.ledger.view(R)
    assert (view.generation, view.entries, view.reasons, view.holes) == (1, [], None, 0)
    assert owner.send(A, commit(generation=1)) == [Result(Outcome.APPLIED, 1, 0)]


def test_what_carries_the_token_of_a_cleared_generation_is_fenced(owner: Owner) -> None:
    owner.send(A, clear(), clear())
    rows: list[ClientRow] = [
        claim(1, generation=1),
        commit(2, generation=1),
        release(3, generation=1),
        mark("x", generation=0),
    ]
    assert [result.outcome for result in owner.send(A, *rows)] == [Outcome.FENCED] * 4
    owner.sync()
    assert owner.ledger.outstanding == 0
    assert owner.ledger.view(R).entries == []
    assert owner.ledger.view(R).reasons is None
    assert owner.ledger.counts["fenced"] == 4


def test_a_call_under_a_generation_that_was_never_begun_marks_the_one_that_is_current(owner: Owner) -> None:
    rows: list[ClientRow] = [claim(1, generation=3), commit(0, generation=3)]
    assert owner.send(A, *rows) == [Result(Outcome.UNKNOWN_GENERATION, 3)] * 2
    assert owner.send(A, *rows) == [Result(Outcome.UNKNOWN_GENERATION, 3)] * 2
    view = owner.ledger.view(R)
    assert (view.generation, view.entries, view.reasons, view.outstanding) == (0, [], {"refused": 2}, 0)
    owner.sync()
    owner.restart()
    assert owner.ledger.view(R).reasons == {"refused": 2}


def test_losses_under_a_generation_that_was_never_begun_are_counted(owner: Owner) -> None:
    owner.send(A, mark("dropped", 4, R, 3))
    assert owner.ledger.view(R).reasons == {"dropped": 4}
    owner.sync()
    assert owner.ledger.outstanding == 0


def test_losses_of_a_cleared_generation_are_not(owner: Owner) -> None:
    owner.send(A, clear(), clear())
    owner.send(A, mark("dropped", 4, R, 1))
    assert owner.ledger.view(R).reasons is None


def test_a_row_without_a_token_belongs_to_the_generation_that_is_current_and_is_counted(owner: Owner) -> None:
    owner.send(A, clear())
    assert owner.send(A, claim(1), commit(1)) == [Result(Outcome.APPLIED, 1), Result(Outcome.APPLIED, 1, 0)]
    assert owner.ledger.counts["rows_without_token"] == 2


def test_a_claim_without_a_token_belongs_to_its_generation_and_so_does_its_commit(owner: Owner) -> None:
    owner.send(A, claim(1))
    owner.send(B, clear())
    assert owner.send(A, commit(1)) == [Result(Outcome.FENCED, 0)]
    assert owner.ledger.view(R).entries == []
    owner.send(A, claim(2), commit(2, "new"))
    assert calls(owner) == [(0, "new")]
    assert owner.send(A, commit(2, "new")) == [Result(Outcome.DUPLICATE, 1, 0)]


def test_claims_open_at_a_clear_stay_outstanding_until_the_clear_is_durable(owner: Owner) -> None:
    owner.send(A, claim(1), claim(2))
    owner.send(B, claim(1))
    owner.sync()
    owner.send(A, clear())
    assert owner.ledger.outstanding_of(R) == 3
    assert list(owner.ledger.open_claims()) == []
    assert owner.sync() == Settled([R], True)
    assert owner.ledger.counts["fenced"] == 3
    assert owner.ledger.view(R).reasons is None


def test_a_crash_before_the_clear_is_durable_leaves_the_claims_open(owner: Owner) -> None:
    owner.send(A, claim(1))
    owner.sync()
    owner.send(A, clear("r"))
    owner.restart()
    assert owner.ledger.outstanding_of(R) == 1
    assert owner.ledger.view(R).generation == 0


def test_a_clear_repeated_under_its_request_gives_the_same_token(owner: Owner) -> None:
    assert owner.send(A, clear("r1")) == [Result(Outcome.APPLIED, 1)]
    owner.send(A, commit())
    assert owner.send(B, clear("r1")) == [Result(Outcome.DUPLICATE, 1)]
    assert calls(owner) == [(0, "call")]
    assert owner.send(A, clear("r2")) == [Result(Outcome.APPLIED, 2)]
    owner.send(A, commit(call="later"))
    assert owner.send(B, clear("r1")) == [Result(Outcome.DUPLICATE, 1)]
    assert calls(owner) == [(0, "later")]
    assert owner.send(A, clear(), clear()) == [Result(Outcome.APPLIED, 3), Result(Outcome.APPLIED, 4)]


def test_a_repeated_clear_is_known_after_a_restart(owner: Owner) -> None:
    owner.send(A, clear("r1"), clear("r2"))
    owner.sync()
    owner.restart()
    assert owner.send(A, clear("r1"), batch=7) == [Result(Outcome.DUPLICATE, 1)]
    assert owner.ledger.view(R).generation == 2


def test_a_refused_row_closes_the_claim_that_it_names(owner: Owner) -> None:
    owner.send(A, clear(), claim(1), claim(2))
    owner.send(A, commit(1, generation=0), release(2, generation=9))
    assert owner.sync() == Settled([R], True)
    assert owner.ledger.view(R).reasons == {"refused": 2}
    assert owner.ledger.view(R).entries == []


# -- leases -------------------------------------------------------------------------------------------------------


def test_a_silent_clients_claims_are_lost(owner: Owner) -> None:
    owner.send(A, claim(1), claim(2, "8-0"))
    owner.sync()
    owner.now += LEASE_S - 0.001
    assert owner.ledger.expire(owner.now) == []
    owner.now += 0.001
    losses = owner.ledger.expire(owner.now)
    assert losses == [LossRow(R, 0, A, 1), LossRow("8-0", 0, A, 2)]
    owner.write(losses)
    assert owner.ledger.outstanding == 2
    assert owner.sync() == Settled([R, "8-0"], True)
    assert owner.ledger.view(R).reasons == {"lost": 1}
    assert owner.ledger.expire(owner.now + 100) == []


def test_any_sign_of_life_renews_the_lease(owner: Owner) -> None:
    owner.send(A, claim(1))
    owner.now += 5
    owner.send(A, mark("x"))
    assert owner.ledger.expire(owner.now + 5) == []
    owner.now += 5
    owner.ledger.renew(A, owner.now)
    assert owner.ledger.expire(owner.now + 5) == []
    assert owner.ledger.expire(owner.now + 6) == [LossRow(R, 0, A, 1)]


def test_a_late_commit_retracts_its_own_loss_only(owner: Owner) -> None:
    owner.send(A, claim(1), claim(2), claim(3))
    owner.expire(owner.now + 6)
    assert owner.ledger.view(R).reasons == {"lost": 3}
    owner.sync()
    assert owner.send(A, commit(2)) == [Result(Outcome.APPLIED, 0, 0)]
    assert owner.ledger.view(R).reasons == {"lost": 2}
    assert owner.ledger.outstanding_of(R) == 1
    assert owner.sync() == Settled([R], True)
    owner.send(A, commit(2), commit(1, "one"), release(3))
    assert owner.ledger.view(R).reasons == {"released": 1}
    owner.send(A, commit(1, "one"))
    assert owner.ledger.view(R).reasons == {"released": 1}


def test_a_lost_claim_can_be_withdrawn(owner: Owner) -> None:
    owner.send(A, claim(1))
    owner.expire(owner.now + 6)
    owner.sync()
    owner.send(A, release(1, ""))
    assert owner.ledger.view(R).reasons is None
    assert owner.ledger.outstanding_of(R) == 1
    assert owner.sync() == Settled([R], True)


def test_a_loss_of_a_claim_that_was_closed_meanwhile_is_none(owner: Owner) -> None:
    owner.send(A, claim(1))
    losses = owner.ledger.expire(owner.now + 6)
    owner.send(A, commit(1))
    owner.write(losses)
    owner.sync()
    assert owner.ledger.view(R).reasons is None
    assert owner.ledger.outstanding == 0


def test_a_lost_claim_of_a_cleared_generation_is_forgotten(owner: Owner) -> None:
    owner.send(A, claim(1))
    owner.expire(owner.now + 6)
    owner.send(B, clear())
    assert owner.ledger.view(R).reasons is None
    assert owner.send(A, commit(1)) == [Result(Outcome.FENCED, 0)]
    assert owner.ledger.view(R).reasons is None


def test_a_hello_names_what_the_client_still_holds(owner: Owner) -> None:
    owner.send(A, claim(1), claim(2), claim(3))
    assert owner.ledger.hello(A, [1, 3, 99], owner.now) == [LossRow(R, 0, A, 2)]
    assert owner.ledger.hello(A, [1, 2, 3], owner.now) == []
    owner.write(owner.ledger.hello(A, [], owner.now))
    owner.sync()
    assert owner.ledger.view(R).reasons == {"lost": 3}
    assert owner.ledger.outstanding == 0


def test_a_client_that_comes_back_is_alive_again(owner: Owner) -> None:
    owner.send(A, claim(1))
    owner.expire(owner.now + 6)
    assert owner.ledger.hello(A, [1], owner.now) == []
    owner.send(A, claim(2))
    assert owner.ledger.expire(owner.now + 6) == [LossRow(R, 0, A, 2)]
    assert owner.ledger.counts["expired_clients"] == 2


def test_everyone_has_a_full_lease_after_a_restart(owner: Owner) -> None:
    owner.send(A, claim(1))
    owner.sync()
    owner.now += 5.9
    owner.restart()
    assert owner.ledger.outstanding_of(R) == 1
    assert owner.ledger.expire(owner.now + 5.9) == []
    assert owner.ledger.expire(owner.now + 6) == [LossRow(R, 0, A, 1)]


def test_a_goodbye_loses_what_is_still_held_at_once(owner: Owner) -> None:
    owner.send(A, claim(1), claim(2))
    owner.send(A, commit(1))
    losses = owner.ledger.leave(A)
    assert losses == [LossRow(R, 0, A, 2)]
    owner.write(losses)
    owner.sync()
    assert owner.ledger.view(R).reasons == {"lost": 1}
    assert owner.ledger.outstanding == 0
    assert owner.ledger.leave(B) == []
    assert owner.ledger.expire(owner.now + 100) == []


# -- batches ------------------------------------------------------------------------------------------------------


def test_a_batch_applies_once_and_is_answered_the_same_again(owner: Owner) -> None:
    first = owner.apply(A, 1, 0, [claim(1), commit(1)])
    assert isinstance(first, Applied)
    again = owner.apply(A, 1, 0, [claim(1), commit(1)])
    assert again == Repeated(1, first.results)
    assert len(owner.frames) == 1
    assert calls(owner) == [(0, "call")]
    assert owner.ledger.counts["repeated_batches"] == 1


def test_a_batch_that_comes_late_is_answered_from_what_it_did_first(owner: Owner) -> None:
    owner.send(A, claim(1))
    first = owner.send(A, commit(1))
    owner.send(A, clear())
    owner.send(A, claim(2))
    assert owner.apply(A, 2, 0, [commit(1)]) == Repeated(2, first)
    assert owner.apply(A, 3, 0, [clear()]) == Repeated(3, [Result(Outcome.APPLIED, 1)])
    assert owner.ledger.view(R).generation == 1


def test_confirmed_answers_are_forgotten_and_the_batch_still_applies_once(owner: Owner) -> None:
    owner.send(A, claim(1))
    owner.send(A, commit(1))
    owner.send(A, mark("x"), confirmed=1)
    assert owner.apply(A, 1, 0, [claim(1)]) == Repeated(0, None)
    assert owner.apply(A, 2, 0, [commit(1)]) == Repeated(2, [Result(Outcome.APPLIED, 0, 0)])
    assert owner.ledger.view(R).reasons == {"x": 1}


def test_batches_may_be_applied_out_of_order(owner: Owner) -> None:
    owner.send(A, mark("second"), batch=2)
    owner.send(A, mark("first"), batch=1)
    assert owner.ledger.view(R).reasons == {"second": 1, "first": 1}


def test_a_client_cannot_confirm_what_it_has_not_sent(owner: Owner) -> None:
    owner.send(A, claim(1), confirmed=2**60)
    assert owner.send(A, commit(1)) == [Result(Outcome.APPLIED, 0, 0)]


def test_an_answer_survives_a_restart(owner: Owner) -> None:
    results = owner.send(A, claim(1), commit(1), commit(1, digest=b"other"))
    owner.sync()
    owner.restart()
    assert owner.apply(A, 1, 0, [claim(1)]) == Repeated(1, results)


def test_a_batch_whose_group_failed_applies_again(owner: Owner) -> None:
    owner.send(A, claim(1))
    owner.restart()
    assert owner.ledger.outstanding == 0
    assert owner.send(A, claim(1), batch=1) == [Result(Outcome.APPLIED, 0)]
    assert owner.ledger.outstanding == 1


def test_the_answers_of_a_client_long_gone_are_forgotten_but_not_that_it_was_here(owner: Owner) -> None:
    owner.send(A, mark("x"))
    owner.expire(owner.now + LEASE_S)
    owner.expire(owner.now + ANSWERS_KEPT_S - 1)
    assert owner.ledger.clients[A].answers != {}
    owner.expire(owner.now + 1)
    assert owner.ledger.clients[A].answers == {}
    assert owner.apply(A, 1, 0, [mark("x")]) == Repeated(0, None)
    assert owner.ledger.view(R).reasons == {"x": 1}


# -- merges -------------------------------------------------------------------------------------------------------


def merge(owner: Owner, issued: int = 0) -> MergeRow:
    row = owner.ledger.merge_row(R, issued)
    owner.write([row])
    return row


def test_rows_that_land_after_a_merge_are_late_until_a_merge_returns_them(owner: Owner) -> None:
    owner.send(A, commit(call="1"), commit(call="2"))
    assert merge(owner) == MergeRow(R, 0, 2, 0)
    assert owner.ledger.late == 0
    owner.send(A, commit(call="3"))
    assert owner.ledger.late == 1
    assert owner.ledger.rollouts[R].late == 1
    owner.sync()
    owner.restart()
    assert owner.ledger.late == 1
    assert merge(owner) == MergeRow(R, 0, 3, 0)
    assert owner.ledger.late == 0


def test_a_row_that_was_applied_while_the_merge_was_on_its_way_is_late(owner: Owner) -> None:
    row = owner.ledger.merge_row(R, 0)
    owner.send(A, commit())
    owner.write([row])
    assert owner.ledger.late == 1


def test_a_clear_forgets_what_was_late(owner: Owner) -> None:
    merge(owner)
    owner.send(A, commit())
    assert owner.ledger.late == 1
    owner.send(A, clear())
    assert owner.ledger.late == 0
    owner.send(A, commit())
    assert owner.ledger.late == 0


def test_a_merge_of_a_rollout_without_calls_makes_all_that_follows_late(owner: Owner) -> None:
    merge(owner)
    owner.send(A, commit())
    assert owner.ledger.late == 1


def test_calls_that_were_issued_and_are_nowhere_are_unaccounted_for(owner: Owner) -> None:
    owner.send(A, claim(1), claim(2), claim(3), commit(1, "1"), release(2), claim(4))
    merge(owner, issued=7)
    # 1 committed, 1 released, 2 open; 3 nowhere.
    assert owner.ledger.view(R).reasons == {"released": 1, "unaccounted": 3}
    assert owner.ledger.view(R).outstanding == 2
    owner.send(A, commit(0, "late"))
    assert owner.ledger.view(R).reasons == {"released": 1, "unaccounted": 2}


@pytest.mark.parametrize("durable", [False, True])
def test_a_commit_on_its_way_to_disk_is_accounted_for_once(owner: Owner, durable: bool) -> None:
    owner.send(A, claim(1), claim(2), commit(1, "1"), commit(2, "2"))
    if durable:
        owner.sync()
    merge(owner, issued=3)
    assert owner.ledger.view(R).reasons == {"unaccounted": 1}


def test_repeated_conflicts_hide_no_missing_call(owner: Owner) -> None:
    owner.send(A, commit(digest=b"1"))
    for _ in range(3):
        owner.send(A, commit(digest=b"2"))
    merge(owner, issued=3)
    # One call under one id, whatever else was offered for it; two are nowhere.
    assert owner.ledger.view(R).reasons == {"refused": 1, "unaccounted": 2}


def test_a_call_that_was_released_and_then_made_again_is_one_call(owner: Owner) -> None:
    owner.send(A, claim(1, call="again"), release(1))
    owner.send(A, claim(2, call="again"), commit(2, "again"))
    merge(owner, issued=2)
    assert owner.ledger.view(R).reasons == {"released": 1, "unaccounted": 1}


def test_a_lost_call_that_is_committed_after_all_is_one_call(owner: Owner) -> None:
    owner.send(A, claim(1, call="slow"))
    owner.expire(owner.now + LEASE_S)
    merge(owner, issued=2)
    assert owner.ledger.view(R).reasons == {"lost": 1, "unaccounted": 1}
    owner.send(A, commit(1, "slow"))
    assert owner.ledger.view(R).reasons == {"unaccounted": 1}


def test_issued_says_nothing_when_everything_arrived(owner: Owner) -> None:
    owner.send(A, commit(call="1"), commit(call="2"), commit(call="2"))
    merge(owner, issued=2)
    assert owner.ledger.view(R).reasons is None
    merge(owner, issued=1)
    assert owner.ledger.rollouts[R].issued == 2


def test_a_merge_of_an_earlier_generation_says_nothing_about_this_one(owner: Owner) -> None:
    row = owner.ledger.merge_row(R, 5)
    owner.send(A, clear())
    owner.write([row])
    assert owner.ledger.view(R).reasons is None
    owner.send(A, commit())
    assert owner.ledger.late == 0


# -- the rest -----------------------------------------------------------------------------------------------------


def test_an_unknown_rollout_is_empty_and_stays_unknown(owner: Owner) -> None:
    view = owner.ledger.view("nobody")
    assert view == ("nobody", 0, [], 0, None, 0)
    assert owner.ledger.outstanding_of("nobody") == 0
    assert owner.ledger.rollouts == {}


def test_the_owners_own_clears_and_marks_are_decided_like_a_clients(owner: Owner) -> None:
    owner.send(A, claim(1))
    cleared, marked = clear("r"), mark("damaged", 2)
    owner.write([cleared, marked])
    assert (cleared.generation, marked.generation) == (1, 1)
    assert owner.ledger.outstanding_of(R) == 2
    assert owner.sync() == Settled([R], True)
    assert owner.ledger.view(R).reasons == {"damaged": 2}
    again = clear("r")
    owner.write([again])
    assert (again.generation, again.outcome) == (1, Outcome.DUPLICATE)


def test_an_entry_knows_where_its_parts_lie_once_the_frame_is_appended(owner: Owner) -> None:
    ref = FrameRef(1, 4)
    parts = [Part(0, 1, 0, 40, 90, 2**32 - 1), Part(2, 2, 40, 2**29, 2**30, 0)]
    owner.ledger.apply_batch(A, 1, 0, [CommitRow(R, 0, "call", b"d", parts)], ref, 0.0, 0.0)
    ref.segment, ref.body_offset = 3, 4096
    (entry,) = owner.ledger.view(R).entries
    assert (entry.ref.epoch, entry.ref.segment, entry.ref.body_offset) == (4, 3, 4096)
    assert entry.parts == parts


def test_the_live_state_is_what_its_log_says(owner: Owner) -> None:
    owner.send(A, claim(1), claim(2), claim(3, "8-0"), clear("r"))
    owner.send(A, claim(4), commit(4), commit(4, digest=b"x"), mark("dropped"), commit(2), confirmed=1)
    owner.expire(owner.now + 6)
    owner.send(B, claim(1), clear("r"), commit(0, "2", generation=7))
    merge(owner, issued=9)
    assert state_of(replayed(owner.frames)) == state_of(owner.ledger)
