"""From measured costs to needs: the arithmetic, and that the document computes its example so."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from benchmarks.capacity import BUSY, Cost, Linear, Load, Needs, needs, repeated_kb, through
from benchmarks.cost import GROWING, LARGE, SMALL
from benchmarks.targets import number

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "capacity.md"
NOTHING = Linear(0, 0, 0)


def test_a_line_goes_through_the_three_kinds_of_calls() -> None:
    # 1 a call, 0.5 a new kilobyte, 0.25 a repeated one; the third kind repeats 78 kilobytes on average.
    line = through(small=1 + 0.5 * 4, large=1 + 0.5 * 64, growing=1 + 0.5 * 4 + 0.25 * 78)
    assert line == Linear(1.0, 0.5, 0.25)
    assert line.of(new_kb=10, repeated_kb=100) == 1 + 5 + 25


def test_a_cost_that_comes_out_negative_is_none() -> None:
    assert through(small=3, large=2, growing=2) == Linear(3, 0, 0)


def test_a_request_repeats_half_of_its_rollout_on_average() -> None:
    assert repeated_kb(turns=1, kilobytes=4) == 0
    assert repeated_kb(turns=5, kilobytes=4) == (0 + 4 + 8 + 12 + 16) / 5


def test_needs_are_the_rate_times_the_cost_of_a_call() -> None:
    cost = Cost(
        client_cpu_ms=Linear(2, 0, 0),
        owner_cpu_ms=Linear(0.5, 0, 0),
        wire_bytes=Linear(1000, 100, 10),
        disk_bytes=Linear(2000, 0, 0),
    )
    assert needs(cost, Load(rollouts=10_000, turns=11, kilobytes=2, call_s=5)) == Needs(
        calls_per_second=2000,
        shards=2,
        owner_cores=1.0,
        client_cores=4.0,
        network_mb_s=2000 * (1000 + 200 + 100) / 1e6,
        disk_mb_s=4.0,
        syncs_per_second=4000,
        disk_gb=10_000 * 11 * 2000 / 1e9,
    )


@pytest.mark.parametrize(("owner_ms", "shards"), [(0.0, 1), (BUSY * 1e3, 1), (BUSY * 1e3 + 1, 2)])
def test_no_shard_is_planned_to_be_more_than_half_busy(owner_ms: float, shards: int) -> None:
    cost = Cost(NOTHING, Linear(owner_ms, 0, 0), NOTHING, NOTHING)
    assert needs(cost, Load(rollouts=1, turns=1, kilobytes=1, call_s=1)).shards == shards


def cells(section: str) -> dict[str, list[str]]:
    """The rows of the section's table by their first cell."""
    text = DOCUMENT.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip(" `*") for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in rows[2:]}


def test_the_documents_example_is_what_the_function_computes() -> None:
    measured = cells("Measured cost")
    kinds = {
        kind: {name: float(row[column].replace(",", "")) for name, row in measured.items()}
        for column, kind in enumerate((SMALL, LARGE, GROWING))
    }
    text = DOCUMENT.read_text(encoding="utf-8")
    command = re.search(r"--rollouts (\d+) --turns (\d+) --kilobytes (\d+) --call-seconds (\d+)", text)
    assert command is not None
    rollouts, turns, kilobytes, call_s = map(int, command.groups())
    found = needs(Cost.measured(kinds), Load(rollouts, turns, kilobytes, call_s))
    shown = {name: row[0] for name, row in cells("A worked example").items()}
    assert shown == {field.name: number(getattr(found, field.name)) for field in fields(Needs)}
