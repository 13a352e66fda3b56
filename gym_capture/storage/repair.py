"""Repair: what is damaged in a directory at rest is put aside, and what remains is whole again.

A repair is an owner that serves nobody: it takes the next epoch, so that nobody else writes, recovers, and then writes
each damaged segment anew beside itself, keeps the original in `quarantine/`, and puts the new one in its place. At
every step either the old or the new segment stands under its name, and a fold of the log says the same of both. So a
repair may be killed anywhere; run again it goes on. `docs/decisions/0010-repair.md` says why it is done so.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import msgspec

from gym_capture.errors import CaptureDirectoryError, DirectoryHeld, FormatError, MissingRunMarker
from gym_capture.model.clock import Clock, SystemClock
from gym_capture.model.codec import FORMAT_VERSION
from gym_capture.model.ledger import Ledger
from gym_capture.storage import fault_points, names
from gym_capture.storage.checkpoint_audit import CheckpointAudit
from gym_capture.storage.file_checks import FileDamage, check_files, check_marker
from gym_capture.storage.files import MendableFiles
from gym_capture.storage.log_plan import plan_log
from gym_capture.storage.log_scan import DamagedHeads, LogScan
from gym_capture.storage.mends import MIN_FILLER_BYTES, Mend, find_mends, mended_bytes
from gym_capture.storage.owner_file import (
    BEAT_S,
    WATCHED_BEATS,
    OwnerIdentity,
    Wait,
    moving_epoch,
    read_owner,
    token_content,
)
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.recovery import recover
from gym_capture.storage.run_check import check_runs_marker
from gym_capture.storage.run_layout import marker_of_shards
from gym_capture.storage.run_marker import (
    RunMarker,
    encode_marker,
    read_run,
    require_capture_directory,
    runs_in_headers,
)
from gym_capture.storage.summed_json import encode_summed

_APPENDED_BYTES = 4 << 20


@dataclass(slots=True)
class RepairReport:
    """What a repair did.

    Args:
        epoch: the epoch that it took; 0 when there was nothing to mend.
        segments: those written anew (or, where the file was gone, made).
        files: the small files written anew, or removed for the next owner to write.
        quarantined: where the originals are now, relative to the directory. Checkpoints that did not say what the log
            says are there only: the next owner writes others.
    """

    epoch: int = 0
    segments: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)


def repair(
    files: MendableFiles,
    identity: OwnerIdentity,
    beating: Callable[[Ownership], AbstractContextManager[object]],
    *,
    clock: Clock | None = None,
    wait: Wait,
    beat_s: float = BEAT_S,
    new_token: Callable[[], str] = lambda: secrets.token_hex(32),
    shard: int | None = None,
    shards: int = 1,
    run: str = "",
) -> RepairReport:
    """Mend a directory at rest. One in which there is nothing to mend is left as it is.

    Args:
        files: the capture directory.
        identity: what this owner calls itself; nobody else's `actor_id`.
        beating: keeps the ownership's beat moving inside its block.
        clock, wait, beat_s, new_token: as for `Ownership.take`.
        shard, shards: which shard of a run the directory is, where the run has several.
        run: that run's uuid, hex, as its own `RUN` says.

    Raises:
        DirectoryHeld: an owner is live; nothing was changed.
        MissingRunMarker, CaptureDirectoryError: `RUN` is lost and the segments (and the run's) do not say what stood in
            it.
        FormatError: something is of another version or another run, or was renamed; nothing was changed.
        Superseded: an owner took the directory meanwhile; what was mended by then stays so.
        OSError: reading or writing failed; what was mended by then stays so, and running again goes on.
    """
    require_capture_directory(files)
    report, marker = RepairReport(), RunMarker(run, FORMAT_VERSION, shards, shard)
    if not names.epochs_in(files.names()):
        # Nobody ever owned it: there is no log.
        if run and check_marker(files, marker.uuid.bytes) is not None:
            _restore_run(files, marker, report)
        return report
    _refuse_if_live(files, wait, beat_s)
    damaged, mendable = _look(files, run)
    if damaged or mendable:
        _mend(files, identity, beating, damaged, marker, report, clock or SystemClock(), wait, beat_s, new_token)
    for bad in _contradicting(files):
        # A cache: who finds it gone reads the log, so this needs no epoch.
        report.quarantined.append(files.set_aside(bad.file, fault_points.REPAIR_ASIDE))
        files.remove(bad.file)
    return report


def _mend(
    files: MendableFiles,
    identity: OwnerIdentity,
    beating: Callable[[Ownership], AbstractContextManager[object]],
    damaged: list[FileDamage],
    marker: RunMarker,
    report: RepairReport,
    clock: Clock,
    wait: Wait,
    beat_s: float,
    new_token: Callable[[], str],
) -> None:
    """Take an epoch, and write anew what is damaged of the log and of the small files."""
    for damage in damaged:
        if damage.file == names.RUN:
            _restore_run(files, marker, report)
        elif damage.file == names.OWNER:
            # Taking an epoch reads it, and writes it anew.
            report.quarantined.append(files.set_aside(names.OWNER, fault_points.REPAIR_ASIDE))
            report.files.append(names.OWNER)
            files.remove(names.OWNER)
    ownership = Ownership.take(files, identity, clock, wait=wait, beat_s=beat_s, new_token=new_token)
    report.epoch = ownership.epoch
    with beating(ownership):
        writer = recover(files, ownership, Ledger(), checkpoints=False).writer
        try:
            for mend in list(find_mends(files, plan_log(files))):
                _mend_segment(files, ownership, mend, report)
            for damage in damaged:
                if damage.file not in (names.RUN, names.OWNER):
                    _replace_small(files, damage.file, _content_for(damage.file, new_token), report)
            writer.close()
        finally:
            writer.abandon()
    ownership.release(writer.segment.number, writer.position)


def _contradicting(files: MendableFiles) -> list[FileDamage]:
    """The checkpoints that do not say what the log, as it is now, says."""
    if not names.checkpoints_in(files.names()):
        return []
    scan, ledger = LogScan(files), Ledger()
    audit = CheckpointAudit(files, scan.plan)
    for item in scan:
        if isinstance(item, DamagedHeads):
            ledger.replay_damage(item.rollouts, others=item.others)
            audit.damaged(item.segment)
        else:
            ledger.replay(item.head, item.rows, item.ref)
            audit.met(item, ledger, scan.run)
    audit.finish()
    return audit.damages


def _refuse_if_live(files: MendableFiles, wait: Wait, beat_s: float) -> None:
    epochs = names.epochs_in(files.names())
    moving = moving_epoch(files, epochs, wait, WATCHED_BEATS * beat_s)
    if moving is not None:
        raise DirectoryHeld(
            f"{files.directory} has a live owner: the beat of epoch {moving} moves. A repair works on a directory at "
            "rest only. Nothing was changed; stop the owner (gym-capture stop) and run it again.",
            epoch=moving,
        )


def _look(files: MendableFiles, run: str) -> tuple[list[FileDamage], bool]:
    """The small files that are damaged, and whether anything of the log can be mended. FormatError: nothing is."""
    scan = LogScan(files)
    for _ in scan:
        pass
    marker = _run_if_readable(files)
    if (
        scan.run is not None
        and marker is not None
        and scan.run.hex() not in (marker.hex, run)
        and not _owner_says(files, scan.run)
    ):
        raise FormatError(
            f"the segments in {files.directory} belong to run {scan.run.hex()}, its {names.RUN} file says "
            f"{marker.hex}, and {names.OWNER} does not tell which is right. Nothing was changed; restore the file "
            "that is wrong from a copy.",
        )
    damaged = check_files(files, scan.run)
    # Of an epoch that is not cut yet, recovery closes the end; a place in the middle can be mended then.
    open_places = any(
        scan.plan.is_open(place.segment) and place.length >= MIN_FILLER_BYTES for place in scan.report.damages
    )
    open_headers = any(scan.plan.is_open(name) for name in scan.report.headers)
    return damaged, open_places or open_headers or next(find_mends(files, scan.plan), None) is not None


def _run_if_readable(files: MendableFiles) -> uuid.UUID | None:
    try:
        return read_run(files)
    except FormatError:
        raise
    except CaptureDirectoryError:
        return None


def _owner_says(files: MendableFiles, run: bytes) -> bool:
    try:
        owner = read_owner(files)
    except CaptureDirectoryError:
        return False
    return owner is not None and owner.run == run.hex()


def repair_marker(files: MendableFiles) -> RepairReport:
    """Restore the `RUN` of a run of several shards, from those of its shards, where it is lost, damaged or another's.

    Raises:
        MissingRunMarker: they do not agree; nothing was changed.
        OSError: reading or writing failed; running again goes on.
    """
    report = RepairReport()
    if check_runs_marker(files) is None:
        return report
    marker = marker_of_shards(files)
    if marker is None:
        raise MissingRunMarker(
            f"{names.RUN} in {files.directory} cannot be read, and those of its shards do not all name one run. "
            f"Nothing was changed; restore {names.RUN} from a copy.",
            directory=files.directory,
            runs=[],
        )
    _replace_small(files, names.RUN, encode_marker(marker), report)
    return report


def _restore_run(files: MendableFiles, marker: RunMarker, report: RepairReport) -> None:
    runs = sorted({*runs_in_headers(files), *filter(None, [marker.run])})
    if len(runs) != 1:
        who = "the segments' headers" + " and the run's own marker" * bool(marker.run)
        found = f"name several runs ({', '.join(runs)})" if runs else "cannot be read either"
        raise MissingRunMarker(
            f"{names.RUN} in {files.directory} cannot be read, and {who} {found}. Nothing was changed; restore "
            f"{names.RUN} from a copy.",
            directory=files.directory,
            runs=runs,
        )
    _replace_small(files, names.RUN, encode_marker(msgspec.structs.replace(marker, run=runs[0])), report)


def _replace_small(files: MendableFiles, name: str, content: bytes, report: RepairReport) -> None:
    if name in files.names():
        report.quarantined.append(files.set_aside(name, fault_points.REPAIR_ASIDE))
    files.replace(name, content, fault_points.REPAIR_FILE)
    report.files.append(name)


def _content_for(name: str, new_token: Callable[[], str]) -> bytes:
    """What stands for a small file of an epoch that is over."""
    if name.startswith(names.epoch_file(0)[:6]):
        return encode_summed(OwnerIdentity(""))
    if name.startswith(names.token_file(0)[:6]):
        return token_content(new_token())
    return b"stopped\n"


def _mend_segment(files: MendableFiles, ownership: Ownership, mend: Mend, report: RepairReport) -> None:
    name = mend.segment.file
    temporary = names.temporary_file(name, "repair")
    files.remove(temporary)
    file = files.create_append(temporary, fault_points.REPAIR_WRITE)
    try:
        pieces: list[bytes | memoryview] = []
        for piece in mended_bytes(files, mend, ownership.run.bytes):
            pieces.append(piece)
            if sum(map(len, pieces)) >= _APPENDED_BYTES:
                file.append(pieces, fault_points.REPAIR_WRITE)
                pieces = []
        file.append(pieces, fault_points.REPAIR_WRITE)
        file.sync(fault_points.REPAIR_WRITE)
    finally:
        file.close()
    if not mend.absent:
        report.quarantined.append(files.set_aside(name, fault_points.REPAIR_ASIDE))
    ownership.check()
    files.rename(temporary, name, fault_points.REPAIR_RENAME)
    report.segments.append(name)
