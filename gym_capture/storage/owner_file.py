"""`OWNER`, token, beat: who owns a capture directory, whether it still moves, and where a clean stop ended the log."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from gym_capture.errors import CaptureDirectoryError
from gym_capture.model.client_settings import ClientSettings
from gym_capture.model.codec import checksum
from gym_capture.storage import names
from gym_capture.storage.files import Files
from gym_capture.storage.summed_json import decode_summed

Wait = Callable[[float], None]
"""Let that many seconds pass."""

BEAT_S = 2.0
"""Seconds between two beats."""

WATCHED_BEATS = 2.5
"""For how many beats another owner is watched before its beat counts as standing still."""

_STOPPED = b"stopped"
_STOP_NOTE = re.compile(rb"(stopped ([0-9]{10}) ([0-9]{20})) ([0-9a-f]{8})\n")
_TOKEN = re.compile(rb"([!-~]+) ([0-9a-f]{8})\n")
_LOOKS_PER_BEAT = 2


class LogEnd(NamedTuple):
    """Where an epoch's log ended at a clean stop: the number of its last segment and that one's bytes, seal included.

    An epoch that wrote nothing has 0 bytes.
    """

    segment: int
    length: int


class Endpoint(msgspec.Struct, frozen=True):
    """Where the owner listens, and whether it speaks TLS with Ray's own certificates."""

    host: str
    port: int
    tls: bool = False


class OwnerIdentity(msgspec.Struct, frozen=True):
    """What an owner says of itself.

    Args:
        actor_id: stays the same over restarts of one actor, and only then.
        name, namespace: the actor's name in the cluster.
        node: where it runs, for people.
        pid: its process, for people.
    """

    actor_id: str
    name: str = ""
    namespace: str = ""
    node: str = ""
    pid: int = 0


class OwnerInfo(msgspec.Struct, frozen=True):
    """The content of `OWNER`, but its checksum.

    Args:
        client: what clients go by.
        opened: the last epoch before this one whose opening was on disk (0: none that is known).
    """

    run: str
    epoch: int
    identity: OwnerIdentity
    endpoint: Endpoint | None = None
    client: ClientSettings = ClientSettings()
    opened: int = 0

    @property
    def last_opened(self) -> int:
        """The last epoch whose opening was on disk: an endpoint is told after that."""
        return self.epoch if self.endpoint is not None else self.opened


def read_owner(files: Files, point: str | None = None) -> OwnerInfo | None:
    """Who owns the directory, or None when nobody ever did.

    Raises:
        CaptureDirectoryError: `OWNER` cannot be read as one.
    """
    try:
        data = files.read(names.OWNER, point)
    except FileNotFoundError:
        return None
    return parse_owner(files, data)


def parse_owner(files: Files, data: bytes) -> OwnerInfo:
    """What `OWNER` says.

    Raises:
        CaptureDirectoryError: it cannot be read as one, or does not match its checksum: nothing of it is believed.
    """
    try:
        return decode_summed(data, OwnerInfo)
    except ValueError as error:
        raise CaptureDirectoryError(
            f"{names.OWNER} in {files.directory} cannot be read ({error}). The log is untouched, and nothing is taken "
            "from that file, what clients go by (redaction, say) neither; make sure that no owner runs, put it aside "
            "with `gym-capture verify --repair` and start again, with the run's settings.",
            directory=files.directory,
        ) from error


def token_content(token: str) -> bytes:
    """What stands in an epoch's token file."""
    said = token.encode("ascii")
    return said + b" %08x\n" % checksum(said)


def parse_token(data: bytes) -> str | None:
    """The token in such a file; None: it is damaged."""
    match = _TOKEN.fullmatch(data)
    return match[1].decode("ascii") if match and int(match[2], 16) == checksum(match[1]) else None


def read_token(files: Files, epoch: int) -> str:
    """The token that the owner of `epoch` wants to see.

    Raises:
        FileNotFoundError, PermissionError: it is not there, or not for this user.
        CaptureDirectoryError: the file is damaged.
    """
    token = parse_token(files.read(names.token_file(epoch)))
    if token is None:
        raise CaptureDirectoryError(
            f"{names.token_file(epoch)} in {files.directory} cannot be read: it does not match its checksum. The log "
            "is untouched; an owner that starts anew writes another one.",
            directory=files.directory,
        )
    return token


def beat_of(files: Files, epoch: int) -> bytes | None:
    """The beat of an epoch's owner; None when it has none (yet)."""
    try:
        return files.read(names.beat_file(epoch))
    except FileNotFoundError:
        return None


def stop_note(end: LogEnd) -> bytes:
    """What a clean stop leaves in place of the beat: that it was one, and where the log ended."""
    said = b"stopped %010d %020d" % end
    return said + b" %08x\n" % checksum(said)


def is_stopped(beat: bytes | None) -> bool:
    """Whether a beat is the note of a clean stop (also one that does not say where the log ended)."""
    return beat is not None and beat.startswith(_STOPPED)


def end_of_log(beat: bytes | None) -> LogEnd | None:
    """Where the log of a cleanly stopped epoch ended; None when the beat does not say, or is damaged."""
    match = _STOP_NOTE.fullmatch(beat or b"")
    if match is None or int(match[4], 16) != checksum(match[1]):
        return None
    return LogEnd(int(match[2]), int(match[3]))


def moving_epoch(files: Files, epochs: list[int], wait: Wait, watch_s: float) -> int | None:
    """The highest of these epochs whose beat changes while it is watched; returns as soon as one does."""
    first = {epoch: beat_of(files, epoch) for epoch in epochs}
    if not epochs or all(map(is_stopped, first.values())):
        return None
    looks = int(WATCHED_BEATS * _LOOKS_PER_BEAT)
    for _ in range(looks):
        wait(watch_s / looks)
        for epoch in reversed(epochs):
            beat = beat_of(files, epoch)
            if beat != first[epoch] and not is_stopped(beat):
                return epoch
    return None


def owner_state(
    files: Files, wait: Wait = time.sleep, *, beat_s: float = BEAT_S
) -> Literal["none", "stopped", "maybe-live"]:
    """Whether the directory has a live owner.

    Returns:
        `none`: nobody ever owned it. `stopped`: its owner ended cleanly, or its beat stood still while it was
        watched (2.5 beats; less when it moves). `maybe-live`: the beat moved.
    """
    owner = read_owner(files)
    if owner is None:
        return "none"
    epochs = [epoch for epoch in names.epochs_in(files.names()) if epoch >= owner.epoch]
    moving = moving_epoch(files, epochs or [owner.epoch], wait, WATCHED_BEATS * beat_s)
    return "stopped" if moving is None else "maybe-live"


class LastOwner(NamedTuple):
    """Who had a directory that is at rest: the epoch, and whether that owner `stopped` cleanly or `died`."""

    epoch: int
    ended: Literal["stopped", "died"]


def last_owner(files: Files) -> LastOwner | None:
    """How the last owner of a directory at rest ended; None when nobody ever owned it.

    Raises:
        CaptureDirectoryError: `OWNER` cannot be read as one.
    """
    owner = read_owner(files)
    if owner is None:
        return None
    return LastOwner(owner.epoch, "stopped" if is_stopped(beat_of(files, owner.epoch)) else "died")
