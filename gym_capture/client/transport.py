"""What the client core needs of a way to reach the owner: a two-way pipe of messages that may break at any time.

The pipe keeps messages in order and whole while it lives; what was under way when it broke may or may not have
arrived. The core above says hello on every new link and sends again what was not answered, so no transport has to
promise more. One conformance suite (`gym_capture.testing.conformance`) runs over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

Message = tuple[bytes, bytes]
"""A message's head and body."""


class Link(Protocol):
    """One live pipe to an owner. Used from the client's loop only."""

    @property
    def token(self) -> str:
        """What the Hello on this link must show."""

    @property
    def run(self) -> str:
        """The run (uuid, hex) that the link was made to, or empty when that is not known before the Welcome."""

    def send(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Queue one encoded message (`messages.encode_message`). Never blocks; a broken link swallows it."""

    async def receive(self) -> list[Message]:
        """The next messages, at least one. Raises OwnerUnavailable once the link is broken."""

    def close(self) -> None:
        """Let go of the link, after what was sent; a pending receive raises OwnerUnavailable."""


@runtime_checkable
class Pushes(Protocol):
    """A link that hands messages over as they come, without a turn of the loop and a task in between."""

    def push_to(self, take: Callable[[list[Message]], None]) -> None:
        """Hand everything that comes, and what has come already, to `take`; `receive` then only tells of the end.

        Args:
            take: it does not raise; it may close the link.
        """


class Transport(Protocol):
    """A way to make links to one run's owner."""

    @property
    def name(self) -> str:
        """`stream`, `ray` or `in-process`; shown by `status`."""

    async def connect(self) -> Link:
        """Find the owner and open a link.

        Raises:
            OwnerUnavailable: it cannot be reached now; the core tries again.
            OwnerNotFound, HandshakeRefused, MissingRunMarker: trying again cannot help.
        """


@runtime_checkable
class ShowsProgress(Protocol):
    """A link that can tell whether bytes move, so that a large message on a slow network is not taken for silence."""

    @property
    def progress(self) -> int:
        """Grows while the other side takes or gives anything, parts of messages included."""


def progress_of(link: Link) -> int:
    """The link's progress, 0 for one that does not tell."""
    return link.progress if isinstance(link, ShowsProgress) else 0
