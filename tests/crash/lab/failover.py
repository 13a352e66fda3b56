"""How long a node's loss keeps writes waiting: `python -m tests.crash.lab.failover [RUNS]`.

The raylet of the owner's node is killed, or all of that node is frozen, with Ray's health checks as they are and with
fast ones. Printed: seconds from the loss to the first acknowledged write that was asked for after it.
"""

from __future__ import annotations

import logging
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.crash.lab.cluster import FAST_HEALTH_CHECKS
from tests.crash.lab.plan import plan_of
from tests.crash.lab.run import Lab

SETTINGS: dict[str, dict[str, Any]] = {"Ray's own": {}, "fast": FAST_HEALTH_CHECKS}
LOSSES = ("kill owner's node", "freeze owner's node")


def main(runs: int) -> int:
    """Measure each, and print a table."""
    logging.getLogger("gym_capture").setLevel(logging.CRITICAL)
    print("| health checks | loss | runs | median s | max s | violations |\n| --- | --- | --- | --- | --- | --- |")
    wrong = 0
    for name, settings in SETTINGS.items():
        with tempfile.TemporaryDirectory(prefix="lab-runs-") as folder:
            lab = Lab(Path(folder), system_config=settings)
            try:
                for loss in LOSSES:
                    results = [lab.run(plan_of(seed, loss)) for seed in range(1, runs + 1)]
                    times = [each.recovered_s for each in results if each.recovered_s is not None]
                    found = sum(len(each.violations) for each in results)
                    wrong += found
                    shown = f"{statistics.median(times):.1f} | {max(times):.1f}" if times else "- | -"
                    print(f"| {name} | {loss} | {len(times)} | {shown} | {found} |", flush=True)
                    for each in results:
                        for violation in each.violations:
                            print(f"  {violation}", file=sys.stderr)
            finally:
                lab.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
