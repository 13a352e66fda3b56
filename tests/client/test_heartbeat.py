"""How soon a client notices that nothing is heard of its owner any more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from gym_capture.client.heartbeat import Heartbeat
from gym_capture.client.transport import Message
from tests.client.virtual_time import run_virtual

LEASE_S = 6.0
SIXTH_S = LEASE_S / 6


class CountingLink:
    """A link that tells how far it came, and when it was closed."""

    token = run = ""

    def __init__(self) -> None:
        self.progress = 0
        self.closed_at: float | None = None

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        pass

    async def receive(self) -> list[Message]:
        raise AssertionError("nobody reads here")

    def close(self) -> None:
        if self.closed_at is None:
            self.closed_at = asyncio.get_running_loop().time()


def beating() -> SimpleNamespace:
    """A heartbeat that has just begun on a link, and when it beat."""
    loop = asyncio.get_running_loop()
    beats: list[float] = []
    made = SimpleNamespace(link=CountingLink(), beats=beats)
    made.heartbeat = Heartbeat(loop, LEASE_S, lambda: beats.append(loop.time()))
    made.heartbeat.begin(made.link)
    return made


async def hear_until(made: SimpleNamespace, last: float) -> None:
    """Whole messages come every now and then, the last one at `last`."""
    loop = asyncio.get_running_loop()
    while loop.time() < last:
        await asyncio.sleep(min(SIXTH_S / 2, last - loop.time()))
        made.link.progress += 100
        made.heartbeat.heard()


# Moments between two looks, at one, and some whose sums with a lease are not exact.
MOMENTS = [0.0, 0.1, 0.3, 0.999, 1.0, 1.001, 2.5, 3.7, 12.34]


@pytest.mark.parametrize("last", MOMENTS)
def test_after_the_last_message_a_lease_and_a_sixth_end_the_link(last: float) -> None:
    async def scenario() -> None:
        made = beating()
        await hear_until(made, last)
        last_at = asyncio.get_running_loop().time()
        await asyncio.sleep(LEASE_S + SIXTH_S - 0.001)
        assert made.link.closed_at is None
        await asyncio.sleep(LEASE_S)
        assert made.link.closed_at == pytest.approx(last_at + LEASE_S + SIXTH_S, abs=1e-6)

    run_virtual(scenario())


@pytest.mark.parametrize("last", MOMENTS)
def test_a_message_that_stops_half_way_ends_the_link_a_sixth_later_at_most(last: float) -> None:
    async def scenario() -> None:
        made = beating()
        await hear_until(made, last)
        await asyncio.sleep(0.4)
        made.link.progress += 1
        part_at = asyncio.get_running_loop().time()
        await asyncio.sleep(3 * LEASE_S)
        late_s = made.link.closed_at - (part_at + LEASE_S + SIXTH_S)
        assert -1e-6 <= late_s <= SIXTH_S + 1e-6

    run_virtual(scenario())


def test_a_message_that_goes_on_keeps_the_link() -> None:
    async def scenario() -> None:
        made = beating()
        for _ in range(10):
            await asyncio.sleep(LEASE_S - 0.001)
            made.link.progress += 1
        assert made.link.closed_at is None

    run_virtual(scenario())


def test_what_came_while_this_process_slept_is_read_before_the_link_is_ended() -> None:
    async def scenario() -> None:
        made = beating()
        asyncio.get_running_loop()._jumping.now += 10 * LEASE_S  # type: ignore[attr-defined]  # frozen, and thawed
        await asyncio.sleep(SIXTH_S / 2)
        made.heartbeat.heard()
        await asyncio.sleep(LEASE_S)
        assert made.link.closed_at is None

    run_virtual(scenario())


def test_it_beats_every_sixth_of_a_lease_while_nothing_else_is_said() -> None:
    async def scenario() -> None:
        made = beating()
        for _ in range(30):
            await asyncio.sleep(SIXTH_S)
            made.heartbeat.heard()
        assert made.beats == pytest.approx([SIXTH_S * count for count in range(1, 31)], abs=0.001)

    run_virtual(scenario())


def test_a_link_that_is_gone_is_not_looked_at_any_more() -> None:
    async def scenario() -> None:
        made = beating()
        made.heartbeat.end()
        await asyncio.sleep(3 * LEASE_S)
        assert (made.link.closed_at, made.beats) == (None, [])

    run_virtual(scenario())
