"""`start` and `connect` on a real Ray: finding owners, the way to them, clients in tasks and actors, restarts."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gym_capture
from gym_capture import CaptureClient, CaptureStore
from gym_capture.errors import CaptureDirectoryError, ConfigError, MissingRunMarker, OwnerNotFound, SettingsDiffer
from gym_capture.reach.locators import named_actors
from tests.ray_cluster import ROOT, wait_until

pytestmark = pytest.mark.ray

Start = Callable[..., CaptureClient]


def exchange(call_id: str, tokens: int = 1) -> dict[str, Any]:
    return {
        "model_call_id": call_id,
        "dialect": "chat",
        "status_code": 200,
        "request": {"messages": [{"role": "user", "content": "hello"}]},
        "response": {"usage": {"prompt_tokens": tokens, "completion_tokens": 1}},
    }


@pytest.fixture
def start(ray_cluster: Any, capture_config: dict[str, Any]) -> Any:
    clients: list[CaptureClient] = []

    def begin(*overrides: str) -> CaptureClient:
        clients.append(gym_capture.start(capture_config, overrides=overrides))
        return clients[-1]

    yield begin
    for client in clients:
        client.sync.close(timeout_s=5.0)


@pytest.fixture
def capture(start: Start) -> CaptureClient:
    return start()


def actor_of(ray: Any, namespace: str) -> Any:
    [name] = named_actors(namespace)
    return ray.get_actor(name, namespace)


# -- the main path --------------------------------------------------------------------------------------------------


async def test_a_call_is_claimed_committed_and_merged(capture: CaptureClient, capture_config: dict[str, Any]) -> None:
    record: dict[str, Any] = {"_ng_rollout_id": "r", "reward": 1.0}
    generations = await capture.clear([record])
    rollout = capture.rollout("r", generation=generations["r"])
    async with rollout.claim(dialect="chat") as call:
        call.complete(request={"messages": []}, response={"usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    assert (call.outcome, call.call_index) == ("durable", 0)
    merged = await capture.merge(record, include_payloads=True, issued=rollout.issued)
    assert merged is record
    value = record["ng_model_call_capture"]
    assert (value["rollout_id"], value["metrics"]["tokens_total"], value["calls"][0]["request"]) == (
        "r",
        5,
        {"messages": []},
    )
    assert "gaps" not in value
    assert capture.transport_name == "stream"
    assert [each["dialect"] for each in CaptureStore(capture_config["model_call_capture_dir"]).read("r")] == ["chat"]


def test_the_blocking_twin_needs_no_loop(capture: CaptureClient) -> None:
    assert capture.sync.record("r", exchange("a")) == 0
    assert capture.sync.quiesce("r") is True
    assert capture.sync.merge({"_ng_rollout_id": "r"})["ng_model_call_capture"]["metrics"]["num_calls"] == 1


async def test_a_stop_frees_the_name_for_the_next_start(
    ray_cluster: Any, start: Start, namespace: str, capture_config: dict[str, Any]
) -> None:
    first = start()
    await first.record("r", exchange("a"))
    await first.stop()
    again = await asyncio.to_thread(start)
    stats = await again.stats("r")
    assert (stats["epoch"], stats["rollout"]["calls"]) == (2, 1)


# -- finding the owner ----------------------------------------------------------------------------------------------


async def test_it_is_found_by_directory_by_name_by_environment_and_as_the_only_one(
    ray_cluster: Any, capture: CaptureClient, namespace: str, capture_config: dict[str, Any], monkeypatch: Any
) -> None:
    await capture.record("r", exchange("a"))
    directory = capture_config["model_call_capture_dir"]
    [name] = named_actors(namespace)
    run = (await capture.stats())["run"]
    monkeypatch.delenv("GYM_CAPTURE_DIR", raising=False)
    monkeypatch.delenv("GYM_CAPTURE_NAME", raising=False)
    found = [
        gym_capture.connect(directory),
        gym_capture.connect(name=name, namespace=namespace),
        gym_capture.connect(namespace=namespace),
    ]
    monkeypatch.setenv("GYM_CAPTURE_DIR", directory)
    found.append(gym_capture.connect())
    monkeypatch.delenv("GYM_CAPTURE_DIR")
    monkeypatch.setenv("GYM_CAPTURE_NAME", name)
    found.append(gym_capture.connect(namespace=namespace))
    for client in found:
        stats = await client.stats("r")
        assert (stats["run"], stats["rollout"]["calls"]) == (run, 1)
    # One process, one run: one core, one connection.
    assert {(await client.stats())["client"]["client"] for client in found} == {
        (await capture.stats())["client"]["client"]
    }
    for client in found:
        await client.close()
    assert await capture.quiesce("r") is True


SECRET = "sk-7F3aQ9zT"


def redacted_call(client: CaptureClient, call_id: str) -> tuple[float, float]:
    """Record a secret and close; returns two settings of the client that did it."""
    with client.sync as sync:
        sync.record("r", {**exchange(call_id), "request": {"user": "ada", "text": f"use {SECRET}"}})
    return client.host.options.patience_s, client.host.options.client_buffer_bytes


def test_whoever_connects_goes_by_the_settings_of_the_run_and_skips_no_redaction(
    ray_cluster: Any, start: Start, namespace: str, capture_config: dict[str, Any]
) -> None:
    ray, directory = ray_cluster, capture_config["model_call_capture_dir"]
    started = start(
        "capture.redact={paths: [$.request.user], patterns: ['sk-[0-9A-Za-z]{8}']}",
        "capture.patience_s=77",
        "capture.client_buffer_bytes=12345678",
    )
    [name] = named_actors(namespace)

    def elsewhere(pickled: CaptureClient) -> list[tuple[float, float]]:
        # One after the other: each is the only client of its process, and shares nobody's settings.
        found = [redacted_call(pickled, "pickled")]
        ways: list[dict[str, Any]] = [
            {"capture_dir": directory},
            {"name": name, "namespace": namespace},
            {"namespace": namespace},
            {"name": name, "namespace": namespace, "transport": "ray"},
        ]
        for number, way in enumerate(ways):
            found.append(redacted_call(gym_capture.connect(**way), f"way-{number}"))
        os.environ["GYM_CAPTURE_NAME"] = name
        found.append(redacted_call(gym_capture.connect(namespace=namespace), "by-name"))
        os.environ["GYM_CAPTURE_DIR"] = directory
        found.append(redacted_call(gym_capture.connect(), "by-directory"))
        return found

    answers = ray.get(ray.remote(num_cpus=0.1, max_calls=1)(elsewhere).remote(started), timeout=60)
    assert answers == [(77.0, 12345678)] * 7
    requests = [one["request"] for one in CaptureStore(directory).read("r")]
    assert requests == [{"user": "[redacted]", "text": "use [redacted]"}] * 7
    log = b"".join(path.read_bytes() for path in Path(directory).iterdir() if path.is_file())
    assert SECRET.encode() not in log


def test_a_start_that_would_redact_otherwise_is_refused(capture: CaptureClient, start: Start) -> None:
    with pytest.raises(SettingsDiffer) as caught:
        start("capture.redact.paths=[$..api_key]")
    assert caught.value.keys == ["capture.redact.paths"]


def test_without_an_owner_the_candidates_are_listed(
    start: Start, namespace: str, capture_config: dict[str, Any], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.delenv("GYM_CAPTURE_DIR", raising=False)
    monkeypatch.delenv("GYM_CAPTURE_NAME", raising=False)
    with pytest.raises(OwnerNotFound, match="no live owner") as none:
        gym_capture.connect(namespace=namespace)
    assert none.value.candidates == []
    start("capture.name=one")
    start("capture.name=two", f"model_call_capture_dir={tmp_path / 'second'}")
    with pytest.raises(OwnerNotFound, match="several live owners") as several:
        gym_capture.connect(namespace=namespace)
    assert several.value.candidates == ["one", "two"]
    with pytest.raises(OwnerNotFound, match="no live actor three") as other:
        gym_capture.connect(name="three", namespace=namespace)
    assert other.value.candidates == ["one", "two"]


def test_a_directory_without_an_owner_says_what_it_is(
    capture: CaptureClient, capture_config: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(CaptureDirectoryError, match="does not exist"):
        gym_capture.connect(tmp_path / "absent")
    (tmp_path / "bare").mkdir()
    with pytest.raises(MissingRunMarker):
        gym_capture.connect(tmp_path / "bare")
    capture.sync.stop()
    with pytest.raises(OwnerNotFound, match="CaptureStore"):
        gym_capture.connect(capture_config["model_call_capture_dir"])


OUTSIDE = """
import sys
import gym_capture
client = gym_capture.connect(sys.argv[1])
print(client.sync.record("r", {"model_call_id": "outside", "dialect": "chat"}), client.transport_name)
print("ray" in sys.modules)
"""


def test_a_process_outside_ray_reaches_it_by_directory(capture: CaptureClient, capture_config: dict[str, Any]) -> None:
    capture.sync.record("r", exchange("a"))
    ran = subprocess.run(
        [sys.executable, "-c", OUTSIDE, capture_config["model_call_capture_dir"]],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert ran.stdout.split() == ["1", "stream", "False"], ran.stderr


# -- the way to it --------------------------------------------------------------------------------------------------


async def test_ray_calls_carry_everything_when_asked_for(start: Start) -> None:
    client = start("capture.transport=ray")
    generations = await client.clear(["r"])
    async with client.rollout("r", generations["r"]).claim(dialect="chat") as call:
        call.complete(request={}, response={})
    assert call.outcome == "durable"
    merged = await client.merge({"_ng_rollout_id": "r"}, include_payloads=True)
    assert merged["ng_model_call_capture"]["calls"][0]["response"] == {}
    assert client.transport_name == "ray"


async def test_auto_takes_ray_calls_where_the_port_cannot_be_reached(
    capture: CaptureClient, namespace: str, capture_config: dict[str, Any], monkeypatch: Any
) -> None:
    from gym_capture.client.stream_transport import TcpConnector

    async def unreachable(self: Any, endpoint: Any, make: Any) -> None:
        raise OSError("no route")

    monkeypatch.setattr(TcpConnector, "connect", unreachable)
    client = gym_capture.connect(capture_config["model_call_capture_dir"], transport="auto")
    assert await client.record("r", exchange("a")) == 0
    assert client.transport_name == "ray"


# -- where clients go -----------------------------------------------------------------------------------------------


def test_clients_work_pickled_in_tasks_and_actors_of_every_kind(ray_cluster: Any, capture: CaptureClient) -> None:
    ray = ray_cluster

    def task(client: CaptureClient, call_id: str) -> tuple[int, int]:
        return client.sync.record("r", exchange(call_id)), os.getpid()

    class Blocking:
        def __init__(self, client: CaptureClient) -> None:
            self.client = client

        def record(self, call_id: str) -> int:
            return self.client.sync.record("r", exchange(call_id))

    class Async:
        def __init__(self, client: CaptureClient) -> None:
            self.rollout = client.rollout("r")

        async def record(self, call_id: str) -> int:
            return await self.rollout.record(exchange(call_id))

    remote = ray.remote(num_cpus=0.1)
    plain = remote(Blocking).remote(capture)
    threaded = remote(Blocking).options(max_concurrency=4).remote(capture)
    asynchronous = remote(Async).remote(capture)
    references = [
        *[remote(task).remote(capture, f"task-{number}") for number in range(3)],
        *[plain.record.remote(f"plain-{number}") for number in range(3)],
        *[threaded.record.remote(f"threaded-{number}") for number in range(8)],
        *[asynchronous.record.remote(f"async-{number}") for number in range(8)],
    ]
    answers = ray.get(references, timeout=90)
    indexes = sorted(answer[0] if isinstance(answer, tuple) else answer for answer in answers)
    assert indexes == list(range(22))
    for actor in (plain, threaded, asynchronous):
        ray.kill(actor)
    assert capture.sync.merge({"_ng_rollout_id": "r"})["ng_model_call_capture"]["metrics"]["num_calls"] == 22


def test_unpickled_here_it_shares_the_process_core(capture: CaptureClient) -> None:
    copy: CaptureClient = pickle.loads(pickle.dumps(capture))
    assert copy.sync.record("r", exchange("a")) == 0
    assert copy.sync.stats()["client"]["client"] == capture.sync.stats()["client"]["client"]
    copy.sync.close()
    assert capture.sync.record("r", exchange("b")) == 1


def test_a_cancelled_task_still_commits_what_it_claimed(ray_cluster: Any, capture: CaptureClient) -> None:
    ray = ray_cluster

    class Worker:
        def __init__(self, client: CaptureClient) -> None:
            self.rollout = client.rollout("r")

        async def call(self) -> None:
            async with self.rollout.claim(dialect="chat", request={"messages": []}):
                await asyncio.Event().wait()

    worker = ray.remote(num_cpus=0.1)(Worker).remote(capture)
    call = worker.call.remote()
    wait_until(lambda: capture.sync.stats("r")["rollout"]["open_claims"] == 1, "the claim is open")
    assert capture.sync.quiesce("r", timeout_s=0.05) is False
    ray.cancel(call)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(call, timeout=30)
    assert capture.sync.quiesce("r", timeout_s=30.0) is True
    [merged] = capture.sync.merge({"_ng_rollout_id": "r"})["ng_model_call_capture"]["calls"]
    assert merged["error_category"] == "cancelled"
    ray.kill(worker)


# -- trouble --------------------------------------------------------------------------------------------------------


async def test_calls_under_way_survive_a_killed_owner(ray_cluster: Any, capture: CaptureClient, namespace: str) -> None:
    ray = ray_cluster
    actor = actor_of(ray, namespace)
    pid = (await actor.ready.remote()).pid
    rollout = capture.rollout("r")

    async def call(number: int) -> str:
        async with rollout.claim(dialect="chat", model_call_id=f"call-{number}") as claimed:
            if number == 40:
                os.kill(pid, signal.SIGKILL)
            claimed.complete(request={"n": number}, response={})
        return str(claimed.outcome)

    outcomes = await asyncio.gather(*map(call, range(200)))
    assert set(outcomes) == {"durable"}
    assert (await actor.ready.remote()).pid != pid
    merged = await capture.merge({"_ng_rollout_id": "r"}, issued=rollout.issued)
    value = merged["ng_model_call_capture"]
    assert sorted(each["model_call_id"] for each in value["calls"]) == sorted(f"call-{number}" for number in range(200))
    assert "gaps" not in value


def test_disabled_capture_is_a_client_whose_calls_do_nothing(capture_config: dict[str, Any], namespace: str) -> None:
    client = gym_capture.start(capture_config, overrides=["observability_enabled=false"])
    assert not Path(capture_config["model_call_capture_dir"]).exists()
    assert client.transport_name == "disabled"
    assert client.sync.clear(["r"]) == {"r": 0}
    with client.sync.rollout("r").claim(dialect="chat") as call:
        call.complete(request={}, response={})
    assert call.outcome == "released"
    assert client.sync.record("r", exchange("a")) == -1
    assert client.sync.quiesce() is True
    assert client.sync.merge({"_ng_rollout_id": "r"}) == {"_ng_rollout_id": "r"}
    assert pickle.loads(pickle.dumps(client)).transport_name == "disabled"


def test_a_start_without_a_directory_is_an_error() -> None:
    with pytest.raises(ConfigError, match="model_call_capture_dir is not set"):
        gym_capture.start({})
