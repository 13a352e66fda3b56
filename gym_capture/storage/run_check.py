"""The `RUN` of a run of several shards, held against what all of its shards say."""

from __future__ import annotations

from gym_capture.storage import names
from gym_capture.storage.file_checks import FileDamage, check_marker
from gym_capture.storage.files import Files
from gym_capture.storage.run_layout import marker_of_shards
from gym_capture.storage.run_marker import read_marker


def check_runs_marker(files: Files) -> FileDamage | None:
    """What is wrong with a run's own marker; shards that agree outvote it.

    Args:
        files: the run's directory, in which its shards lie.

    Returns:
        None: nothing, as far as the shards tell.

    Raises:
        FormatError: it is of another version.
        OSError: it could not be read.
    """
    damage, said = check_marker(files, None), marker_of_shards(files)
    if damage is None and said is not None and (found := read_marker(files)) != said:
        why = f"it names run {found.run} of {found.shards} shards, these run {said.run} of {said.shards}"
        return FileDamage(names.RUN, 0, why)
    return damage


__all__ = ["check_runs_marker"]
