"""Finding a directory's owner from the directory alone: who it is, where it listens, whether it lives. No Ray."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path

from gym_capture.errors import GymCaptureError, OwnerNotFound, OwnerUnavailable
from gym_capture.model.endpoint import Endpoint
from gym_capture.storage.files import Files
from gym_capture.storage.owner_file import OwnerInfo, beat_of, is_stopped, owner_state, read_owner, read_token
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_layout import run_marker, shards_of

PROBE_S = 1.0
"""How long an owner's port may take to accept a connection before its beat is watched instead."""


class Liveness(Enum):
    """Whether somebody owns a directory now."""

    AT_REST = "at rest"
    REACHABLE = "reachable"
    """Something accepts connections where the owner said that it listens."""
    BEATING = "beating"
    """The beat moves, but the owner cannot be reached from here."""


_dead: dict[str, tuple[int, bytes | None]] = {}
"""Directory → (epoch, beat) that was watched and stood still: no need to watch the same one again."""
_dead_lock = threading.Lock()


def owner_of(directory: str | Path) -> OwnerInfo | None:
    """Who owns a run's directory, or owned it when it crashed; None when nobody ever did, or the owner was stopped.

    Of several shards the first one's owner that there is: what it tells clients is the same.

    Raises:
        ShardGiven: the directory is a shard's.
        CaptureDirectoryError: the directory cannot be read here.
        MissingRunMarker: it is not (or not the mount of) a run's.
    """
    run = PosixFiles(directory)
    run_marker(run)
    for files in shards_of(run):
        owner = read_owner(files)
        if owner is not None and not is_stopped(beat_of(files, owner.epoch)):
            return owner
    return None


def endpoint_of(directory: str | Path) -> Endpoint:
    """Where the owner of a directory (of a shard's, where there are several) listens, as the directory says.

    Raises:
        CaptureDirectoryError: the directory cannot be read here.
        OwnerNotFound: nobody owns it; `stopped` says whether that is so since its last owner ended cleanly.
        OwnerUnavailable: its owner does not listen (yet), or its token cannot be read by this user.
    """
    files = PosixFiles(directory)
    owner = read_owner(files)
    if owner is None or is_stopped(beat_of(files, owner.epoch)):
        raise OwnerNotFound(
            f"{files.directory} has no live owner ({'nobody ever owned it' if owner is None else 'it was stopped'}). "
            "What it holds can be read with CaptureStore; start() an owner to write to it.",
            candidates=[],
            stopped=owner is not None,
        )
    if owner.endpoint is None or not owner.endpoint.port:
        raise OwnerUnavailable(
            f"the owner of {files.directory} ({owner.identity.name or owner.identity.actor_id}) does not listen yet. "
            "Nothing was sent; try again in a moment, or connect by its name through Ray."
        )
    try:
        token = read_token(files, owner.epoch)
    except OSError as error:
        raise OwnerUnavailable(
            f"the token of {files.directory}'s owner cannot be read ({error}). Nothing was sent; connect as the user "
            "who started the run, or by the actor's name through Ray."
        ) from error
    return Endpoint(owner.endpoint.host, owner.endpoint.port, token, owner.run, owner.epoch, owner.endpoint.tls)


def was_stopped(directory: str | Path, run: str) -> bool:
    """Whether the directory (a shard's, where there are several) is that run's and says that its owner ended cleanly.

    False where it cannot be read from here.
    """
    try:
        files = PosixFiles(directory)
        owner = read_owner(files)
        return owner is not None and owner.run == run and is_stopped(beat_of(files, owner.epoch))
    except (GymCaptureError, OSError):
        return False


def liveness(directory: str | Path, *, wait: Callable[[float], None] = time.sleep) -> Liveness:
    """Whether a run's directory has a live owner, as cheaply as it can be known; of several shards, whether any has.

    A clean stop is read off the beat; a listening port is believed. Only an owner that neither stopped nor answers is
    watched for the time of 2.5 beats, and once for each beat that stands still.

    Raises:
        ShardGiven: the directory is a shard's.
        CaptureDirectoryError: the directory cannot be read here.
    """
    shards = shards_of(PosixFiles(directory))
    if len(shards) == 1:
        return _liveness(shards[0], wait)
    with ThreadPoolExecutor(len(shards), thread_name_prefix="gym_capture-liveness") as threads:
        found = set(threads.map(lambda files: _liveness(files, wait), shards))
    return next(each for each in (Liveness.REACHABLE, Liveness.BEATING, Liveness.AT_REST) if each in found)


def _liveness(files: Files, wait: Callable[[float], None]) -> Liveness:
    while True:
        owner = read_owner(files)
        if owner is None:
            return Liveness.AT_REST
        seen = (owner.epoch, beat_of(files, owner.epoch))
        if is_stopped(seen[1]):
            return Liveness.AT_REST
        with _dead_lock:
            if _dead.get(files.directory) == seen:
                return Liveness.AT_REST
        if _accepts(owner):
            return Liveness.REACHABLE
        if owner_state(files, wait) != "stopped":
            return Liveness.BEATING
        again = read_owner(files)
        if again is None or again.epoch == owner.epoch:
            with _dead_lock:
                _dead[files.directory] = seen
            return Liveness.AT_REST
        # Another epoch began while the old one was watched: look at that one.


def _accepts(owner: OwnerInfo) -> bool:
    if owner.endpoint is None or not owner.endpoint.port:
        return False
    try:
        with socket.create_connection((owner.endpoint.host, owner.endpoint.port), PROBE_S):
            return True
    except OSError:
        return False
