"""A client on a loop with virtual time, and the fake owner at its other end."""

from __future__ import annotations

import asyncio
import random
import string
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gym_capture.client.client import CaptureClient
from gym_capture.client.core import ClientCore
from gym_capture.client.loop_host import LoopHost
from gym_capture.client.options import ClientOptions
from tests.client.fake_owner import FakeOwner
from tests.client.virtual_time import InlineExecutor, LoopClock, SeededEntropy

PATIENCE_S = 120.0


class Harness:
    """A client and its fake owner.

    Attributes:
        executor: where large exchanges are packed.
    """

    def __init__(self, owner: FakeOwner, options: ClientOptions) -> None:
        self.owner = owner
        self.executor = InlineExecutor()
        clock, entropy = LoopClock(), SeededEntropy()
        loop = asyncio.get_running_loop()
        core = ClientCore(owner, options, clock=clock, entropy=entropy, loop=loop, executor=self.executor)
        self.core = core
        self.host = LoopHost(core, owner, options, clock, entropy)
        self.client = CaptureClient(self.host)


@asynccontextmanager
async def harness(owner: FakeOwner | None = None, **options: Any) -> AsyncIterator[Harness]:
    """A client of `ClientOptions(**options)`; closed at the end."""
    made = Harness(owner or FakeOwner(), ClientOptions(**options))
    try:
        yield made
    finally:
        made.core.close()
        await asyncio.wait([made.host.task])


def exchange(call_id: str | None = None, text: str = "hello", **fields: Any) -> dict[str, Any]:
    """A small chat exchange."""
    given = {
        "dialect": "chat",
        "model_ref": {"type": "model", "name": "m"},
        "request": {"model": "m", "messages": [{"role": "user", "content": text}]},
        "response": {"id": "r1", "choices": [{"message": {"role": "assistant", "content": text}}]},
        "status_code": 200,
        **fields,
    }
    return given if call_id is None else {"model_call_id": call_id, **given}


def incompressible(length: int) -> str:
    """Printable text that hardly compresses."""
    return "".join(random.Random(1).choices(string.ascii_letters + string.digits + string.punctuation, k=length))
