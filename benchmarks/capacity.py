"""What a run needs: from the measured cost of calls to shards, processors, network and disk. See docs/capacity.md.

`python -m benchmarks.capacity --rollouts 10000 --turns 20 --kilobytes 4 [--json figures.json]`: the needs of a run.
`python -m benchmarks.capacity --check`: a load that this machine holds, predicted and measured.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from benchmarks.cost import GROWING, LARGE, LARGE_KB, SMALL, SMALL_KB, TURNS
from benchmarks.target_run import COST, measured_cost
from benchmarks.targets import number

BUSY = 0.5
"""How much of its one core an owner is planned to use: what is above that is for bursts."""


@dataclass(frozen=True)
class Linear:
    """What one call takes of something: `call + new_kb × added + repeated_kb × repeated`.

    Args:
        call: of every call.
        added: of each kilobyte of text that the call adds.
        repeated: of each kilobyte of history that its request repeats.
    """

    call: float
    added: float
    repeated: float

    def of(self, new_kb: float, repeated_kb: float) -> float:
        """For such a call."""
        return self.call + self.added * new_kb + self.repeated * repeated_kb


def through(small: float, large: float, growing: float) -> Linear:
    """The line through what the three kinds of calls of `benchmarks.cost` took. What comes out below 0 is noise: 0."""
    added = max(0.0, (large - small) / (LARGE_KB - SMALL_KB))
    call = max(0.0, small - added * SMALL_KB)
    repeated = max(0.0, (growing - call - added * SMALL_KB) / repeated_kb(TURNS, SMALL_KB))
    return Linear(call, added, repeated)


def repeated_kb(turns: int, kilobytes: float) -> float:
    """Kilobytes of history that a request of such a rollout repeats, on average over its turns."""
    return kilobytes * (turns - 1) / 2


@dataclass(frozen=True)
class Cost:
    """What calls take: CPU milliseconds of the process, bytes."""

    client_cpu_ms: Linear
    owner_cpu_ms: Linear
    wire_bytes: Linear
    disk_bytes: Linear

    @classmethod
    def measured(cls, kinds: Mapping[str, Mapping[str, float]]) -> Cost:
        """From the rows of `benchmarks.cost`."""
        lines = {
            field.name: through(*(kinds[kind][field.name] for kind in (SMALL, LARGE, GROWING))) for field in fields(cls)
        }
        return cls(**lines)


@dataclass(frozen=True)
class Load:
    """A run.

    Args:
        rollouts: that are under way at once, each with one call under way.
        turns: calls of each.
        kilobytes: that a turn adds to the conversation, the answer included.
        call_s: from one call of a rollout to its next, on average: the model, the tools, capture.
    """

    rollouts: int
    turns: int
    kilobytes: float
    call_s: float

    @property
    def calls_per_second(self) -> float:
        """Of all rollouts."""
        return self.rollouts / self.call_s


@dataclass(frozen=True)
class Needs:
    """What it takes. Cores are CPU seconds a second; megabytes are 10⁶ bytes.

    Args:
        shards: owners, each at most half busy.
        owner_cores, client_cores: of all owners, and of all clients.
        network_mb_s, disk_mb_s: from clients to owners, and into the log.
        syncs_per_second: at most: two for each call, while groups form no less.
        disk_gb: what these rollouts leave, in 10⁹ bytes.
    """

    calls_per_second: float
    shards: int
    owner_cores: float
    client_cores: float
    network_mb_s: float
    disk_mb_s: float
    syncs_per_second: float
    disk_gb: float


def needs(cost: Cost, load: Load) -> Needs:
    """What the load takes at this cost."""
    rate = load.calls_per_second
    call = (load.kilobytes, repeated_kb(load.turns, load.kilobytes))
    owner_cores = rate * cost.owner_cpu_ms.of(*call) / 1e3
    disk = cost.disk_bytes.of(*call)
    return Needs(
        calls_per_second=rate,
        shards=max(1, math.ceil(owner_cores / BUSY)),
        owner_cores=owner_cores,
        client_cores=rate * cost.client_cpu_ms.of(*call) / 1e3,
        network_mb_s=rate * cost.wire_bytes.of(*call) / 1e6,
        disk_mb_s=rate * disk / 1e6,
        syncs_per_second=2 * rate,
        disk_gb=load.rollouts * load.turns * disk / 1e9,
    )


def main() -> None:
    """Compute, or compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=64, help="under way at once (64)")
    parser.add_argument("--turns", type=int, default=10, help="model calls of each (10)")
    parser.add_argument("--kilobytes", type=float, default=4, help="that a turn adds (4)")
    parser.add_argument(
        "--call-seconds", type=float, help="from one call of a rollout to its next (10; with --check: 0.25)"
    )
    parser.add_argument("--json", type=Path, help="figures of `make bench ARGS='--json ...'`; without: measured now")
    parser.add_argument("--calls", type=int, default=3000, help="how many calls are measured, without --json (3000)")
    parser.add_argument("--check", action="store_true", help="run this load on this machine, and compare")
    options = parser.parse_args()
    call_s = options.call_seconds or (0.25 if options.check else 10.0)
    load = Load(options.rollouts, options.turns, options.kilobytes, call_s)
    with tempfile.TemporaryDirectory(prefix="gym-capture-capacity-") as temporary:
        base = Path(temporary)
        if options.json:
            kinds = json.loads(options.json.read_text(encoding="utf-8"))["figures"][COST]
        else:
            kinds = measured_cost(base / "cost", options.calls)
        predicted = needs(Cost.measured(kinds), load)
        if not options.check:
            print("\n".join(f"{field.name:18} {number(getattr(predicted, field.name))}" for field in fields(Needs)))
            return
        from benchmarks.capacity_check import measured_needs

        measured = measured_needs(base, load)
        print(f"{'':18} {'predicted':>10} {'measured':>10} {'ratio':>6}")
        for name, value in measured.items():
            expected = getattr(predicted, name)
            ratio = value / expected if expected else math.nan
            print(f"{name:18} {number(expected):>10} {number(value):>10} {ratio:>6.2f}")


if __name__ == "__main__":
    main()
