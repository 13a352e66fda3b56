"""Who owns a capture directory: epochs, taking over, and the check that fences an old owner.

An epoch is claimed by creating its file exclusively. `OWNER` is replaced before the new owner reads the old one's
tail; the old one reads `OWNER` after each sync and before each acknowledgment. So whatever the old owner still
acknowledges was on disk before the new one looked, and is found by it. Nothing here compares clocks of two hosts:
whether another owner lives is seen by watching its beat change.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable

from gym_capture.errors import CaptureDirectoryError, DirectoryHeld, Superseded
from gym_capture.model.client_settings import ClientSettings
from gym_capture.model.clock import Clock, SystemClock
from gym_capture.storage import fault_points, names
from gym_capture.storage.closing import refuse_closed
from gym_capture.storage.files import Files
from gym_capture.storage.owner_file import (
    BEAT_S,
    WATCHED_BEATS,
    Endpoint,
    LogEnd,
    OwnerIdentity,
    OwnerInfo,
    Wait,
    moving_epoch,
    parse_owner,
    read_owner,
    stop_note,
    token_content,
)
from gym_capture.storage.run_marker import read_run
from gym_capture.storage.summed_json import encode_summed


class Ownership:
    """One epoch of a capture directory, held by this process until `check` says otherwise. Made by `take`.

    Attributes:
        run: the run's uuid.
        epoch: this owner's epoch.
        identity: what it calls itself.
        client: what it tells clients to go by.
        token: what clients of its stream have to show.
        clock: where its times come from.
    """

    def __init__(
        self,
        files: Files,
        run: uuid.UUID,
        epoch: int,
        identity: OwnerIdentity,
        token: str,
        clock: Clock,
        client: ClientSettings,
        opened: int = 0,
    ) -> None:
        self._files = files
        self.run = run
        self.epoch = epoch
        self.identity = identity
        self.client = client
        self.token = token
        self.clock = clock
        self.endpoint: Endpoint | None = None
        self._opened = opened
        self._beats = 0
        self._ours: bytes | None = None

    @classmethod
    def take(
        cls,
        files: Files,
        identity: OwnerIdentity,
        clock: Clock | None = None,
        *,
        takeover: bool = False,
        wait: Wait = time.sleep,
        beat_s: float = BEAT_S,
        new_token: Callable[[], str] = lambda: secrets.token_hex(32),
        client: ClientSettings | None = None,
    ) -> Ownership:
        """Become the owner. Afterwards move the beat every `beat_s` seconds, also while recovering.

        Args:
            files: the directory; it has its run's marker.
            identity: the same `actor_id` as the present owner's takes over at once.
            clock: the machine's when None.
            takeover: take over from another actor although it may live (it is fenced).
            wait: lets seconds pass while another owner's beat is watched; about 2.5 beats at most.
            beat_s: seconds between two beats of an owner.
            new_token: makes the secret of this epoch's stream.
            client: what clients are told to go by. None: what the last owner told them, so that one that comes only
                to clear, say, takes no redaction away from the clients of the next. Nothing of a damaged `OWNER`
                is inherited.

        Raises:
            MissingRunMarker: the directory is not (or not the mount of) a run's.
            DirectoryHeld: another actor's beat moves.
            CaptureDirectoryError: `OWNER` is damaged, and was to say whether another owner lives or what clients go
                by; nothing was changed.
            RunSealed: the log is closed for good; nothing was changed.
            DamagedLog: a dataset is left of a log whose segments are gone; nothing was changed.
            Superseded: a later taker was faster; it owns the directory.
            OSError: the directory could not be read or written.
        """
        refuse_closed(files)
        run = read_run(files)
        if not takeover:
            _refuse_if_held(files, identity, wait, beat_s)
        try:
            last = read_owner(files)
        except CaptureDirectoryError:
            if client is None:
                raise
            last = None
        if client is None:
            client = ClientSettings() if last is None else last.client
        opened = 0 if last is None else last.last_opened
        epoch = _claim_epoch(files, identity)
        taken = cls(files, run, epoch, identity, new_token(), clock or SystemClock(), client, opened)
        files.create(names.token_file(epoch), token_content(taken.token), fault_points.TOKEN)
        taken.beat()
        # A taker that is already late must not replace the OWNER of a later one.
        taken._leave_if_late()
        taken._replace_owner()
        return taken

    def check(self) -> None:
        """Make sure that this is still the owner: after each sync, before each acknowledgment.

        Raises:
            Superseded: another epoch or run owns the directory; leave at once.
            OSError: `OWNER` could not be read, so nothing is known; acknowledge nothing.
        """
        try:
            data = self._files.read(names.OWNER, fault_points.OWNER_CHECK)
        except FileNotFoundError as error:
            raise CaptureDirectoryError(
                f"{names.OWNER} is gone from {self._files.directory}. Nothing is acknowledged until it is back.",
                directory=self._files.directory,
            ) from error
        if data == self._ours:
            return  # byte for byte what was found to be ours before
        owner = parse_owner(self._files, data)
        if owner.epoch == self.epoch and owner.run == self.run.hex:
            self._ours = data
            return
        if owner.epoch < self.epoch and owner.run == self.run.hex:
            # A slower taker replaced it late; it sees this epoch's file next, and leaves.
            self._replace_owner()
            return
        raise self._superseded(
            owner.epoch, f"{owner.identity.name or owner.identity.actor_id} on {owner.identity.node}"
        )

    def beat(self) -> None:
        """Show that this owner lives. Nothing is synced."""
        self._beats += 1
        content = b"%020d\n" % self._beats
        self._files.overwrite(names.beat_file(self.epoch), content, fault_points.BEAT)

    def publish(self, endpoint: Endpoint) -> None:
        """Say in `OWNER` where the owner listens, once that is known.

        Raises:
            Superseded: another epoch owns the directory.
            OSError: `OWNER` could not be read or replaced.
        """
        self.check()
        self.endpoint = endpoint
        self._replace_owner()

    def release(self, segment_number: int, length: int) -> None:
        """End cleanly: whoever comes next need not watch the beat, and knows if the log's end was lost since.

        Stop the beating first, and sync and close the log: of what is named here, everything has to be on disk.

        Args:
            segment_number: the last segment of this epoch.
            length: its bytes; 0 when this epoch wrote none.
        """
        note = stop_note(LogEnd(segment_number, length))
        self._files.replace(names.beat_file(self.epoch), note, fault_points.STOP)

    def _replace_owner(self) -> None:
        info = OwnerInfo(self.run.hex, self.epoch, self.identity, self.endpoint, self.client, self._opened)
        self._files.replace(names.OWNER, encode_summed(info), fault_points.OWNER)
        # Whoever claimed a later epoch before this replacement would be hidden by it; it comes to light here.
        self._leave_if_late()

    def _leave_if_late(self) -> None:
        latest = names.epochs_in(self._files.names())[-1]
        if latest > self.epoch:
            raise self._superseded(latest, "a later taker")

    def _superseded(self, epoch: int, by: str) -> Superseded:
        return Superseded(
            f"epoch {self.epoch} of {self._files.directory} was superseded by epoch {epoch} ({by}). What was "
            "acknowledged is safe with it; this owner has to leave, its clients find the new one.",
            epoch=self.epoch,
            by_epoch=epoch,
        )


def _refuse_if_held(files: Files, identity: OwnerIdentity, wait: Wait, beat_s: float) -> None:
    owner = read_owner(files)
    if owner is None or owner.identity.actor_id == identity.actor_id:
        return
    # A taker that claimed an epoch and has not replaced OWNER yet is as live as an owner.
    epochs = [epoch for epoch in names.epochs_in(files.names()) if epoch >= owner.epoch] or [owner.epoch]
    watch_s = WATCHED_BEATS * beat_s
    moving = moving_epoch(files, epochs, wait, watch_s)
    if moving is None:
        return
    who = owner.identity
    where = f"{owner.endpoint.host}:{owner.endpoint.port}" if owner.endpoint else "not listening yet"
    raise DirectoryHeld(
        f"{files.directory} is owned by actor {who.name or '(unnamed)'} ({who.actor_id}, namespace "
        f"{who.namespace or '(none)'}, node {who.node or '(unknown)'}, pid {who.pid}, {where}), and the beat of epoch "
        f"{moving} moved within the last {watch_s:g} s. Nothing was changed; connect to that owner, stop it, choose "
        "another directory, or start with takeover=True to fence it.",
        owner=owner,
        epoch=moving,
        beat_age_s=watch_s,
    )


def _claim_epoch(files: Files, identity: OwnerIdentity) -> int:
    epoch = 0
    while True:
        # Never the same number twice: a network file system may list a directory as it was a while ago.
        epoch = max(epoch, *names.epochs_in(files.names()), 0) + 1
        refuse_closed(files)
        try:
            files.create(names.epoch_file(epoch), encode_summed(identity), fault_points.EPOCH)
        except FileExistsError:
            refuse_closed(files, epoch)
            continue
        return epoch
