"""Sealing a run's log: what it holds becomes a dataset, the log is closed for good, and its segments go.

Sealing is an owner that serves nobody: it takes the next epoch, so that nobody else writes, and writes a dataset into a
folder that is that epoch's alone. Once all of it is on disk, its manifest last, the log is closed (`closing`): either
that comes to pass or an owner takes the directory, never both. Then readers are shown the dataset, and then the
segments are removed. It may be killed anywhere; until the log is closed it is whole and counts, and run again sealing
begins anew; after that, run again it goes on. What was sealed while the run went on (`sealing_ahead`) is taken over
where it still says what the log says. `docs/decisions/0014-sealed-dataset.md` says why it is done so.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from gym_capture.errors import CaptureDirectoryError, DamagedLog, GymCaptureError, Superseded, UnsettledRun
from gym_capture.model.captured import CapturedRollout, CountedCalls
from gym_capture.model.clock import Clock, SystemClock
from gym_capture.model.rollout_state import DAMAGED, LOST
from gym_capture.storage import fault_points, names
from gym_capture.storage.closing import ClosingNote, close_log, closed_in, dataset_of, switch_readers
from gym_capture.storage.fault_points import after, before
from gym_capture.storage.held_files import HeldFiles
from gym_capture.storage.nemo_gym_files import NemoGymFiles
from gym_capture.storage.owner_file import BEAT_S, OwnerIdentity, Wait
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.sealed.agreement import SealedSoFar, agreed, has_all
from gym_capture.storage.sealed.manifest import MANIFEST, Manifest, replace_manifest
from gym_capture.storage.sealed.reader import SealedReader
from gym_capture.storage.sealed.rollout_index import RolloutIndex
from gym_capture.storage.sealed.writer import SealedWriter
from gym_capture.storage.shard_store import ShardStore

logger = logging.getLogger("gym_capture.storage")


@dataclass(slots=True)
class SealReport:
    """What sealing did.

    Args:
        folder: the dataset, relative to the directory.
        rollouts, calls: what is in it.
        raw_bytes: bytes of its exchanges before compression.
        dataset_bytes: bytes of its files.
        segments, log_bytes: the segments that were removed now, and their bytes.
        files_read_back: the dataset's files, each found to be what its manifest says.
        lost, damaged: claims that were open, and exchanges that could not be read; what was sealed says so.
        calls_ahead: those of the calls that had been sealed while the run went on.
    """

    folder: str = ""
    rollouts: int = 0
    calls: int = 0
    raw_bytes: int = 0
    dataset_bytes: int = 0
    segments: int = 0
    log_bytes: int = 0
    files_read_back: int = 0
    lost: int = 0
    damaged: int = 0
    calls_ahead: int = 0


def seal_log(
    files: PosixFiles,
    identity: OwnerIdentity,
    beating: Callable[[Ownership], AbstractContextManager[object]],
    *,
    as_it_is: bool = False,
    clock: Clock | None = None,
    wait: Wait = time.sleep,
    beat_s: float = BEAT_S,
    new_token: Callable[[], str] = lambda: secrets.token_hex(32),
) -> SealReport:
    """Seal the log of a directory at rest, of one shard.

    Sealed already: its dataset is read again, readers are led to it, and what is left of its segments goes.

    Args:
        files: the directory.
        identity: what this owner calls itself; nobody else's `actor_id`.
        beating: keeps the ownership's beat moving inside its block.
        as_it_is: seal, too, what has open claims (they are lost then) or damage (the log's bytes are gone then).
        clock, wait, beat_s, new_token: as for `Ownership.take`.

    Raises:
        DirectoryHeld: an owner is live; nothing was changed.
        UnsettledRun: claims are open, or something is damaged; nothing was changed.
        Superseded: an owner took the directory meanwhile; its log is as it was, and counts.
        DamagedLog: the dataset is not what was written; no segment was removed now.
        MissingRunMarker, CaptureDirectoryError, FormatError: the directory cannot be used; nothing was changed. Or what
            lies where this attempt's dataset would: that stays, and another attempt takes another folder.
        OSError: reading or writing failed; run it again.
    """
    report = SealReport()
    broken: list[str] = []
    if (folder := dataset_of(files)) is None:
        ownership = Ownership.take(
            files, identity, clock or SystemClock(), wait=wait, beat_s=beat_s, new_token=new_token
        )
        note = ClosingNote(identity.actor_id, names.sealed_folder(ownership.epoch))
        dataset: PosixFiles | None = None
        try:
            with beating(ownership):
                dataset = _begun(files, note.sealed)
                _write(files, dataset, note.sealed, report, as_it_is)
                ownership.check()
                try:
                    close_log(files, ownership.epoch + 1, note)
                except FileExistsError:
                    raise Superseded(
                        f"an owner took {files.directory} while it was being sealed. Its log is as it was, and counts; "
                        "stop that owner and seal it again.",
                        epoch=ownership.epoch,
                        by_epoch=ownership.epoch + 1,
                    ) from None
        except Superseded:
            raise
        except BaseException:
            _leave(files, ownership, None if dataset is None else note.sealed)
            raise
        ownership.release(0, 0)
    else:
        note = ClosingNote(identity.actor_id, folder)
        broken = _read_again(files, folder)
    switch_readers(files, note)
    if broken:
        raise DamagedLog(
            f"{', '.join(broken)} in {files.directory}/{note.sealed} is not what was written, and the log is gone. "
            "Readers show the rest; `gym-capture verify` names the rollouts. Restore the folder from a copy."
        )
    _remove_segments(files, report)
    index = _measure(files, note.sealed, report)
    if _has_all(files, index):
        with suppress(OSError):  # somebody still seals ahead: what is left there concerns nobody
            files.remove_folder(names.SEALED_AHEAD)
    return report


def _begun(files: PosixFiles, folder: str) -> PosixFiles:
    """This attempt's folder. It is this epoch's alone, so what lies there already came from elsewhere."""
    dataset = files.folder(folder, make=True)
    if dataset.names():
        raise CaptureDirectoryError(
            f"{dataset.directory} has something in it that this sealing did not write. The log is as it was, and "
            "counts; seal it again, and another folder is taken.",
            directory=files.directory,
        )
    return dataset


def _write(files: PosixFiles, dataset: PosixFiles, folder: str, report: SealReport, as_it_is: bool) -> None:
    """Write what the log holds, and read it back before anybody goes by it."""
    # The dataset's folder has nothing of NeMo Gym's: what lies beside the log stays there.
    with HeldFiles(files.directory) as held:
        # All of the log is read: nobody looks at damage that lies behind a checkpoint, and the log is about to go.
        log = ShardStore(held, NemoGymFiles(dataset), checkpoints=False)
        manifest = _write_dataset(files, dataset, log, folder, report, as_it_is)
    broken = SealedReader(dataset).verify()
    sealed = sum(part.call_count for part in manifest.parts)
    if broken or sealed != report.calls:
        raise DamagedLog(
            f"what was written into {dataset.directory} does not read back ({', '.join(broken) or 'calls are missing'})"
            ". The log is as it was, and counts; check the disk, and seal it again."
        )


def _write_dataset(
    files: PosixFiles, dataset: PosixFiles, log: ShardStore, folder: str, report: SealReport, as_it_is: bool
) -> Manifest:
    report.lost = log.outstanding()
    if not as_it_is and (report.lost or log.report.damaged):
        raise _unsettled(files, report.lost, log.report.damaged)
    if not log.report.damaged:
        # Where the log is not whole, a dataset may be all that is left of it.
        _remove_unfinished(files, folder, log)
    writer = SealedWriter(dataset)
    sealed = _adopt_ahead(files, writer, log)
    report.calls = report.calls_ahead = sum(each.calls for each in sealed.values())
    for standing in log.standings():
        ahead = sealed.get(standing.rollout_id)
        first = 0 if ahead is None else ahead.calls
        found = log.captured(standing.rollout_id, first=first)
        counted = CountedCalls(found.calls)
        closed = _closed(found, counted, standing.late)
        if ahead is None or not ahead.says_all(closed):
            writer.add(closed)
            report.damaged += found.indexes - first - counted.calls
            report.calls += counted.calls
    if report.damaged and not as_it_is:
        raise _unsettled(files, 0, True)
    manifest = writer.commit()
    if not manifest.parts:
        replace_manifest(dataset, manifest)
    return manifest


def _adopt_ahead(files: PosixFiles, writer: SealedWriter, log: ShardStore) -> dict[str, SealedSoFar]:
    """Take over what was sealed while the run went on, part by part, as far as it still says what the log says."""
    sealed: dict[str, SealedSoFar] = {}
    if names.SEALED_AHEAD not in files.names():
        return sealed
    try:
        ahead = files.folder(names.SEALED_AHEAD)
        reader = SealedReader(ahead)
    except (GymCaptureError, OSError):
        return sealed  # all of it is in the log
    for part in reader.manifest.parts:
        found = agreed(reader, part, sealed, log.view)
        if found is not None:
            try:
                writer.adopt(ahead, part)
            except DamagedLog as error:
                logger.warning("part %s of %s is not taken over: %s", part.number, ahead.directory, error)
            else:
                sealed |= found
    return sealed


def require_settled(files: PosixFiles) -> None:
    """Raise UnsettledRun where claims are open or the log is damaged, as far as its heads say. Only reads."""
    if dataset_of(files) is None:
        log = ShardStore(files, NemoGymFiles(files), checkpoints=False)
        if (claims := log.outstanding()) or log.report.damaged:
            raise _unsettled(files, claims, log.report.damaged)


def _read_again(files: PosixFiles, folder: str) -> list[str]:
    """See that the dataset of a log that was closed before is there, and whole while there are segments yet.

    Returns:
        Its damaged files, where no segment is left that could go.
    """
    broken: list[str] = []
    try:
        dataset = files.folder(folder)
        dataset.size(MANIFEST)
        broken = SealedReader(dataset).verify()
        why = ", ".join(broken)
    except (OSError, GymCaptureError) as error:
        why = str(error)
    segments = names.segments_in(files.names())
    if why and not (broken and not segments):
        by_the_log = (
            f" While there is no {names.SEALED}, readers go by the log; `gym-capture import` makes a run of it."
        )
        raise DamagedLog(
            f"{folder} in {files.directory}, which was sealed, is damaged or gone ({why}). Nothing was changed, and no "
            f"segment was removed; restore the folder from a copy.{by_the_log if segments else ''}"
        )
    return broken


def _closed(found: CapturedRollout, calls: CountedCalls, late: int) -> CapturedRollout:
    """A rollout whose claims nobody can hold any more."""
    reasons = found.reasons
    if found.outstanding:
        reasons = {**(reasons or {}), LOST: (reasons or {}).get(LOST, 0) + found.outstanding}
    return found._replace(calls=calls, reasons=reasons, outstanding=0, late=late)


def _unsettled(files: PosixFiles, claims: int, damaged: bool) -> UnsettledRun:
    why = [f"{claims} claims are open"] * bool(claims) + ["something in the log is damaged"] * damaged
    return UnsettledRun(
        f"{files.directory} was not sealed: {', and '.join(why)}. Its log is as it was; `gym-capture verify` says "
        "more, and --as-it-is seals it all the same (open claims count as lost, what is damaged goes with the log).",
        directory=files.directory,
        claims=claims,
        damaged=damaged,
    )


def _remove_unfinished(files: PosixFiles, ours: str, log: ShardStore) -> None:
    """Remove the datasets that were begun and never counted: the log is not closed, and has all that they have."""
    listed = files.names()
    wrote = {segment.epoch for segment in names.segments_in(listed)}
    attempts = set(names.epochs_in(listed)) - wrote
    for folder in names.sealed_folders_in(listed):
        if folder == ours:
            continue
        if names.epoch_of_sealed(folder) in attempts and _is_in(log, files, folder):
            files.remove_folder(folder)
        else:
            logger.warning(
                "%s in %s stays: the log has not all that is in it, or it was not begun there", folder, files.directory
            )


def _is_in(log: ShardStore, files: PosixFiles, folder: str) -> bool:
    """Whether the log has all that a dataset has."""
    try:
        return has_all(SealedReader(files.folder(folder)), log.view)
    except (GymCaptureError, OSError):
        return False


def _leave(files: PosixFiles, ownership: Ownership, begun: str | None) -> None:
    """Leave the directory as it was, without the folder that was begun, unless that cannot be known."""
    try:
        if closed_in(files) is None:
            if begun is not None:
                files.remove_folder(begun)
            ownership.release(0, 0)
    except OSError:
        pass  # what is left counts for nobody; the failure itself is what is raised


def _remove_segments(files: PosixFiles, report: SealReport) -> None:
    # The checkpoints first, oldest last: none is left that speaks of a log which is gone.
    for checkpoint in reversed(names.checkpoints_in(files.names())):
        files.remove(checkpoint.file)
    for name in names.segments_in(files.names()):
        report.log_bytes += files.size(name.file)
        files.reach(before(fault_points.SEALED_REMOVE))
        files.remove(name.file)
        files.reach(after(fault_points.SEALED_REMOVE))
        report.segments += 1


def _measure(files: PosixFiles, folder: str, report: SealReport) -> RolloutIndex:
    """Say what the dataset has."""
    reader = SealedReader(files.folder(folder))
    index = RolloutIndex(reader)
    parts = reader.manifest.parts
    report.folder = folder
    report.files_read_back = sum(len(part.files) for part in parts)
    report.calls = sum(part.call_count for part in parts)
    report.rollouts = len(index.rows)
    report.raw_bytes = sum(part.raw_bytes for part in parts)
    report.dataset_bytes = sum(file.size for part in parts for file in part.files)
    return index


def _has_all(files: PosixFiles, index: RolloutIndex) -> bool:
    """Whether what was sealed ahead can have nothing that the dataset lacks."""
    for rows in index.rows.values():
        if rows[-1].indexes > sum(row.calls for row in rows) or DAMAGED in (rows[-1].reasons or ()):
            return False
    ahead: Counter[tuple[str, int]] = Counter()
    try:
        for row in SealedReader(files.folder(names.SEALED_AHEAD)).rows():
            ahead[row.rollout_id, row.generation] += row.calls
    except (GymCaptureError, OSError):
        return False
    for (rollout_id, generation), calls in ahead.items():
        there = index.rows.get(rollout_id, [])
        # A generation that is over has nothing that anybody misses; a later one than the log's is one that it lost.
        if not there or (there[-1].generation, sum(row.calls for row in there)) < (generation, calls):
            return False
    return True


__all__ = ["SealReport", "require_settled", "seal_log"]
