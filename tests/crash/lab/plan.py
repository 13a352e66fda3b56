"""What one run will do, drawn from its seed: the same seed and fault, the same plan."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Plan:
    """One run.

    Args:
        fault: its name in `faults.FAULTS`.
        transport: how workers reach the owner.
        collectors: rollouts that are under way at once.
        calls: the most concurrent calls of a rollout.
        lease_s, segment_bytes: the owner's settings.
        warm_s: how long the load runs before the fault.
        broken: the bug that the owner's process is given (`in_process.BROKEN`); empty: none.
        ids: how many rollout ids each lane of a collector takes in turn; 0: always new ones.
        shards: how many owners share the run.
        history: whether clients store messages that a rollout's requests repeat once.
    """

    seed: int
    fault: str
    transport: str
    collectors: int
    calls: int
    lease_s: float
    segment_bytes: int
    warm_s: float
    broken: str = ""
    ids: int = 0
    shards: int = 1
    history: bool = True

    def random(self, purpose: str) -> random.Random:
        """A generator of its own for each purpose, so that one does not shift another."""
        return random.Random(f"{self.seed} {self.fault} {purpose}")

    def shown(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self)


def plan_of(seed: int, fault: str, broken: str = "", *, shards: int = 1, history: bool = True) -> Plan:
    """The plan of a seed. What is drawn does not go by `shards` and `history`."""
    draw = random.Random(f"{seed} {fault}")
    # Where connections are disturbed, where a child goes on without Ray, and where the actor's name is another one
    # afterwards, the stream is all there is.
    only_stream = fault.startswith(("connections", "fork", "second owner"))
    return Plan(
        seed=seed,
        fault=fault,
        transport="stream" if only_stream else draw.choice(["stream", "stream", "auto", "ray"]),
        collectors=draw.randint(6, 12),
        calls=draw.randint(2, 10),
        # A frozen owner's clients are to wait for it until it thaws.
        lease_s=draw.choice([3.0, 4.0]) * (4.0 if fault.startswith("second owner") else 1.0),
        segment_bytes=draw.choice([1 << 16, 1 << 18, 64 << 20]),
        warm_s=draw.uniform(0.5, 1.5),
        broken=broken,
        shards=shards,
        history=history,
    )
