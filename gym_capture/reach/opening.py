"""From a source to a client; also how a client that arrives pickled is opened again."""

from __future__ import annotations

from gym_capture.client.client import CaptureClient
from gym_capture.client.ray_transport import RayTransport
from gym_capture.client.sharded_host import host_over
from gym_capture.client.stream_transport import Locator, StreamTransport
from gym_capture.client.transport import Transport
from gym_capture.directory.locate import was_stopped
from gym_capture.errors import ConfigError
from gym_capture.reach.auto_transport import AutoTransport
from gym_capture.reach.directory_reader import DirectoryReader
from gym_capture.reach.locators import ActorLocator, DirectoryLocator, FirstLocator, ray_is_initialised
from gym_capture.reach.shared_host import forget_core, share_host
from gym_capture.reach.source import Source


def open_client(source: Source, *, new_owner: bool = False) -> CaptureClient:
    """A client of the source's owner, or of those of its shards. Opens no connection yet: the first call does.

    All clients of one run and transport in a process share one core for each owner; the options of the first one hold,
    but for what is redacted, which is each one's own.

    Args:
        new_owner: the owner has only now come up: a core that was told there is none would rest for a while.
    """
    key = (source.run, source.transport, source.options.redact)
    if new_owner:
        forget_core(key)
    host = share_host(key, lambda: host_over([*map(transport_of, shard_sources(source))], source.options))
    reader = DirectoryReader(source.directory, source.run) if source.directory is not None else None
    return CaptureClient(host, reopen=(open_client, (source,)), payload_reader=reader, evidence_reader=reader)


def shard_sources(source: Source) -> list[Source]:
    """Each shard's, in order."""
    return [source.of_shard(shard) for shard in range(source.shards)]


def transport_of(source: Source) -> Transport:
    """The way to the one owner of a source.

    Raises:
        ConfigError: Ray calls are asked for, and the actor's name is not known.
    """
    directory, run = source.directory, source.run
    actor = None
    if source.name is not None:
        actor = ActorLocator(
            source.name, source.namespace, lambda: directory is not None and was_stopped(directory, run)
        )
    if source.transport == "ray":
        if actor is None:
            raise ConfigError("transport ray needs the actor's name: connect(name=...), or by the directory of a run.")
        return RayTransport(actor)
    locators: list[Locator] = []
    if directory is not None:
        locators.append(DirectoryLocator(directory, run))
    if actor is not None:
        locators.append(actor)
    stream = StreamTransport(FirstLocator(locators))
    if source.transport == "stream" or actor is None:
        return stream
    return AutoTransport(stream, RayTransport(actor), ray_is_initialised)
