"""The suite that every transport passes, over the stream and in process, with a real owner."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from gym_capture.client.transport import Transport
from gym_capture.testing.conformance import TransportConformance
from gym_capture.testing.in_process import CUT, InProcessTransport, Way, at_once
from gym_capture.testing.threaded_owner import ThreadedOwner


class StreamOwner(ThreadedOwner):
    """Reached over loopback; links are cut at any byte."""

    def transport(self) -> Transport:
        """A stream."""
        return self.stream_transport()

    def cut_soon(self, chance: random.Random) -> None:
        """Within the next kilobytes, in the middle of a message most of the time."""
        self.proxy.cut_after = chance.randrange(1, 4000)


class InProcessOwner(ThreadedOwner):
    """Reached without sockets; links are cut between messages."""

    def transport(self) -> InProcessTransport:
        """Links in this process."""
        return self.in_process_transport()

    def cut_soon(self, chance: random.Random) -> None:
        """Before one of the next messages, either way."""
        left = chance.randrange(1, 12)

        def policy(way: Way, head: bytes, body: bytes) -> float:
            nonlocal left
            left -= 1
            return CUT if left == 0 else 0.0

        for transport in self._in_process:
            transport.policy = policy if left else at_once


class TestStream(TransportConformance):
    @pytest.fixture
    def owner(self, tmp_path: Path) -> Iterator[StreamOwner]:
        made = StreamOwner(tmp_path / "captures")
        made.start()
        yield made
        made.close()


class TestInProcess(TransportConformance):
    @pytest.fixture
    def owner(self, tmp_path: Path) -> Iterator[InProcessOwner]:
        made = InProcessOwner(tmp_path / "captures")
        made.start()
        yield made
        made.close()


class OwnerOfWholeRequests(InProcessOwner):
    """Its clients store every request whole."""

    history = False


class TestWithoutHistory(TransportConformance):
    @pytest.fixture
    def owner(self, tmp_path: Path) -> Iterator[OwnerOfWholeRequests]:
        made = OwnerOfWholeRequests(tmp_path / "captures")
        made.start()
        yield made
        made.close()
