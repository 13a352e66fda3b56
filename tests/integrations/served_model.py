"""The example's model server, once behind the middleware and once bare, and the capture that its calls end up in."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gym_capture.asgi import CaptureMiddleware
from gym_capture.client.client import CaptureClient
from gym_capture.client.host import CoreHost
from gym_capture.client.options import ClientOptions
from gym_capture.client.rollout import RolloutHandle
from gym_capture.examples.model_server import ModelServer
from gym_capture.examples.server_thread import served
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.threaded_owner import ThreadedOwner

SEED = 7


@dataclass
class ServedModel:
    """Where the model listens, and what was captured of it.

    Args:
        capture: a client of the owner.
        directory: the capture directory.
        captured_url: the server behind the middleware, without a prefix.
        bare_url: the same server, without capture.
        model: the server's app.
    """

    capture: CaptureClient
    directory: Path
    captured_url: str
    bare_url: str
    model: ModelServer
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def rollout(self) -> RolloutHandle:
        """A rollout of its own for each test."""
        rollout_id = f"{next(self._numbers)}-0"
        return self.capture.rollout(rollout_id, generation=self.capture.sync.clear([rollout_id])[rollout_id])

    def prefixed_url(self, rollout: RolloutHandle) -> str:
        """The base URL that captures for a rollout, as a session gives it."""
        return f"{self.captured_url}/ng-rollout/{rollout.id}~{rollout.generation}"

    def exchanges(self, rollout: RolloutHandle) -> list[dict[str, Any]]:
        """What was captured, once nothing is outstanding."""
        assert self.capture.sync.quiesce(rollout.id, timeout_s=20.0)
        return [dict(each) for each in CaptureStore(self.directory).read(rollout.id)]

    def merged(self, rollout: RolloutHandle) -> dict[str, Any]:
        """The rollout's merged capture."""
        record = self.capture.sync.merge({"_ng_rollout_id": rollout.id}, issued=rollout.issued)
        merged: dict[str, Any] = record["ng_model_call_capture"]
        return merged


@contextmanager
def served_model(
    directory: Path, *, gzip: bool = False, faults: Mapping[str, float] | None = None
) -> Iterator[ServedModel]:
    """Start it all; nothing fails but what a request asks for, and by chance what `faults` says."""
    owner = ThreadedOwner(directory)
    owner.start()
    capture = CaptureClient(CoreHost(owner.stream_transport(), ClientOptions(drain_timeout_s=20.0)))
    model = ModelServer(seed=SEED, faults=faults or {}, slow_s=0.05, gzip=gzip)
    try:
        with served(model) as bare_url, served(CaptureMiddleware(model, capture)) as captured_url:
            yield ServedModel(capture, directory, captured_url, bare_url, model)
    finally:
        capture.sync.close()
        owner.close()


def without_nulls(value: Any) -> Any:
    """A response without what the SDKs add to it: keys that are null, parsed copies, and a stream's positions.

    Without `created`, too: a reassembled chat completion has no time of its own.
    """
    if isinstance(value, dict):
        kept = {name: without_nulls(each) for name, each in value.items() if each is not None}
        for name in ("parsed", "parsed_arguments", "output_parsed", "created"):
            kept.pop(name, None)
        if "function" in kept:
            kept.pop("index", None)
        return kept
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    return value


def plain(response: Any) -> Any:
    """What an SDK returned, as JSON values."""
    return without_nulls(json.loads(response.to_json()))
