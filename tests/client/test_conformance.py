"""The suite that every transport passes, with real owners, over the stream and in process, in every configuration."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from gym_capture.client.transport import Transport
from gym_capture.testing.conformance import TransportConformance
from gym_capture.testing.in_process import CUT, Way, at_once
from gym_capture.testing.threaded_shards import ThreadedShards
from tests.configurations import CONFIGURATIONS, Configuration


class Owners(ThreadedShards):
    """The owners of a run in one of the configurations.

    Args:
        directory: the run's.
        configuration: how many there are, and whether the suite's clients store what repeats once.
    """

    def __init__(self, directory: Path, configuration: Configuration) -> None:
        super().__init__(directory, configuration.shards)
        self.history = configuration.history

    def transport(self) -> Transport:
        """Nobody's: each shard has its own."""
        raise NotImplementedError


class StreamOwners(Owners):
    """Reached over loopback; links are cut at any byte."""

    def transports(self) -> list[Transport]:
        """A stream to each shard."""
        return self.stream_transports()

    def cut_soon(self, chance: random.Random) -> None:
        """Within the next kilobytes of one shard, in the middle of a message most of the time."""
        chance.choice(self.owners).proxy.cut_after = chance.randrange(1, 4000)


class InProcessOwners(Owners):
    """Reached without sockets; links are cut between messages."""

    def transports(self) -> list[Transport]:
        """Links in this process to each shard."""
        return self.in_process_transports()

    def cut_soon(self, chance: random.Random) -> None:
        """Before one of the next messages, either way, in any shard."""
        left = chance.randrange(1, 12)

        def policy(way: Way, head: bytes, body: bytes) -> float:
            nonlocal left
            left -= 1
            return CUT if left == 0 else 0.0

        for owner in self.owners:
            for transport in owner._in_process:
                transport.policy = policy if left else at_once


T = TypeVar("T", bound=Owners)


def running(owners: T) -> Iterator[T]:
    """Owners that are started, and ended afterwards."""
    owners.start()
    yield owners
    owners.close()


@pytest.fixture(params=CONFIGURATIONS, ids=str)
def configuration(request: pytest.FixtureRequest) -> Configuration:
    """Each in turn."""
    found: Configuration = request.param
    return found


class TestStream(TransportConformance):
    @pytest.fixture
    def owner(self, tmp_path: Path, configuration: Configuration) -> Iterator[StreamOwners]:
        yield from running(StreamOwners(tmp_path / "captures", configuration))


class TestInProcess(TransportConformance):
    @pytest.fixture
    def owner(self, tmp_path: Path, configuration: Configuration) -> Iterator[InProcessOwners]:
        yield from running(InProcessOwners(tmp_path / "captures", configuration))
