"""What a life of an owner leaves on the terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ray_cluster import ROOT

pytestmark = pytest.mark.ray

LIFE = """
import sys
import ray
import gym_capture
from tests.ray_cluster import wait_until

_, directory, address, namespace = sys.argv
ray.init(address=address, namespace=namespace)
captures = []
for transport in ("auto", "ray"):
    capture = gym_capture.start({
        "model_call_capture_dir": f"{directory}/{transport}",
        "capture": {"namespace": namespace, "transport": transport, "endpoint": {"host": "127.0.0.1"}},
    })
    captures.append(capture)
    assert capture.sync.record("0-0", {"dialect": "chat", "request": {}, "response": {}}) == 0
    capture.sync.stop()
    wait_until(lambda: not ray.util.list_named_actors(), "the owner is gone")


@ray.remote(num_cpus=0)
def say():
    print("the last word", flush=True)


# What workers and raylets say reaches the driver in order, so all that was said of the stop is there before this.
ray.get(say.remote())
sys.stdin.readline()
for capture in captures:
    capture.sync.close()
ray.shutdown()
"""


def test_nothing_is_said_of_failed_or_retried_calls_after_a_clean_stop(
    ray_cluster: Any, namespace: str, tmp_path: Path
) -> None:
    address = ray_cluster.get_runtime_context().gcs_address
    with subprocess.Popen(
        [sys.executable, "-u", "-c", LIFE, str(tmp_path), address, namespace],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    ) as life:
        assert life.stdin is not None
        assert life.stdout is not None
        said = []
        for line in life.stdout:
            said.append(line)
            if "the last word" in line:
                break
        life.stdin.close()
        said += life.stdout.readlines()
        assert life.wait(60) == 0, "".join(said)
    assert [line for line in said if "retries" in line or "CaptureActor" in line] == []
