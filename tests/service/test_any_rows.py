"""Whatever rows a client sends that knows the token: each is answered, nothing breaks, a restart answers the same."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gym_capture.model.ledger import Ledger
from gym_capture.model.messages import Batch, encode_message
from gym_capture.model.rows import ClaimRow, ClearRow, CommitRow, HistoryRow, MarkRow, Part, ReleaseRow
from gym_capture.testing.faulty_files import FaultyDisk
from tests.service.harness import serving
from tests.service.raw_client import RawClient

NUMBERS = st.one_of(st.integers(-3, 4), st.integers(-(2**63), 2**64 - 1))
TEXTS = st.one_of(st.sampled_from(["r", "s", "", "c1", "lost", "a/b", "é"]), st.text(max_size=8))
BYTES = st.one_of(st.just(b"d" * 16), st.binary(max_size=20))
PARTS = st.lists(st.builds(Part, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=3)
RANGES = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=2)
ROWS = st.lists(
    st.one_of(
        st.builds(ClaimRow, TEXTS, NUMBERS, TEXTS, NUMBERS, st.floats(), NUMBERS),
        st.builds(CommitRow, TEXTS, NUMBERS, TEXTS, BYTES, PARTS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
        st.builds(
            HistoryRow, TEXTS, NUMBERS, NUMBERS, BYTES, PARTS, NUMBERS, NUMBERS, st.just("") | TEXTS, BYTES, RANGES
        ),
        st.builds(ReleaseRow, TEXTS, NUMBERS, TEXTS, NUMBERS, NUMBERS),
        st.builds(MarkRow, TEXTS, TEXTS, NUMBERS, NUMBERS, NUMBERS),
        st.builds(ClearRow, TEXTS, TEXTS, NUMBERS, NUMBERS),
    ),
    max_size=6,
)


def sendable(rows: list[Any]) -> bool:
    """Whether msgpack can hold them; what it cannot hold, nobody can send."""
    try:
        encode_message(Batch(1, 0, rows))
    except (UnicodeEncodeError, OverflowError):
        return False
    return True


def states(ledger: Ledger) -> dict[str, tuple[Any, ...]]:
    """What is known of each rollout."""
    views = [rollout.view() for rollout in ledger.rollouts.values()]
    return {view.rollout_id: (view.generation, len(view.entries), view.reasons, view.outstanding) for view in views}


async def run_batches(batches: list[list[Any]]) -> None:
    disk = FaultyDisk()
    async with serving(disk) as bench:
        client = await bench.client()
        answers = await asyncio.gather(*(client.batch(rows, b"body") for rows in batches))
        assert [len(results or []) for results in answers] == [len(rows) for rows in batches]
        assert bench.service.tenure.reopened == 0
        assert bench.service.connections.counts["faults"] == 0
        before = states(bench.service.ledger)
        await client.close()
        await bench.service.stop()
    async with serving(disk) as second:
        assert states(second.service.ledger) == before
        again = RawClient(second.transport, client.id)
        second.clients.append(await again.start())
        repeated = [await again.batch(rows, b"body") for rows in batches]
        assert repeated == list(answers)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.lists(ROWS.filter(sendable), min_size=1, max_size=3))
def test_any_rows_are_answered_and_break_nothing(batches: list[list[Any]]) -> None:
    asyncio.run(run_batches(batches))
