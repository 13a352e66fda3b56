"""Small versions of the limits; `make limits` measures them at full size."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.limits.hostile import Hostile, cases
from tests.limits.linear_time import is_linear, times
from tests.limits.memory import a_disk_that_stands_still, bytes_per_call, bytes_per_open_claim, bytes_per_waiter

NAMES = [case.name for case in cases(Path("/nowhere"))]


@pytest.mark.parametrize("name", NAMES)
def test_hostile_input_costs_linear_time(name: str, tmp_path: Path) -> None:
    [case] = [each for each in cases(tmp_path) if each.name == name]
    small, large = times(case)
    assert is_linear(small, large), f"{small * 1e3:.2f} ms, and {large * 1e3:.2f} ms for ten times as much"


def test_a_quadratic_parser_would_be_seen() -> None:
    def quadratic(given: object) -> object:
        assert isinstance(given, bytes)
        return [given.count(b"y") for _ in range(len(given) // 8)]

    assert not is_linear(*times(Hostile("quadratic", 8_000, lambda n: b"x" * n, quadratic)))


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
