"""What capture is to reach, and the table that says whether a run reached it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Cases = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Case → contestant → figure."""

ELSEWHERE = "python -m benchmarks.bounded"
"""Measures what one run of the targets has no time for."""


@dataclass(frozen=True)
class Value:
    """One figure of one contestant of one case."""

    case: str
    row: str
    figure: str

    def of(self, cases: Cases) -> float | None:
        """It, or None where it was not measured."""
        return cases.get(self.case, {}).get(self.row, {}).get(self.figure)


@dataclass(frozen=True)
class Target:
    """One line of the table.

    Args:
        work: what is done.
        bound: the number to reach (or, with `at_most`, not to pass).
        unit: of it; `×` for a ratio.
        measured: the figure.
        against: what it is a ratio to: `measured / against`.
        at_most: smaller is better.
        command: what measures it, where this run does not.
    """

    work: str
    bound: float
    unit: str
    measured: Value | None = None
    against: Value | None = None
    at_most: bool = False
    command: str = ""

    @property
    def wanted(self) -> str:
        """The target as text."""
        return f"{'≤' if self.at_most else '≥'} {number(self.bound)}{_unit(self.unit)}"

    def value(self, cases: Cases) -> float | None:
        """What was measured; None where it was not."""
        value = self.measured.of(cases) if self.measured else None
        if self.against is None or value is None:
            return value
        against = self.against.of(cases)
        return value / against if against else None

    def line(self, cases: Cases) -> Line:
        """Its line of the table."""
        value = self.value(cases)
        if value is None:
            return Line(self.work, self.wanted, f"`{self.command}`" if self.command else "not measured", "", None)
        met = value <= self.bound if self.at_most else value >= self.bound
        return Line(self.work, self.wanted, f"{number(value)}{_unit(self.unit)}", "yes" if met else "no", value)


@dataclass(frozen=True)
class Line:
    """work | target | measured | met?, and the measured value itself."""

    work: str
    target: str
    measured: str
    met: str
    value: float | None


HEAD = ("work", "target", "measured", "met?")


def lines(cases: Cases, targets: list[Target]) -> list[Line]:
    """The table of a run."""
    return [target.line(cases) for target in targets]


def markdown(table: list[Line], conditions: Mapping[str, str]) -> str:
    """The table and its conditions, ready for docs/performance.md."""
    rows = [HEAD, ("---",) * len(HEAD), *((line.work, line.target, line.measured, line.met) for line in table)]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    told = "\n".join(f"| {name} | {value} |" for name, value in conditions.items())
    return f"{text}\n\n| | |\n|---|---|\n{told}\n"


def number(value: float) -> str:
    """Three figures, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _unit(unit: str) -> str:
    return unit if unit in ("×", "%", "") else f" {unit}"
