"""`CaptureStore`: a capture directory read without its owners and without Ray, at rest or live."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from heapq import merge
from operator import add, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gym_capture.errors import DamagedLog, GymCaptureError
from gym_capture.model.captured import CapturedCall, CapturedRollout
from gym_capture.model.ids import validate_rollout_id
from gym_capture.model.merge import RolloutEvidence
from gym_capture.model.rollout_state import RolloutView
from gym_capture.model.shards import shard_of
from gym_capture.storage import names
from gym_capture.storage.closing import sealed_in, unled_dataset
from gym_capture.storage.files import Files, FolderFiles
from gym_capture.storage.nemo_gym_files import NemoGymFiles
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.recovery_report import RecoveryReport
from gym_capture.storage.remote.opening import files_at
from gym_capture.storage.run_check import check_runs_marker
from gym_capture.storage.run_layout import known_run, shards_of
from gym_capture.storage.sealed.manifest import MANIFEST, read_manifest
from gym_capture.storage.shard_store import ShardStore
from gym_capture.storage.standing import OpenClaim, RolloutStanding, StoredRecord
from gym_capture.storage.verify import ReadDataset, VerifyReport

if TYPE_CHECKING:
    from gym_capture.storage.sealed.sealed_shard import SealedShard

_Answer = TypeVar("_Answer")


class CaptureStore:
    """What a run's capture directory holds, all its shards as one. Reads only; not safe for threads.

    On a live directory it may show what an owner has written and not yet acknowledged. NeMo Gym's files are read where
    they lie; where the log knows an id too (its clearing included), the log alone counts. A shard that was sealed is
    read from its dataset, also when that happened while this was open.

    Args:
        directory: the absolute path, the URI of a sealed run that lies elsewhere (`s3://…`), or `Files`.
        checkpoints: False: read all of the log, and believe no checkpoint.

    Raises:
        ShardGiven: it is one shard of a run's.
        CaptureDirectoryError: the path is relative, absent, or no directory; or a shard of the run is lost.
        FormatError: the log is of another version.
        DamagedLog: the run was sealed, and its dataset, or the file that leads readers to it, is gone.
        RemoteUnavailable: the URI cannot be reached, or no sealed run lies there.
        MissingExtra: the run was sealed, and pyarrow is not installed.
    """

    def __init__(self, directory: str | Path | Files, *, checkpoints: bool = True) -> None:
        self._files: Files = files_at(directory) if isinstance(directory, str | Path) else directory
        self._checkpoints = checkpoints
        self._load()

    def _load(self) -> None:
        self._marker = self._read_marker()
        self._directories = shards_of(self._files)
        self._shards = [self._opened(shard) for shard in range(len(self._directories))]

    def _opened(self, shard: int) -> ShardStore | SealedShard:
        files, beside = self._directories[shard], NemoGymFiles(self._files, shard, len(self._directories))
        folder = sealed_in(files)
        try:
            found = ShardStore(files, beside, checkpoints=self._checkpoints) if folder is None else None
        except OSError:
            found = None
            if (folder := sealed_in(files)) is None:
                raise
        # Segments go only after the log was sealed: if it is not, all of them were there.
        folder = folder or sealed_in(files)
        if folder is None:
            _require_led(files)
        if folder is None and found is not None:
            return found
        from gym_capture.storage.sealed.sealed_shard import SealedShard

        return SealedShard(_with_folders(files), folder or "", beside)

    def _read_marker(self) -> bytes:
        try:
            return self._files.read(names.RUN)
        except FileNotFoundError:
            return b""

    def _place(self, rollout_id: str) -> int:
        return shard_of(validate_rollout_id(rollout_id), len(self._shards))

    def _of(self, rollout_id: str) -> ShardStore | SealedShard:
        return self._shards[self._place(rollout_id)]

    def _sealed_since(self, shard: int) -> bool:
        """Whether a shard was sealed since it was opened; from now on it is read from its dataset."""
        if not isinstance(self._shards[shard], ShardStore) or sealed_in(self._directories[shard]) is None:
            return False
        self._shards[shard] = self._opened(shard)
        return True

    def _left(self, was: ShardStore | SealedShard, rollout_id: str) -> bool:
        """Whether what began to answer for a rollout does no more, because the shard was sealed meanwhile."""
        return self._of(rollout_id) is not was or self._sealed_since(self._place(rollout_id))

    def _asked(self, shard: int, ask: Callable[[ShardStore | SealedShard], _Answer]) -> _Answer:
        """What a shard says. An answer counts only if its segments were there to the end."""
        try:
            answer = ask(self._shards[shard])
        except (GymCaptureError, OSError, KeyError):
            if not self._sealed_since(shard):
                raise
        else:
            if not self._sealed_since(shard):
                return answer
        return ask(self._shards[shard])

    def _all(self, ask: Callable[[ShardStore | SealedShard], _Answer]) -> list[_Answer]:
        return [self._asked(shard, ask) for shard in range(len(self._shards))]

    # -- the run ------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The directory as it was given."""
        return self._files.directory

    @property
    def run(self) -> str | None:
        """The run's uuid, hex, as far as anything says it (`run_layout.known_run`)."""
        return known_run(self._files)

    @property
    def sealed_shards(self) -> int:
        """How many shards are read from their dataset by now: of what they hold, nothing lies in a log any more."""
        return sum(not isinstance(each, ShardStore) for each in self._shards)

    def datasets(self) -> list[ReadDataset]:
        """The datasets of the shards that were sealed, under the path that each has in the directory."""
        several = len(self._shards) > 1
        sealed = [each for each in self._shards if not isinstance(each, ShardStore)]
        found = [(each.folder, each.dataset()) for each in sealed]
        return [told._replace(folder=f"{shard}/{told.folder}") if several else told for shard, told in found]

    @property
    def report(self) -> RecoveryReport:
        """What reading the log found so far."""
        return reduce(add, (shard.report for shard in self._shards))

    def refresh(self) -> None:
        """Take in what was appended since: only that is read, unless another owner has taken over."""
        if self._read_marker() != self._marker:
            self._load()  # the directory was made anew, and the files of that run may have these names too
            return
        for shard in range(len(self._shards)):
            self._asked(shard, lambda each: each.refresh())

    def rollout_ids(self) -> list[str]:
        """Every id that has evidence (or is marked), sorted; cleared ones with nothing since are forgotten."""
        return sorted(rollout_id for ids in self._all(lambda each: each.rollout_ids()) for rollout_id in ids)

    def standings(self) -> list[RolloutStanding]:
        """How every rollout stands, sorted by id: those, too, that were begun (cleared, merged) and have nothing.

        No record is read, and no file of NeMo Gym's.
        """
        return list(merge(*self._all(lambda each: each.standings()), key=itemgetter(0)))

    def open_claims(self, rollout_id: str | None = None) -> list[OpenClaim]:
        """The claims that are open, of one rollout or (None) of the whole run, the oldest first."""
        if rollout_id is not None:
            return self._asked(self._place(rollout_id), lambda each: each.open_claims(rollout_id))
        claims = [claim for found in self._all(lambda each: each.open_claims()) for claim in found]
        return sorted(claims, key=lambda claim: (claim.opened_at, claim.rollout_id, claim.model_call_id))

    def outstanding(self, rollout_id: str | None = None) -> int:
        """Claims that are open, of one rollout or (None) of the whole run."""
        if rollout_id is not None:
            return self._asked(self._place(rollout_id), lambda each: each.outstanding(rollout_id))
        return sum(self._all(lambda each: each.outstanding()))

    def verify(self) -> VerifyReport:
        """Read everything, every payload's checksum included, from the directory as it is now."""
        return reduce(add, self.verify_shards().values())

    def verify_shards(self) -> dict[str, VerifyReport]:
        """The same for each shard, under the path that its files have in the directory: `shard-000/`, or nothing."""
        if len(self._shards) == 1:
            return {"": self._asked(0, lambda each: each.verify())}
        marker = check_runs_marker(self._files)
        run = VerifyReport(RecoveryReport(), files=[] if marker is None else [marker])
        found = self._all(lambda each: each.verify())
        return {"": run, **{f"{each.folder}/": report for each, report in zip(self._shards, found, strict=True)}}

    # -- a rollout ----------------------------------------------------------------------------------------------

    def knows(self, rollout_id: str) -> bool:
        """Whether there is anything of this rollout, be it its clearing."""
        return self._asked(self._place(rollout_id), lambda each: each.knows(rollout_id))

    def standing(self, rollout_id: str) -> RolloutStanding:
        """How one rollout stands; one that is nowhere has nothing."""
        return self._asked(self._place(rollout_id), lambda each: each.standing(rollout_id))

    def records(self, rollout_id: str, first: int = 0) -> Iterator[StoredRecord]:
        """The RECORD parts of a rollout's calls, from call index `first` on; its holes are left out.

        `evidence` reads the same for a merge; this is for whoever reads the records of many rollouts.
        """
        shard = self._of(rollout_id)
        for record in shard.records(rollout_id, first):
            if record.record is None and self._left(shard, rollout_id):
                break
            yield record
            first = record.call_index + 1
        if not self._left(shard, rollout_id):
            return
        yield from self._of(rollout_id).records(rollout_id, first)

    def generation(self, rollout_id: str) -> int:
        """The rollout's current generation, 0 until it is first cleared."""
        return self._asked(self._place(rollout_id), lambda each: each.generation(rollout_id))

    def view(self, rollout_id: str) -> RolloutView:
        """What the log says of the rollout; an unknown one is empty."""
        return self._asked(self._place(rollout_id), lambda each: each.view(rollout_id))

    def is_incomplete(self, rollout_id: str) -> bool:
        """Whether evidence is known to be missing."""
        return self._asked(self._place(rollout_id), lambda each: each.is_incomplete(rollout_id))

    def read(self, rollout_id: str) -> list[dict[str, Any]]:
        """The exchanges as they were committed, in call order.

        Raises:
            DamagedLog: one of them cannot be read; `call_index` names it. `read_available` leaves it out.
        """
        return self._asked(self._place(rollout_id), lambda each: each.read(rollout_id))

    def read_available(self, rollout_id: str) -> tuple[list[dict[str, Any]], int]:
        """The exchanges that can be read, in call order, and how many cannot."""
        return self._asked(self._place(rollout_id), lambda each: each.read_available(rollout_id))

    def read_indexed(self, rollout_id: str) -> tuple[list[tuple[int, dict[str, Any]]], int]:
        """Like `read_available`, each exchange with its call index."""
        return self._asked(self._place(rollout_id), lambda each: each.read_indexed(rollout_id))

    def captured(self, rollout_id: str, *, texts: bool = True, strict: bool = True) -> CapturedRollout:
        """The rollout's current generation with the exact bytes of its exchanges, each read when it is come to.

        Those that cannot be read are left out.

        Args:
            texts: False: what is derived of them is enough; their texts are not read (NeMo Gym's are, all the same).
            strict: lines of NeMo Gym's that standard JSON refuses are damaged (`nemo_gym.call_of_line`).
        """
        found = self._asked(self._place(rollout_id), lambda each: each.captured(rollout_id, texts=texts, strict=strict))
        shard = self._of(rollout_id)

        def calls() -> Iterator[CapturedCall]:
            following = 0
            for call in found.calls:
                if call.call_index > following and self._left(shard, rollout_id):
                    break  # what was left out may have gone with its segment
                yield call
                following = call.call_index + 1
            if following < found.indexes and self._left(shard, rollout_id):
                rest = self._of(rollout_id).captured(rollout_id, texts=texts, strict=strict)
                yield from (call for call in rest.calls if call.call_index >= following)

        return found._replace(calls=calls())

    def read_payloads(self, rollout_id: str, call_indexes: Iterable[int]) -> dict[int, dict[str, Any]]:
        """The four payload values of these exchanges, by call index. What cannot be read is left out."""
        wanted = list(call_indexes)
        return self._asked(self._place(rollout_id), lambda each: each.read_payloads(rollout_id, wanted))

    def read_bytes(self, rollout_id: str, call_index: int, payload: str) -> bytes:
        """One payload's exact text: what was given as bytes, or the JSON that a value was captured as.

        Args:
            payload: `request`, `response`, `request_raw` or `response_raw`.

        Raises:
            KeyError: there is no such exchange in the log, or it has no such payload.
            DamagedLog: it is damaged.
        """
        return self._asked(self._place(rollout_id), lambda each: each.read_bytes(rollout_id, call_index, payload))

    def evidence(self, rollout_id: str, include_payloads: bool = False) -> RolloutEvidence:
        """What `merge.attach_capture` needs: the derived records, and what is known to be missing.

        An entry whose record (or, if asked for, a payload) is damaged counts as damaged; the others keep their index.
        """
        return self._asked(self._place(rollout_id), lambda each: each.evidence(rollout_id, include_payloads))


def _with_folders(files: Files) -> FolderFiles:
    return files if isinstance(files, FolderFiles) else PosixFiles(files.directory)


def _require_led(files: Files) -> None:
    """Raise DamagedLog where readers of a shard that was sealed would find nothing of what it holds."""
    folder = unled_dataset(files)
    if folder is None or _is_empty(files, folder):
        return
    raise DamagedLog(
        f"the run in {files.directory} was sealed into {folder}, and {names.SEALED}, which leads readers there, is "
        "gone. Nothing was changed; `gym-capture seal` on the run's directory writes it anew."
    )


def _is_empty(files: Files, folder: str) -> bool:
    """Whether a dataset is there and holds nothing, as that of a run into which nothing was ever written."""
    try:
        dataset = _with_folders(files).folder(folder)
        return MANIFEST in dataset.names() and not read_manifest(dataset).parts
    except (OSError, DamagedLog):
        return False
