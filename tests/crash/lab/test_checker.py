"""Each kind of violation, planted in what was told or in what is stored, is reported; a right run is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.lab import checker
from tests.crash.lab.checker import Stored, Violation, check
from tests.crash.lab.journal import Call, Clear, History, HistoryReader, Merge, Quiet

ROLLOUT = "7-0"
SILENCE_S = 1.5


def call(number: int, at: float, generation: int = 1, outcome: str | None = "durable") -> Call:
    """A call that took a second."""
    return Call(
        ROLLOUT,
        f"c{number}",
        generation,
        "worker",
        at,
        told_generation=generation,
        claimed_at=at + 0.1,
        closing_at=at + 0.9,
        closed_as="commit",
        outcome=outcome,
        told_at=at + 1.0,
        digest=f"d{number}",
    )


def told() -> History:
    """Two calls of a generation that a clear began, a yes and a merge after them; the worker lives all the while."""
    calls = [call(0, 11.0), call(1, 12.0)]
    history = History(
        calls={each.call_id: each for each in calls},
        clears=[Clear(ROLLOUT, 10.0, 1, 10.5)],
        quiets=[Quiet(ROLLOUT, 14.0, 14.1)],
        merges=[Merge(ROLLOUT, 1, 14.2, 14.3, [("c0", 0), ("c1", 1)], [])],
    )
    history.pulses["worker"] = [10.0 + 0.5 * n for n in range(40)]
    return history


def kept() -> dict[str, Stored]:
    """What is stored of it."""
    return {ROLLOUT: Stored(1, [("c0", "d0"), ("c1", "d1")])}


def kinds(history: History, stored: dict[str, Stored]) -> set[str]:
    """What the checker says."""
    return {violation.kind for violation in check(history, stored, silence_s=SILENCE_S)}


def test_a_right_run_has_no_violations() -> None:
    assert check(told(), kept(), silence_s=SILENCE_S) == []


def lost_on_disk(history: History, stored: dict[str, Stored]) -> None:
    stored[ROLLOUT].calls.pop()
    stored[ROLLOUT].reasons = {"lost": 1}


def lost_with_its_rollout(history: History, stored: dict[str, Stored]) -> None:
    del stored[ROLLOUT]
    history.clears.clear()
    for each in history.calls.values():
        each.generation = each.told_generation = 0


def lost_with_its_generation(history: History, stored: dict[str, Stored]) -> None:
    stored[ROLLOUT] = Stored(0, [])


def lost_in_a_merge(history: History, stored: dict[str, Stored]) -> None:
    history.merges[0].calls.pop()
    history.merges[0].gaps.append(("model_call_capture_incomplete", "released=1"))


def doubled_on_disk(history: History, stored: dict[str, Stored]) -> None:
    stored[ROLLOUT].calls.append(("c0", "d0"))


def doubled_in_a_merge(history: History, stored: dict[str, Stored]) -> None:
    history.merges[0].calls.append(("c0", 2))


def index_given_twice(history: History, stored: dict[str, Stored]) -> None:
    history.merges[0].calls[1] = ("c1", 0)


def earlier_generation_on_disk(history: History, stored: dict[str, Stored]) -> None:
    history.clears.append(Clear(ROLLOUT, 20.0, 2, 20.5))
    stored[ROLLOUT] = Stored(2, [("c1", "d1")])


def earlier_generation_in_a_merge(history: History, stored: dict[str, Stored]) -> None:
    history.clears.append(Clear(ROLLOUT, 20.0, 2, 20.5))
    stored[ROLLOUT] = Stored(2, [])
    history.merges.append(Merge(ROLLOUT, 2, 21.0, 21.1, [("c0", 0)], []))


def earlier_generation_by_what_its_claim_was_told(history: History, stored: dict[str, Stored]) -> None:
    earlier_generation_on_disk(history, stored)
    history.calls["c1"].generation = None


def claim_forgotten_on_disk(history: History, stored: dict[str, Stored]) -> None:
    history.calls["c1"].outcome = history.calls["c1"].told_at = None
    stored[ROLLOUT].calls.pop()
    history.merges.clear()


def claim_forgotten_by_a_merge(history: History, stored: dict[str, Stored]) -> None:
    history.calls["c1"].told_at = 15.0
    history.merges[0].calls.pop()


def quiet_too_early(history: History, stored: dict[str, Stored]) -> None:
    history.quiets[0] = Quiet(ROLLOUT, 12.2, 12.3)


def run_quiet_too_early(history: History, stored: dict[str, Stored]) -> None:
    history.quiets[0] = Quiet(None, 12.2, 12.3)


def payload_of_another_call(history: History, stored: dict[str, Stored]) -> None:
    stored[ROLLOUT].calls[1] = ("c1", "d0")


def lost_by_nobody(history: History, stored: dict[str, Stored]) -> None:
    history.merges[0].gaps.append(("model_call_capture_incomplete", "lost=1, released=1"))


def error_in_a_claim(history: History, stored: dict[str, Stored]) -> None:
    history.calls["c0"].error = "OwnerUnavailable()"


def stranger_on_disk(history: History, stored: dict[str, Stored]) -> None:
    stored[ROLLOUT].calls.append(("c9", "d9"))


def clear_forgotten(history: History, stored: dict[str, Stored]) -> None:
    history.clears.append(Clear(ROLLOUT, 20.0, 2, 20.5))


def damaged_on_disk(history: History, stored: dict[str, Stored]) -> None:
    stored[ROLLOUT].damaged = 1


def damaged_in_a_merge(history: History, stored: dict[str, Stored]) -> None:
    history.merges[0].gaps.append(("model_call_capture_records_unreadable", "count=1"))


PLANTED: list[tuple[Callable[[History, dict[str, Stored]], None], str]] = [
    (lost_on_disk, checker.LOST),
    (lost_with_its_rollout, checker.LOST),
    (lost_with_its_generation, checker.LOST),
    (lost_in_a_merge, checker.LOST),
    (doubled_on_disk, checker.DOUBLED),
    (doubled_in_a_merge, checker.DOUBLED),
    (index_given_twice, checker.DOUBLED),
    (earlier_generation_on_disk, checker.MIXED),
    (earlier_generation_in_a_merge, checker.MIXED),
    (earlier_generation_by_what_its_claim_was_told, checker.MIXED),
    (claim_forgotten_on_disk, checker.FORGOTTEN),
    (claim_forgotten_by_a_merge, checker.FORGOTTEN),
    (quiet_too_early, checker.EARLY),
    (run_quiet_too_early, checker.EARLY),
    (payload_of_another_call, checker.WRONG),
    (lost_by_nobody, checker.UNFOUNDED),
    (error_in_a_claim, checker.ERROR),
    (stranger_on_disk, checker.UNKNOWN),
    (clear_forgotten, checker.BACKWARDS),
    (damaged_on_disk, checker.UNREADABLE),
    (damaged_in_a_merge, checker.UNREADABLE),
]


@pytest.mark.parametrize(("plant", "kind"), PLANTED, ids=lambda value: getattr(value, "__name__", None))
def test_what_is_planted_is_reported(plant: Callable[[History, dict[str, Stored]], None], kind: str) -> None:
    history, stored = told(), kept()
    plant(history, stored)
    assert kind in kinds(history, stored)


def test_every_kind_is_planted() -> None:
    assert {kind for _, kind in PLANTED} == set(checker.KINDS)


def test_what_is_wrong_is_said_with_the_call_and_the_time() -> None:
    history, stored = told(), kept()
    quiet_too_early(history, stored)
    (found,) = check(history, stored, silence_s=SILENCE_S)
    assert found == Violation(
        checker.EARLY, f"{ROLLOUT} from 12.200 to 12.300: call c1 is claimed since 12.100 and open"
    )


# -- what is no violation -------------------------------------------------------------------------------------------


def lose_the_holder(history: History, until: float | None) -> None:
    """No sign of the worker from 12.0 until then (None: for good); its second call was never ended."""
    history.pulses["worker"] = [
        pulse for pulse in history.pulses["worker"] if pulse <= 12.0 or (until is not None and pulse >= until)
    ]
    lost = history.calls["c1"]
    lost.closing_at = lost.outcome = lost.told_at = None
    lost.closed_as = ""


@pytest.mark.parametrize("until", [13.9, None], ids=["frozen", "dead"])
def test_a_claim_whose_holder_was_frozen_or_is_dead_may_be_lost(until: float | None) -> None:
    history = told()
    lose_the_holder(history, until)
    gap = ("model_call_capture_incomplete", "lost=1")
    history.merges = [Merge(ROLLOUT, 1, 14.2, 14.3, [("c0", 0)], [gap])]
    assert kinds(history, {ROLLOUT: Stored(1, [("c0", "d0")], {"lost": 1})}) == set()
    assert checker.FORGOTTEN in kinds(history, {ROLLOUT: Stored(1, [("c0", "d0")])})


def test_a_claim_whose_holder_was_frozen_for_a_moment_may_not_be_lost() -> None:
    history = told()
    lose_the_holder(history, 13.2)
    assert checker.EARLY in kinds(history, kept())


def test_a_claim_whose_holder_could_not_reach_the_owner_may_be_lost() -> None:
    history = told()
    history.calls["c1"].closing_at = 30.0
    assert checker.EARLY in kinds(history, kept())
    history.cut_off.append((12.5, 13.9))
    assert checker.EARLY not in kinds(history, kept())


def test_a_claim_of_a_cleared_generation_holds_nothing_up() -> None:
    history = told()
    history.calls["c1"].closing_at, history.calls["c1"].outcome = 30.0, "fenced"
    history.merges = []
    history.clears.append(Clear(ROLLOUT, 13.0, 2, 13.5))
    assert kinds(history, {ROLLOUT: Stored(2, [])}) == set()


def test_a_generation_of_a_rollout_that_nobody_made_a_call_for_may_not_go_back_either() -> None:
    history, stored = told(), kept()
    history.clears.append(Clear("8-0", 10.0, 1, 10.5))
    history.quiets.append(Quiet("8-0", 11.0, 11.1))
    assert kinds(history, stored) == {checker.BACKWARDS}
    stored["8-0"] = Stored(1, [])
    assert kinds(history, stored) == set()


def test_a_claim_that_is_open_in_the_directory_is_not_forgotten() -> None:
    history = told()
    claim_forgotten_on_disk(history, stored := kept())
    assert kinds(history, stored) == {checker.FORGOTTEN}
    stored[ROLLOUT].outstanding = 1
    assert kinds(history, stored) == set()


def test_a_clear_may_be_told_of_before_a_claim_that_it_fences_is() -> None:
    history = told()
    late = history.calls["c1"]
    late.claimed_at, late.closing_at, late.outcome = 13.2, 30.0, "fenced"
    history.merges = []
    assert checker.EARLY in kinds(history, {ROLLOUT: Stored(1, [("c0", "d0")])})
    history.clears.append(Clear(ROLLOUT, 12.5, 2, 13.0))
    assert kinds(history, {ROLLOUT: Stored(2, [])}) == set()


def test_a_clear_that_is_told_of_late_and_came_before_the_claim_excuses_nothing() -> None:
    history = told()
    history.clears[0].told_at = 12.5
    history.calls["c1"].closing_at, history.calls["c1"].outcome = 30.0, "fenced"
    history.merges = []
    assert checker.EARLY in kinds(history, {ROLLOUT: Stored(1, [("c0", "d0")])})


def test_a_merge_that_says_that_the_owner_is_away_may_lack_calls() -> None:
    history = told()
    history.merges[0].calls.clear()
    history.merges[0].gaps.append(("model_call_capture_unreadable", ""))
    assert kinds(history, kept()) == set()


def test_an_exchange_that_nobody_was_told_of_may_be_there_or_not() -> None:
    history = told()
    history.calls["c1"].outcome = history.calls["c1"].told_at = None
    assert kinds(history, kept()) == set()


# -- journals -------------------------------------------------------------------------------------------------------


def test_journals_are_read_back_whatever_line_a_kill_left_unfinished(tmp_path: Path) -> None:
    lines = [
        ["process", 1.0, 42, "task"],
        ["asked", 1.1, ROLLOUT, 3, "c0", "d0"],
        ["claimed", 1.2, "c0", 3],
        ["closing", 1.3, "c0", "commit"],
        ["told", 1.4, "c0", "durable", 3],
        ["asked", 1.5, ROLLOUT, None, "c1", "d1"],
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "task-42.jsonl").write_text(text + '["told", 1.6, "c1", "dur')
    reader = HistoryReader(tmp_path)
    history = reader.read()
    assert [each.call_id for each in history.acknowledged()] == ["c0"]
    assert (history.calls["c0"].generation, history.calls["c0"].told_at) == (3, 1.4)
    assert history.calls["c1"].outcome is None
    assert history.processes == {"task-42": (42, "task")}
    assert history.pulses["task-42"] == [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    assert history.recovered_after(1.05) == pytest.approx(0.35)
    assert history.recovered_after(1.45) is None
    with (tmp_path / "task-42.jsonl").open("a") as file:
        file.write('able", 3]\n["pulse", 1.7]\n')
    assert reader.read().calls["c1"].outcome == "durable"
    assert history.pulses["task-42"] == [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]
