"""`verify`'s document: everything that reading a capture directory found, as JSON values."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from gym_capture.directory.repairing import repair_at_rest
from gym_capture.model.gaps import incomplete_detail
from gym_capture.model.rows import CutRow
from gym_capture.storage.names import nemo_gym_file
from gym_capture.storage.recovery_report import Place
from gym_capture.storage.store import CaptureStore
from gym_capture.storage.verify import VerifyReport


def verification(store: CaptureStore) -> dict[str, Any]:
    """Read the whole directory, payloads included.

    Returns:
        `sound`; counts of segments, frames, bytes, rollouts, calls and checked parts; the rollouts that are
        incomplete (with reasons), have late rows or open claims; `tears` and `cuts`, which lose nothing that was
        acknowledged; `quarantined`, the places whose bytes a repair put aside; `checkpoints`, those that do not say
        what the log says (which costs time at the next opening, no evidence); and `damage`, each piece of which is
        something that cannot be read. A run that was sealed has `datasets` and no log, whose counts are 0 then. Where
        a damaged file of a sealed run may hide some, `rollouts` and `calls` are null, and `incomplete` has those that
        are known.
    """
    reports = store.verify_shards()
    total = reduce(add, reports.values())
    calls = rollouts = 0
    incomplete: dict[str, str] = {}
    for rollout_id in [standing.rollout_id for standing in store.standings()]:
        evidence = store.evidence(rollout_id)
        rollouts += 1
        calls += len(evidence.records) + evidence.damaged
        if evidence.incomplete is not None:
            incomplete[rollout_id] = incomplete_detail(evidence.incomplete) or "marked"
    counted = not total.log.indexes
    damage = [each for path, report in reports.items() for each in _damage(path, report)]
    log = total.log
    return {
        "directory": store.directory,
        "sound": total.sound,
        "segments": log.segments,
        "frames": log.frames,
        "rows": log.rows,
        "bytes": log.bytes,
        "parts": total.parts,
        "datasets": [
            {"folder": path + each.folder, "files": each.files, "bytes": each.size}
            for path, report in reports.items()
            for each in report.datasets
        ],
        "rollouts": rollouts if counted else None,
        "calls": calls if counted else None,
        "incomplete": incomplete,
        "late": dict(total.late),
        "outstanding": dict(total.outstanding),
        "tears": [_place(path, place) for path, report in reports.items() for place in report.log.tears],
        "cuts": [_cut(path, cut) for path, report in reports.items() for cut in report.log.cuts],
        "quarantined": [_place(path, place) for path, report in reports.items() for place in report.log.fillers],
        "ignored_bytes": log.ignored_bytes,
        "checkpoints": [
            {"file": path + each.file, "offset": each.offset, "why": each.why}
            for path, report in reports.items()
            for each in report.checkpoints
        ],
        "damage": damage,
    }


def _damage(path: str, report: VerifyReport) -> list[dict[str, Any]]:
    """What cannot be read in the shard whose files lie at `path` (it ends with a slash, or is empty)."""
    log = report.log
    damage: list[dict[str, Any]] = [{"what": "bytes", **_place(path, place)} for place in log.damages]
    damage += [{"what": "segment header", "segment": path + segment.file, "offset": 0} for segment in log.headers]
    damage += [
        {"what": "file", "file": path + each.file, "offset": each.offset, "why": each.why} for each in report.files
    ]
    damage += [
        {
            "what": part.kind,
            "rollout_id": part.rollout_id,
            "generation": part.generation,
            "call_index": part.call_index,
            "segment": path + part.segment,
            "offset": part.offset,
        }
        for part in report.broken
    ]
    damage += [{"what": "calls", "rollout_id": name, "count": count} for name, count in report.holes.items()]
    damage += [
        {"what": "lines", "rollout_id": name, "file": nemo_gym_file(name), "count": count}
        for name, count in report.lines.items()
    ]
    return damage + [{"what": "rows that may concern", "rollout_id": name} for name in sorted(log.affected)]


def repaired(directory: Path) -> dict[str, Any]:
    """Mend a directory at rest.

    Returns:
        `epoch` that the repair took (the highest, where a run has several shards; null: there was nothing to mend in a
        log), the `segments` and `files` written anew, and where the originals are (`quarantined`), all relative to the
        directory.
    """
    reports = repair_at_rest(directory)
    return {
        "epoch": max(report.epoch for report in reports.values()) or None,
        "segments": [path + name for path, report in reports.items() for name in report.segments],
        "files": [path + name for path, report in reports.items() for name in report.files],
        "quarantined": [path + name for path, report in reports.items() for name in report.quarantined],
    }


def _place(path: str, place: Place) -> dict[str, Any]:
    return {"segment": path + place.segment.file, "offset": place.offset, "length": place.length}


def _cut(path: str, cut: CutRow) -> dict[str, Any]:
    """Where an epoch was cut; its shard too, where there are several."""
    shard = {"shard": path.rstrip("/")} if path else {}
    return {**shard, "epoch": cut.epoch, "segment": cut.segment, "offset": cut.offset}
