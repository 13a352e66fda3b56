"""What an owner's actor is made with: plain values that travel to wherever Ray runs it, restarts included."""

from __future__ import annotations

from typing import Any

import msgspec

from gym_capture.actor.naming import default_actor_name, owner_settings
from gym_capture.config import CaptureConfig
from gym_capture.model.client_settings import ClientSettings
from gym_capture.model.shards import shard_actor_name
from gym_capture.service.settings import OwnerSettings


class OwnerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One owner: of a run, or of one of its shards.

    Args:
        run: the run's uuid, hex, as the directory's marker says.
        directory: the run's capture directory, an absolute path.
        shards, shard: how many shards the run has, and which one is meant.
        name, namespace: the actor's.
        start: which `start` call made it (a random text), so that those who found it know.
        takeover: fence another live owner of the directory. Asked for by one start; a restart does not inherit it.
        host, port: where the stream listens; host `node` is the node's own address as Ray knows it.
        settings: `naming.owner_settings`, to be compared with those of a later start.
        owner: the same for the service.
        client: what clients are told to go by.
    """

    run: str
    directory: str
    shards: int = 1
    shard: int = 0
    name: str
    namespace: str
    start: str
    takeover: bool
    host: str
    port: int
    settings: dict[str, Any]
    owner: OwnerSettings
    client: ClientSettings


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """What an owner's actor says of itself once it serves, or why it does not.

    Args:
        run, directory, shard, start, settings: as in its `OwnerSpec`.
        actor_id, node, pid: where it is, for people and for tests.
        epoch: its epoch, 0 while it has none.
        error: class name and message of the error that kept it from serving, or None.
    """

    run: str
    directory: str
    shard: int = 0
    start: str
    settings: dict[str, Any]
    actor_id: str
    node: str
    pid: int
    epoch: int
    error: tuple[str, str] | None = None


def spec_of(config: CaptureConfig, run: str, *, start: str, takeover: bool, shard: int = 0) -> OwnerSpec:
    """The owner that a configuration asks for, or that of one of its shards.

    Args:
        run: the run's uuid, hex.
        start: a text that no other start has.

    Raises:
        ConfigError: no directory, or owner settings that cannot work.
    """
    capture = config.capture
    return OwnerSpec(
        run=run,
        directory=str(config.directory),
        shards=capture.shards,
        shard=shard,
        name=shard_actor_name(capture.name or default_actor_name(config.directory), shard),
        namespace=capture.namespace,
        start=start,
        takeover=takeover,
        host=capture.endpoint.host,
        port=capture.endpoint.port and capture.endpoint.port + shard,
        settings=owner_settings(config),
        owner=service_settings(config),
        client=capture.for_clients(),
    )


def service_settings(config: CaptureConfig) -> OwnerSettings:
    """The service's settings in a configuration; beats and ticks keep their proportion to the lease.

    Raises:
        ConfigError: a value cannot work.
    """
    capture = config.capture
    return OwnerSettings(
        lease_s=capture.lease_s,
        tick_s=min(0.5, capture.lease_s / 4),
        segment_bytes=capture.segment_bytes,
        max_exchange_bytes=capture.max_exchange_bytes,
        max_batch_bytes=capture.max_batch_bytes,
        owner_buffer_bytes=capture.owner_buffer_bytes,
    ).checked()
