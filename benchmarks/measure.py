"""Latencies and rates: what a worker measures, and how several workers' figures become one."""

from __future__ import annotations

from dataclasses import dataclass, field


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie; 0.0 when there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass
class Sample:
    """What one worker saw.

    Args:
        acknowledged: exchanges that were acknowledged as durable.
        seconds: how long the worker worked.
        claim_ms, commit_ms: latencies in milliseconds, of the same calls in the same order.
        cpu_s: CPU of the worker's process, where it was taken.
        sent_bytes: what went to the owner, where it was counted.
    """

    acknowledged: int = 0
    seconds: float = 0.0
    claim_ms: list[float] = field(default_factory=list)
    commit_ms: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    sent_bytes: int = 0


@dataclass
class Figures:
    """The figures of one run over all its workers; `added` is claim and commit of one call together."""

    per_second: float
    acknowledged: int
    claim_p50: float
    claim_p99: float
    commit_p50: float
    commit_p99: float
    added_p50: float


def combine(samples: list[Sample]) -> Figures:
    """All workers' samples as one run: rates add up, latencies are pooled."""
    claims = [value for sample in samples for value in sample.claim_ms]
    commits = [value for sample in samples for value in sample.commit_ms]
    return Figures(
        per_second=sum(sample.acknowledged / sample.seconds for sample in samples if sample.seconds),
        acknowledged=sum(sample.acknowledged for sample in samples),
        claim_p50=percentile(claims, 0.5),
        claim_p99=percentile(claims, 0.99),
        commit_p50=percentile(commits, 0.5),
        commit_p99=percentile(commits, 0.99),
        added_p50=percentile([claim + commit for claim, commit in zip(claims, commits, strict=True)], 0.5),
    )
