"""The client in its own thread: many loops and threads, blocking callers, forks, pickles, exits."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_capture.client.client import CaptureClient
from gym_capture.client.host import CoreHost
from gym_capture.client.options import ClientOptions
from gym_capture.errors import ClientClosed
from tests.client.fake_owner import FakeOwner
from tests.client.harness import exchange

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def owner() -> FakeOwner:
    return FakeOwner()


@pytest.fixture
def client(owner: FakeOwner) -> Iterator[CaptureClient]:
    made = CaptureClient(CoreHost(owner, ClientOptions(drain_timeout_s=60.0)))
    yield made
    made.sync.close()


def in_thread(work: Callable[[], None]) -> threading.Thread:
    """A started thread; a failure in it is a failure of the test (pytest turns it into one)."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def in_core(client: CaptureClient, work: Callable[[], None]) -> None:
    """Run something in the client's own loop."""
    host = client.host
    assert isinstance(host, CoreHost)
    done = threading.Event()

    def run() -> None:
        work()
        done.set()

    host.loop.call_soon_threadsafe(run)
    assert done.wait(60.0)


def test_many_threads_and_loops_share_one_link(owner: FakeOwner, client: CaptureClient) -> None:
    def loop_thread(number: int) -> None:
        async def call(index: int) -> None:
            async with client.rollout(f"r{number}").claim(dialect="chat", model_call_id=f"c{index}") as made:
                made.complete(request={"n": index}, response={})
            assert made.outcome == "durable"

        async def calls() -> None:
            await asyncio.gather(*[call(index) for index in range(50)])

        asyncio.run(calls())

    def blocking_thread(number: int) -> None:
        rollout = client.sync.rollout(f"b{number}")
        for index in range(20):
            with rollout.claim(dialect="chat") as made:
                made.complete(request={"n": index}, response={})
            assert made.call_index == index

    threads = [in_thread(lambda n=n: loop_thread(n)) for n in range(4)]  # type: ignore[misc]
    threads += [in_thread(lambda n=n: blocking_thread(n)) for n in range(4)]  # type: ignore[misc]
    for thread in threads:
        thread.join(60.0)
    assert client.sync.quiesce(timeout_s=60.0)
    assert len(owner.links) == 1
    assert [len(owner.ledger.view(f"r{n}").entries) for n in range(4)] == [50] * 4
    assert [len(owner.ledger.view(f"b{n}").entries) for n in range(4)] == [20] * 4


