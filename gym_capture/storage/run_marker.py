"""`RUN`: the file that makes a directory one run's capture directory, or one shard's of it.

A run of several shards has a `RUN` in its own directory, which says how many there are, and one in the folder of each
shard (`run_layout`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from gym_capture.errors import CaptureDirectoryError, DamagedLog, FormatError, MissingRunMarker
from gym_capture.model.codec import FORMAT_VERSION, SEGMENT_HEAD_BYTES, SegmentHead, parse_segment_head
from gym_capture.model.shards import MOST_SHARDS
from gym_capture.storage import fault_points, names
from gym_capture.storage.files import Files
from gym_capture.storage.names import SegmentName
from gym_capture.storage.summed_json import convert_fields, encode_summed, summed_fields


class RunMarker(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The content of `RUN`, but its checksum.

    Args:
        run: the run's uuid, hex.
        format: the version of the format.
        shards: how many the run has.
        shard: the number of the shard that the directory is; None: it is the run's own.
    """

    run: str
    format: int
    shards: int = 1
    shard: int | None = None

    @property
    def uuid(self) -> uuid.UUID:
        """The run's uuid."""
        return uuid.UUID(hex=self.run)


def create_or_adopt_run(files: Files, new_run: Callable[[], uuid.UUID] = uuid.uuid4) -> uuid.UUID:
    """The run of this directory; makes the directory that of a run of one shard when it has no marker yet.

    Raises:
        MissingRunMarker: there is a log or an owner's file, and the marker is gone; nothing was written.
        CaptureDirectoryError: the directory cannot be written, or the marker cannot be read.
        FormatError: the directory was written by another version.
    """
    try:
        return read_run(files)
    except MissingRunMarker:
        listed = files.names()
        if names.RUN in listed:
            return read_run(files)  # another start made it just now
        if names.epochs_in(listed):
            raise _marker_lost(files) from None
    run = new_run()
    try:
        files.create(names.RUN, marker_content(run), fault_points.RUN)
    except FileExistsError:
        return read_run(files)
    except OSError as error:
        raise CaptureDirectoryError(
            f"capture directory {files.directory} cannot be written ({error}). Nothing was written; "
            "give this user write permission or choose another directory.",
            directory=files.directory,
        ) from error
    return run


def marker_content(run: uuid.UUID) -> bytes:
    """What stands in the `RUN` of a run of one shard."""
    return encode_marker(RunMarker(run.hex, FORMAT_VERSION))


def encode_marker(marker: RunMarker) -> bytes:
    """The bytes of a `RUN`."""
    return encode_summed(marker)


def runs_in_headers(files: Files) -> list[str]:
    """The runs (hex) that the headers of a directory's segments name, as far as they can be read."""
    segments = names.segments_in(files.names())
    return sorted({uuid.UUID(bytes=head.run).hex for name in segments if (head := _head(files, name))})


def _marker_lost(files: Files) -> MissingRunMarker:
    runs = runs_in_headers(files)
    if len(runs) == 1:
        content = marker_content(uuid.UUID(hex=runs[0])).decode("ascii")
        remedy = (
            f"Their headers name run {runs[0]}: `gym-capture verify --repair` restores {names.RUN}, with the content "
            f"{content}"
        )
    elif runs:
        remedy = f"The segments' headers name several runs ({', '.join(runs)}): part them"
    else:
        remedy = f"No segment's header can be read, so restore {names.RUN} from a copy"
    return MissingRunMarker(
        f"{files.directory} has the files of an earlier owner and no {names.RUN} file: that file was lost, and a new "
        f"run must not be mixed with what is there. Nothing was written. {remedy}, or choose another directory.",
        directory=files.directory,
        runs=runs,
    )


def _head(files: Files, name: SegmentName) -> SegmentHead | None:
    try:
        return parse_segment_head(files.read_at(name.file, 0, SEGMENT_HEAD_BYTES))
    except (DamagedLog, OSError):
        return None


def read_run(files: Files) -> uuid.UUID:
    """The run that the directory belongs to. Raises like `read_marker`."""
    return read_marker(files).uuid


def read_marker(files: Files) -> RunMarker:
    """What the directory's marker says.

    Raises:
        MissingRunMarker: there is no `RUN` file: the shared file system may not be mounted here.
        CaptureDirectoryError: the marker cannot be read.
        FormatError: the directory was written by another version.
    """
    try:
        data = files.read(names.RUN)
    except FileNotFoundError:
        raise MissingRunMarker(
            f"{files.directory} has no {names.RUN} file, so it is not a run's capture directory (or the shared file "
            "system is not mounted on this node). Nothing was written; check the mount, or start the run first.",
            directory=files.directory,
        ) from None
    try:
        fields = summed_fields(data)
        if fields.get("format") == FORMAT_VERSION:
            return _marker_in(fields)
    except ValueError as error:
        raise CaptureDirectoryError(
            f"{names.RUN} in {files.directory} cannot be read ({error}). The log is untouched; `gym-capture verify "
            f"--repair` on the run's directory restores {names.RUN} from what else names the run: the segments' "
            "headers, and, where there are several shards, the other markers.",
            directory=files.directory,
        ) from error
    raise FormatError(
        f"{files.directory} has format version {fields.get('format')}, this gym_capture reads {FORMAT_VERSION}. "
        "Nothing was changed; use the version that wrote it."
    )


def _marker_in(fields: dict[str, Any]) -> RunMarker:
    marker = convert_fields(fields, RunMarker)
    _ = marker.uuid
    if not 0 <= (marker.shard or 0) < marker.shards <= MOST_SHARDS:
        raise ValueError(f"shard {marker.shard} of {marker.shards}")
    return marker


def require_capture_directory(files: Files) -> None:
    """Refuse a directory that holds no capture at all: reading it would say that all is well.

    Raises:
        MissingRunMarker: neither a run's marker nor a segment nor a file of NeMo Gym's is in it.
    """
    listed = files.names()
    known = names.segments_in(listed) or names.shards_in(listed) or names.nemo_gym_rollouts_in(listed)
    if names.RUN not in listed and not known:
        if names.MANIFEST in listed:
            raise MissingRunMarker(
                f"{files.directory} is a sealed dataset and no run's capture directory. Nothing was changed; "
                "`gym-capture sql`, `export` and `import` read it. For ls, show, verify and the other commands "
                f"`gym-capture import {files.directory} NEW` makes a run of it; where a sealed run's directory has it "
                "as its folder, give that directory.",
                directory=files.directory,
            )
        raise MissingRunMarker(
            f"{files.directory} is no capture directory: it has no {names.RUN} file, no log and no NeMo Gym file (a "
            "mistyped path, or a file system that is not mounted here). Nothing was changed; check the path.",
            directory=files.directory,
        )
