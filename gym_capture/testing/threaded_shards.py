"""The owners of a run's shards, each in a thread of its own."""

from __future__ import annotations

from pathlib import Path

from gym_capture.client.transport import Transport
from gym_capture.service.settings import OwnerSettings
from gym_capture.storage.posix_files import make_capture_directory
from gym_capture.storage.run_layout import create_or_adopt_shards, shard_directory
from gym_capture.testing.threaded_owner import ThreadedOwner


class ThreadedShards:
    """One `ThreadedOwner` for each shard; what is done to it is done to all of them.

    Args:
        directory: the run's capture directory; made when absent.
        shards: how many.
        settings: the owners'.

    Attributes:
        owners: one for each shard, in order.
    """

    def __init__(self, directory: Path, shards: int, settings: OwnerSettings | None = None) -> None:
        make_capture_directory(directory)
        create_or_adopt_shards(str(directory), shards)
        self.directory = directory
        self.owners = [
            ThreadedOwner(Path(shard_directory(str(directory), shard, shards)), settings) for shard in range(shards)
        ]

    def start(self) -> None:
        """Start every owner."""
        for owner in self.owners:
            owner.start()

    def kill(self) -> None:
        """End every owner as a crash does."""
        for owner in self.owners:
            owner.kill()

    def cut(self) -> None:
        """Break every connection; the owners live."""
        for owner in self.owners:
            owner.cut()

    def close(self) -> None:
        """End everything."""
        for owner in self.owners:
            owner.close()

    def stream_transports(self) -> list[Transport]:
        """A stream to each shard."""
        return [owner.stream_transport() for owner in self.owners]

    def in_process_transports(self) -> list[Transport]:
        """Links without sockets to each shard."""
        return [owner.in_process_transport() for owner in self.owners]
