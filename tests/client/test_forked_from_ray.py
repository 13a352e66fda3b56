"""A process that was forked off one connected to Ray: its client never waits for Ray, whose calls hang there."""

from __future__ import annotations

import subprocess
import sys

from tests.cases import ROOT

FORKED = """
import asyncio, os, sys, threading, types
sys.path.insert(0, {root!r})
from gym_capture.client.stream_transport import StreamTransport
from gym_capture.errors import OwnerUnavailable
from gym_capture.reach import locators
from gym_capture.reach.locators import ActorLocator, FirstLocator, ray_is_initialised

class NotYet:
    async def locate(self):
        raise OwnerUnavailable("the directory's owner does not listen yet")

def hang(*_):
    threading.Event().wait()

ray = types.ModuleType("ray")
ray.is_initialized = lambda: True  # the child inherits that it was, as it does with Ray
ray.get_actor = hang
exceptions = types.ModuleType("ray.exceptions")
exceptions.RayError = type("RayError", (Exception,), {{}})
sys.modules.update({{"ray": ray, "ray.exceptions": exceptions}})
assert ray_is_initialised()

def asked():
    transport = StreamTransport(FirstLocator([NotYet(), ActorLocator("owner", "ns")]))
    try:
        asyncio.run(asyncio.wait_for(transport.connect(), 30.0))
    except OwnerUnavailable as error:
        return str(error)
    except TimeoutError:
        return "it hung"

def forked(body):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 7
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def child():
    assert not ray_is_initialised()
    assert asked() == "the directory's owner does not listen yet", asked()
    try:
        asyncio.run(ActorLocator("owner", "ns").locate())
    except OwnerUnavailable as error:
        assert "forked off" in str(error), error
    assert forked(grandchild) == 7

def grandchild():
    assert not ray_is_initialised()

assert forked(child) == 7
assert ray_is_initialised()
print("fine")
"""


def test_a_forked_child_asks_the_directory_alone_and_the_parent_goes_on_with_ray() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORKED.format(root=str(ROOT))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "fine\n"), ran.stderr
