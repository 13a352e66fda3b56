"""The owner inside the actor: service, stream server and tunnel together, in the owner's loop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from gym_capture.actor.owner_spec import OwnerSpec
from gym_capture.actor.tunnel import Tunnel
from gym_capture.errors import ConfigError, ShardGiven
from gym_capture.model.clock import SystemClock
from gym_capture.model.endpoint import Endpoint
from gym_capture.model.entropy import SystemEntropy
from gym_capture.model.evidence import gather_evidence
from gym_capture.model.merge import capture_value
from gym_capture.model.rows import CURRENT
from gym_capture.model.shards import shard_of
from gym_capture.service.capture_service import CaptureService
from gym_capture.service.executor import ThreadExecutor
from gym_capture.service.state import State
from gym_capture.service.stream_server import StreamServer
from gym_capture.service.tls import server_ssl_context
from gym_capture.storage.owner_file import OwnerIdentity
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.run_layout import require_shard

logger = logging.getLogger(__name__)

IDLE_LEASES = 3
"""A tunnel's pipe that is not used for so many leases is closed."""


class Owner:
    """Everything that one epoch's process holds. Made in any thread, used in the owner's loop.

    Args:
        spec: what to own.
        actor_id: stays the same over restarts, so that a restart takes over from itself at once.
        node: the node's id, for people.
        address: the node's address, for `capture.endpoint.host: node`.
        takeover: fence another live owner.
    """

    def __init__(self, spec: OwnerSpec, actor_id: str, node: str, address: str, *, takeover: bool) -> None:
        self._spec = spec
        self._identity = OwnerIdentity(actor_id, spec.name, spec.namespace, node, os.getpid())
        self._address = address
        self._takeover = takeover
        self._opened = asyncio.Event()
        self._error: BaseException | None = None
        self._server = StreamServer()
        self.service: CaptureService
        self.tunnel: Tunnel

    async def open(self, on_leave: Callable[[str], None]) -> None:
        """Take the directory, recover it, listen, publish where.

        Raises:
            GymCaptureError: why it cannot serve; `opened` raises the same to everyone.
        """
        try:
            await self._open(on_leave)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._opened.set()

    async def _open(self, on_leave: Callable[[str], None]) -> None:
        spec = self._spec
        service = self.service = CaptureService(
            PosixFiles(require_shard(spec.directory, spec.run, spec.shard, spec.shards)),
            self._identity,
            spec.owner,
            clock=SystemClock(),
            executor=ThreadExecutor("capture-log"),
            readers=ThreadExecutor("capture-read", 2),
            entropy=SystemEntropy(),
            on_leave=on_leave,
            client_settings=spec.client,
        )
        self.tunnel = Tunnel(service.connect, IDLE_LEASES * spec.owner.lease_s)
        tls = server_ssl_context(os.environ)
        host = self._address if spec.host == "node" else spec.host
        try:
            port = await self._server.start(service, host, spec.port, tls)
        except OSError as error:
            raise ConfigError(
                f"the owner cannot listen on {host}:{spec.port} ({error}). Nothing was changed; correct "
                "capture.endpoint (host node takes the node's own address, port 0 any free port)."
            ) from error
        report = await service.open(takeover=self._takeover, listening=(host, port), tls=tls is not None)
        logger.info("capture owner serves %s on %s:%d: %s", service.files.directory, host, port, report.summary())

    async def opened(self) -> None:
        """Wait until the owner serves. Raises what kept it from that."""
        await self._opened.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)

    @property
    def ended(self) -> bool:
        """Whether it serves no more, and the process is about to leave."""
        return self.service.state in (State.STOPPING, State.STOPPED, State.SUPERSEDED)

    async def close(self) -> None:
        """End cleanly: what was asked is answered, the log is sealed, the directory is at rest."""
        self.tunnel.close_all()
        await self.service.stop()
        await self._server.close()

    def require_own(self, rollout_id: str | None) -> None:
        """Refuse to speak for a rollout of another shard, or (None) for a run that has several.

        Raises:
            ShardGiven: so it is.
        """
        spec = self._spec
        whose = None if rollout_id is None else shard_of(rollout_id, spec.shards)
        if spec.shards > 1 and whose != spec.shard:
            about = "the run" if rollout_id is None else f"rollout {rollout_id}, which belongs to shard {whose}"
            raise ShardGiven(
                f"actor {spec.name} has shard {spec.shard} of {spec.shards} only, and cannot speak for {about}. "
                "Nothing was done; use gym_capture.connect(), whose client asks the right ones.",
                shard=whose,
            )

    async def quiesce(self, rollout_id: str | None, timeout_s: float) -> bool:
        """Wait until nothing of the rollout (None: of the run) is outstanding."""
        self.require_own(rollout_id)
        return await self.service.quiesce(rollout_id, timeout_s)

    async def clear(self, rollout_ids: Sequence[str], request_id: str) -> dict[str, int]:
        """Begin the next generation of each id; returns it by id."""
        ids = list(dict.fromkeys(rollout_ids))
        for rollout_id in ids:
            self.require_own(rollout_id)
        return dict(zip(ids, await self.service.clear(ids, request_id), strict=True))

    async def merge(self, rollout_id: str, generation: int | None, issued: int | None) -> dict[str, Any]:
        """The capture value of a rollout as it is now, without payloads."""
        self.require_own(rollout_id)
        reply = await self.service.merge(rollout_id, CURRENT if generation is None else generation, issued or 0)
        evidence = gather_evidence(
            rollout_id,
            reply.records,
            damaged=reply.damaged,
            incomplete=reply.reasons,
            outstanding=reply.outstanding,
        )
        return capture_value(evidence)

    async def stats(self, rollout_id: str | None) -> dict[str, Any]:
        """The service's counters (of this shard), and the tunnel's."""
        if rollout_id is not None:
            self.require_own(rollout_id)
        return {**await self.service.stats_of(rollout_id), "ray_pipes": self.tunnel.pipes}

    async def endpoint(self) -> Endpoint:
        """Where the stream listens, for clients: said only while the directory is known to be this owner's.

        Raises:
            OwnerUnavailable, Superseded: as `CaptureService.be_sure`.
        """
        await self.service.be_sure()
        return self.service.endpoint

    async def epoch(self) -> int:
        """The epoch that is held."""
        return self.service.epoch

    async def tunnel_open(self, client_hex: str) -> str:
        """See `Tunnel.open`."""
        return self.tunnel.open(client_hex)

    async def tunnel_close(self, pipe: str) -> None:
        """See `Tunnel.close`."""
        self.tunnel.close(pipe)
