"""One epoch of the log as its owner holds it: the ownership and the writer together. Blocking; runs in the executor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from gym_capture.errors import Superseded
from gym_capture.model.client_settings import ClientSettings
from gym_capture.model.clock import Clock
from gym_capture.model.codec import PendingFrame
from gym_capture.model.entropy import Entropy
from gym_capture.model.ledger import Ledger
from gym_capture.service.executor import Executor
from gym_capture.service.settings import OwnerSettings
from gym_capture.storage.checkpoint_writer import CheckpointWriter
from gym_capture.storage.files import Files
from gym_capture.storage.owner_file import Endpoint, OwnerIdentity, Wait, read_owner, read_token
from gym_capture.storage.ownership import Ownership
from gym_capture.storage.recovery import recover
from gym_capture.storage.recovery_report import RecoveryReport
from gym_capture.storage.segments import SegmentWriter

logger = logging.getLogger(__name__)


class OwnedLog:
    """Made by `open`; one call at a time.

    Attributes:
        ours_at: when `OWNER` was looked up last and still named this epoch, monotonic seconds.
    """

    def __init__(
        self, ownership: Ownership, writer: SegmentWriter, report: RecoveryReport, checkpoints: CheckpointWriter
    ) -> None:
        self.ownership = ownership
        self.writer = writer
        self.report = report
        self.checkpoints = checkpoints
        self.ours_at = ownership.clock.monotonic()

    @property
    def epoch(self) -> int:
        """The epoch that was taken."""
        return self.ownership.epoch

    def commit(self, frames: Sequence[PendingFrame]) -> None:
        """Append, sync, and only then look whether all this still belongs to us.

        Raises:
            OSError: nothing is known of these frames.
            Superseded: another owner has the directory; the frames may or may not be part of the log.
        """
        self.writer.append(frames)
        self.writer.sync()
        self.check()

    def check(self) -> None:
        """Raises Superseded or OSError unless the directory is still ours."""
        began = self.ownership.clock.monotonic()
        self.ownership.check()
        self.ours_at = began

    def beat(self) -> None:
        """Show that the owner lives, if it still is the owner. Raises like `check`."""
        self.check()
        self.ownership.beat()

    def close(self) -> None:
        """End cleanly: seal the log, then say so and where it ended. Nothing may be under way."""
        self.writer.close()
        self.ownership.release(self.writer.segment.number, self.writer.position)

    def abandon(self) -> None:
        """Write nothing more."""
        self.writer.abandon()


class Taking:
    """How a directory is taken: at the start, and again after a failed write.

    Attributes:
        listening: host and port to publish; port 0: none.
        tls: whether that stream is TLS.
        earlier_token: what clients of the owner before this process showed; empty when there was none.
        whole_log: the next taking reads the whole log, whatever checkpoints say.
    """

    def __init__(
        self,
        files: Files,
        identity: OwnerIdentity,
        settings: OwnerSettings,
        clock: Clock,
        executor: Executor,
        readers: Executor,
        entropy: Entropy,
        wait: Wait,
        client: ClientSettings | None = None,
    ) -> None:
        self._files = files
        self._client = client
        self._identity = identity
        self._settings = settings
        self._clock = clock
        self._executor = executor
        self._readers = readers
        self._wait = wait
        self.listening: tuple[str, int] = ("", 0)
        self.tls = False
        self.earlier_token = ""
        self.whole_log = False
        # One for the life of the process: a client that looked it up just before an epoch ended can still use it.
        self._token = entropy.bytes(32).hex()

    async def take(self, ledger: Ledger, takeover: bool) -> OwnedLog:
        """Take the next epoch, replay the log into `ledger` (fresh), and say where the owner listens.

        Raises:
            DirectoryHeld, Superseded, MissingRunMarker, FormatError, OSError: nothing was taken, or it was lost again.
        """
        ownership = await self._executor.run(partial(self._take_epoch, takeover))
        # Reading a long log takes time in which the owner has to look alive.
        beating = asyncio.get_running_loop().create_task(self._beat(ownership))
        try:
            return await self._executor.run(partial(self._recover, ownership, ledger))
        finally:
            beating.cancel()

    def refuse_if_taken(self) -> None:
        """Before a failed epoch is followed by another: somebody else may have come meanwhile.

        The whole identity counts, process included: a restarted actor has its predecessor's `actor_id`.

        Raises:
            Superseded: somebody has.
            OSError: `OWNER` cannot be read.
        """
        owner = read_owner(self._files)
        if owner is not None and owner.identity != self._identity:
            raise Superseded(
                f"{self._files.directory} was taken by {owner.identity.name or owner.identity.actor_id} (epoch "
                f"{owner.epoch}). What was acknowledged is safe with it; this owner has to leave.",
                by_epoch=owner.epoch,
            )

    def _take_epoch(self, takeover: bool) -> Ownership:
        owner = read_owner(self._files)
        if owner is not None:
            try:
                earlier = read_token(self._files, owner.epoch)
            except (OSError, UnicodeDecodeError):
                earlier = ""
            if earlier != self._token:
                self.earlier_token = earlier
        return Ownership.take(
            self._files,
            self._identity,
            self._clock,
            takeover=takeover,
            wait=self._wait,
            beat_s=self._settings.beat_s,
            new_token=lambda: self._token,
            client=self._client,
        )

    def _recover(self, ownership: Ownership, ledger: Ledger) -> OwnedLog:
        writer, report, checkpoints = recover(
            self._files,
            ownership,
            ledger,
            segment_bytes=self._settings.segment_bytes,
            checkpoints=not self.whole_log,
        )
        self.whole_log = False
        try:
            if ledger.unsaved_rows >= self._settings.checkpoint_rows:
                # Now, while nobody waits for the loop: it may be all of the log.
                self._checkpoint(ledger, writer, checkpoints)
            if self.listening[1]:
                ownership.publish(Endpoint(*self.listening, self.tls))
        except BaseException:
            writer.abandon()
            raise
        return OwnedLog(ownership, writer, report, checkpoints)

    def _checkpoint(self, ledger: Ledger, writer: SegmentWriter, checkpoints: CheckpointWriter) -> None:
        snapshot = ledger.snapshot()
        try:
            pages = checkpoints.write(snapshot, writer.last)
        except OSError as error:
            ledger.not_saved(snapshot)
            logger.warning("a checkpoint was not written (%s); the log holds all that it would have said", error)
        else:
            ledger.saved(snapshot, pages)

    async def _beat(self, ownership: Ownership) -> None:
        while True:
            await asyncio.sleep(self._settings.beat_s)
            try:
                await self._readers.run(ownership.beat)
            except OSError:
                pass  # a directory that cannot be written fails the recovery too, and that says so
