"""Overviews, figures and health as rich renderables. Pure: structs in, renderables out, captured text made plain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gym_capture.cli.tables import MAX_NAMED, pairs
from gym_capture.model.gaps import Gap
from gym_capture.reading.health import Health
from gym_capture.reading.new_calls import NewCall
from gym_capture.reading.plain_text import plain_line
from gym_capture.reading.rollout_overview import OverviewPage
from gym_capture.reading.rollout_tally import RolloutRow
from gym_capture.reading.run_stats import RunStats

_STYLES = {"observed": "green", "open": "cyan", "incomplete": "yellow", "unobserved": "bold red"}
_NAME_CHARACTERS = 48
_TOLD_SHARES = (0.1, 0.5, 0.9, 0.99, 1.0)


WIDE = 130
"""Columns from which on there is room for everything."""


def page_view(page: OverviewPage, width: int) -> RenderableType:
    """A page of rollouts.

    Args:
        width: columns of the screen; below `WIDE` a rollout's start and models are left out.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("rollout", "status"):
        table.add_column(name, no_wrap=True)
    for name in ("calls", "failed", "in", "out", "median", "longest"):
        table.add_column(name, justify="right", no_wrap=True)
    if width >= WIDE:
        table.add_column("began", no_wrap=True)
        table.add_column("models", overflow="fold")
    if any(row.gaps for row in page.rows):
        table.add_column("gaps", overflow="fold")
    for row in page.rows:
        cells = _cells(row)
        if width >= WIDE:
            cells += [
                Text(moment(row.first_at)),
                Text(", ".join(plain_line(model, _NAME_CHARACTERS) for model in row.models)),
            ]
        table.add_row(*cells, *([Text(gaps_text(row.gaps))] if row.gaps else []))
    last = page.offset + len(page.rows)
    shown = f"{page.offset + 1:,} to {last:,}" if page.rows else "none"
    told = f"{shown} of {page.matching:,} rollouts"
    if page.matching != page.known:
        told += f" that fit, {page.known:,} known"
    if last < page.matching and page.rows:
        told += f"; --offset {last} goes on"
    return Group(table, Text(told, style="dim"))


def _cells(row: RolloutRow) -> list[Text]:
    return [
        Text(plain_line(row.rollout_id)),
        Text(row.status, style=_STYLES[row.status]),
        Text(count(row.calls)),
        Text(count(row.failed), style="red" if row.failed else ""),
        Text(count(row.tokens_in)),
        Text(count(row.tokens_out)),
        Text(span(row.latency_median_ms)),
        Text(span(row.latency_max_ms)),
    ]


def gaps_text(gaps: Sequence[Gap]) -> str:
    """Gaps in a line, without the words that all of their codes begin with."""
    return "; ".join(
        gap["code"].removeprefix("model_call_capture_")
        + (f" ({plain_line(gap['detail'], 200)})" if "detail" in gap else "")
        for gap in gaps
    )


def count(value: int | None) -> str:
    """A count; `-` is unknown."""
    return "-" if value is None else f"{value:,}"


def span(milliseconds: float | None) -> str:
    """A time that passed, in the unit that suits it."""
    if milliseconds is None:
        return "-"
    if abs(milliseconds) < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    return f"{seconds:.1f} s" if abs(seconds) < 600 else f"{seconds / 60:,.0f} min"


def moment(seconds: float | None) -> str:
    """A moment in UTC, `-` where it is unknown or no date."""
    if seconds is None:
        return "-"
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return plain_line(str(seconds), 24)


def call_line(new: NewCall) -> Text:
    """A call in one line."""
    call = new.call
    name = f"{plain_line(new.rollout_id)} #{call.call_index}"
    if call.damaged:
        return Text.assemble(f"{'-':19}  {name:<20}  ", ("damaged", "bold red"))
    first = "" if call.latency_ttft_ms is None else f" (first token {span(call.latency_ttft_ms)})"
    outcome = plain_line(call.error or call.finish_reason or str(call.status_code or "-"), _NAME_CHARACTERS)
    return Text.assemble(
        f"{moment(call.completed_at):19}  {name:<20}  ",
        (f"{outcome:<12}", "red" if call.error else "green"),
        f"  {span(call.duration_ms)}{first}  in {count(call.tokens_in)} out {count(call.tokens_out)}  "
        f"{plain_line(call.model or '-', _NAME_CHARACTERS)}",
    )


