"""How a process reaches an owner, piece by piece and without Ray."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gym_capture.actor.exits import Exits
from gym_capture.api import initialise_ray
from gym_capture.client.host import CoreHost
from gym_capture.client.operations import Ask, Flush, Ticket
from gym_capture.client.options import ClientOptions
from gym_capture.client.work_aside import run_aside
from gym_capture.config import RayConfig
from gym_capture.errors import (
    ClientClosed,
    DirectoryHeld,
    HandshakeRefused,
    MissingRunMarker,
    OwnerNotFound,
    OwnerUnavailable,
    RayUnavailable,
)
from gym_capture.model.endpoint import Endpoint
from gym_capture.model.messages import Stats
from gym_capture.reach.auto_transport import AutoTransport
from gym_capture.reach.locators import FirstLocator
from gym_capture.reach.shared_host import forget_core, share_host

HERE = Endpoint("127.0.0.1", 1, "token", "run", 1)


class FakeLink:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class FakeTransport:
    """Answers each connect with the next of its answers."""

    def __init__(self, name: str, *answers: Exception | FakeLink) -> None:
        self.name = name
        self.answers = list(answers)

    async def connect(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeLocator:
    def __init__(self, answer: Endpoint | Exception) -> None:
        self.answer = answer

    async def locate(self) -> Endpoint:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def link_of(auto: AutoTransport) -> Any:
    return await auto.connect()


AWAY = OwnerUnavailable("away")


async def test_the_stream_is_taken_where_it_works() -> None:
    link = FakeLink()
    auto = AutoTransport(FakeTransport("stream", link), FakeTransport("ray"), lambda: True)
    assert await link_of(auto) is link
    assert auto.name == "stream"


async def test_ray_calls_are_taken_only_when_they_find_an_owner_whose_port_is_still_out_of_reach() -> None:
    detour, link = FakeLink(), FakeLink()
    auto = AutoTransport(FakeTransport("stream", AWAY, AWAY, link), FakeTransport("ray", detour), lambda: True)
    assert await link_of(auto) is detour
    assert auto.name == "ray"
    assert await link_of(auto) is link
    assert auto.name == "stream"


async def test_an_owner_that_was_only_restarting_is_reached_over_the_stream() -> None:
    detour, link = FakeLink(), FakeLink()
    auto = AutoTransport(FakeTransport("stream", AWAY, link), FakeTransport("ray", detour), lambda: True)
    assert await link_of(auto) is link
    assert detour.closed
    assert auto.name == "stream"


async def test_without_ray_an_owner_out_of_reach_is_away() -> None:
    auto = AutoTransport(FakeTransport("stream", AWAY), FakeTransport("ray"), lambda: False)
    with pytest.raises(OwnerUnavailable, match="away"):
        await auto.connect()


async def test_a_refusal_is_no_reason_for_a_detour() -> None:
    auto = AutoTransport(FakeTransport("stream", HandshakeRefused("no")), FakeTransport("ray"), lambda: True)
    with pytest.raises(HandshakeRefused):
        await auto.connect()


async def test_the_first_locator_that_knows_is_believed() -> None:
    locators = [FakeLocator(OwnerNotFound("stopped")), FakeLocator(HERE), FakeLocator(AssertionError("not asked"))]
    assert await FirstLocator(locators).locate() is HERE


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([OwnerNotFound("none"), OwnerNotFound("none")], OwnerNotFound),
        ([OwnerNotFound("none"), AWAY], OwnerUnavailable),
        ([AWAY, OwnerNotFound("none")], OwnerUnavailable),
        ([MissingRunMarker("no mount"), OwnerNotFound("none")], MissingRunMarker),
    ],
)
async def test_an_owner_is_absent_only_if_everybody_says_so(
    answers: list[Exception], expected: type[Exception]
) -> None:
    with pytest.raises(expected):
        await FirstLocator([FakeLocator(answer) for answer in answers]).locate()


async def test_a_core_ends_with_the_last_client_that_shares_it() -> None:
    made: list[CoreHost] = []

    def make() -> CoreHost:
        made.append(CoreHost(FakeTransport("stream"), ClientOptions()))
        return made[-1]

    key = ("a run of this test", "stream")
    first, second = share_host(key, make), share_host(key, make)
    assert len(made) == 1
    assert await first.close(1.0) is True
    with pytest.raises(ClientClosed):
        await first.perform(Any)  # type: ignore[arg-type]  # never looked at
    third = share_host(key, make)
    assert len(made) == 1
    assert await second.close(1.0) is True
    assert await third.close(1.0) is True
    share = share_host(key, make)
    assert len(made) == 2
    await share.close(1.0)


class SilentTransport:
    """Nobody ever answers."""

    name = "stream"

    async def connect(self) -> Any:
        await asyncio.Event().wait()


class CountedHost(CoreHost):
    """A core's host that says when it is closed."""

    def __init__(self, transport: Any) -> None:
        super().__init__(transport, ClientOptions(patience_s=600.0))
        self.ended = threading.Event()

    async def close(self, timeout_s: float) -> bool:
        left_nothing = await super().close(timeout_s)
        self.ended.set()
        return left_nothing


