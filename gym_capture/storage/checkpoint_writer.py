"""Writing checkpoints: an owner's, one after the other."""

from __future__ import annotations

from gym_capture.model.ledger_pages import Snapshot
from gym_capture.model.rollout_state import Saved
from gym_capture.storage import fault_points
from gym_capture.storage.checkpoints import Checkpoint, CheckpointHeader, encode_checkpoint
from gym_capture.storage.files import Files
from gym_capture.storage.names import CheckpointName
from gym_capture.storage.segments import FramePlace
from gym_capture.storage.sequence_set import SequenceSet


class CheckpointWriter:
    """Writes an epoch's checkpoints. Blocking; one call at a time.

    Args:
        files: the capture directory.
        run: the run's 16-byte uuid.
        epoch: whose owner writes.
        seen: the frames seen before this epoch's own.
        first: the sequence of its own first frame.
        previous: the checkpoint that the ledger was opened behind; None: it was read from the log alone.
    """

    def __init__(
        self, files: Files, run: bytes, epoch: int, seen: SequenceSet, first: int, previous: Checkpoint | None
    ) -> None:
        self._files = files
        self._run = run
        self._epoch = epoch
        self._seen = seen
        self._first = first
        self._previous = None if previous is None else (*previous.name, previous.crc)
        self._number = 0

    def write(self, snapshot: Snapshot, last: FramePlace) -> list[Saved]:
        """Write a snapshot of which every frame is durable and was ours; durably. Returns what `Ledger.saved` wants.

        Args:
            last: where the snapshot's last frame lies.

        Raises:
            OSError: there may be such a file now, and nothing rests on it; the next one holds it all again.
        """
        number, self._number = self._number, self._number + 1
        name = CheckpointName(self._epoch, number)
        sequence = snapshot.state.sequence
        seen = self._seen.runs()
        seen[self._epoch] = [*seen.get(self._epoch, []), (self._first, sequence)]
        header = CheckpointHeader(self._run, *name, self._previous, sequence, *last, seen)
        data, saved, crc = encode_checkpoint(header, snapshot.state, snapshot.sources)
        self._files.create(name.file, data, fault_points.CHECKPOINT)
        self._previous = (*name, crc)
        return saved
