"""Starting owners on a real Ray: get-or-create, names, settings, ends and restarts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gym_capture
from gym_capture.actor.launch import Launched, launch
from gym_capture.config import load_config
from gym_capture.errors import (
    CaptureDirectoryError,
    ConfigError,
    DirectoryHeld,
    Fenced,
    InvalidRolloutId,
    NameTaken,
    OwnerNotFound,
    OwnerUnavailable,
    SettingsDiffer,
)
from gym_capture.storage.owner_file import is_stopped, read_owner
from gym_capture.storage.posix_files import PosixFiles
from gym_capture.storage.store import CaptureStore
from tests.actor.tunnel_client import Says
from tests.ray_cluster import ROOT, wait_until

pytestmark = pytest.mark.ray


def start(config: dict[str, Any], *overrides: str, takeover: bool = False) -> Launched:
    return launch(load_config(config, overrides), takeover=takeover, timeout_s=60.0)


def name_is_free(ray: Any, launched: Launched) -> bool:
    try:
        ray.get_actor(launched.spec.name, launched.spec.namespace)
    except ValueError:
        return True
    return False


@pytest.fixture
def launched(ray_cluster: Any, capture_config: dict[str, Any]) -> Launched:
    return start(capture_config)


def test_a_second_start_finds_the_first_owner(
    ray_cluster: Any, launched: Launched, capture_config: dict[str, Any]
) -> None:
    second = start(capture_config)
    assert (launched.created, second.created) == (True, False)
    assert launched.ready.pid == second.ready.pid
    assert launched.ready.epoch == 1
    stats = ray_cluster.get(second.handle.stats.remote())
    assert (stats["run"], stats["directory"]) == (launched.spec.run, launched.spec.directory)
    assert Path(launched.spec.directory).stat().st_mode & 0o777 == 0o700


def test_the_actor_takes_no_cpu_and_outlives_its_starter(ray_cluster: Any, launched: Launched) -> None:
    assert ray_cluster.available_resources()["CPU"] == ray_cluster.cluster_resources()["CPU"]
    handle = ray_cluster.get_actor(launched.spec.name, launched.spec.namespace)
    settings = ray_cluster.get(handle.settings.remote())
    assert (settings["run"], settings["directory"]) == (launched.spec.run, launched.spec.directory)
    assert settings["settings"]["capture.lease_s"] == 6.0


def test_a_start_with_other_owner_settings_names_them(launched: Launched, capture_config: dict[str, Any]) -> None:
    with pytest.raises(SettingsDiffer, match=r"capture\.lease_s: 6\.0 there, 9\.0 here") as raised:
        start(capture_config, "capture.lease_s=9", "capture.segment_bytes=1000000")
    assert raised.value.keys == ["capture.lease_s", "capture.segment_bytes"]
    assert start(capture_config, "capture.patience_s=1").ready.pid == launched.ready.pid


def test_a_name_that_serves_another_run_is_refused(
    ray_cluster: Any, capture_config: dict[str, Any], tmp_path: Path
) -> None:
    first = start(capture_config, "capture.name=shared")
    with pytest.raises(NameTaken, match="serves run") as raised:
        start(capture_config, "capture.name=shared", f"model_call_capture_dir={tmp_path / 'other'}")
    assert raised.value.run == first.spec.run
    assert ray_cluster.get(first.handle.endpoint.remote()).run == first.spec.run


def test_a_name_that_belongs_to_something_else_is_refused(
    ray_cluster: Any, capture_config: dict[str, Any], namespace: str
) -> None:
    class Other:
        def hello(self) -> str:
            return "hello"

    other = ray_cluster.remote(num_cpus=0)(Other).options(name="other", namespace=namespace).remote()
    assert ray_cluster.get(other.hello.remote()) == "hello"
    with pytest.raises(NameTaken, match="is no capture owner"):
        start(capture_config, "capture.name=other")
    with pytest.raises(OwnerNotFound, match="is no capture owner"):
        gym_capture.connect(name="other", namespace=namespace)
    assert ray_cluster.get(other.hello.remote()) == "hello"


def test_a_directory_that_another_actor_holds_is_refused_unless_it_is_taken_over(
    ray_cluster: Any, launched: Launched, capture_config: dict[str, Any]
) -> None:
    with pytest.raises(DirectoryHeld, match=launched.spec.name):
        start(capture_config, "capture.name=second")
    with pytest.raises(ValueError, match="second"):
        ray_cluster.get_actor("second", launched.spec.namespace)
    taken = start(capture_config, "capture.name=second", takeover=True)
    assert taken.ready.epoch > launched.ready.epoch
    wait_until(lambda: name_is_free(ray_cluster, launched), "the superseded owner leaves, and for good")
    assert ray_cluster.get(taken.handle.endpoint.remote()).epoch == taken.ready.epoch


def test_stop_seals_the_directory_and_frees_the_name(
    ray_cluster: Any, launched: Launched, capture_config: dict[str, Any]
) -> None:
    assert ray_cluster.get(launched.handle.stop.remote()) is True
    files = PosixFiles(launched.spec.directory)
    owner = read_owner(files)
    assert owner is not None
    assert is_stopped(files.read("beat-00000001"))
    wait_until(lambda: name_is_free(ray_cluster, launched), "the name is free")
    again = start(capture_config)
    assert (again.created, again.ready.epoch, again.spec.run) == (True, 2, launched.spec.run)


def test_a_killed_owner_comes_back_with_what_it_promised(ray_cluster: Any, launched: Launched) -> None:
    ray = ray_cluster
    assert ray.get(launched.handle.clear.remote(["a", "b"], "request-1")) == {"a": 1, "b": 1}
    os.kill(launched.ready.pid, signal.SIGKILL)
    ready = ray.get(launched.handle.ready.remote(), timeout=60)
    assert ready.pid != launched.ready.pid
    assert (ready.actor_id, ready.epoch, ready.error) == (launched.ready.actor_id, 2, None)
    assert ray.get(launched.handle.clear.remote(["a", "b"], "request-1")) == {"a": 1, "b": 1}
    assert ray.get(launched.handle.clear.remote(["a"])) == {"a": 2}
    assert CaptureStore(launched.spec.directory).generation("a") == 2


def test_a_restart_without_the_mount_serves_nothing_until_it_is_back(ray_cluster: Any, launched: Launched) -> None:
    directory = Path(launched.spec.directory)
    marker, aside = directory / "RUN", directory / "RUN-aside"
    marker.rename(aside)
    os.kill(launched.ready.pid, signal.SIGKILL)
    waiting = launched.handle.ready.remote()
    done, _ = ray_cluster.wait([waiting], timeout=3.0)
    assert done == []
    assert sorted(path.name for path in directory.glob("epoch-*")) == ["epoch-00000001"]
    aside.rename(marker)
    ready = ray_cluster.get(waiting, timeout=60)
    assert (ready.epoch, ready.error) == (2, None)


def test_a_directory_that_cannot_be_made_is_an_error_and_leaves_no_actor(
    ray_cluster: Any, capture_config: dict[str, Any], tmp_path: Path, namespace: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CaptureDirectoryError, match="cannot be made"):
        start(capture_config, f"model_call_capture_dir={tmp_path / 'file' / 'captures'}")
    named = ray_cluster.util.list_named_actors(all_namespaces=True)
    assert [entry for entry in named if entry["namespace"] == namespace] == []


def test_an_owner_that_cannot_start_tells_why_and_leaves_no_actor(
    ray_cluster: Any, capture_config: dict[str, Any], namespace: str
) -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.1"):
        start(capture_config, "capture.endpoint.host=203.0.113.1")
    named = ray_cluster.util.list_named_actors(all_namespaces=True)
    assert [entry for entry in named if entry["namespace"] == namespace] == []


def test_a_placement_that_no_node_fits_is_withdrawn(
    ray_cluster: Any, capture_config: dict[str, Any], namespace: str
) -> None:
    config = load_config(capture_config, ["capture.placement.resources={no_such_disk: 1}", "capture.name=nowhere"])
    with pytest.raises(OwnerUnavailable, match="was withdrawn"):
        launch(config, timeout_s=2.0)
    with pytest.raises(ValueError, match="nowhere"):
        ray_cluster.get_actor("nowhere", namespace)


def test_an_actor_that_does_not_answer_is_left_alone_unless_it_is_taken_over(
    ray_cluster: Any, launched: Launched, capture_config: dict[str, Any]
) -> None:
    os.kill(launched.ready.pid, signal.SIGSTOP)
    try:
        with pytest.raises(OwnerUnavailable, match="takeover=True"):
            launch(load_config(capture_config), timeout_s=2.0)
        assert not name_is_free(ray_cluster, launched)
        taken = launch(load_config(capture_config), takeover=True, timeout_s=60.0, frozen_after_s=2.0)
        assert (taken.created, taken.ready.epoch) == (True, 2)
    finally:
        continue_if_there(launched.ready.pid)
    assert ray_cluster.get(taken.handle.clear.remote(["r"])) == {"r": 1}


def continue_if_there(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass  # Ray has ended it already


def test_a_node_that_is_none_is_an_error(ray_cluster: Any, capture_config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"capture\.placement\.node"):
        start(capture_config, "capture.placement.node=nowhere")


RACER = """
import json, sys
import ray
from gym_capture.actor.launch import launch
from gym_capture.config import load_config
ray.init(address=sys.argv[1], log_to_driver=False)
sys.stdin.readline()
launched = launch(load_config(json.loads(sys.argv[2])))
print(launched.ready.pid, launched.ready.epoch, int(launched.created), launched.spec.run, flush=True)
"""


def test_two_drivers_that_race_get_one_owner(ray_cluster: Any, capture_config: dict[str, Any]) -> None:
    address = ray_cluster.get_runtime_context().gcs_address
    command = [sys.executable, "-c", RACER, address, json.dumps(capture_config)]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)
    ]
    try:
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        answers = [racer.communicate(timeout=90)[0].split() for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
    (pid, epoch, created, run), other = answers
    assert other[:2] == [pid, epoch]
    assert other[3] == run
    assert sorted([created, other[2]]) == ["0", "1"]


def test_writes_are_answered_while_thousands_wait(ray_cluster: Any, capture_config: dict[str, Any]) -> None:
    ray = ray_cluster
    # Nobody renews the lease here, and it has to last until all of them wait.
    launched = start({**capture_config, "capture": {**capture_config["capture"], "lease_s": 300.0}})
    endpoint = ray.get(launched.handle.endpoint.remote())
    pipe = ray.get(launched.handle.tunnel_open.remote("ab" * 16))
    say = Says(endpoint)
    assert ray.get(launched.handle.tunnel_push.remote(pipe, 1, say.hello()))[0] == 1
    assert ray.get(launched.handle.tunnel_push.remote(pipe, 2, say.claim("r", 1)))[0] == 2
    last, _ = ray.get(launched.handle.tunnel_poll.remote(pipe, 0, 10.0))
    assert last >= 1
    parked = [launched.handle.quiesce.remote("r", 240.0) for _ in range(2_500)]
    wait_until(lambda: ray.get(launched.handle.stats.remote())["waiters"] == len(parked), "all of them wait")
    assert ray.get(launched.handle.tunnel_push.remote(pipe, 3, say.claim("other", 2)))[0] == 3
    answered, _ = ray.get(launched.handle.tunnel_poll.remote(pipe, last, 60.0))
    assert answered > last
    assert ray.get(launched.handle.stats.remote())["waiters"] == len(parked), "it was answered while all of them wait"
    assert ray.get(launched.handle.tunnel_push.remote(pipe, 4, say.release("r", 1)))[0] == 4
    assert all(ray.get(parked, timeout=60))


def test_a_merge_over_ray_is_the_capture_value(ray_cluster: Any, launched: Launched) -> None:
    value = ray_cluster.get(launched.handle.merge.remote("r", None, 2))
    assert (value["rollout_id"], value["metrics"]["num_calls"], value["calls"]) == ("r", 0, [])
    assert value["gaps"] == [{"code": "model_call_capture_incomplete", "detail": "unaccounted=2"}]


def test_errors_cross_ray_as_what_they_are(ray_cluster: Any, launched: Launched) -> None:
    ray = ray_cluster
    assert ray.get(launched.handle.clear.remote(["r"])) == {"r": 1}
    with pytest.raises(Fenced, match="generation 0 of rollout r is not the current one"):
        ray.get(launched.handle.merge.remote("r", 0))
    with pytest.raises(InvalidRolloutId):
        ray.get(launched.handle.quiesce.remote("no/id", 1.0))
    with pytest.raises(OwnerUnavailable, match="is gone"):
        ray.get(launched.handle.tunnel_poll.remote("no-pipe", 0, 1.0))


def test_without_ray_a_launch_says_what_to_do() -> None:
    code = (
        "from gym_capture.actor.launch import launch\n"
        "from gym_capture.config import load_config\n"
        "from gym_capture.errors import ConfigError\n"
        "try:\n launch(load_config({'model_call_capture_dir': '/nowhere/at/all'}))\n"
        "except ConfigError as error:\n print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    assert "Ray is not initialised in this process" in ran.stdout
