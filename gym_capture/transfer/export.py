"""Taking captured rollouts out: NeMo Gym's capture files, conversations for training, a sealed dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gym_capture.errors import ConfigError
from gym_capture.model.captured import CapturedCall, CapturedRollout
from gym_capture.model.json_text import to_json
from gym_capture.storage import names
from gym_capture.storage.captured_source import open_captured
from gym_capture.storage.nemo_gym import line_of_call
from gym_capture.storage.posix_files import PosixFiles, make_capture_directory
from gym_capture.storage.remote.run_uri import is_uri
from gym_capture.storage.sealed.manifest import MANIFEST
from gym_capture.transfer.chat_lines import chat_lines
from gym_capture.transfer.whole_file import whole_file


class Exported(NamedTuple):
    """What was taken out.

    Fields: `rollouts` and `calls` that were gone through, and `notes`: what of them the format does not hold, counted
    (`docs/export.md` says what each note means).
    """

    rollouts: int
    calls: int
    notes: dict[str, int]


def export(directory: str | Path, to: str | Path, format: str) -> Exported:
    """Write what a capture directory or a sealed dataset holds in another format. Again: the same files anew.

    Args:
        directory: a path, or the URI of a sealed run. It is only read; what comes into a live one meanwhile may be
            missing.
        to: a folder (`nemo-gym`, `parquet`), or a file (`openai-chat`).
        format: one of `FORMATS`.

    Raises:
        ConfigError: there is no such format, or `to` is a capture directory, or holds a sealed dataset already.
        CaptureDirectoryError: `directory` is none.
        OSError: something cannot be written; run it again.
    """
    if format not in FORMATS:
        raise ConfigError(f"there is no format {format!r}; give one of {', '.join(FORMATS)}. Nothing was written.")
    target = Path(to).absolute()
    rollouts = open_captured(directory)
    _refuse_captures(target)
    if not is_uri(directory) and target.resolve() == Path(directory).resolve():
        raise ConfigError(f"{target} is what is to be exported. Nothing was written; give another path.")
    counted = _Counted(rollouts(True))
    FORMATS[format](counted, target)
    return Exported(counted.rollouts, counted.calls, dict(sorted((+counted.notes).items())))


class _Counted:
    """Goes through the last generation of each rollout, and counts what is come by."""

    def __init__(self, rollouts: Iterator[CapturedRollout]) -> None:
        self._source = rollouts
        self.rollouts = self.calls = 0
        self.notes: Counter[str] = Counter()

    def all(self) -> Iterator[CapturedRollout]:
        """Every generation of every rollout."""
        for rollout in self._source:
            self.rollouts += 1
            yield rollout._replace(calls=self._counted(rollout))

    def current(self) -> Iterator[CapturedRollout]:
        """The last generation of every rollout."""
        held: CapturedRollout | None = None
        for rollout in self._source:
            if held is not None and held.rollout_id != rollout.rollout_id:
                self.rollouts += 1
                yield held._replace(calls=self._counted(held))
            elif held is not None:
                self.notes["earlier_generations"] += 1
            held = rollout
        if held is not None:
            self.rollouts += 1
            yield held._replace(calls=self._counted(held))

    def _counted(self, rollout: CapturedRollout) -> Iterator[CapturedCall]:
        found = 0
        for call in rollout.calls:
            found += 1
            yield call
        self.calls += found
        self.notes["damaged_calls"] += max(0, rollout.indexes - found)


def _refuse_captures(target: Path) -> None:
    if target.is_dir() and names.RUN in PosixFiles(target).names():
        raise ConfigError(
            f"{target} is a capture directory, and what is exported must not lie among captures. Nothing was written; "
            "give another path."
        )


def _to_nemo_gym(rollouts: _Counted, target: Path) -> None:
    make_capture_directory(target)
    for rollout in rollouts.current():
        marker = target / names.nemo_gym_incomplete_file(rollout.rollout_id)
        whole = rollout.reasons is None and not rollout.outstanding
        if not whole:
            _mark(marker)
        found = 0
        with whole_file(target / names.nemo_gym_file(rollout.rollout_id)) as file:
            for call in rollout.calls:
                found += 1
                line, nonstandard = line_of_call(call)
                rollouts.notes["nonstandard_lines"] += nonstandard
                file.write(line + b"\n")
            if found < rollout.indexes:
                whole = False
                _mark(marker)
        if whole:
            marker.unlink(missing_ok=True)


def _mark(marker: Path) -> None:
    with whole_file(marker):
        pass


def _to_openai_chat(rollouts: _Counted, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as file:
        for rollout in rollouts.current():
            for conversation in chat_lines(rollout.calls):
                if conversation.line is None:
                    rollouts.notes[conversation.left_out] += 1
                else:
                    file.write(_one_line(conversation.line))
                    rollouts.notes["conversations"] += 1


def _one_line(value: Any) -> bytes:
    return to_json(value).text + b"\n"


def _to_parquet(rollouts: _Counted, target: Path) -> None:
    from gym_capture.storage.sealed.writer import SealedWriter

    make_capture_directory(target)
    files = PosixFiles(target)
    if MANIFEST in files.names():
        raise ConfigError(
            f"{target} holds a sealed dataset already. Nothing was written; give a new folder, or add to it with "
            "SealedWriter."
        )
    writer = SealedWriter(files)
    try:
        for rollout in rollouts.all():
            writer.add(rollout)
    except BaseException:
        writer.abandon()
        raise
    writer.commit()


FORMATS: dict[str, Callable[[_Counted, Path], None]] = {
    "nemo-gym": _to_nemo_gym,
    "openai-chat": _to_openai_chat,
    "parquet": _to_parquet,
}
"""Each format by name."""

__all__ = ["FORMATS", "Exported", "export"]
