"""The Ray actor around the owner: a line or two a method, everything else lives in `service` and in `owner`."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import ray

from gym_capture.actor.exits import Exits
from gym_capture.actor.metrics_push import push_metrics
from gym_capture.actor.owner import Owner
from gym_capture.actor.owner_spec import OwnerSpec, Ready
from gym_capture.actor.owner_thread import OwnerThread
from gym_capture.actor.tunnel import Message
from gym_capture.errors import GymCaptureError
from gym_capture.model.endpoint import Endpoint

T = TypeVar("T")

WAITING = "waiting"
"""Concurrency group of calls that park: they must not keep anything else waiting."""

TUNNEL = "tunnel"
"""Concurrency group of the tunnel's short calls, so that a write always finds a place."""

ASKED_AGAIN = 0
"""Retries by Ray of what clients call again by themselves. Were Ray to retry it as well, it would say on every stderr,
after each clean stop, that it failed and is retried for ever."""

DEFAULT_CALLS = 1_000
TUNNEL_CALLS = 1_000


class CaptureActor:
    """The owner of one capture directory as a named Ray actor. Made by `launch`, found by `connect`.

    The owner of one of several shards refuses what it cannot speak for (`ShardGiven`): another shard's rollouts, and
    quiescence of the run, which a client asks all of them for.

    Ray retries calls when the actor restarts, so every method (but those with `ASKED_AGAIN`) may run twice. That is
    safe: `quiesce`, `merge`, `stats`, `settings`, `ready` and `stop` say the same again (a second merge journals a
    second merge of the same rows); `clear` begins one generation under one `request_id`, and a retry has the id of the
    Ray task that it retries. The others fail with the process; clients find the next one and open a new pipe there.

    Args:
        spec: what to own and how.
    """

    def __init__(self, spec: OwnerSpec) -> None:
        context = ray.get_runtime_context()
        self._spec = spec
        self._actor_id = str(context.get_actor_id())
        self._node = str(context.get_node_id())
        with warnings.catch_warnings():
            # Ray calls a deprecated property of its own in there.
            warnings.simplefilter("ignore")
            self._restarted = restarted = bool(context.was_current_actor_reconstructed)
        self._exits = Exits(context.current_actor, restarted=restarted)
        self._thread = OwnerThread()
        takeover = spec.takeover and not restarted
        address = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._owner = Owner(spec, self._actor_id, self._node, address, takeover=takeover)
        # A constructor that raises would end the actor for good, so what goes wrong is kept for `ready`.
        self._opening = self._thread.submit(self._owner.open(self._exits.leave))
        self._opening.add_done_callback(self._exits.opened)
        self._pushing = self._thread.submit(push_metrics(self._owner, spec))

    # -- what a collector may await -----------------------------------------------------------------------------

    @ray.method(concurrency_group=WAITING)
    async def quiesce(self, rollout_id: str | None = None, timeout_s: float = 10.0) -> bool:
        """Wait until nothing of the rollout (None: of the run) is outstanding; False once `timeout_s` is over."""
        return await self._in_owner(lambda owner: owner.quiesce(rollout_id, timeout_s))

    @ray.method(concurrency_group=WAITING)
    async def merge(self, rollout_id: str, generation: int | None = None, issued: int | None = None) -> dict[str, Any]:
        """The `ng_model_call_capture` value of a rollout as it is now, without payloads.

        Args:
            generation: the one that is meant, as `clear` returned it; None: the current one.
            issued: how many calls the caller knows of; those that are nowhere become a gap.

        Raises:
            Fenced: the generation was cleared since then.
        """
        return await self._in_owner(lambda owner: owner.merge(rollout_id, generation, issued))

    async def clear(self, rollout_ids: Sequence[str], request_id: str | None = None) -> dict[str, int]:
        """Begin the next generation of each id; returns it by id.

        Args:
            request_id: the same text again is the same request. None: this Ray call, however often Ray retries it.
        """
        request = request_id or f"ray-{ray.get_runtime_context().get_task_id()}"
        return await self._in_owner(lambda owner: owner.clear(rollout_ids, request))

    async def stats(self, rollout_id: str | None = None) -> dict[str, Any]:
        """Counters of the run (of the shard) and, with an id, of that rollout."""
        return await self._in_owner(lambda owner: owner.stats(rollout_id))

    async def stop(self) -> bool:
        """End the owner cleanly and the actor for good: once this has answered, the name becomes free."""
        await self._in_owner(lambda owner: owner.close())
        self._exits.end_soon()
        return True

    # -- finding and joining ------------------------------------------------------------------------------------

    async def ready(self) -> Ready:
        """What this owner is; waits until it serves, or has failed to."""
        error: tuple[str, str] | None = None
        epoch = 0
        try:
            epoch = await self._in_owner(lambda owner: owner.epoch())
        except GymCaptureError as raised:
            error = (type(raised).__name__, str(raised))
        except Exception as raised:  # noqa: BLE001 - whatever kept it from serving is `launch`'s to tell
            error = (GymCaptureError.__name__, f"the owner could not start: {raised!r}")
        spec = self._spec
        return Ready(
            run=spec.run,
            directory=spec.directory,
            shard=spec.shard,
            start=spec.start,
            settings=spec.settings,
            actor_id=self._actor_id,
            node=self._node,
            pid=os.getpid(),
            epoch=epoch,
            error=error,
        )

    @ray.method(max_task_retries=ASKED_AGAIN)
    async def endpoint(self) -> Endpoint:
        """Where the owner's stream listens, and the token to show there and in the tunnel.

        Raises:
            OwnerUnavailable: its disk does not answer, so it may have a successor; it is to be looked up again.
        """
        return await self._in_owner(lambda owner: owner.endpoint())

    async def settings(self) -> dict[str, Any]:
        """The owner settings it was started with, the run and directory that it serves, and what clients go by."""
        spec = self._spec
        return {
            "run": spec.run,
            "directory": spec.directory,
            "shards": spec.shards,
            "settings": spec.settings,
            "client": spec.client,
        }

    # -- the tunnel ---------------------------------------------------------------------------------------------

    @ray.method(concurrency_group=TUNNEL, max_task_retries=ASKED_AGAIN)
    async def tunnel_open(self, client_hex: str) -> str:
        """See `Tunnel.open`."""
        return await self._in_owner(lambda owner: owner.tunnel_open(client_hex))

    @ray.method(concurrency_group=TUNNEL, max_task_retries=ASKED_AGAIN)
    async def tunnel_push(self, pipe: str, first_number: int, messages: Sequence[Message]) -> tuple[int, int]:
        """See `Tunnel.push`."""
        return await self._in_owner(lambda owner: owner.tunnel.push(pipe, first_number, messages))

    @ray.method(concurrency_group=WAITING, max_task_retries=ASKED_AGAIN)
    async def tunnel_poll(self, pipe: str, after: int, timeout_s: float) -> tuple[int, list[Message]]:
        """See `Tunnel.poll`."""
        return await self._in_owner(lambda owner: owner.tunnel.poll(pipe, after, timeout_s))

    @ray.method(concurrency_group=TUNNEL, max_task_retries=ASKED_AGAIN)
    async def tunnel_close(self, pipe: str) -> None:
        """See `Tunnel.close`."""
        await self._in_owner(lambda owner: owner.tunnel_close(pipe))

    async def _in_owner(self, work: Callable[[Owner], Coroutine[Any, Any, T]]) -> T:
        return await self._thread.run(self._when_open(work))

    async def _when_open(self, work: Callable[[Owner], Coroutine[Any, Any, T]]) -> T:
        try:
            await self._owner.opened()
        except BaseException:
            if self._restarted:
                # The process is about to leave: Ray repeats the call where the actor comes back.
                await asyncio.get_running_loop().create_future()
            raise
        if self._owner.ended:
            # Stopped or superseded: the end of this process answers for it, or the next one does.
            await asyncio.get_running_loop().create_future()
        return await work(self._owner)


def actor_class(max_concurrency: int) -> Any:
    """`CaptureActor` as a Ray actor class.

    Args:
        max_concurrency: how many calls may wait in it at once (`capture.max_concurrency`).
    """
    groups = {WAITING: max_concurrency, TUNNEL: TUNNEL_CALLS}
    decorate: Any = ray.remote  # its types know neither argument
    return decorate(concurrency_groups=groups, max_concurrency=DEFAULT_CALLS)(CaptureActor)
