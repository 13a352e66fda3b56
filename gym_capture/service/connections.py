"""The clients that are connected: one session each, and how much of them is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gym_capture.service.session import Send, Session
from gym_capture.service.settings import OwnerSettings

if TYPE_CHECKING:
    from gym_capture.model.ledger_fold import ClientState
    from gym_capture.service.capture_service import CaptureService

_RESUME_SHARE = 0.75
"""Reading goes on when the buffers have drained to this share of the bound."""


class Connections:
    """Every connection of one owner.

    Attributes:
        sessions: the welcome ones by client id.
        counts: what happened, by name.
        buffered: bytes that were received and are not answered yet: batches, and all that is held back.
        paused: sessions that are not read now.
        damaged: how often a batch (client id, number) arrived damaged, until it arrives whole.
    """

    def __init__(self, settings: OwnerSettings) -> None:
        self.sessions: dict[bytes, Session] = {}
        self.counts: Counter[str] = Counter()
        self.buffered = 0
        self.paused: set[Session] = set()
        self.damaged: Counter[tuple[bytes, int]] = Counter()
        self._settings = settings
        self._all: set[Session] = set()
        self._places: dict[bytes, str] = {}
        self._gathered: list[Callable[[], None]] | None = None

    def connect(
        self, service: CaptureService, send: Send, close: Callable[[], None], hold: Callable[[bool], None]
    ) -> Session:
        """A new connection."""
        self.counts["connections"] += 1
        session = Session(service, send, close, hold)
        self._all.add(session)
        return session

    def admit(self, session: Session) -> None:
        """A session's hello was right. An earlier session of the client ends, its unread input is void."""
        previous = self.sessions.get(session.client)
        if previous is not None:
            self.counts["replaced_connections"] += 1
            previous.end()
        self.sessions[session.client] = session
        self._places[session.client] = session.place

    def ended(self, session: Session) -> None:
        """A connection is gone."""
        self._all.discard(session)
        self.paused.discard(session)
        if self.sessions.get(session.client) is session:
            del self.sessions[session.client]

    def end_all(self) -> None:
        """Close every connection."""
        for session in list(self._all):
            session.end()

    def gather(self) -> None:
        """Many answers follow, which connections should send in one go each, at `flush`."""
        if self._gathered is None:
            self._gathered = []

    def gathered(self, send: Callable[[], None]) -> bool:
        """Whether answers are gathered now; if so, `send` is called at `flush`."""
        if self._gathered is None:
            return False
        self._gathered.append(send)
        return True

    def flush(self) -> None:
        """Send what was gathered."""
        gathered, self._gathered = self._gathered, None
        for send in gathered or ():
            send()

    def place_of(self, client: bytes) -> str:
        """Where a client said it is."""
        return self._places.get(client, "")

    def forget_places(self, clients: Mapping[bytes, ClientState]) -> None:
        """Nobody asks for the place of a client that is gone and has nothing open."""
        for client in [each for each in self._places if each not in self.sessions]:
            if client not in clients or not clients[client].claims:
                del self._places[client]

    def received(self, session: Session, size: int) -> None:
        """Bytes have to be kept: of a batch until it is answered, of what is held back until it is taken."""
        session.unanswered += size
        self.buffered += size
        settings = self._settings
        if session.unanswered > 2 * settings.window_bytes or self.buffered > settings.owner_buffer_bytes:
            self.paused.add(session)
            session.set_paused(True)

    def answered(self, session: Session, size: int) -> None:
        """They can be let go."""
        session.unanswered -= size
        self.buffered -= size

    def resume(self) -> None:
        """Read on where there is room again."""
        if not self.paused or self.buffered > _RESUME_SHARE * self._settings.owner_buffer_bytes:
            return
        for session in [found for found in self.paused if found.unanswered <= self._settings.window_bytes]:
            self.paused.discard(session)
            session.set_paused(False)
