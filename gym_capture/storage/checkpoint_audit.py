"""Whether checkpoints say what the log says: each is compared at the frame where it ends, while the log is read."""

from __future__ import annotations

import msgspec

from gym_capture.errors import DamagedLog
from gym_capture.model.ledger import Ledger
from gym_capture.model.ledger_pages import LedgerState
from gym_capture.model.pages import Page, pack_archived, page_of, take_page, unpack_archived
from gym_capture.model.rollout_state import Place, Saved
from gym_capture.storage import names
from gym_capture.storage.checkpoints import Checkpoint, read_checkpoint, read_page
from gym_capture.storage.file_checks import FileDamage
from gym_capture.storage.files import Files
from gym_capture.storage.log_plan import LogPlan
from gym_capture.storage.log_reader import Frame
from gym_capture.storage.names import CheckpointName, SegmentName
from gym_capture.storage.resume import counts


class CheckpointAudit:
    """All checkpoints of a directory, beside one pass over its log.

    What a superseded owner wrote beyond a cut is no damage: nobody uses it, and it is passed over.

    Args:
        files: the capture directory.
        plan: which bytes of it count.

    Attributes:
        damages: those that are not what they should be: the file, the first byte known to be wrong, and why.
    """

    def __init__(self, files: Files, plan: LogPlan) -> None:
        self._files = files
        self.damages: list[FileDamage] = []
        self._agreed: dict[CheckpointName, Checkpoint] = {}
        self._due: dict[tuple[SegmentName, int], list[Checkpoint]] = {}
        self._known: dict[CheckpointName, int] = {}
        self._held: dict[Place, tuple[int, tuple[int, ...]]] = {}
        for name in names.checkpoints_in(files.names()):
            try:
                checkpoint = read_checkpoint(files, name)
            except DamagedLog as error:
                self.damages.append(FileDamage(name.file, error.offset, error.why))
                continue
            self._known[name] = checkpoint.crc
            header = checkpoint.header
            place = (SegmentName(header.epoch, header.segment), header.end)
            cut = plan.cuts.get(header.epoch)
            if counts(plan, checkpoint):
                self._due.setdefault(place, []).append(checkpoint)
            elif cut is None or (header.segment, header.end) <= (cut.segment, cut.offset):
                self._note(name, 0, "it holds more than its segment")

    def met(self, frame: Frame, ledger: Ledger, run: bytes | None) -> None:
        """A frame was read and replayed: compare what ends with it."""
        for checkpoint in self._due.pop((SegmentName(frame.ref.epoch, frame.ref.segment), frame.end), ()):
            why = self._contradiction(checkpoint, frame, ledger, run)
            if why is not None:
                self._note(checkpoint.name, *why)
            else:
                self._agreed[checkpoint.name] = checkpoint

    def damaged(self, segment: SegmentName) -> None:
        """All of a segment was read, and rows of it are lost: the log marks whom that may concern only now.

        Whoever opens behind a checkpoint that ends in it might not look at that place, and would mark nobody.
        """
        for name, checkpoint in list(self._agreed.items()):
            if (name.epoch, checkpoint.header.segment) == segment:
                del self._agreed[name]
                self._note(name, 0, f"rows of {segment.file} are lost, and it does not say whom that may concern")

    def finish(self) -> None:
        """All of the log was read."""
        for (segment, offset), left in self._due.items():
            for checkpoint in left:
                self._note(checkpoint.name, 0, f"no frame of {segment.file} ends at byte {offset}")
        wrong = {each.file for each in self.damages}
        for name in sorted(self._agreed):
            previous = self._agreed[name].header.previous
            if previous is not None and CheckpointName(*previous[:2]).file in wrong:
                wrong.add(name.file)
                self._note(name, 0, "the checkpoint before it is wrong")
        self.damages.sort()

    def _note(self, name: CheckpointName, offset: int, why: str) -> None:
        self.damages.append(FileDamage(name.file, offset, why))

    def _contradiction(
        self, checkpoint: Checkpoint, frame: Frame, ledger: Ledger, run: bytes | None
    ) -> tuple[int, str] | None:
        header = checkpoint.header
        if header.run != run:
            return 0, f"it belongs to run {header.run.hex()}"
        if (header.sequence, header.start) != (frame.head.sequence, frame.offset):
            return 0, f"it ends with frame {header.sequence}, its segment has {frame.head.sequence} there"
        if header.previous is not None and self._known.get(CheckpointName(*header.previous[:2])) != header.previous[2]:
            return 0, "the checkpoint before it is not there, or is another"
        if not _agrees(checkpoint.state, ledger.state()):
            return 0, "it does not say of clients and counts what the log says"
        found: tuple[int, str] | None = None
        for rollout_id, packed in {**checkpoint.table.quiet, **checkpoint.table.busy}.items():
            found = self._page_contradiction(rollout_id, packed, ledger) or found
        return found

    def _page_contradiction(self, rollout_id: str, packed: bytes, ledger: Ledger) -> tuple[int, str] | None:
        place = unpack_archived(packed).place
        try:
            page = read_page(self._files, place)
        except DamagedLog as error:
            return error.offset, error.why
        state = ledger.rollouts.get(rollout_id)
        if state is None:
            return place.offset, f"the log does not know rollout {rollout_id}"
        before: Saved | None = None
        if page.previous is not None:
            held = self._held.get(page.previous)
            if held is None:
                return place.offset, f"the page before that of rollout {rollout_id} is not there"
            before = Saved(pack_archived(page.generation, page.previous, 0, 0), *held)
        state.saved = before
        source = take_page(state)
        state.saved = None
        if _plain(page_of(source)) != _plain(page) or source.saved(place).packed != packed:
            return place.offset, f"it does not say of rollout {rollout_id} what the log says"
        self._held[place] = source.saved(place)[1:]
        return None


def _agrees(stored: LedgerState, log: LedgerState) -> bool:
    """Whether two states are one. A client's old answers may be gone: the owner forgets them, and no row says so."""
    if msgspec.structs.replace(stored, clients=[]) != msgspec.structs.replace(log, clients=[]):
        return False
    clients = {client.id: client for client in log.clients}
    return len(stored.clients) == len(clients) and all(
        (known := clients.get(client.id)) is not None
        and client.confirmed >= known.confirmed
        and all(known.answers.get(batch) == answer for batch, answer in client.answers.items())
        and all(batch in client.answers or batch <= client.confirmed for batch in known.answers)
        for client in stored.clients
    )


def _plain(page: Page) -> Page:
    """The page, with its sets in one order."""
    return msgspec.structs.replace(page, refused=sorted(page.refused), absent=sorted(page.absent))
