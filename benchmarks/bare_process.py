"""A bare process that appends to the file store: `python -m benchmarks.bare_process`. No Ray, no threads.

The fastest form of it: one append after the other, to 64 rollouts in turn. Prints `ready`; then, for each JSON line on
standard input (`Appends`' fields), works and prints its sample as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.file_store import FileStore
from benchmarks.measure import Sample
from benchmarks.workload import single_turns


@dataclass(frozen=True)
class Appends:
    """What is asked for.

    Args:
        directory: of the file store.
        prefix, seed: of the rollouts' ids and texts.
        size: bytes of an exchange.
        rollouts: how many; 1: the one that is called `prefix`.
        seconds: how long.
        slower_s: how much longer each sync takes.
    """

    directory: str
    prefix: str
    seed: int
    size: int
    rollouts: int
    seconds: float
    slower_s: float = 0.0


def append(order: Appends) -> Sample:
    """Append for so long."""
    store = FileStore(Path(order.directory), order.slower_s)
    ids = [f"{order.prefix}-{order.seed}-{number}" for number in range(order.rollouts)]
    if order.rollouts == 1:
        ids = [order.prefix]
    exchanges = single_turns(order.seed, order.size)
    sample = Sample()
    start = time.perf_counter()
    while (begin := time.perf_counter()) < start + order.seconds:
        store.append(ids[sample.acknowledged % len(ids)], next(exchanges))
        sample.acknowledged += 1
        sample.claim_ms.append(0.0)
        sample.commit_ms.append((time.perf_counter() - begin) * 1e3)
    sample.seconds = time.perf_counter() - start
    return sample


def main() -> None:
    """Append as the lines say until there are no more."""
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(dataclasses.asdict(append(Appends(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    main()
