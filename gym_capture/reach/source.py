"""Which owner a client belongs to: plain values, so that a client can be opened again in another process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gym_capture.client.options import ClientOptions
from gym_capture.model.client_settings import ClientSettings
from gym_capture.model.shards import shard_actor_name
from gym_capture.storage.run_layout import shard_directory

TransportChoice = Literal["auto", "stream", "ray"]


@dataclass(frozen=True, slots=True)
class Source:
    """One run's owner, and how to reach it.

    Args:
        run: the run's uuid, hex.
        directory: the capture directory, or None when it is not known. It need not be mounted everywhere.
        name, namespace: the actor's; no name: it is found by its directory only.
        transport: `auto` is the stream where it can be reached, else Ray calls.
        options: the client's limits and times; `options.run` is `run`.
        shards: how many owners the run has. Directory and name are the run's; `of_shard` has each one's.
    """

    run: str
    directory: str | None
    name: str | None
    namespace: str
    transport: TransportChoice
    options: ClientOptions
    shards: int = 1

    def of_shard(self, shard: int) -> Source:
        """The same for the owner of one shard."""
        return replace(
            self,
            directory=None if self.directory is None else shard_directory(self.directory, shard, self.shards),
            name=None if self.name is None else shard_actor_name(self.name, shard),
        )


def client_options(run: str, settings: ClientSettings) -> ClientOptions:
    """How a client of a run behaves, by what its owner tells every client."""
    redact = settings.redact
    return ClientOptions(
        run=run,
        patience_s=settings.patience_s,
        drain_timeout_s=settings.drain_timeout_s,
        lease_s=settings.lease_s,
        max_exchange_bytes=settings.max_exchange_bytes,
        max_batch_bytes=settings.max_batch_bytes,
        client_buffer_bytes=settings.client_buffer_bytes,
        history=settings.history,
        redact=redact if redact.paths or redact.patterns else None,
    )
