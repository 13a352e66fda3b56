"""`verify`'s document: everything that reading a capture directory found, as JSON values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gym_capture.directory.repairing import repair_at_rest
from gym_capture.model.gaps import incomplete_detail
from gym_capture.storage.names import nemo_gym_file
from gym_capture.storage.recovery_report import Place
from gym_capture.storage.store import CaptureStore


def verification(store: CaptureStore) -> dict[str, Any]:
    """Read the whole directory, payloads included.

    Returns:
        `sound`; counts of segments, frames, bytes, rollouts, calls and checked parts; the rollouts that are
        incomplete (with reasons), have late rows or open claims; `tears` and `cuts`, which lose nothing that was
        acknowledged; `quarantined`, the places whose bytes a repair put aside; `checkpoints`, those that do not say
        what the log says (which costs time at the next opening, no evidence); and `damage`, each piece of which is
        something that cannot be read.
    """
    report = store.verify()
    log = report.log
    calls = 0
    incomplete: dict[str, str] = {}
    rollouts = store.rollout_ids()
    for rollout_id in rollouts:
        evidence = store.evidence(rollout_id)
        calls += len(evidence.records) + evidence.damaged
        if evidence.incomplete is not None:
            incomplete[rollout_id] = incomplete_detail(evidence.incomplete) or "marked"
    damage: list[dict[str, Any]] = [{"what": "bytes", **_place(place)} for place in log.damages]
    damage += [{"what": "segment header", "segment": segment.file, "offset": 0} for segment in log.headers]
    damage += [{"what": "file", "file": each.file, "offset": each.offset, "why": each.why} for each in report.files]
    damage += [
        {
            "what": part.kind,
            "rollout_id": part.rollout_id,
            "generation": part.generation,
            "call_index": part.call_index,
            "segment": part.segment,
            "offset": part.offset,
        }
        for part in report.broken
    ]
    damage += [{"what": "calls", "rollout_id": name, "count": count} for name, count in report.holes.items()]
    damage += [
        {"what": "lines", "rollout_id": name, "file": nemo_gym_file(name), "count": count}
        for name, count in report.lines.items()
    ]
    damage += [{"what": "rows that may concern", "rollout_id": name} for name in sorted(log.affected)]
    return {
        "directory": store.directory,
        "sound": report.sound,
        "segments": log.segments,
        "frames": log.frames,
        "rows": log.rows,
        "bytes": log.bytes,
        "parts": report.parts,
        "rollouts": len(rollouts),
        "calls": calls,
        "incomplete": incomplete,
        "late": dict(report.late),
        "outstanding": dict(report.outstanding),
        "tears": [_place(place) for place in log.tears],
        "cuts": [{"epoch": cut.epoch, "segment": cut.segment, "offset": cut.offset} for cut in log.cuts],
        "quarantined": [_place(place) for place in log.fillers],
        "ignored_bytes": log.ignored_bytes,
        "checkpoints": [{"file": each.file, "offset": each.offset, "why": each.why} for each in report.checkpoints],
        "damage": damage,
    }


def repaired(directory: Path) -> dict[str, Any]:
    """Mend a directory at rest.

    Returns:
        `epoch` that the repair took (null: there was nothing to mend), the `segments` and `files` written anew, and
        where the originals are (`quarantined`, relative to the directory).
    """
    report = repair_at_rest(directory)
    return {
        "epoch": report.epoch or None,
        "segments": report.segments,
        "files": report.files,
        "quarantined": report.quarantined,
    }


def _place(place: Place) -> dict[str, Any]:
    return {"segment": place.segment.file, "offset": place.offset, "length": place.length}
