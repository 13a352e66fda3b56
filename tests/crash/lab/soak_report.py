"""A soak as text and as data."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.crash.lab.accounts import Account
from tests.crash.lab.checker import Violation
from tests.crash.lab.process_series import MIB, Sample, Trend, by_minute, made_of, trends

ROLES = ("owner", "lasting driver", "second driver")
TELLING = ("owner", "bystander", "lasting driver")


@dataclass
class Soaked:
    """What came of a soak.

    Attributes:
        minutes: how long faults went on; `seconds`: all in all.
        faults: (name, seconds to recover), in order.
        samples: what processes held.
        sizes: (seconds since the beginning, bytes of the directory, acknowledged calls).
        owner: what the owner said of itself at the end.
    """

    seed: int
    minutes: float
    seconds: float = 0.0
    acknowledged: int = 0
    merges: int = 0
    quiets: int = 0
    generations: int = 0
    faults: list[tuple[str, float]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    sizes: list[tuple[float, int, int]] = field(default_factory=list)
    accounts: list[Account] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    owner: dict[str, Any] = field(default_factory=dict)

    def trends(self) -> list[Trend]:
        """Processes that lived for a seventh of the time or more, in the second half of theirs."""
        return trends(self.samples, self.minutes * 60.0 / 14)

    def wrong(self) -> bool:
        """Whether anything is violated, disagrees or grows."""
        return bool(self.violations) or any(trend.wrong for trend in self.trends())

    def shown(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "trends": [trend._asdict() for trend in self.trends()]}


def markdown(soaked: Soaked) -> str:
    """What happened, what is equal, and what processes held."""
    parts = [
        f"{soaked.seconds:.0f} s, {len(soaked.faults)} faults, {soaked.acknowledged} acknowledged, {soaked.merges} "
        f"merges, {soaked.quiets} times quiescent, {soaked.generations} generations, "
        f"{len(soaked.violations)} violations",
        _table(("fault", "times", "recovery s, median", "max"), _faults(soaked.faults)),
        _table(
            ("at the end", "one", "other"), [(each.what, str(each.one), str(each.other)) for each in soaked.accounts]
        ),
        _table(
            ("minute", "acknowledged", *(f"{role}: RSS / USS MiB / descriptors / threads" for role in ROLES)),
            by_minute(soaked.samples, ROLES),
        ),
        _table(
            ("minute", *(f"{role}: USS MiB / 1,000 Python blocks / MiB malloc gave / spare MiB" for role in TELLING)),
            made_of(soaked.samples, TELLING),
        ),
        _table(
            ("process", "s", "calls", "own MiB", "growth MiB", "bytes a call", "descriptors", "threads", "wrong"),
            [_trend(trend) for trend in soaked.trends()],
        ),
        _owners(soaked.samples),
        *(f"{violation.kind}: {violation.what}" for violation in soaked.violations[:20]),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _faults(faults: Sequence[tuple[str, float]]) -> list[tuple[str, ...]]:
    times: defaultdict[str, list[float]] = defaultdict(list)
    for name, seconds in faults:
        times[name].append(seconds)
    return [
        (name, str(len(seen)), f"{statistics.median(seen):.2f}", f"{max(seen):.2f}") for name, seen in times.items()
    ]


def _trend(trend: Trend) -> tuple[str, ...]:
    return (
        f"{trend.role} ({trend.pid})",
        f"{trend.span_s:.0f}",
        str(trend.calls),
        f"{trend.level / MIB:.1f}",
        f"{trend.growth / MIB:+.1f}",
        f"{trend.per_call:+.0f}",
        f"{trend.descriptors:+.1f}",
        f"{trend.threads:+.1f}",
        trend.wrong or "-",
    )


def _owners(samples: Sequence[Sample]) -> str:
    """How much each owner's process held, one after the other: a longer log is no more to know."""
    held: dict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.role == "owner":
            held[sample.pid].append(sample)
    if not held:
        return ""
    levels = [f"{seen[0].at:.0f} s: {statistics.median(each.uss for each in seen) / MIB:.1f}" for seen in held.values()]
    return f"owners, each from when it was first seen, own MiB, median: {', '.join(levels)}"
