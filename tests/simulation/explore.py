"""Many seeds, over as many processes as there are cores; and one seed's schedule made as small as it still fails."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from typing import NamedTuple

from tests.simulation.planted import planted
from tests.simulation.schedule import Fault, Outcome, faults_of, run

CHUNK = 50


class Result(NamedTuple):
    """One chunk of seeds."""

    seeds: int
    turns: int
    counts: Counter[str]
    failures: list[Outcome]


def outcome_of(seed: int, faults: list[Fault] | None = None) -> Outcome:
    """Run a seed; an exception of the package or of the simulation is a violation too."""
    try:
        return run(seed, faults)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        return Outcome(seed, faults_of(seed) if faults is None else faults, [f"{type(error).__name__}: {error}"])


def _chunk(job: tuple[int, int, str]) -> Result:
    first, last, bug = job
    logging.disable(logging.CRITICAL)
    # A schedule's tasks live until its end: looking at the young ones again and again finds little, for an eighth more.
    gc.set_threshold(50_000, 20, 50)
    failures: list[Outcome] = []
    counts: Counter[str] = Counter()
    turns = 0
    with planted(bug) if bug else nullcontext():
        for seed in range(first, last):
            outcome = outcome_of(seed)
            counts += outcome.counts
            turns += outcome.turns
            if outcome.violations:
                failures.append(outcome)
                if bug:
                    break
    return Result(last - first, turns, counts, failures)


def explore(first: int, last: int, *, bug: str = "", processes: int | None = None) -> Iterator[Result]:
    """Run the seeds from `first` up to `last`, chunk by chunk.

    Args:
        bug: one of `planted.PLANTED` to plant.
        processes: how many at once; None: one a core.
    """
    jobs = [(start, min(start + CHUNK, last), bug) for start in range(first, last, CHUNK)]
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes or os.cpu_count() or 1, maxtasksperchild=20) as pool:
        yield from pool.imap(_chunk, jobs)


def shrink(seed: int, faults: list[Fault] | None = None) -> list[Fault]:
    """The fewest of a failing schedule's faults with which its load still fails, each removed one after another."""
    faults = faults_of(seed) if faults is None else faults
    smaller = True
    while smaller:
        smaller = False
        for index in range(len(faults)):
            fewer = faults[:index] + faults[index + 1 :]
            if outcome_of(seed, fewer).violations:
                faults, smaller = fewer, True
                break
    return faults
