"""Reading the bodies of frames: parts by their place and checksum."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from gym_capture.errors import DamagedLog
from gym_capture.model.codec import FrameRef, checksum
from gym_capture.model.exchange import open_part, open_text
from gym_capture.model.history import MessageRun, run_of
from gym_capture.model.rollout_state import Entry, History, HistoryPiece
from gym_capture.model.rows import Part, PartFlag, Row
from gym_capture.storage.files import Files
from gym_capture.storage.names import SegmentName

_HISTORY = int(PartFlag.HISTORY)


@lru_cache(maxsize=64)
def _file_of(epoch: int, segment: int) -> str:
    return SegmentName(epoch, segment).file


def parts_of(row: Row) -> Sequence[Part]:
    """The parts that a row points to."""
    parts: Sequence[Part] = getattr(row, "parts", ())
    return parts


def read_body(files: Files, ref: FrameRef, length: int, offset: int = 0) -> bytes:
    """Bytes of a frame's body; fewer when the file ends before."""
    return files.read_at(_file_of(ref.epoch, ref.segment), ref.body_offset + offset, length)


def part_intact(body: memoryview, part: Part) -> bool:
    """Whether a part within a body has its length and checksum."""
    stored = body[part.offset : part.offset + part.length]
    return len(stored) == part.length and checksum(stored) == part.crc


class Messages:
    """Messages of one rollout's histories, read once and kept as long as this is.

    Args:
        files: the capture directory.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._found: dict[History, dict[int, bytes]] = {}
        self._read_to: dict[History, int] = {}

    def of(self, entry: Entry) -> MessageRun:
        """The messages that an entry refers to. What it returns raises DamagedLog where one is damaged."""
        history = entry.history
        if history is None:
            return run_of({})
        found = self._found.setdefault(history, {})
        read_to = self._read_to.get(history, 0)
        if read_to < entry.messages:
            for piece in history.pieces(entry.messages, read_to):
                self._read(piece, found)
            self._read_to[history] = entry.messages

        return run_of(found)

    def _read(self, piece: HistoryPiece, found: dict[int, bytes]) -> None:
        start = min(part.offset for part in piece.parts)
        length = max(part.offset + part.length for part in piece.parts) - start
        try:
            data = read_body(self._files, piece.ref, length, start)
        except FileNotFoundError:
            return
        for number, part in enumerate(piece.parts, piece.first):
            try:
                opened = open_part(part, data[part.offset - start : part.offset - start + part.length])
            except DamagedLog:
                continue
            if piece.ranges:
                found.update(piece.within(opened))
            else:
                found[number] = opened


def open_skeleton(files: Files, entry: Entry, part: Part) -> bytes:
    """A part's own bytes, without what it refers to.

    Raises:
        DamagedLog: it is damaged, or gone with its file.
    """
    try:
        return open_part(part, read_body(files, entry.ref, part.length, part.offset))
    except FileNotFoundError as error:
        raise DamagedLog("its segment is gone") from error


def open_parts(files: Files, entry: Entry, messages: Messages, parts: Sequence[Part]) -> list[tuple[Part, bytes]]:
    """Parts of one exchange with their bytes as they were handed in, read with one call.

    Args:
        parts: which of the entry's.
        messages: what skeletons refer to; the same for all entries of a rollout that are read together.

    Raises:
        DamagedLog: one of them does not match its checksum, is missing with its file, or refers to a damaged message.
    """
    if not parts:
        return []
    start = min([part.offset for part in parts])
    length = max([part.offset + part.length for part in parts]) - start
    data = _read(files, entry.ref, length, start)
    opened: list[tuple[Part, bytes]] = []
    for part in parts:
        at = part.offset - start
        stored = data[at : at + part.length]
        if part.flags & _HISTORY:
            opened.append((part, open_text(part, stored, entry.messages, messages.of(entry))))
        else:
            opened.append((part, open_part(part, stored)))
    return opened


def open_one_part(files: Files, ref: FrameRef, part: Part) -> bytes:
    """One part's bytes as they were before compression.

    Raises:
        DamagedLog: it does not match its checksum, or is missing with its file.
    """
    return open_part(part, _read(files, ref, part.length, part.offset))


def _read(files: Files, ref: FrameRef, length: int, offset: int) -> bytes:
    try:
        return read_body(files, ref, length, offset)
    except FileNotFoundError as error:
        name = SegmentName(ref.epoch, ref.segment).file
        raise DamagedLog(f"{name} is gone from {files.directory}") from error
