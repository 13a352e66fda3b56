"""What an owner says of itself in figures that a monitoring system keeps: their names, and how they are read.

No Ray here: `actor.metrics_push` hands the samples to `ray.util.metrics`. Reading them costs the loop the same however
many calls, rollouts and open claims there are; only the number of clients counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from gym_capture.model import gaps
from gym_capture.service.latency import BOUNDS_S, Latency
from gym_capture.service.state import State

if TYPE_CHECKING:
    from gym_capture.service.capture_service import CaptureService

PREFIX = "gym_capture_"

GAP_CODES = (gaps.NO_RECORDS, gaps.RECORDS_UNREADABLE, gaps.INCOMPLETE, gaps.PENDING)
"""The gaps that an owner's merge can name. Each is a series from the start, or its first one would not be a rise."""


class Metric(NamedTuple):
    """A metric of an owner.

    Fields: its `name`; `kind`: a `total` only rises while its process lives, a `gauge` is what is so now, a `histogram`
    is three metrics (`series_of`); what it `says`; and its `labels` besides `run` and `shard`.
    """

    name: str
    kind: str
    says: str
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One value of a metric, or of one of a histogram's three. `labels` are those besides `run` and `shard`."""

    name: str
    labels: Mapping[str, str]
    value: float


SERVING = Metric(f"{PREFIX}serving", "gauge", "1 while the owner serves, 0 while it cannot write or is ending")
EPOCH = Metric(f"{PREFIX}epoch", "gauge", "the owner's epoch; each restart, takeover and failed write takes the next")
OWNER = Metric(
    f"{PREFIX}owner_info", "gauge", "always 1; says which directory and actor a run is", ("directory", "actor")
)
CLIENTS = Metric(f"{PREFIX}connected_clients", "gauge", "client processes that are connected now")
OUTSTANDING = Metric(f"{PREFIX}outstanding_claims", "gauge", "what quiescence of the run would wait for now")
OLDEST = Metric(f"{PREFIX}oldest_claim_age_seconds", "gauge", "age of the oldest open claim, 0 without one")
QUEUED = Metric(f"{PREFIX}queued_batches", "gauge", "batches in the queue to the disk or on their way")
UNANSWERED = Metric(f"{PREFIX}unanswered_bytes", "gauge", "bytes that were received and are not answered yet")
LATE = Metric(f"{PREFIX}late_rows", "gauge", "calls that landed after their rollout was merged and that no merge told")
SEGMENTS = Metric(f"{PREFIX}segment_bytes", "gauge", "bytes of the log's segments on disk")

CLAIMS = Metric(f"{PREFIX}claims_total", "total", "claims since the run began")
EXCHANGES = Metric(f"{PREFIX}exchanges_total", "total", "exchanges committed since the run began")
LOST = Metric(f"{PREFIX}lost_claims_total", "total", "claims lost with their holder since the run began")
FENCED = Metric(
    f"{PREFIX}fenced_total", "total", "claims and writes of cleared generations, refused, since the run began"
)
REFUSED = Metric(
    f"{PREFIX}refused_total", "total", "rows refused (too large, invalid, or in conflict) since the run began"
)
BYTES = Metric(f"{PREFIX}log_bytes_total", "total", "bytes written to the log")
GAPS = Metric(f"{PREFIX}gaps_total", "total", "gaps that merges named, by code", ("code",))
FAILURES = Metric(f"{PREFIX}failed_writes_total", "total", "times that a write failed and the log was taken anew")
FAULTS = Metric(f"{PREFIX}faults_total", "total", "faults of gym_capture itself that the owner caught")

CLAIM = Metric(f"{PREFIX}claim_seconds", "histogram", "from a claim's arrival at the owner until it is on disk")
COMMIT = Metric(f"{PREFIX}commit_seconds", "histogram", "from an exchange's arrival at the owner until it is on disk")
SYNC = Metric(
    f"{PREFIX}sync_seconds", "histogram", "one group's way to the disk: append, sync, a look whether it is still owned"
)

