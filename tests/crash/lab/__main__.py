"""`python -m tests.crash.lab`: many seeded runs on a real Ray cluster of several raylets, one fault each.

Prints each run's seed and what came of it, the command that makes a failed one again, and a table in the end. Exit
status 1 when anything was violated.
"""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.lab.faults import FAULTS
from tests.crash.lab.in_process import BROKEN
from tests.crash.lab.plan import Plan, plan_of
from tests.crash.lab.run import Lab, Result
from tests.crash.lab.table import markdown


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.lab", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="the first one's; each further run has the next")
    parser.add_argument("--faults", default="", help="names, separated by commas, in turn; all if not given")
    parser.add_argument("--shards", type=int, default=1, help="how many owners share each run")
    parser.add_argument("--history", choices=("on", "off"), default="on", help="whether what repeats is stored once")
    parser.add_argument("--broken", choices=BROKEN, default="", help="give the owner this bug, until it is found")
    parser.add_argument("--json", type=Path, help="write all results there")
    parser.add_argument("--keep", type=Path, help="keep the folders of failed runs in there")
    parser.add_argument("--list", action="store_true", help="name the faults, and run nothing")
    given = parser.parse_args()
    if given.list:
        print("\n".join(FAULTS))
        return 0
    faults = [name.strip() for name in given.faults.split(",") if name.strip()]
    faults = faults or list(BROKEN.get(given.broken, FAULTS))
    unknown = [name for name in faults if name not in FAULTS]
    if unknown:
        parser.error(f"no fault {unknown[0]!r}; --list names them")
    logging.getLogger("gym_capture").setLevel(logging.CRITICAL)
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lab-runs-") as folder:
        results = _run(given, faults, Path(given.keep or folder))
    if given.json:
        given.json.write_text(json.dumps([result.shown() for result in results], indent=1))
    print(markdown(results))
    return 1 if any(result.violations for result in results) else 0


def _run(given: argparse.Namespace, faults: list[str], folder: Path) -> list[Result]:
    results: list[Result] = []
    lab = Lab(folder)
    for ending in (signal.SIGINT, signal.SIGTERM):  # after Ray has set its own
        signal.signal(ending, signal.default_int_handler)
    try:
        for number in range(given.runs):
            fault, history = faults[number % len(faults)], given.history == "on"
            plan = plan_of(given.seed + number, fault, given.broken, shards=given.shards, history=history)
            result = lab.run(plan, keep=given.keep is not None)
            results.append(result)
            _tell(result)
            if given.broken and result.violations:
                break
    except KeyboardInterrupt:
        print("stopped", flush=True)
    finally:
        lab.close()
    return results


def _tell(result: Result) -> None:
    plan = result.plan
    recovered = "no write since" if result.recovered_s is None else f"recovered in {result.recovered_s:.2f} s"
    print(
        f"{time.strftime('%H:%M:%S')} seed {plan.seed} {plan.fault}: {result.acknowledged} acknowledged, {recovered}, "
        f"{len(result.violations)} violations, {result.seconds:.1f} s",
        flush=True,
    )
    if result.violations:
        for violation in result.violations[:6]:
            print(f"  {violation.kind}: {violation.what}")
        print(f"  happened: {'; '.join(result.what)}")
        print(f"  {again(plan)}", flush=True)


def again(plan: Plan) -> str:
    """The command that makes a run of the same plan."""
    parts = ["python", "-m", "tests.crash.lab", "--runs", "1", "--seed", str(plan.seed), "--faults", plan.fault]
    if plan.shards > 1:
        parts += ["--shards", str(plan.shards)]
    if not plan.history:
        parts += ["--history", "off"]
    if plan.broken:
        parts += ["--broken", plan.broken]
    return shlex.join(parts)


if __name__ == "__main__":
    sys.exit(main())
