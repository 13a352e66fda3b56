"""Taking captures into a directory at rest: NeMo Gym's files, a sealed dataset, or another run's directory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from gym_capture.errors import CaptureDirectoryError, ConfigError, GymCaptureError
from gym_capture.model.captured import CapturedRollout, CountedCalls
from gym_capture.model.rows import Outcome
from gym_capture.model.shards import shard_of
from gym_capture.storage.captured_source import RolloutSource, open_captured
from gym_capture.storage.files import Files
from gym_capture.storage.log_view import LogView
from gym_capture.storage.nemo_gym_files import NemoGymFiles
from gym_capture.storage.posix_files import PosixFiles, make_capture_directory
from gym_capture.storage.remote.run_uri import is_uri
from gym_capture.storage.run_layout import create_or_adopt_shards, shards_of
from gym_capture.transfer.batches import BEGUN, FIRST_GENERATION, Identity, batches_of, marks_of, named_calls
from gym_capture.transfer.owner_at_rest import OwnerAtRest, own_at_rest

_NAMED = 5


class Imported(NamedTuple):
    """What was taken in.

    Fields: `rollouts` and `calls` that were written now (a rollout that captured nothing is written as begun), the
    rollouts that were `there_already` (an import that was stopped had written them), and `earlier_generations` that
    were left out.
    """

    rollouts: int
    calls: int
    there_already: int
    earlier_generations: int


class _There(NamedTuple):
    """What a directory has of a rollout: its first `calls`, in a `generation`, and whether that is the `whole`."""

    calls: int = 0
    generation: int = FIRST_GENERATION
    whole: bool = False


_NOTHING = _There()


def import_captures(source: str | Path, directory: str | Path) -> Imported:
    """Write what a source holds into the log of a directory at rest. Blocks; not for a running event loop.

    It is looked at whole before anything is written. Stopped or killed, it goes on when it is run again: what is there
    already is what it wrote if it is the beginning of the same rollout.

    Args:
        source: a folder of NeMo Gym's capture files, a sealed dataset, a capture directory, or a sealed run's URI.
        directory: made when absent. Each rollout of a run of several shards goes to its own.

    Raises:
        DirectoryHeld: the directory has a live owner; nothing was changed.
        RunSealed: the directory's run was sealed; nothing was changed.
        CaptureDirectoryError: the directory has other evidence of a rollout of the source; no capture was written.
            It was owned for the look, so it has one epoch more.
        DamagedLog: the source cannot be read.
        GymCaptureError: an exchange cannot be written; those before it are there.
        OSError: the directory cannot be written.
    """
    target = Path(directory).absolute()
    if not is_uri(source) and Path(source).resolve() == target.resolve():
        raise ConfigError(f"{target} is what is to be imported. Nothing was written; give another directory.")
    rollouts = open_captured(source, strict=False)
    make_capture_directory(target)
    files = PosixFiles(target)
    shards = shards_of(files)
    if len(shards) == 1:
        create_or_adopt_shards(files.directory, 1)
    return asyncio.run(_import(rollouts, files, shards))


async def _import(source: RolloutSource, run: Files, shards: Sequence[Files]) -> Imported:
    written = calls = there_already = earlier = 0
    async with AsyncExitStack() as stack:
        # All of them before anything is written: the last one may be held, or have other evidence.
        owners = [await stack.enter_async_context(own_at_rest(each.directory, "import")) for each in shards]
        # Reading may take long, and the loop has to move the owners' beats meanwhile.
        there = await asyncio.to_thread(_all_there, source, shards, NemoGymFiles(run))
        rollouts = _current(source(True))
        while (found := await asyncio.to_thread(next, rollouts, None)) is not None:
            rollout, before = found
            earlier += before
            done = there.get(rollout.rollout_id, _NOTHING)
            if done.whole:
                there_already += 1
                continue
            calls += await _write(owners[shard_of(rollout.rollout_id, len(owners))], rollout, done)
            written += 1
    return Imported(written, calls, there_already, earlier)


async def _write(owner: OwnerAtRest, rollout: CapturedRollout, there: _There) -> int:
    """Write what is not there of one rollout; returns how many of its calls."""
    batches = batches_of(rollout, there.calls, there.generation)
    calls = 0
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        results = await owner.batch(batch.rows, batch.body)
        for result in results:
            if result.outcome != Outcome.APPLIED:
                raise GymCaptureError(
                    f"an exchange or mark of rollout {rollout.rollout_id} was refused "
                    f"({Outcome(result.outcome).name.lower()}). The rollouts before it are imported; leave it out."
                )
            calls += result.call_index >= 0
    return calls


def _current(rollouts: Iterator[CapturedRollout]) -> Iterator[tuple[CapturedRollout, int]]:
    """The last generation of every rollout, and how many there are before it."""
    held: CapturedRollout | None = None
    before = 0
    for rollout in rollouts:
        if held is not None and held.rollout_id == rollout.rollout_id:
            before += 1
        elif held is not None:
            yield held, before
            before = 0
        held = rollout
    if held is not None:
        yield held, before


def _all_there(source: RolloutSource, shards: Sequence[Files], beside: NemoGymFiles) -> dict[str, _There]:
    """What an import wrote before, by rollout.

    Raises:
        CaptureDirectoryError: the directory has something else of one of them.
    """
    # Not the owners' ledgers: rollouts that left their memory are on disk only.
    logs = [LogView(files) for files in shards]
    found: dict[str, _There] = {}
    others: list[str] = []
    for rollout, _ in _current(source(True)):
        rollout_id = rollout.rollout_id
        log = logs[shard_of(rollout_id, len(logs))]
        if _tells_nothing(rollout) and (log.knows(rollout_id) or beside.has(rollout_id)):
            found[rollout_id] = _There(whole=True)  # whatever is there does not contradict it
        elif log.knows(rollout_id):
            there = _written(rollout, log)
            if there is None:
                others.append(rollout_id)
            else:
                found[rollout_id] = there
        elif beside.has(rollout_id):
            others.append(rollout_id)
    if others:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        raise CaptureDirectoryError(
            f"the directory has other evidence of {', '.join(others[:_NAMED])}{more}. No capture was written; import "
            "into another directory.",
            rollout_ids=others,
        )
    return found


def _tells_nothing(rollout: CapturedRollout) -> bool:
    """Whether all that is known of a rollout is that it was begun."""
    return not rollout.indexes and marks_of(rollout, 0) is None


def _written(rollout: CapturedRollout, log: LogView) -> _There | None:
    """What an import wrote of it; None: what the directory has is something else."""
    state = log.state(rollout.rollout_id)
    if state is None:
        return _NOTHING
    view = state.view()
    there = [Identity(entry.model_call_id, entry.digest) for entry in view.entries]
    seen = CountedCalls(rollout.calls)
    given = [each.identity for each in named_calls(rollout._replace(calls=seen))]
    # Of a generation that an owner began somebody may still hold the token.
    begun = view.generation in (FIRST_GENERATION, state.clears.get(BEGUN))
    if not begun or view.outstanding or view.holes or there != given[: len(there)]:
        return None
    if len(there) == len(given) and view.reasons == marks_of(rollout, seen.calls):
        return _There(len(there), view.generation, whole=True)
    # The marks come with the last call, so an import that was stopped has left none.
    goes_on = view.reasons is None and (len(there) < len(given) or not there)
    return _There(len(there), view.generation) if goes_on else None


__all__ = ["Imported", "import_captures"]
