"""The simulation finds nothing wrong, repeats itself, and finds what is planted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from tests.simulation import schedule
from tests.simulation.explore import outcome_of, shrink
from tests.simulation.planted import PLANTED, planted
from tests.simulation.schedule import FAULTS, Fault, faults_of

SEEDS = 300

PROVOKED_BY = {
    "sync skipped": ["lose owner's host"],
    "claims not journaled": ["kill owner", "kill worker"],
    "clears not journaled": ["kill owner"],
    "owner check before the sync": ["take over at a fault point"],
    "answer before the sync": ["disk error"],
    "no dedupe after a restart": ["disk error", "cut worker's links"],
    "lease clock not restarted": ["freeze owner, replace it", "kill owner"],
    "acknowledgment of an older epoch accepted": ["take over at a fault point", "second owner takes over"],
    "duplicate counted as a second call": [],
    "late answer to a claim believed": [*["freeze worker"] * 3, "slow disk"],
    "messages not journaled": [],
    "messages that are lacking ignored": [],
    "number of a history used again": [],
    "frames known by their form": [*["lose owner's host between append and sync"] * 3],
}
"""The faults that bring each planted bug to light soonest."""
TRIES = 150
BEGIN_AT = {
    "lease clock not restarted": 144,
    "frames known by their form": 20,
    "late answer to a claim believed": 70,
    "messages that are lacking ignored": 37,
}
"""Where the search begins for what is found late from seed 0 on; it goes on from there as from 0."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The owners' log lines about faults that were injected."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_no_schedule_violates_the_contract(first: int) -> None:
    failed = {seed: outcome.violations for seed in range(first, first + 50) if (outcome := outcome_of(seed)).violations}
    assert failed == {}


@pytest.mark.parametrize("ray_calls", [0.0, 1.0])
def test_a_seed_replays_exactly(monkeypatch: pytest.MonkeyPatch, ray_calls: float) -> None:
    monkeypatch.setattr(schedule, "RAY_CALLS", ray_calls)
    once, again = outcome_of(7), outcome_of(7)
    assert (once.turns, once.seconds, once.counts) == (again.turns, again.seconds, again.counts)


def test_nothing_is_violated_where_all_messages_go_by_rays_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "RAY_CALLS", 1.0)
    counts: Counter[str] = Counter()
    for seed in range(40):
        outcome = outcome_of(seed)
        assert outcome.violations == [], seed
        counts += outcome.counts
    assert counts["durable"] > 200
    assert counts["clients by stream"] == 0
    assert counts["Ray's calls made again"] > 50


def test_every_fault_is_among_the_schedules() -> None:
    assert {fault.kind for seed in range(SEEDS) for fault in faults_of(seed)} == set(FAULTS)


def provoked(seed: int, kinds: list[str]) -> list[Fault]:
    """Each of these faults twice, at seeded times."""
    random = Random(seed)
    return sorted(Fault(random.uniform(0.3, 6.0), kind, random.getrandbits(30)) for kind in kinds * 2)


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    kinds, begin = PROVOKED_BY[bug], BEGIN_AT.get(bug, 0)
    with planted(bug):
        found = next(seed for seed in range(begin, begin + TRIES) if outcome_of(seed, provoked(seed, kinds)).violations)
    assert outcome_of(found, provoked(found, kinds)).violations == []


def test_a_failing_schedule_is_shrunk_to_the_faults_that_matter() -> None:
    faults = sorted([*provoked(1, ["clock jump", "kill owner"]), Fault(3.0, "lose owner's host", 5)])
    with planted("sync skipped"):
        seed = next(seed for seed in range(TRIES) if outcome_of(seed, faults).violations)
        fewest = shrink(seed, faults)
        assert "lose owner's host" in [fault.kind for fault in fewest]
        assert len(fewest) < len(faults)
        assert outcome_of(seed, fewest).violations != []
