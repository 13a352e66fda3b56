"""What commands show at their end, as rich tables. Pure: values in, renderables out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gym_capture.collect.summary import FailedRollout, FinishedRollout, Summary
from gym_capture.reading.plain_text import plain_block, plain_line

MAX_NAMED = 20
"""Rollouts that a table names before it says how many more there are."""


def pairs(rows: Sequence[tuple[str, str]]) -> Table:
    """Names and values, one below the other."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(plain_line(name)), Text(plain_block(value)))
    return table


def summary_view(summary: Summary) -> RenderableType:
    """The end of a run: what is finished, what failed, and every rollout with a gap (the first of them)."""
    plain = summary.plain()
    finished = f"{plain['finished']} of {summary.total}"
    if summary.earlier:
        finished += f" ({summary.earlier} by earlier runs)"
    rows = [("finished", finished)]
    if summary.remaining:
        rows.append(("still to do", f"{summary.remaining}: run the same command again to go on"))
    if summary.failed:
        rows.append(("failed", f"{len(summary.failed)}: no try left; run again to try them again"))
    if summary.failed_attempts:
        rows.append(("failed attempts", f"{summary.failed_attempts} in this run, kept with their captures"))
    rows += [
        ("model calls", f"{plain['calls']}, {plain['failed_calls']} of them failed"),
        ("tokens", _tokens(plain)),
        ("with gaps", str(len(summary.incomplete))),
        ("took", f"{summary.seconds:.1f} s (the start of Ray not counted)"),
        ("output", str(summary.output)),
        ("failures", str(summary.failures)),
        ("captures", "off (observability_enabled is false)" if not summary.capture_dir else str(summary.capture_dir)),
    ]
    parts: list[RenderableType] = [pairs(rows)]
    if summary.incomplete:
        parts += [Text(), gaps_table(summary.incomplete)]
    if summary.failed:
        parts += [Text(), failed_table(summary.failed)]
    return Group(*parts)


def _tokens(plain: Mapping[str, Any]) -> str:
    """What is known of them, `-` when nothing is."""
    parts = []
    for name, word, part, part_word in (
        ("tokens_in", "in", "cached_tokens", "cached"),
        ("tokens_out", "out", "tokens_reasoning", "reasoning"),
    ):
        total, share = plain[name], plain[part]
        if total is not None or share is not None:
            shown = "- " if total is None else f"{total:,} "
            parts.append(shown + word + ("" if share is None else f" ({share:,} {part_word})"))
    return ", ".join(parts) or "-"


def gaps_table(rollouts: Sequence[FinishedRollout]) -> Table:
    """Rollouts whose evidence is not whole."""
    table = Table(title="rollouts with gaps", title_justify="left", caption_justify="left")
    table.add_column("rollout", no_wrap=True)
    table.add_column("calls", justify="right")
    table.add_column("gaps", overflow="fold")
    for each in rollouts[:MAX_NAMED]:
        gaps = "; ".join(code if detail is None else f"{code} ({detail})" for code, detail in each.gaps)
        table.add_row(Text(plain_line(each.rollout_id)), str(each.calls), Text(plain_line(gaps)))
    table.caption = _more(len(rollouts))
    return table


def failed_table(rollouts: Sequence[FailedRollout]) -> Table:
    """Rollouts without a try left."""
    table = Table(title="failed rollouts", title_justify="left", caption_justify="left")
    table.add_column("last attempt", no_wrap=True)
    table.add_column("input line", justify="right")
    table.add_column("error", overflow="fold")
    for each in rollouts[:MAX_NAMED]:
        # An error often quotes what a model answered.
        error = f"{each.error_type}: {plain_line(each.message, 200)}"
        table.add_row(Text(plain_line(each.rollout_id)), str(each.line), Text(error))
    table.caption = _more(len(rollouts))
    return table


def _more(count: int) -> str | None:
    return f"and {count - MAX_NAMED} more; --json names them all" if count > MAX_NAMED else None


def status_view(status: Mapping[str, Any]) -> RenderableType:
    """What an owner says of itself (`CaptureClient.stats`), or what a directory at rest holds."""
    rows: list[tuple[str, str]] = []
    _flatten(status, "", rows)
    return pairs(rows)


