"""Calls that are to be cancelled at chosen points, a model that leads them there, and questions for quiescence."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import gym_capture
from gym_capture.storage.store import CaptureStore
from tests.crash.model_streams import pieces_of
from tests.crash.stream_client import number_in

BEFORE_CLAIM = "before the claim"
IN_CLAIM = "while the claim is awaited"
BEFORE_FIRST = "before the first byte"
IN_STREAM = "within the stream"
IN_COMMIT = "while the commit is awaited"
POINTS = (BEFORE_CLAIM, IN_CLAIM, BEFORE_FIRST, IN_STREAM, IN_COMMIT)

SYNC_MS = 15
"""How long the owner's disk takes, so that claims and commits are awaited long enough to be cancelled there."""


@dataclass
class DoomedCall:
    """A call, and where it will be cancelled.

    Args:
        delay_s: how long after that point was reached.
        after: pieces of the stream that pass before, where it is cancelled within it.

    Attributes:
        reached: set when the model has got to that point.
        let_go: it is not cancelled before this is set; it is from the start, unless a test clears it.
    """

    number: int
    rollout: str
    point: str
    delay_s: float
    after: int
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.let_go.set()

    async def moment(self) -> None:
        """Return when it is to be cancelled."""
        async with asyncio.timeout(60.0):
            if self.point not in (BEFORE_CLAIM, IN_CLAIM):
                await self.reached.wait()
            await self.let_go.wait()
        await asyncio.sleep(self.delay_s)


def doomed_calls(count: int, per_rollout: int, seed: int) -> list[DoomedCall]:
    """Calls with random ends."""
    rng = random.Random(seed)
    calls = []
    for number in range(count):
        point = rng.choice(POINTS)
        delay_s = rng.random() * SYNC_MS / 1000.0
        calls.append(DoomedCall(number, f"{number // per_rollout}-0", point, delay_s, rng.randrange(1, 5)))
    return calls


class Model:
    """Answers each call up to the point where it will be cancelled.

    Attributes:
        seen: when each call came, by its number (`time.monotonic`).
    """

    def __init__(self, calls: list[DoomedCall]) -> None:
        self.calls = {call.number: call for call in calls}
        self.seen: dict[int, float] = {}

    async def answer(self, number: int) -> AsyncIterator[bytes]:
        """The stream's pieces."""
        call = self.calls[number]
        assert number not in self.seen
        self.seen[number] = time.monotonic()
        if call.point in (IN_CLAIM, BEFORE_FIRST):
            await self._hang(call)  # a cancellation that was meant for the claim may come later than its answer
        *pieces, last = pieces_of(number)
        for sent, piece in enumerate(pieces):
            if call.point == IN_STREAM and sent == call.after:
                await self._hang(call)
            yield piece
            await asyncio.sleep(0)
        call.reached.set()
        yield last

    async def _hang(self, call: DoomedCall) -> None:
        call.reached.set()
        await asyncio.get_running_loop().create_future()

    def seen_of(self, rollout: str, before: float) -> set[int]:
        """The calls of a rollout that came before a moment."""
        seen = list(self.seen.items())
        return {number for number, at in seen if at < before and self.calls[number].rollout == rollout}


class Inquirer(threading.Thread):
    """Asks whether rollouts are quiescent, at random moments, and checks each yes against the model and the disk.

    Whatever the model saw before the question is on disk when the answer is yes, or the rollout says that it lacks
    something. Else the answer was early.
    """

    def __init__(self, capture: gym_capture.CaptureClient, directory: Path, model: Model, seed: int) -> None:
        super().__init__(daemon=True)
        self._capture = capture
        self._directory = directory
        self._model = model
        self._rng = random.Random(seed)
        self._finished = threading.Event()
        self.yes = 0
        self.early: list[tuple[str, set[int]]] = []

    def run(self) -> None:
        while not self._finished.wait(self._rng.random() * 0.004):
            if self._model.seen:
                recent = list(self._model.seen)[-40:]
                rollout = self._model.calls[self._rng.choice(recent)].rollout
                self._ask(rollout, self._rng.choice([0.001, 0.02, 0.1]))

    def _ask(self, rollout: str, timeout_s: float) -> None:
        start = time.monotonic()
        if self._capture.sync.quiesce(rollout, timeout_s=timeout_s):
            self.yes += 1
            self._check(rollout, self._model.seen_of(rollout, start))

    def _check(self, rollout: str, seen: set[int]) -> None:
        store = CaptureStore(self._directory)
        missing = seen - {number_in(found["request"]) for found in store.read(rollout) if found["request"]}
        if missing and not store.is_incomplete(rollout):
            self.early.append((rollout, missing))

    def __enter__(self) -> Inquirer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._finished.set()
        self.join(60)
        assert not self.is_alive()

    def finish(self) -> None:
        """Stop asking at random, and ask once more: by now the answer has to be yes."""
        self._finished.set()
        self.join(60)
        before = self.yes
        self._ask(self._model.calls[next(iter(self._model.seen))].rollout, 30.0)
        assert self.yes == before + 1