async def test_a_core_whose_run_is_over_and_whose_clients_are_gone_ends_when_another_run_is_opened() -> None:
    over, forgotten = (CountedHost(FakeTransport("stream", *[OwnerNotFound("stopped")] * 9)) for _ in range(2))
    claimed = CountedHost(SilentTransport())
    hosts = iter([over, forgotten, claimed])
    for name in ("over", "forgotten"):
        share = share_host((name, "of this test"), lambda: next(hosts))
        with pytest.raises(OwnerNotFound):
            await share.perform(Ask(Stats(None), 5.0))
    forget_core(("forgotten", "of this test"))
    share = share_host(("claimed", "of this test"), lambda: next(hosts))
    claimed.submit(Ticket("r-0", "c-0", 0))
    await share.perform(Flush(0.0))
    del share
    gc.collect()
    another = share_host(("another", "of this test"), lambda: CountedHost(SilentTransport()))
    assert await asyncio.to_thread(over.ended.wait, 10.0)
    assert await asyncio.to_thread(forgotten.ended.wait, 10.0)
    assert not claimed.ended.is_set(), "its claim may still be answered"
    again = share_host(("claimed", "of this test"), lambda: next(hosts))
    await again.close(0.0)
    await another.close(0.0)
    assert claimed.ended.is_set()


async def test_closing_a_shared_client_waits_for_its_work_aside() -> None:
    host = share_host(
        ("another run of this test", "stream"), lambda: CoreHost(FakeTransport("stream"), ClientOptions())
    )
    go, order = threading.Event(), []

    def work() -> None:
        go.wait(10.0)
        order.append("work")

    run_aside(host, work)

    async def close() -> None:
        await host.close(10.0)
        order.append("closed")

    closing = asyncio.create_task(close())
    for _ in range(10):
        await asyncio.sleep(0)
    assert order == []
    go.set()
    await closing
    assert order == ["work", "closed"]


def opening(error: BaseException) -> Any:
    import concurrent.futures

    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    future.set_exception(error)
    return future


class Ends:
    """Records how an actor's process would have ended."""

    def __init__(self, monkeypatch: Any, restarted: bool) -> None:
        self.codes: list[int] = []
        self.pauses: list[float] = []
        self.exits = Exits(None, restarted=restarted, leave_now=self.codes.append)
        monkeypatch.setattr(Exits, "_after", staticmethod(self._after))

    def _after(self, delay_s: float, then: Callable[[], Any]) -> None:
        self.pauses.append(delay_s)
        if then != self.exits._end:
            then()


def test_a_first_start_that_fails_stays_to_tell_why(monkeypatch: Any) -> None:
    ends = Ends(monkeypatch, restarted=False)
    ends.exits.opened(opening(MissingRunMarker("no mount")))
    assert (ends.codes, ends.pauses) == ([], [])


def test_a_restart_without_the_mount_pauses_and_leaves_for_ray_to_try_again(monkeypatch: Any) -> None:
    ends = Ends(monkeypatch, restarted=True)
    ends.exits.opened(opening(MissingRunMarker("no mount")))
    assert (ends.codes, ends.pauses) == ([1], [1.0])


def test_a_restart_whose_directory_was_taken_over_ends_for_good(monkeypatch: Any) -> None:
    ends = Ends(monkeypatch, restarted=True)
    ends.exits.opened(opening(DirectoryHeld("another owner")))
    assert (ends.codes, ends.pauses) == ([], [0.0])


def test_a_superseded_owner_leaves_at_once_and_a_stopped_one_once(monkeypatch: Any) -> None:
    ends = Ends(monkeypatch, restarted=False)
    ends.exits.leave("superseded")
    assert (ends.codes, ends.pauses) == ([1], [])
    ends.exits.leave("stopped")
    ends.exits.end_soon()
    assert (ends.codes, ends.pauses) == ([1], [0.2])


async def test_work_in_the_owners_thread_is_awaited_and_cancelled_from_another_loop() -> None:
    from gym_capture.actor.owner_thread import OwnerThread

    thread = OwnerThread("test-owner-thread")
    began, ended = threading.Event(), threading.Event()

    async def where() -> str:
        return threading.current_thread().name

    async def forever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    assert await thread.run(where()) == "test-owner-thread"
    waiting = asyncio.create_task(thread.run(forever()))
    assert await asyncio.to_thread(began.wait, 10.0)
    waiting.cancel()
    assert await asyncio.to_thread(ended.wait, 10.0)
    thread.stop()


@pytest.mark.parametrize(
    ("address", "error", "told", "cure", "not_said"),
    [
        (
            "local",
            Exception("The current node timed out during startup.\nmore"),
            "an embedded Ray did not start",
            "RAY_raylet_start_wait_time_s",
            "ray.address",
        ),
        (
            "10.0.0.1:6379",
            ConnectionError("Failed to connect to Ray cluster"),
            "no Ray answered at 10.0.0.1:6379",
            "correct ray.address",
            "RAY_raylet_start_wait_time_s",
        ),
    ],
)
def test_a_ray_that_does_not_come_up_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, address: str, error: Exception, told: str, cure: str, not_said: str
) -> None:
    import ray

    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(RayUnavailable, match=told) as raised:
        initialise_ray(RayConfig(address=address))
    assert str(error).partition("\n")[0] in str(raised.value)
    assert cure in str(raised.value)
    assert not_said not in str(raised.value)
    assert "\n" not in str(raised.value)