def stats_view(stats: RunStats) -> RenderableType:
    """A run's figures."""
    rows = [
        ("rollouts", f"{count(stats.rollouts)}{_parts(stats.statuses)}"),
        (
            "calls",
            f"{count(stats.calls)}{_parts({'failed': stats.failed, 'damaged': stats.damaged, 'late': stats.late})}",
        ),
        ("open claims", count(stats.outstanding)),
        ("from, to", f"{moment(stats.first_at)}, {moment(stats.last_at)}"),
        ("tokens in", f"{count(stats.tokens_in)} ({count(stats.cached_tokens)} cached)"),
        ("tokens out", f"{count(stats.tokens_out)} ({count(stats.tokens_reasoning)} reasoning)"),
        ("bytes in the log", count(stats.stored_bytes)),
    ]
    for title, counts in (("errors", stats.errors), ("rollouts with gaps", stats.gaps), ("missing", stats.reasons)):
        if counts:
            rows.append((title, ", ".join(f"{plain_line(name, 100)} {number:,}" for name, number in counts.items())))
    spread = Table(box=None, pad_edge=False, header_style="bold")
    spread.add_column("")
    for name in ("calls", "mean", *(f"{share:.0%}" for share in _TOLD_SHARES)):
        spread.add_column(name, justify="right", no_wrap=True)
    for name, values in (("latency", stats.latency_ms), ("first token", stats.ttft_ms)):
        if values.count:
            quantiles = [span(value) for share, value in values.quantiles if share in _TOLD_SHARES]
            spread.add_row(name, count(values.count), span(values.mean), *quantiles)
    models = Table(box=None, pad_edge=False, header_style="bold")
    models.add_column("model")
    for name in ("calls", "failed", "in", "cached", "out", "reasoning", "median"):
        models.add_column(name, justify="right")
    for each in stats.models[:MAX_NAMED]:
        medians = [value for share, value in each.latency_ms.quantiles if share == 0.5]
        models.add_row(
            Text(plain_line(each.model or "-", _NAME_CHARACTERS)),
            *map(count, (each.calls, each.failed, each.tokens_in, each.cached_tokens, each.tokens_out)),
            count(each.tokens_reasoning),
            span(medians[0] if medians else None),
        )
    views: list[RenderableType] = [pairs(rows)]
    for table in (spread, models):
        if table.row_count:
            views += ["", table]
    return Group(*views)


def _parts(counts: Mapping[str, int | None]) -> str:
    """What a count consists of; what is none of it is left out, and what is unknown is said."""
    told = ", ".join(f"{count(number)} {name}" for name, number in counts.items() if number != 0)
    return f" ({told})" if told else ""


def health_view(health: Health) -> RenderableType:
    """Whether a capture is whole, and who is not."""
    if health.healthy:
        verdict = Text("healthy: every rollout is observed", style="green")
    elif health.damaged:
        rest = "evidence is missing" if health.unhealthy else "the rollouts that are known are all observed"
        rest = "no rollout is known" if health.empty else rest
        verdict = Text(f"DAMAGED: bytes that had been synced cannot be read; {rest}", style="bold red")
    elif health.empty:
        verdict = Text("EMPTY: no rollout is known here; nothing was captured", style="bold red")
    else:
        verdict = Text("NOT HEALTHY: evidence is missing", style="bold red")
    rows = [
        ("rollouts", f"{count(health.rollouts)}{_parts(health.counts)}"),
        ("calls", f"{count(health.calls)}{_parts({'damaged': sum(each.damaged for each in health.unhealthy)})}"),
    ]
    if health.unexpected:
        shown = ", ".join(health.unexpected[:MAX_NAMED])
        rows.append(
            ("not expected", f"{len(health.unexpected):,} ({shown}{'…' if len(health.unexpected) > MAX_NAMED else ''})")
        )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("rollout", "status"):
        table.add_column(name, no_wrap=True)
    table.add_column("calls", justify="right")
    table.add_column("gaps")
    for each in health.unhealthy[:MAX_NAMED]:
        table.add_row(
            Text(plain_line(each.rollout_id)),
            Text(each.status, style=_STYLES[each.status]),
            count(each.calls),
            Text(gaps_text(each.gaps)),
        )
    views: list[RenderableType] = [verdict, pairs(rows)]
    if health.unhealthy:
        views += ["", table]
    if len(health.unhealthy) > MAX_NAMED:
        views.append(Text(f"and {len(health.unhealthy) - MAX_NAMED} more; --json names them all", style="dim"))
    return Group(*views)
