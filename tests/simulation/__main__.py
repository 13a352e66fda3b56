"""`python -m tests.simulation`: explore many seeds, or replay one.

A seed that fails is shrunk and printed with the command that replays it. Exit status 1 when any failed.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from tests.simulation.explore import explore, outcome_of, shrink
from tests.simulation.planted import PLANTED, planted
from tests.simulation.schedule import Outcome


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100_000, help="how many schedules")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, help="how many at once; as many as there are cores if not given")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run this one alone, with the log")
    parser.add_argument("--plant", choices=sorted(PLANTED), default="", help="plant this bug first")
    given = parser.parse_args()
    if given.replay is not None:
        return _replay(given.replay, given.plant)
    return _explore(given)


def _explore(given: argparse.Namespace) -> int:
    begun = time.monotonic()
    done = turns = 0
    counts: Counter[str] = Counter()
    failed: list[Outcome] = []
    shown = begun
    for result in explore(given.first, given.first + given.seeds, bug=given.plant, processes=given.processes):
        done, turns, counts = done + result.seeds, turns + result.turns, counts + result.counts
        for outcome in result.failures:
            failed.append(outcome)
            _tell(outcome, given.plant)
        if given.plant and failed:
            break
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            print(f"{done} schedules, {len(failed)} failed, {done / (shown - begun) * 60:.0f} a minute", flush=True)
    spent = time.monotonic() - begun
    print(f"{done} schedules in {spent:.0f} s ({done / spent * 60:.0f} a minute), {turns} turns, {len(failed)} failed")
    for name, count in sorted(counts.items()):
        print(f"  {name:32} {count}")
    return 1 if failed else 0


def _tell(outcome: Outcome, bug: str) -> None:
    print(f"seed {outcome.seed} fails:")
    for violation in outcome.violations[:5]:
        print(f"  {violation}")
    if not bug:
        print("  with no more than:", ", ".join(f"{fault.kind} at {fault.at:.3f}" for fault in shrink(outcome.seed)))
    planted_too = f" --plant '{bug}'" if bug else ""
    print(f"  python -m tests.simulation --replay {outcome.seed}{planted_too}", flush=True)


def _replay(seed: int, bug: str) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s", stream=sys.stdout)
    if bug:
        with planted(bug):
            outcome = outcome_of(seed)
    else:
        outcome = outcome_of(seed)
    print(f"seed {seed}: {outcome.turns} turns, {outcome.seconds:.1f} simulated seconds")
    for fault in outcome.faults:
        print(f"  {fault.at:8.3f} {fault.kind}")
    for violation in outcome.violations:
        print(f"  VIOLATION {violation}")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