METRICS = (
    *(SERVING, EPOCH, OWNER, CLIENTS, OUTSTANDING, OLDEST, QUEUED, UNANSWERED, LATE, SEGMENTS),
    *(CLAIMS, EXCHANGES, LOST, FENCED, REFUSED, BYTES, GAPS, FAILURES, FAULTS),
    *(CLAIM, COMMIT, SYNC),
)
"""Every metric there is."""


def series_of(metric: Metric) -> dict[str, tuple[str, ...]]:
    """The names under which a metric is seen, each with its labels besides `run` and `shard`."""
    if metric.kind != "histogram":
        return {metric.name: metric.labels}
    return {f"{metric.name}_bucket": ("le", *metric.labels), f"{metric.name}_sum": (), f"{metric.name}_count": ()}


class OwnerMetrics:
    """Reads an owner's metrics. Used in the service's loop.

    Args:
        directory, actor: what the owner is told to be.
    """

    def __init__(self, service: CaptureService, directory: str, actor: str) -> None:
        self._service = service
        self._names = {"directory": directory, "actor": actor}
        self._most: dict[str, float] = {}

    def samples(self, segment_bytes: int | None = None) -> list[Sample]:
        """Every metric as it is now.

        Args:
            segment_bytes: what `SegmentSizes` found; None: it could not look.
        """
        service = self._service
        found = [*self._gauges(), *self._totals()]
        if segment_bytes is not None:
            found.append(Sample(SEGMENTS.name, {}, segment_bytes))
        found += _histogram(CLAIM, service.latency.claims)
        found += _histogram(COMMIT, service.latency.commits)
        found += _histogram(SYNC, service.tenure.counters.latency)
        return found

    def _gauges(self) -> Iterator[Sample]:
        service = self._service
        yield Sample(SERVING.name, {}, int(service.state is State.SERVING))
        yield Sample(EPOCH.name, {}, service.epoch)
        yield Sample(OWNER.name, self._names, 1)
        yield Sample(CLIENTS.name, {}, len(service.connections.sessions))
        yield Sample(OUTSTANDING.name, {}, service.ledger.outstanding)
        yield Sample(OLDEST.name, {}, self._oldest_age())
        yield Sample(QUEUED.name, {}, service.commit.waiting if service.epoch else 0)
        yield Sample(UNANSWERED.name, {}, service.connections.buffered)
        yield Sample(LATE.name, {}, service.ledger.late)

    def _oldest_age(self) -> float:
        # A client's claims lie in the order in which it made them.
        first = [
            next(iter(client.claims.values())).at for client in self._service.ledger.clients.values() if client.claims
        ]
        return max(self._service.clock.time() - min(first), 0.0) if first else 0.0

    def _totals(self) -> Iterator[Sample]:
        service = self._service
        counts = service.ledger.counts
        yield self._total(CLAIMS, counts["claims"])
        yield self._total(EXCHANGES, counts["commits"])
        yield self._total(LOST, counts["losses"])
        yield self._total(FENCED, counts["fenced"])
        yield self._total(REFUSED, counts["refused_rows"] + counts["conflicts"])
        yield Sample(BYTES.name, {}, service.tenure.counters.bytes)
        yield Sample(FAILURES.name, {}, service.tenure.reopened)
        yield Sample(FAULTS.name, {}, service.connections.counts["faults"])
        for code in GAP_CODES:
            yield Sample(GAPS.name, {"code": code}, service.gaps[code])

    def _total(self, metric: Metric, value: int) -> Sample:
        """A failed write takes back what was not durable; what watches totals would take a fall for a new process."""
        most = self._most[metric.name] = max(self._most.get(metric.name, 0), value)
        return Sample(metric.name, {}, most)


def _histogram(metric: Metric, latency: Latency) -> Iterator[Sample]:
    below = list(accumulate(latency.buckets))
    for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], below, strict=True):
        yield Sample(f"{metric.name}_bucket", {"le": bound}, count)
    yield Sample(f"{metric.name}_sum", {}, latency.seconds)
    yield Sample(f"{metric.name}_count", {}, below[-1])