def test_a_burst_of_calls_wakes_the_clients_thread_once(client: CaptureClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.sync.record("other", exchange("a")) == 0
    host = client.host
    assert isinstance(host, CoreHost)
    unsettled, wake, wakes = host.core.unsettled, host.loop.call_soon_threadsafe, 0

    def counted(callback: Callable[..., object], *arguments: Any, **others: Any) -> asyncio.Handle:
        nonlocal wakes
        wakes += getattr(callback, "__name__", "") == "drain"
        return wake(callback, *arguments, **others)

    async def scenario() -> None:
        claims = [client.rollout("r1").claim(dialect="chat", model_call_id=f"c{index}") for index in range(50)]
        monkeypatch.setattr(host.loop, "call_soon_threadsafe", counted)
        await asyncio.gather(*[claim.__aenter__() for claim in claims])
        assert wakes == 1
        await asyncio.gather(*[claim.__aexit__(None, None, None) for claim in claims])

    # Something else is on its way: a call that is alone does not wait for others.
    in_core(client, lambda: unsettled.hold("other"))
    asyncio.run(scenario())
    monkeypatch.undo()
    in_core(client, lambda: unsettled.settle("other"))


def test_the_blocking_twin_works_inside_a_running_loop(client: CaptureClient) -> None:
    async def scenario() -> None:
        sync = client.sync
        assert sync.clear(["r1"]) == {"r1": 1}
        rollout = sync.rollout("r1", 1)
        assert (rollout.record(exchange("a")), rollout.issued) == (0, 1)
        with pytest.raises(ValueError, match="mine"), rollout.claim(dialect="chat", model_call_id="b") as call:
            raise ValueError("mine")
        assert call.outcome == "durable"
        assert rollout.quiesce(5.0)
        assert sync.quiesce()
        merged = sync.merge({"_ng_rollout_id": "r1"}, include_payloads=True, issued=rollout.issued)
        assert [one["error_category"] for one in merged["ng_model_call_capture"]["calls"]] == [None, "exception"]
        assert sync.stats()["client"]["open_claims"] == 0
        assert sync.record("r1", exchange("c")) == 2
        # The loop's own calls go on beside it.
        assert await client.record("r1", exchange("d")) == 3

    asyncio.run(scenario())


def test_a_loop_that_closes_over_an_open_claim_releases_it(owner: FakeOwner, client: CaptureClient) -> None:
    kept = []

    async def scenario() -> None:
        call = client.rollout("r1").claim(dialect="chat")
        await call.__aenter__()
        kept.append(call)

    asyncio.run(scenario())
    assert owner.ledger.outstanding_of("r1") == 1
    host = client.host
    assert isinstance(host, CoreHost)
    in_core(client, host.core._look_for_orphans)
    assert client.sync.quiesce("r1", timeout_s=60.0)
    assert owner.ledger.view("r1").reasons == {"released": 1}


def test_a_claim_that_is_answered_after_its_loop_closed_is_withdrawn(owner: FakeOwner, client: CaptureClient) -> None:
    client.sync.record("r1", exchange("first"))
    owner.deaf_to_batches = True

    async def scenario() -> None:
        came = asyncio.Event()
        loop = asyncio.get_running_loop()
        owner.on_batch = lambda: loop.call_soon_threadsafe(came.set)
        tasks.append(asyncio.create_task(client.rollout("r1").claim(dialect="chat").__aenter__()))
        await came.wait()

    tasks: list[asyncio.Task[object]] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(scenario())
    loop.close()
    owner.on_batch = lambda: None
    assert owner.ledger.outstanding_of("r1") == 1

    def answer() -> None:
        owner.deaf_to_batches = False
        owner.answer_held()

    in_core(client, answer)
    assert client.sync.quiesce("r1", timeout_s=60.0)
    assert owner.ledger.view("r1").reasons is None
    tasks[0]._log_destroy_pending = False  # type: ignore[attr-defined]  # it is destroyed on purpose
    tasks.clear()
    gc.collect()


def test_a_closed_client_says_so_and_never_raises_inside_a_call(client: CaptureClient) -> None:
    client.sync.record("r1", exchange())
    with client.sync.rollout("r1").claim(dialect="chat") as under_way:
        assert client.sync.close() is True
        under_way.complete(request={}, response={})
    assert under_way.outcome == "dropped"
    with client.sync.rollout("r1").claim(dialect="chat") as call:
        call.complete(request={}, response={})
    assert call.outcome == "dropped"
    with pytest.raises(ClientClosed, match="open a new one"):
        client.sync.quiesce()
    assert client.sync.close() is True


def test_closing_waits_for_what_is_on_its_way(owner: FakeOwner, client: CaptureClient) -> None:
    owner.deaf_to_batches = True
    came = threading.Event()
    owner.on_batch = came.set
    outcome: list[int] = []
    writer = in_thread(lambda: outcome.append(client.sync.record("r1", exchange())))
    assert came.wait(60.0)
    answering = in_thread(lambda: in_core(client, owner.answer_held))
    answering.join(60.0)
    assert client.sync.close(timeout_s=60.0) is True
    writer.join(60.0)
    assert outcome == [0]


def reopen(name: str) -> CaptureClient:
    """Gives the client of `REOPENED` back, as `api` gives the one of a process."""
    return REOPENED[name]


REOPENED: dict[str, CaptureClient] = {}


def test_clients_and_handles_pickle(owner: FakeOwner) -> None:
    client = CaptureClient(CoreHost(owner), reopen=(reopen, ("one",)))
    REOPENED["one"] = client
    rollout = client.rollout("r1", 3)
    copy = pickle.loads(pickle.dumps(rollout))
    assert (copy.id, copy.generation) == ("r1", 3)
    client.sync.clear(["r1"])
    copy_sync = pickle.loads(pickle.dumps(client)).sync
    assert copy_sync.clear(["r1"]) == {"r1": 2}
    client.sync.clear(["r1"])

    async def record() -> None:
        await copy.record(exchange("a"))
        await rollout.record(exchange("b"))

    asyncio.run(record())
    assert (copy.issued, rollout.issued) == (2, 2)
    client.sync.close()
    with pytest.raises(TypeError, match="does not pickle"):
        pickle.dumps(CaptureClient(CoreHost(owner)))


FORK = """
import gc, os, sys, threading, warnings
warnings.simplefilter("error")
sys.path.insert(0, {root!r})
from gym_capture.client.client import CaptureClient
from gym_capture.client.host import CoreHost
from tests.client.fake_owner import FakeOwner
from tests.client.harness import exchange

owner = FakeOwner()
client = CaptureClient(CoreHost(owner))
rollout = client.rollout("r1")
sync = client.sync
with sync.rollout("r1").claim(dialect="chat") as call:
    rollout_sync = sync.rollout("r1")
    pid = os.fork()
    if pid == 0:
        # The child leaves the parent's block: nothing of the parent's claim is closed by it.
        links = len(owner.links)
        try:
            raise KeyError("child")
        except KeyError as error:
            call.__exit__(KeyError, error, None)
        assert call.outcome == "released", call.outcome
        del call
        gc.collect()
        assert sync.record("r2", exchange("child")) == 0
        assert len(owner.links) == links + 1, "the child has a link of its own"
        assert owner.hellos[-1].client != owner.hellos[0].client
        assert owner.ledger.outstanding_of("r1") == 1, "the parent's claim is as it was"
        assert sync.close() is True
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    call.complete(request={{}}, response={{}})
assert call.outcome == "durable", call.outcome
assert len(owner.links) == 1
assert sync.record("r1", exchange("parent")) == 1
assert sync.close() is True
print("fine")
"""


def test_a_forked_child_is_a_new_client_and_leaves_the_parents_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK.format(root=str(ROOT))], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "fine", "")


EXIT = """
import sys, threading
sys.path.insert(0, {root!r})
import atexit
from tests.client.fake_owner import FakeOwner

class Slow(FakeOwner):
    def _batch(self, link, batch, body, now):
        import asyncio
        asyncio.get_running_loop().call_later(0.3, super()._batch, link, batch, body, now)

owner = Slow()
atexit.register(lambda: print(len(owner.ledger.view("r1").entries), owner.goodbyes))
from gym_capture.client.client import CaptureClient
from gym_capture.client.host import CoreHost
from gym_capture.client.operations import Commit
from gym_capture.model.exchange import snapshot
from tests.client.harness import exchange

client = CaptureClient(CoreHost(owner))
client.sync.stats()
client.host.post(Commit("r1", -1, snapshot(exchange("a"))))
"""


def test_what_is_on_its_way_at_exit_arrives() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXIT.format(root=str(ROOT))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["1", "1"], "")


def test_a_client_that_was_never_used_starts_no_thread() -> None:
    before = set(threading.enumerate())
    client = CaptureClient(CoreHost(FakeOwner()))
    client.rollout("r1").claim(dialect="chat")
    assert set(threading.enumerate()) <= before
    assert client.sync.close() is True
    assert os.getpid()
