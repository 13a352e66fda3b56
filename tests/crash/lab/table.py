"""What many runs came to, a line a fault."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from tests.crash.lab.checker import DOUBLED, EARLY, LOST
from tests.crash.lab.run import Result

HEAD = ("fault", "runs", "acknowledged", "lost", "doubled", "false quiescence", "other", "recovery s, median", "max")


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """The table's cells, the head left out, the sum last."""
    names = list(dict.fromkeys(result.plan.fault for result in results))
    table = [_row(name, [each for each in results if each.plan.fault == name]) for name in names]
    return [*table, _row("all", results)]


def _row(name: str, results: Sequence[Result]) -> tuple[str, ...]:
    kinds = Counter(violation.kind for result in results for violation in result.violations)
    times = [result.recovered_s for result in results if result.recovered_s is not None]
    other = sum(kinds.values()) - kinds[LOST] - kinds[DOUBLED] - kinds[EARLY]
    return (
        name,
        str(len(results)),
        str(sum(result.acknowledged for result in results)),
        str(kinds[LOST]),
        str(kinds[DOUBLED]),
        str(kinds[EARLY]),
        str(other),
        f"{statistics.median(times):.2f}" if times else "-",
        f"{max(times):.2f}" if times else "-",
    )


def markdown(results: Sequence[Result]) -> str:
    """The table as text."""
    lines = [HEAD, tuple("---" for _ in HEAD), *rows(results)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
