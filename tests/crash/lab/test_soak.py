"""What a soak compares and measures: planted leaks and disagreements show, and nothing does where all is well."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from tests.crash.lab.accounts import COUNTED, accounts
from tests.crash.lab.checker import Stored
from tests.crash.lab.faults import FAULTS
from tests.crash.lab.journal import Call, Clear, History, Merge
from tests.crash.lab.process_series import MIB, Sample, by_minute, fit, look_at, trends
from tests.crash.lab.soak import FOLLOWABLE, KEEPS_OWNER, in_turn, plan_of
from tests.crash.lab.soak_report import Soaked, markdown

# -- what processes hold --------------------------------------------------------------------------------------------


def series(
    uss: Callable[[float], float] = lambda at: 80 * MIB,
    descriptors: Callable[[float], float] = lambda at: 40,
    threads: Callable[[float], float] = lambda at: 20,
    role: str = "owner",
    seconds: int = 1800,
) -> list[Sample]:
    """A look at one process every five seconds, 30 calls a second; its first minute is its warm-up."""
    return [
        Sample(at, role, 7, int(uss(at)) + 50 * MIB, int(uss(at)), int(descriptors(at)), int(threads(at)), 30 * at)
        for at in range(0, seconds, 5)
    ]


def warming(at: float) -> float:
    return min(80, 30 + at) * MIB


def breathing(at: float) -> float:
    return (80 + 3 * (at // 5 % 2)) * MIB


@pytest.mark.parametrize("uss", [lambda at: 80 * MIB, warming, breathing], ids=["flat", "warming up", "breathing"])
def test_what_stays_on_its_level_is_flat(uss: Callable[[float], float]) -> None:
    (trend,) = trends(series(uss), least_s=300.0)
    assert not trend.wrong
    assert abs(trend.growth) < MIB


def test_a_call_that_is_kept_shows_as_its_bytes() -> None:
    (trend,) = trends(series(lambda at: 80 * MIB + 30 * at * 500), least_s=300.0)
    assert trend.per_call == pytest.approx(500, rel=0.01)
    assert "memory grew by 12" in trend.wrong


@pytest.mark.parametrize(
    ("leak", "said"),
    [({"descriptors": lambda at: 40 + at / 60}, "descriptors"), ({"threads": lambda at: 20 + at / 120}, "threads")],
)
def test_descriptors_and_threads_that_are_not_given_back_show(leak: dict[str, Any], said: str) -> None:
    (trend,) = trends(series(**leak), least_s=300.0)
    assert said in trend.wrong


def test_a_process_that_was_there_for_a_moment_is_not_judged() -> None:
    assert trends(series(lambda at: at * MIB, seconds=300), least_s=300.0) == []


def test_a_line_through_points_has_their_slope() -> None:
    assert fit([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == (3.0, 2.0)
    assert fit([(1.0, 4.0)]) == (4.0, 0.0)


def test_a_process_is_looked_at_as_the_kernel_has_it_and_one_that_is_gone_is_none() -> None:
    held = look_at(os.getpid(), "tests", 1.0, 2)
    assert held is not None
    assert 0 < held.uss <= held.rss
    extra = os.open(os.devnull, os.O_RDONLY)
    try:
        more = look_at(os.getpid(), "tests", 1.0, 2)
    finally:
        os.close(extra)
    assert more is not None
    assert more.descriptors == held.descriptors + 1
    assert look_at(2**22 + 1, "nobody", 1.0, 2) is None


def test_a_leak_makes_the_soak_wrong_and_stands_in_its_report() -> None:
    well, leaking = (
        Soaked(1, 30.0, faults=[("kill owner", 2.0), ("kill owner", 4.0)], samples=series(uss))
        for uss in (warming, lambda at: (80 + at / 30) * MIB)
    )
    assert not well.wrong()
    assert leaking.wrong()
    assert "| kill owner | 2 | 3.00 | 4.00 |" in markdown(well)
    assert "memory grew by" in markdown(leaking)
    assert by_minute(well.samples, ["owner"])[2] == ("2", "5250", "130 / 80.0 / 40 / 20")


# -- what has to agree ----------------------------------------------------------------------------------------------


def at_rest() -> tuple[History, dict[str, Stored], dict[str, Any], dict[str, int]]:
    """A rollout with two acknowledged calls in its second generation, and one in its first."""
    calls = {
        name: Call("r", name, generation, "worker", 1.0, told_generation=generation, outcome="durable", told_at=2.0)
        for name, generation in (("a", 1), ("b", 2), ("c", 2))
    }
    history = History(calls=calls, clears=[Clear("r", 0.0, 1, 0.1), Clear("r", 1.5, 2, 1.6)])
    history.merges = [
        Merge("r", 1, 1.2, 1.3, [("a", 0)], []),
        Merge("r", 2, 9.0, 9.1, [("b", 0), ("c", 1)], []),
    ]
    counts = {name: number for number, name in enumerate(COUNTED)}
    stored = {"r": Stored(2, [("b", "d"), ("c", "d")])}
    return history, stored, {"outstanding": 0, "late": 0, "counts": counts}, dict(counts)


def disagreeing(*given: Any) -> list[str]:
    return [each.what for each in accounts(*given) if not each.agrees]


def test_where_nothing_is_missing_all_counts_agree() -> None:
    assert disagreeing(*at_rest()) == []


def lose_a_call(history: History, stored: dict[str, Stored], stats: dict[str, Any], replayed: dict[str, int]) -> None:
    stored["r"].calls.pop()
    history.merges[-1].calls.pop()


def leave_out_of_the_merge(
    history: History, stored: dict[str, Stored], stats: dict[str, Any], replayed: dict[str, int]
) -> None:
    history.merges[-1].calls.pop()


def merge_what_is_not_there(
    history: History, stored: dict[str, Stored], stats: dict[str, Any], replayed: dict[str, int]
) -> None:
    history.merges[-1].calls.append(("z", 2))


def go_back(history: History, stored: dict[str, Stored], stats: dict[str, Any], replayed: dict[str, int]) -> None:
    history.clears.append(Clear("r", 20.0, 3, 20.1))


def leave_a_claim_open(
    history: History, stored: dict[str, Stored], stats: dict[str, Any], replayed: dict[str, int]
) -> None:
    stats["outstanding"] = 1


def leave_a_row_late(
    history: History, stored: dict[str, Stored], stats: dict[str, Any], replayed: dict[str, int]
) -> None:
    stats["late"] = 1


def count_otherwise(
    history: History, stored: dict[str, Stored], stats: dict[str, Any], replayed: dict[str, int]
) -> None:
    replayed["commits"] += 1


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lose_a_call, "acknowledged calls"),
        (leave_out_of_the_merge, "exchanges found"),
        (merge_what_is_not_there, "exchanges returned"),
        (go_back, "a generation was handed out"),
        (leave_a_claim_open, "claims outstanding"),
        (leave_a_row_late, "late rows"),
        (count_otherwise, "commits"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_disagreement_is_named(plant: Callable[..., None], said: str) -> None:
    given = at_rest()
    plant(*given)
    (what,) = disagreeing(*given)
    assert said in what


# -- its order ------------------------------------------------------------------------------------------------------


def test_every_fault_comes_once_a_round_in_an_order_of_its_seed() -> None:
    rounds = list(islice(in_turn(FOLLOWABLE, random.Random(4)), 2 * len(FOLLOWABLE)))
    assert rounds == list(islice(in_turn(FOLLOWABLE, random.Random(4)), 2 * len(FOLLOWABLE)))
    first, second = rounds[: len(FOLLOWABLE)], rounds[len(FOLLOWABLE) :]
    assert sorted(first) == sorted(second) == sorted(FOLLOWABLE)
    assert first != second


def test_the_faults_of_a_soak_are_the_labs_and_its_ids_come_again() -> None:
    assert set(KEEPS_OWNER) < set(FOLLOWABLE) < set(FAULTS)
    assert plan_of(1).ids > 0
