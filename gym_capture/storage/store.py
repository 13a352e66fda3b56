"""`CaptureStore`: a capture directory read without its owners and without Ray, at rest or live."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from heapq import merge
from operator import add, itemgetter
from pathlib import Path
from typing import Any

from gym_capture.model.ids import validate_rollout_id
from gym_capture.model.merge import RolloutEvidence
from gym_capture.model.rollout_state import RolloutView
from gym_capture.model.shards import shard_of
from gym_capture.storage import names
from gym_capture.storage.file_checks import check_marker
from gym_capture.storage.files import Files
from gym_capture.storage.nemo_gym_files import NemoGymFiles
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.recovery_report import RecoveryReport
from gym_capture.storage.run_layout import marker_of_shards, shards_of
from gym_capture.storage.shard_store import ShardStore
from gym_capture.storage.standing import OpenClaim, RolloutStanding, StoredRecord
from gym_capture.storage.verify import VerifyReport


class CaptureStore:
    """What a run's capture directory holds, all its shards as one. Reads only; not safe for threads.

    On a live directory it may show what an owner has written and not yet acknowledged. NeMo Gym's files are read where
    they lie; where the log knows an id too (its clearing included), the log alone counts.

    Args:
        directory: the absolute path, or `Files`.
        checkpoints: False: read all of the log, and believe no checkpoint.

    Raises:
        ShardGiven: it is one shard of a run's.
        CaptureDirectoryError: the path is relative, absent, or no directory; or a shard of the run is lost.
        FormatError: the log is of another version.
    """

    def __init__(self, directory: str | Path | Files, *, checkpoints: bool = True) -> None:
        self._files: Files = PosixFiles(directory) if isinstance(directory, str | Path) else directory
        self._checkpoints = checkpoints
        self._load()

    def _load(self) -> None:
        self._marker = self._read_marker()
        shards = shards_of(self._files)
        self._shards = [
            ShardStore(files, NemoGymFiles(self._files, shard, len(shards)), checkpoints=self._checkpoints)
            for shard, files in enumerate(shards)
        ]

    def _read_marker(self) -> bytes:
        try:
            return self._files.read(names.RUN)
        except FileNotFoundError:
            return b""

    def _of(self, rollout_id: str) -> ShardStore:
        return self._shards[shard_of(validate_rollout_id(rollout_id), len(self._shards))]

    # -- the run ------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The directory as it was given."""
        return self._files.directory

    @property
    def report(self) -> RecoveryReport:
        """What reading the log found so far."""
        return reduce(add, (shard.report for shard in self._shards))

    def refresh(self) -> None:
        """Take in what was appended since: only that is read, unless another owner has taken over."""
        if self._read_marker() != self._marker:
            self._load()  # the directory was made anew, and the files of that run may have these names too
            return
        for shard in self._shards:
            shard.refresh()

    def rollout_ids(self) -> list[str]:
        """Every id that has evidence (or is marked), sorted; cleared ones with nothing since are forgotten."""
        return sorted(rollout_id for shard in self._shards for rollout_id in shard.rollout_ids())

    def standings(self) -> list[RolloutStanding]:
        """How every rollout stands, sorted by id: those, too, that were begun (cleared, merged) and have nothing.

        No record is read, and no file of NeMo Gym's.
        """
        return list(merge(*(shard.standings() for shard in self._shards), key=itemgetter(0)))

    def open_claims(self, rollout_id: str | None = None) -> list[OpenClaim]:
        """The claims that are open, of one rollout or (None) of the whole run, the oldest first."""
        if rollout_id is not None:
            return self._of(rollout_id).open_claims(rollout_id)
        claims = [claim for shard in self._shards for claim in shard.open_claims()]
        return sorted(claims, key=lambda claim: (claim.opened_at, claim.rollout_id, claim.model_call_id))

    def outstanding(self, rollout_id: str | None = None) -> int:
        """Claims that are open, of one rollout or (None) of the whole run."""
        if rollout_id is not None:
            return self._of(rollout_id).outstanding(rollout_id)
        return sum(shard.outstanding() for shard in self._shards)

    def verify(self) -> VerifyReport:
        """Read everything, every payload's checksum included, from the directory as it is now."""
        return reduce(add, self.verify_shards().values())

    def verify_shards(self) -> dict[str, VerifyReport]:
        """The same for each shard, under the path that its files have in the directory: `shard-000/`, or nothing."""
        if len(self._shards) == 1:
            return {"": self._shards[0].verify()}
        said = marker_of_shards(self._files)
        marker = check_marker(self._files, None if said is None else said.uuid.bytes)
        run = VerifyReport(RecoveryReport(), files=[] if marker is None else [marker])
        return {"": run, **{f"{shard.folder}/": shard.verify() for shard in self._shards}}

    # -- a rollout ----------------------------------------------------------------------------------------------

    def knows(self, rollout_id: str) -> bool:
        """Whether there is anything of this rollout, be it its clearing."""
        return self._of(rollout_id).knows(rollout_id)

    def standing(self, rollout_id: str) -> RolloutStanding:
        """How one rollout stands; one that is nowhere has nothing."""
        return self._of(rollout_id).standing(rollout_id)

    def records(self, rollout_id: str, first: int = 0) -> Iterator[StoredRecord]:
        """The RECORD parts of a rollout's calls, from call index `first` on; its holes are left out.

        `evidence` reads the same for a merge; this is for whoever reads the records of many rollouts.
        """
        return self._of(rollout_id).records(rollout_id, first)

    def generation(self, rollout_id: str) -> int:
        """The rollout's current generation, 0 until it is first cleared."""
        return self._of(rollout_id).generation(rollout_id)

    def view(self, rollout_id: str) -> RolloutView:
        """What the log says of the rollout; an unknown one is empty."""
        return self._of(rollout_id).view(rollout_id)

    def is_incomplete(self, rollout_id: str) -> bool:
        """Whether evidence is known to be missing."""
        return self._of(rollout_id).is_incomplete(rollout_id)

    def read(self, rollout_id: str) -> list[dict[str, Any]]:
        """The exchanges as they were committed, in call order.

        Raises:
            DamagedLog: one of them cannot be read; `call_index` names it. `read_available` leaves it out.
        """
        return self._of(rollout_id).read(rollout_id)

    def read_available(self, rollout_id: str) -> tuple[list[dict[str, Any]], int]:
        """The exchanges that can be read, in call order, and how many cannot."""
        return self._of(rollout_id).read_available(rollout_id)

    def read_indexed(self, rollout_id: str) -> tuple[list[tuple[int, dict[str, Any]]], int]:
        """Like `read_available`, each exchange with its call index."""
        return self._of(rollout_id).read_indexed(rollout_id)

    def read_payloads(self, rollout_id: str, call_indexes: Iterable[int]) -> dict[int, dict[str, Any]]:
        """The four payload values of these exchanges, by call index. What cannot be read is left out."""
        return self._of(rollout_id).read_payloads(rollout_id, call_indexes)

    def read_bytes(self, rollout_id: str, call_index: int, payload: str) -> bytes:
        """One payload's exact text: what was given as bytes, or the JSON that a value was captured as.

        Args:
            payload: `request`, `response`, `request_raw` or `response_raw`.

        Raises:
            KeyError: there is no such exchange in the log, or it has no such payload.
            DamagedLog: it is damaged.
        """
        return self._of(rollout_id).read_bytes(rollout_id, call_index, payload)

    def evidence(self, rollout_id: str, include_payloads: bool = False) -> RolloutEvidence:
        """What `merge.attach_capture` needs: the derived records, and what is known to be missing.

        An entry whose record (or, if asked for, a payload) is damaged counts as damaged; the others keep their index.
        """
        return self._of(rollout_id).evidence(rollout_id, include_payloads)
