"""The owner's metrics, read from one whose clock and disk are the test's: without Ray."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from gym_capture.model.gaps import evidence_gaps
from gym_capture.service import metrics
from gym_capture.service.latency import BOUNDS_S, BatchLatency, Latency
from gym_capture.service.metrics import METRICS, OwnerMetrics, Sample, series_of
from gym_capture.service.segment_sizes import SegmentSizes
from gym_capture.service.settings import OwnerSettings
from gym_capture.testing.faulty_files import FaultyDisk
from tests.service.harness import Bench, serving, turns

Value = Callable[..., float]


def reader(bench: Bench) -> Callable[[], Value]:
    """Reads all metrics; what it returns looks one up by name and labels."""
    owned = OwnerMetrics(bench.service, "/captures", "capture-1")
    sizes = SegmentSizes(bench.files)

    def read() -> Value:
        found = {(name, *sorted(labels.items())): value for name, labels, value in owned.samples(sizes.total())}

        def value(name: str, **labels: str) -> float:
            return found[(f"gym_capture_{name}", *sorted(labels.items()))]

        return value

    return read


async def test_a_quiet_owner_has_every_series_and_nothing_in_it() -> None:
    async with serving() as bench:
        owned = OwnerMetrics(bench.service, "/captures", "capture-1")
        samples = owned.samples(0)
        names = {name: labels for metric in METRICS for name, labels in series_of(metric).items()}
        assert {sample.name: tuple(sample.labels) for sample in samples} == names
        assert len({(sample.name, *sample.labels.values()) for sample in samples}) == len(samples)
        assert all(name.startswith("gym_capture_") for name in names)
        told = {(sample.name, *sample.labels.values()): sample.value for sample in samples if sample.value}
        assert told == {
            ("gym_capture_serving",): 1,
            ("gym_capture_epoch",): 1,
            ("gym_capture_owner_info", "/captures", "capture-1"): 1,
        }


async def test_claims_and_commits_are_timed_from_their_arrival_until_they_are_on_disk() -> None:
    async with serving() as bench:
        client = await bench.client()
        read = reader(bench)
        bench.executor.hold()
        claims = client.batch([client.claim_row("r") for _ in range(3)])
        await turns()
        bench.clock.advance(0.2)
        commit = client.commit("r", "c1", claim=1)
        await turns()
        value = read()
        assert (value("outstanding_claims"), value("queued_batches")) == (3, 2)
        assert value("unanswered_bytes") > 0
        assert value("oldest_claim_age_seconds") == pytest.approx(0.2)
        assert (value("claim_seconds_count"), value("commit_seconds_count")) == (0, 0)
        bench.clock.advance(0.02)
        bench.executor.let_go()
        await claims
        await commit
        value = read()
        assert (value("claim_seconds_bucket", le="0.1"), value("claim_seconds_bucket", le="0.25")) == (0, 3)
        assert value("claim_seconds_bucket", le="+Inf") == value("claim_seconds_count") == 3
        assert value("claim_seconds_sum") == pytest.approx(3 * 0.22)
        assert (value("commit_seconds_bucket", le="0.01"), value("commit_seconds_bucket", le="0.025")) == (0, 1)
        assert value("commit_seconds_sum") == pytest.approx(0.02)
        assert value("sync_seconds_count") == 2
        assert value("sync_seconds_sum") == pytest.approx(0.22)
        assert (value("claims_total"), value("exchanges_total")) == (3, 1)
        assert (value("outstanding_claims"), value("queued_batches"), value("unanswered_bytes")) == (2, 0, 0)
        assert value("log_bytes_total") == bench.service.stats()["log"]["bytes"] > 0
        assert value("connected_clients") == 1


async def test_lost_fenced_refused_and_late_calls_and_the_gaps_of_merges_are_counted() -> None:
    async with serving() as bench:
        client = await bench.client()
        read = reader(bench)
        await client.claim("lost")
        await client.claim("pending")
        await client.claim("cleared")
        await bench.service.clear(["cleared"], "k")
        await client.commit("refused", "c1", text="one")
        await client.commit("refused", "c1", text="another")
        await bench.service.merge("refused")
        await client.commit("refused", "c2")
        value = read()
        assert (value("fenced_total"), value("refused_total"), value("late_rows")) == (1, 1, 1)
        await bench.service.merge("pending")
        await bench.service.merge("nobody")
        await client.close()
        bench.tick(int(bench.service.settings.lease_s / bench.service.settings.tick_s) + 2)
        await bench.service.merge("lost")
        value = read()
        assert value("lost_claims_total") == 2
        assert (value("oldest_claim_age_seconds"), value("connected_clients")) == (0, 0)
        codes = {code: value("gaps_total", code=code) for code in metrics.GAP_CODES}
        assert codes == {
            "model_call_capture_incomplete": 2,
            "model_call_capture_pending": 1,
            "model_call_capture_no_records": 2,  # of the one that nobody knows, and of the one that is pending
            "model_call_capture_records_unreadable": 0,
        }


def test_every_gap_that_an_owners_merge_can_name_has_its_series() -> None:
    found = {
        gap["code"]
        for damaged in (0, 1)
        for incomplete in (None, {"lost": 1})
        for outstanding in (0, 1)
        for gap in evidence_gaps(records=False, damaged=damaged, incomplete=incomplete, outstanding=outstanding)
    }
    assert found == set(metrics.GAP_CODES)


async def test_no_total_ever_falls_though_a_failed_write_takes_back_what_was_applied() -> None:
    async with serving() as bench:
        client = await bench.client(steady=False)
        read = reader(bench)
        bench.executor.hold()
        for _ in range(3):  # the first is on its way to the disk, the others are queued behind it
            client.batch([client.claim_row("r")])
            await turns()
        assert read()("claims_total") == 3
        bench.service.tenure.fail(OSError("planted"))
        assert read()("serving") == 0
        bench.executor.let_go()
        await bench.service.tenure.available()
        assert bench.service.ledger.counts["claims"] < 3
        value = read()
        assert (value("claims_total"), value("failed_writes_total"), value("epoch"), value("serving")) == (3, 1, 2, 1)


async def test_totals_of_the_run_go_on_after_a_restart() -> None:
    disk = FaultyDisk()
    for exchanges in (1, 2):
        async with serving(disk) as bench:
            client = await bench.client(f"client-{exchanges}")
            await client.commit("r", f"c{exchanges}")
            value = reader(bench)()
            assert (value("exchanges_total"), value("epoch"), value("commit_seconds_count")) == (
                exchanges,
                exchanges,
                1,
            )


async def test_the_segments_bytes_are_those_on_disk_and_finished_ones_are_looked_up_once() -> None:
    settings = OwnerSettings(segment_bytes=400)
    async with serving(settings=settings) as bench:
        client = await bench.client()
        sizes = SegmentSizes(bench.files)
        looked: Counter[str] = Counter()
        files = bench.files

        class Counting:
            def names(self) -> list[str]:
                return files.names()

            def size(self, name: str) -> int:
                looked[name] += 1
                return files.size(name)

        sizes._files = Counting()  # type: ignore[assignment]
        for number in range(4):
            await client.commit("r", f"c{number}")
            listed = [name for name in files.names() if name.startswith("segment-")]
            assert sizes.total() == sum(map(files.size, listed))
        assert len(listed) > 3
        assert looked[listed[0]] <= 2
        bench.files.remove(listed[0])
        assert sizes.total() == sum(map(files.size, listed[1:]))


def test_a_bound_belongs_to_its_bucket_and_what_is_longer_to_the_last_one() -> None:
    latency = Latency()
    latency.add(BOUNDS_S[0])
    latency.add(BOUNDS_S[0] * 1.01, 2)
    latency.add(1e9)
    assert latency.buckets == [1, 2, *[0] * (len(BOUNDS_S) - 2), 1]


def test_timing_a_batch_takes_less_than_three_microseconds_of_the_loop() -> None:
    latency = BatchLatency()
    spent = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(10_000):
            latency.add(0.004, 3, 4)
        spent.append(time.process_time() - began)
    assert min(spent) / 10_000 < 3e-6
    assert latency.commits.buckets[3] == 200_000


def test_a_sample_carries_no_rollout() -> None:
    labels = {label for metric in METRICS for series in series_of(metric).values() for label in series}
    assert labels == {"directory", "actor", "code", "le"}
    assert Sample._fields == ("name", "labels", "value")