def directory_view(found: Mapping[str, Any]) -> RenderableType:
    """What `status` says of a directory at rest. Of what it has not (a log, say, where the run was sealed) nothing."""
    rows: list[tuple[str, str]] = []
    _flatten({name: item for name, item in found.items() if name not in _IF_THERE}, "", rows)
    rows += [("sealed", _dataset_words(each)) for each in found["sealed"]]
    rows += [(name, str(found[name])) for name in ("nemo_gym_files", "log") if found[name]]
    return pairs(rows)


_IF_THERE = ("sealed", "nemo_gym_files", "log")


def _dataset_words(dataset: Mapping[str, Any]) -> str:
    return f"{dataset['folder']}: {dataset['files']} files, {dataset['bytes']:,} bytes"


def _flatten(value: Mapping[str, Any], prefix: str, rows: list[tuple[str, str]]) -> None:
    for name, item in value.items():
        if isinstance(item, Mapping):
            _flatten(item, f"{prefix}{name}.", rows)
        elif isinstance(item, list) and item and all(isinstance(each, Mapping) for each in item):
            for number, each in enumerate(item):
                _flatten(each, f"{prefix}{name}[{number}].", rows)
        else:
            rows.append((f"{prefix}{name}", "-" if item is None or item == [] else str(item)))


_LISTS = ("tears", "cuts", "quarantined", "checkpoints", "damage")
_OF_A_LOG = frozenset({"segments", "frames", "rows", "bytes", "parts", "outstanding", "ignored_bytes"})
_OF_A_LOG |= {"tears", "cuts", "quarantined", "checkpoints"}


def verify_view(found: Mapping[str, Any]) -> RenderableType:
    """A `verification.verification` document. Of a run that was sealed, what a log has is left out."""
    sound = Text("sound: everything that was synced can be read", style="green")
    damaged = Text("DAMAGED: what is listed below cannot be read; the rest can", style="bold red")
    rows: list[tuple[str, str]] = []
    unsaid = _OF_A_LOG if found["datasets"] and not found["segments"] else frozenset[str]()
    for name, value in found.items():
        if name in ("sound", "repair", *_LISTS) or name in unsaid:
            continue
        if name == "datasets":
            rows += [("dataset", _dataset_words(each)) for each in value]
        elif isinstance(value, Mapping):
            shown = ", ".join(f"{key}: {item}" for key, item in list(value.items())[:MAX_NAMED])
            more = f" … and {len(value) - MAX_NAMED} more" if len(value) > MAX_NAMED else ""
            rows.append((name, f"{len(value)} ({shown}{more})" if value else "0"))
        else:
            rows.append((name, str(value)))
    repair = found.get("repair")
    if repair is not None:
        rows.append(("repaired", _repair_words(repair)))
    for name in _LISTS:
        if name not in unsaid or found[name]:
            rows.append((name, _listed(found[name])))
    return Group(sound if found["sound"] else damaged, pairs(rows))


def _listed(items: Sequence[Mapping[str, Any]]) -> str:
    """How many there are, and each of the first ones: several on a line of their own."""
    shown = [" ".join(f"{key}={item}" for key, item in each.items()) for each in items[:MAX_NAMED]]
    if len(items) <= 1:
        return f"1 ({shown[0]})" if items else "0"
    more = [f"and {len(items) - MAX_NAMED} more; --json names them all"] if len(items) > MAX_NAMED else []
    return "\n".join([str(len(items)), *shown, *more])


def _repair_words(repair: Mapping[str, Any]) -> str:
    if repair["epoch"] is None and not repair["files"] and repair["quarantined"]:
        return f"checkpoints put aside: {', '.join(repair['quarantined'])}"
    if repair["epoch"] is None and not repair["files"]:
        return "nothing: nothing there can be mended"
    epoch = f"in epoch {repair['epoch']}: " if repair["epoch"] is not None else ""
    words = f"{epoch}{', '.join([*repair['segments'], *repair['files']]) or 'no file'}"
    kept = ", ".join(repair["quarantined"])
    return f"{words}; originals: {kept}" if kept else words
