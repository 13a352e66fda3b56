"""Hands an owner's metrics to `ray.util.metrics`, which gives them to Ray's own agent on the node for Prometheus.

Every value is set, not counted up: Ray's counters cannot begin at 0, so the first lost claim would not be a rise, and
its histograms take one observation at a time. Ray forgets a gauge that is not set again between two of its reports, so
what a process that ended last said goes with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from gym_capture.actor.owner import Owner
from gym_capture.actor.owner_spec import OwnerSpec
from gym_capture.service.executor import Executor, ThreadExecutor
from gym_capture.service.metrics import METRICS, OwnerMetrics, Sample, series_of
from gym_capture.service.segment_sizes import SegmentSizes

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
"""Between two pushes. Ray reports every 10 s unless it is told otherwise, and every second at most."""

LOOK_EVERY = 5
"""Pushes between two looks at the size of the log."""


class Gauge(Protocol):
    """`ray.util.metrics.Gauge`."""

    def set(self, value: float, tags: dict[str, str]) -> None:
        """Note the value of one series."""


MakeGauge = Callable[[str, str, tuple[str, ...]], Gauge]
"""Makes the gauge of a name, a description, and its tags' keys."""


def ray_gauge(name: str, description: str, tag_keys: tuple[str, ...]) -> Gauge:
    """A gauge of Ray's."""
    from ray.util.metrics import Gauge as RayGauge

    made: Any = RayGauge(name, description=description, tag_keys=tag_keys)
    return made  # type: ignore[no-any-return]


class Push:
    """Sets gauges. Whatever goes wrong in there is said once and otherwise dropped: it must not hurt the run.

    Args:
        labels: of every series: the run and the shard.
    """

    def __init__(self, labels: Mapping[str, str], make: MakeGauge = ray_gauge) -> None:
        self._labels = dict(labels)
        self._make = make
        self._gauges: dict[str, Gauge] | None = None
        self._said = False

    def push(self, samples: Iterable[Sample]) -> None:
        """Set every sample's series."""
        try:
            if self._gauges is None:
                self._gauges = self._made()
            for name, labels, value in samples:
                self._gauges[name].set(value, {**self._labels, **labels})
        except Exception as error:  # noqa: BLE001  # a run goes on without its metrics
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Metrics could not be read or handed over."""
        if not self._said:
            self._said = True
            logger.warning("metrics of this owner are not (all) reported: %r; this is said once", error)

    def _made(self) -> dict[str, Gauge]:
        return {
            name: self._make(name, metric.says, (*self._labels, *labels))
            for metric in METRICS
            for name, labels in series_of(metric).items()
        }


class LatestSize:
    """How large the log was when it was looked at last. A disk that hangs holds up the next look, and nothing else.

    Args:
        sizes: looked up in the executor, now and then.
    """

    def __init__(self, sizes: SegmentSizes, executor: Executor) -> None:
        self._sizes = sizes
        self._executor = executor
        self._asked = 0
        self._looking = False
        self._found: int | None = None

    def take(self) -> int | None:
        """The latest bytes known; None before the first look, and where the last one failed."""
        if not self._looking and self._asked % LOOK_EVERY == 0:
            self._looking = True
            self._executor.start(self._sizes.total, self._told)
        self._asked += 1
        return self._found

    def _told(self, found: int | None, _error: BaseException | None) -> None:
        self._looking = False
        self._found = found


async def push_metrics(owner: Owner, spec: OwnerSpec) -> None:
    """Push an owner's metrics until it has ended. Runs in the owner's loop."""
    try:
        await owner.opened()
    except Exception:  # noqa: BLE001  # whoever started it is told
        return
    push = Push({"run": spec.run, "shard": str(spec.shard)})
    metrics = OwnerMetrics(owner.service, spec.directory, spec.name)
    size = LatestSize(SegmentSizes(owner.service.files), ThreadExecutor("capture-sizes"))
    while True:
        try:
            push.push(metrics.samples(size.take()))
        except Exception as error:  # noqa: BLE001  # a run goes on without its metrics
            push.failed(error)
        if owner.ended:
            return
        await asyncio.sleep(INTERVAL_S)
