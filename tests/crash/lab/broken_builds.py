"""`python -m tests.crash.lab.broken_builds [SEEDS [BUG…]]`: every bug that an owner can have, under several seeds each.

Each run has the fault that brings its bug to light. Prints a table; exit status 1 when a run did not find its bug.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.crash.lab.in_process import BROKEN
from tests.crash.lab.plan import plan_of
from tests.crash.lab.run import Lab, Result

HEAD = ("bug", "fault", "seeds", "caught", "acknowledged", "what was found")


def row(name: str, results: Sequence[Result]) -> tuple[str, ...]:
    """The table's cells for one bug."""
    kinds = Counter(violation.kind for result in results for violation in result.violations)
    return (
        f"`{name}`",
        ", ".join(dict.fromkeys(result.plan.fault for result in results)),
        ", ".join(str(result.plan.seed) for result in results),
        f"{sum(map(caught, results))} of {len(results)}",
        str(sum(result.acknowledged for result in results)),
        ", ".join(f"{count} × {kind}" for kind, count in kinds.most_common()),
    )


def caught(result: Result) -> bool:
    """Whether a contract is seen to be broken, not only that the run did not come to its end."""
    return any(violation.kind != "run did not end" for violation in result.violations)


def main(seeds: int, names: Sequence[str]) -> int:
    """Run them all."""
    logging.getLogger("gym_capture").setLevel(logging.CRITICAL)
    missed = 0
    with tempfile.TemporaryDirectory(prefix="lab-runs-") as folder:
        lab = Lab(Path(folder))
        try:
            _say(HEAD)
            _say(["---"] * len(HEAD))
            for name in names:
                faults = BROKEN[name]
                plans = [plan_of(seed, faults[seed % len(faults)], name) for seed in range(1, seeds + 1)]
                results = [lab.run(plan) for plan in plans]
                for result in results:
                    if not caught(result):
                        missed += 1
                        sys.stderr.write(f"{name}, seed {result.plan.seed}: {result.violations}, {result.what}\n")
                _say(row(name, results))
        finally:
            lab.close()
    return 1 if missed else 0


def _say(cells: Sequence[str]) -> None:
    sys.stdout.write("| " + " | ".join(cells) + " |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2:] or list(BROKEN)))
