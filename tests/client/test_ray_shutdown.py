"""A client that is left open while Ray is shut down: nothing that it asks in the background starts another Ray."""

from __future__ import annotations

import subprocess
import sys

import pytest
from ray.exceptions import RaySystemError

from gym_capture.client.ray_calls import call_actor, never_starting
from tests.ray_cluster import ROOT

LEFT_OPEN = """
import asyncio, os, pathlib, sys, threading, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {root!r})
import ray
from gym_capture.client.ray_transport import RayTransport
from gym_capture.errors import OwnerNotFound, OwnerUnavailable
from gym_capture.model.endpoint import Endpoint
from gym_capture.reach import locators
from gym_capture.reach.locators import ActorLocator, find_actor, named_actors

ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)

@ray.remote(num_cpus=0)
class Owner:
    async def endpoint(self): return Endpoint("127.0.0.1", 1, "token", "run", 1)
    async def tunnel_open(self, client): return "pipe"
    async def tunnel_push(self, pipe, first, messages): return 0, 0
    async def tunnel_poll(self, pipe, after, timeout_s): return after, []
    async def tunnel_close(self, pipe): return None

actor = Owner.options(name="owner", namespace="ns").remote()
ray.get(actor.endpoint.remote())
locators.ACTOR_ANSWER_S = 5.0  # what is on its way at the shutdown is never answered
locators.ray_is_initialised = lambda: True  # it was a moment ago: whatever was checked may be over when it is used
found, shut, failed = threading.Event(), threading.Event(), []

def look():
    async def again_and_again():
        after = 0
        while after < 50:
            try:
                await ActorLocator("owner", "ns").locate()
                found.set()
            except (OwnerUnavailable, OwnerNotFound):
                after += shut.is_set()
            except BaseException as error:
                failed.append(error)
                raise
    asyncio.run(again_and_again())

def children():
    found = set()
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue  # it has ended
        if rest.split()[1] == str(os.getpid()):
            found.add(name)
    return found

async def pipe():
    link = await RayTransport(ActorLocator("owner", "ns")).connect()
    return link

async def main():
    link = await pipe()
    await asyncio.to_thread(found.wait, 30.0)
    await asyncio.to_thread(ray.shutdown)
    shut.set()
    before = children()
    link.send([b"12345678head", b"body"])
    await asyncio.sleep(0)
    link.close()
    for ask in (lambda: find_actor("owner", "ns"), lambda: named_actors("ns")):
        try:
            await asyncio.to_thread(ask)
        except Exception as error:
            print(type(error).__name__)
    try:
        await pipe()
    except OwnerUnavailable:
        print("unavailable")
    return before

lookers = [threading.Thread(target=look, daemon=True) for _ in range(2)]
for looker in lookers:
    looker.start()
before = asyncio.run(main())
for looker in lookers:
    looker.join(60.0)
print(ray.is_initialized(), children() - before, failed)
"""


@pytest.mark.ray
def test_a_shutdown_under_running_lookups_starts_no_other_ray() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN.format(root=str(ROOT))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = done.stdout.splitlines()
    assert said == ["RaySystemError", "RaySystemError", "unavailable", "False set() []"], done.stderr


def test_a_function_that_starts_nothing_by_itself_is_called_as_it_is() -> None:
    class Method:
        def remote(self, *arguments: int) -> tuple[int, ...]:
            return arguments

    assert never_starting(len) is len
    assert call_actor(Method(), 1, 2) == (1, 2)


def test_after_a_shutdown_a_call_does_not_reach_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[object] = []

    def auto_init_wrapper(*arguments: object) -> None:
        raise AssertionError("it would start Ray")

    auto_init_wrapper.__wrapped__ = lambda *arguments: reached.append(arguments)  # type: ignore[attr-defined]  # as functools.wraps does
    method = type("Method", (), {"_remote": auto_init_wrapper})()
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(RaySystemError, match="shut down"):
        call_actor(method, 1)
    assert reached == []
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    call_actor(method, 1)
    assert reached == [(method, (1,), {})]
