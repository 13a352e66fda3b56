"""The names of a capture directory's files: the only place that builds or parses one.

Names that are not listed here belong to others and are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from gym_capture.model.ids import is_rollout_id

RUN = "RUN"
"""Marks the directory as one run's; JSON with the run's uuid."""

OWNER = "OWNER"
"""Says who owns the directory; JSON, replaced at a takeover."""

COLLECT = "collect.json"
"""Which output the collector writes for these captures; JSON. Nobody else reads it."""

QUARANTINE = "quarantine"
"""The folder to which a repair moves what it replaces. Nobody reads it."""

SEALED = "SEALED"
"""Names the folder of the dataset that stands for the log; JSON. Without it the log counts."""

SEALED_AHEAD = "sealed-ahead"
"""The folder of the dataset into which finished rollouts are sealed while the run goes on. The log counts, not it."""

CONTENTS = "CONTENTS"
"""Lists all files of a sealed run that was carried elsewhere; JSON. Without it no run is there."""

MANIFEST = "manifest.json"
"""Lists the files of a dataset, in its folder; JSON. It is in no run's own directory."""

NEMO_GYM_SUFFIX = ".capture.jsonl"
NEMO_GYM_INCOMPLETE_SUFFIX = ".capture.incomplete"

_SHARD = re.compile(r"shard-([0-9]{3})")
_SEALED_FOLDER = re.compile(r"sealed-([0-9]{8,10})")
_EPOCH = re.compile(r"epoch-([0-9]{8,10})")
_SEGMENT = re.compile(r"segment-([0-9]{8,10})-([0-9]{8,10})\.log")

_CHECKPOINT = re.compile(r"index-([0-9]{8,10})-([0-9]{8,10})")
_BEAT_OR_TOKEN = re.compile(r"(beat|token)-([0-9]{8,10})")
_TEMPORARY = re.compile(r"\.[A-Za-z0-9.-]+\.(repair|[0-9a-f]{8})\.tmp")

_MOST = 2**32 - 1
"""Epochs and segment numbers have four bytes in the log: a larger one is no name of ours."""


class SegmentName(NamedTuple):
    """Which segment a file is: the `epoch` that wrote it and its `number` in that epoch. Sorts in log order."""

    epoch: int
    number: int

    @property
    def file(self) -> str:
        """The file's name."""
        return f"segment-{self.epoch:08d}-{self.number:08d}.log"


class CheckpointName(NamedTuple):
    """Which checkpoint a file is: the `epoch` of its owner, and its `number` there. Sorts in order of writing."""

    epoch: int
    number: int

    @property
    def file(self) -> str:
        """The file's name."""
        return f"index-{self.epoch:08d}-{self.number:08d}"


def shard_folder(shard: int) -> str:
    """The folder of a run's directory that holds one of its shards, where there are several."""
    return f"shard-{shard:03d}"


def shards_in(names: Iterable[str]) -> list[int]:
    """The numbers of the shards that have a folder, ascending."""
    return sorted(int(match[1]) for name in names if (match := _SHARD.fullmatch(name)))


def epoch_file(epoch: int) -> str:
    """The file whose exclusive creation is the claim on `epoch`."""
    return f"epoch-{epoch:08d}"


def beat_file(epoch: int) -> str:
    """The file that the owner of `epoch` keeps changing while it lives."""
    return f"beat-{epoch:08d}"


def token_file(epoch: int) -> str:
    """The file with the token that clients of `epoch`'s owner show."""
    return f"token-{epoch:08d}"


def sealed_folder(epoch: int) -> str:
    """The folder of the dataset that the owner of `epoch` seals into. Nobody else writes there."""
    return f"sealed-{epoch:08d}"


def sealed_folders_in(names: Iterable[str]) -> list[str]:
    """Every folder of a dataset that stands for a log, or was to, by epoch: one that was left unfinished too."""
    return sorted((name for name in names if _SEALED_FOLDER.fullmatch(name)), key=epoch_of_sealed)


def epoch_of_sealed(folder: str) -> int:
    """The epoch whose owner sealed into a folder that `sealed_folders_in` found."""
    return int(folder.rpartition("-")[2])


def temporary_file(name: str, suffix: str) -> str:
    """Where the content of `name` is written before it takes its place."""
    return f".{name}.{suffix}.tmp"


def set_aside(name: str, number: int) -> str:
    """Where a repair keeps the original of `name`; `number` counts what was replaced under one name, from 0."""
    return f"{QUARANTINE}/{name}.{number}"


def epochs_in(names: Iterable[str]) -> list[int]:
    """Every epoch that has been claimed or has a segment, ascending."""
    epochs = {
        epoch
        for name in names
        if (match := _EPOCH.fullmatch(name)) and epoch_file(epoch := int(match[1])) == name and epoch <= _MOST
    }
    return sorted(epochs | {segment.epoch for segment in segments_in(names)})


def segments_in(names: Iterable[str]) -> list[SegmentName]:
    """Every segment, in log order."""
    found = [SegmentName(int(match[1]), int(match[2])) for name in names if (match := _SEGMENT.fullmatch(name))]
    listed = set(names)
    return sorted(each for each in set(found) if each.file in listed and max(each) <= _MOST)


def checkpoints_in(names: Iterable[str]) -> list[CheckpointName]:
    """Every checkpoint, the oldest first."""
    found = [CheckpointName(int(match[1]), int(match[2])) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    listed = set(names)
    return sorted(each for each in set(found) if each.file in listed and max(each) <= _MOST)


def is_shard(name: str) -> bool:
    """Whether it is the folder of a shard."""
    return _SHARD.fullmatch(name) is not None


def is_folder(name: str) -> bool:
    """Whether what has this name in a capture directory is a folder."""
    return name in (QUARANTINE, SEALED_AHEAD) or any(pattern.fullmatch(name) for pattern in (_SHARD, _SEALED_FOLDER))


def is_temporary(name: str) -> bool:
    """Whether it is the name of content that is to take another's place."""
    return _TEMPORARY.fullmatch(name) is not None


def replaced_by(temporary: str) -> str:
    """The file whose place the content of a temporary one is to take."""
    return temporary[1:].rpartition(".tmp")[0].rpartition(".")[0]


def is_ours(name: str) -> bool:
    """Whether a file or folder of a capture directory has a name that is listed here, other than NeMo Gym's."""
    return name in (RUN, OWNER, COLLECT, QUARANTINE, SEALED, SEALED_AHEAD, CONTENTS) or any(
        pattern.fullmatch(name)
        for pattern in (_SHARD, _SEALED_FOLDER, _EPOCH, _BEAT_OR_TOKEN, _SEGMENT, _CHECKPOINT, _TEMPORARY)
    )


def nemo_gym_file(rollout_id: str) -> str:
    """NeMo Gym's capture file of a rollout."""
    return rollout_id + NEMO_GYM_SUFFIX


def nemo_gym_incomplete_file(rollout_id: str) -> str:
    """NeMo Gym's marker that a rollout's capture is incomplete."""
    return rollout_id + NEMO_GYM_INCOMPLETE_SUFFIX


def nemo_gym_rollouts_in(names: Iterable[str]) -> set[str]:
    """The rollout ids that have a NeMo Gym file or marker; what stands before the suffix is an id, or it is no such."""
    found: set[str] = set()
    for name in names:
        for suffix in (NEMO_GYM_SUFFIX, NEMO_GYM_INCOMPLETE_SUFFIX):
            if name.endswith(suffix) and is_rollout_id(name.removesuffix(suffix)):
                found.add(name.removesuffix(suffix))
    return found
