"""Sealing a run's finished rollouts while it goes on, with the machine's clock and files."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from multiprocessing.process import BaseProcess, parent_process
from pathlib import Path
from types import TracebackType

from gym_capture.errors import GymCaptureError, RunSealed
from gym_capture.model.clock import Clock, SystemClock
from gym_capture.storage.files import Files
from gym_capture.storage.owner_file import BEAT_S, WATCHED_BEATS, beat_of, is_stopped, read_owner
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_layout import run_marker, shards_of
from gym_capture.storage.sealing_ahead import AHEAD_BYTES, AheadReport, AheadSealer

logger = logging.getLogger("gym_capture.directory")

POLL_S = 10.0
"""Between two looks at what is finished. A part takes as long to fill as the run takes for half a GB; often longer."""
_STOP_S = 30.0
_NICENESS = 19


def seal_ahead(
    directory: str | Path,
    stop: threading.Event,
    *,
    poll_s: float = POLL_S,
    least_bytes: int = AHEAD_BYTES,
    clock: Clock | None = None,
) -> AheadReport:
    """Seal what is finished, again and again, until `stop` is set, the run is sealed, or it has no owner any more.

    Blocks, and takes a core for as long as it seals: give it a process of a low rank. A run without an owner is looked
    at once; one whose owner crashed, until another would have come.

    Args:
        directory: the run's.
        stop: ends it, between two rollouts.
        poll_s: seconds between two looks.
        least_bytes: see `AheadSealer`; of each shard.
        clock: the machine's when None.

    Returns:
        What was sealed, of all shards together.

    Raises:
        As `AheadSealer.step` and `storage.run_layout.shards_of`, but RunSealed.
    """
    run = PosixFiles(directory)
    run_marker(run)
    shards = shards_of(run)
    owners = _Owners(shards, clock or SystemClock())
    sealers = [AheadSealer(PosixFiles(each.directory), least_bytes=least_bytes) for each in shards]
    try:
        while not stop.is_set():
            # Looked at before: an owner that stops then has left nothing behind that is not seen.
            over = owners.are_gone()
            sealed = [sealer.step(stop.is_set) for sealer in sealers]
            if over:
                break
            if not any(sealed):
                stop.wait(poll_s)
    except RunSealed:
        pass
    reports = [sealer.report for sealer in sealers]
    return AheadReport(sum(each.parts for each in reports), sum(each.calls for each in reports))


class _Owners:
    """The owners of a run's shards, watched by their beats."""

    def __init__(self, shards: list[Files], clock: Clock) -> None:
        self._shards = shards
        self._clock = clock
        self._seen: list[tuple[int, bytes | None]] = []
        self._since = clock.monotonic()

    def are_gone(self) -> bool:
        """Whether all were stopped, or have stood still for as long as the run's calls wait for one to come back."""
        owners = [(each, beat_of(files, each.epoch)) for files in self._shards if (each := read_owner(files))]
        running = [(each, beat) for each, beat in owners if not is_stopped(beat)]
        if not running:
            return True
        seen = [(each.epoch, beat) for each, beat in running]
        now = self._clock.monotonic()
        if seen != self._seen:
            self._seen, self._since = seen, now
        # Calls may wait less than it takes to see a beat move.
        patience_s = max(WATCHED_BEATS * BEAT_S, *(each.client.patience_s for each, _ in running))
        return now - self._since >= patience_s


def lowest_rank() -> None:
    """Let this process have what processor time the run leaves over."""
    os.nice(_NICENESS)


class SealingProcess:
    """Seals ahead in a process of the lowest rank for as long as the context lasts, and no longer than this process.

    What goes wrong in it is said on stderr; the run does not depend on it.

    Args:
        directory: the run's; it has to be there.
        least_bytes: see `AheadSealer`.
    """

    def __init__(self, directory: str | Path, *, least_bytes: int = AHEAD_BYTES) -> None:
        context = multiprocessing.get_context("spawn")
        arguments = (os.fspath(directory), least_bytes)
        self._process = context.Process(target=_run, args=arguments, name="capture-seal", daemon=True)

    def __enter__(self) -> SealingProcess:
        try:
            self._process.start()
        except OSError as error:
            logger.warning("finished rollouts are not sealed ahead; they are at the end of the run (%s)", error)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._process.pid is None:
            return
        self._process.terminate()
        self._process.join(_STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_STOP_S)  # one that hangs in a call of the disk's is left to the system


def _run(directory: str, least_bytes: int) -> None:
    stop = threading.Event()
    # Ctrl-C is for the whole group of processes; when the run is to end is for the process that began this one to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_stop_after, args=(parent, stop), name="capture-seal-parent", daemon=True).start()
    lowest_rank()
    try:
        seal_ahead(directory, stop, least_bytes=least_bytes)
    except (GymCaptureError, OSError) as error:
        logger.warning("finished rollouts are not sealed ahead any more; they are at the end of the run (%s)", error)


def _stop_after(parent: BaseProcess, stop: threading.Event) -> None:
    parent.join()
    stop.set()


__all__ = ["POLL_S", "SealingProcess", "lowest_rank", "seal_ahead"]
