"""Small versions of the limits of memory; `make limits` measures them at full size, and parsers' times."""

from __future__ import annotations

from tests.limits.memory import a_disk_that_stands_still, bytes_per_call, bytes_per_open_claim, bytes_per_waiter


async def test_an_open_claim_costs_an_owner_less_than_2_kb() -> None:
    assert await bytes_per_open_claim(2000) < 2048


async def test_a_waiting_caller_costs_less_than_8_kb_at_both_ends() -> None:
    assert await bytes_per_waiter(500) < 8192


async def test_a_captured_call_costs_an_owner_and_a_reader_less_than_2_kb() -> None:
    owner, reader = await bytes_per_call(1500)
    assert owner < 2048
    assert reader < 2048


async def test_a_disk_that_stands_still_holds_producers_back_and_loses_nothing() -> None:
    capacity = 1 << 18
    pressure = await a_disk_that_stands_still(writers=64, each=4, exchange_bytes=16_384, capacity=capacity)
    assert pressure.in_buffer <= capacity
    # What waits for room is the writers' own, one exchange each; what is under way is there once at each end.
    assert pressure.in_all < 4 * capacity + 64 * 16_384 * 4
    assert pressure.landed == pressure.given
