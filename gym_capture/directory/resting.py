"""Clearing rollouts in a directory that has no owner: take an epoch, journal, leave."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path

from gym_capture.model.clock import SystemClock
from gym_capture.model.entropy import SystemEntropy
from gym_capture.model.shards import shard_of
from gym_capture.service.capture_service import CaptureService
from gym_capture.service.executor import ThreadExecutor
from gym_capture.service.settings import OwnerSettings
from gym_capture.storage import names
from gym_capture.storage.nemo_gym_files import NemoGymFiles
from gym_capture.storage.owner_file import OwnerIdentity
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_layout import shards_of


def clear_at_rest(directory: str | Path, rollout_ids: Sequence[str]) -> None:
    """Begin the next generation of each rollout in the log of a directory at rest. Blocks.

    Raises:
        DirectoryHeld: an owner lives after all; nothing was changed in its shard.
        CaptureDirectoryError, OSError: the directory cannot be written.
    """
    shards = shards_of(PosixFiles(directory))
    of_shard: dict[int, list[str]] = {}
    for rollout_id in rollout_ids:
        of_shard.setdefault(shard_of(rollout_id, len(shards)), []).append(rollout_id)
    error: list[BaseException] = []

    def run() -> None:
        try:
            for shard, ids in sorted(of_shard.items()):
                asyncio.run(_clear(shards[shard].directory, ids))
        except BaseException as raised:  # noqa: BLE001 - whatever it is belongs to the caller, not to this thread
            error.append(raised)

    # A thread of its own: the caller may be in a running loop, and must not run another inside it.
    thread = threading.Thread(target=run, name="capture-clear")
    thread.start()
    thread.join()
    if error:
        raise error[0]


async def _clear(directory: str | Path, rollout_ids: Sequence[str]) -> None:
    executor = ThreadExecutor("capture-clear-log")
    identity = OwnerIdentity(f"clear-{uuid.uuid4().hex}", "clear", "", socket.gethostname(), os.getpid())
    service = CaptureService(
        PosixFiles(directory),
        identity,
        OwnerSettings(),
        clock=SystemClock(),
        executor=executor,
        entropy=SystemEntropy(),
        on_leave=lambda _why: None,
    )
    try:
        await service.open()
        try:
            await service.clear(rollout_ids, "")
        finally:
            await service.stop()
    finally:
        executor.close()


def remove_nemo_gym_files(directory: str | Path, rollout_ids: Sequence[str]) -> None:
    """Remove what NeMo Gym's file store keeps of these rollouts, the incompleteness marker last.

    Raises:
        CaptureDirectoryError, OSError: the directory cannot be read or written.
    """
    files = PosixFiles(directory)
    legacy = NemoGymFiles(files)
    for rollout_id in rollout_ids:
        if legacy.has(rollout_id):
            files.remove(names.nemo_gym_file(rollout_id))
            files.remove(names.nemo_gym_incomplete_file(rollout_id))


def is_run_directory(directory: str | Path) -> bool:
    """Whether the directory has a run's marker, so that it may have a log and an owner.

    Raises:
        CaptureDirectoryError: the directory cannot be read here.
    """
    try:
        PosixFiles(directory).size(names.RUN)
    except FileNotFoundError:
        return False
    return True
