"""A run whose model calls go through proxies on real Ray, one of which is killed while rollouts call it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gym_capture.collect.collector import collect
from gym_capture.collect.ray_proxy import RayProxy, ray_proxies
from gym_capture.config import ProxyConfig, load_config
from gym_capture.errors import ConfigError
from gym_capture.extras import PACKAGES
from gym_capture.storage.store import CaptureStore
from tests.asgi.raw_http import UpstreamConnection, raw_upstream
from tests.collect.ray_rollouts import TURNS

ROLLOUTS = 8
KILL_AT = 12
"""The request at which the proxy dies: some rollouts are done with a turn or two, all are under way."""


class ChatServer:
    """Answers chat completions, each under an id of its own; at one request something happens first."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.requests = 0
        self.at_kill = asyncio.Event()

    async def __call__(self, connection: UpstreamConnection) -> None:
        while True:
            head = (await connection.head()).lower()
            assert b"/ng-rollout" not in head
            length = int(head.partition(b"content-length: ")[2].split()[0])
            prompt = json.loads(await connection.reader.readexactly(length))["messages"][0]["content"]
            self.asked[prompt.split()[0]] += 1
            self.requests += 1
            number = self.requests
            if number == KILL_AT:
                self.at_kill.set()
                await connection.closed()
                return
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
            body = json.dumps(
                {"id": f"r{number}", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
            ).encode()
            await connection.say(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            )


@pytest.mark.ray
async def test_a_killed_proxy_is_back_under_its_url_and_what_it_held_is_a_gap(
    tmp_path: Path, capture_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[RayProxy] = []

    def recorded(settings: ProxyConfig, capture: Any) -> Any:
        launch = ray_proxies(settings, capture)

        def launch_and_tell(node: str, port: int | None) -> RayProxy:
            launched.append(launch(node, port))
            return launched[-1]

        return launch_and_tell

    monkeypatch.setattr("gym_capture.collect.ray_run.ray_proxies", recorded)
    (tmp_path / "rows.jsonl").write_text("{}\n" * ROLLOUTS)
    server = ChatServer()

    async def kill_one() -> int:
        await server.at_kill.wait()
        pid: int = await launched[0]._actor.__ray_call__.remote(lambda self: os.getpid())
        os.kill(pid, signal.SIGKILL)
        return pid

    async with raw_upstream(server) as upstream:
        killing = asyncio.create_task(kill_one())
        config = {
            **capture_config,
            "capture": {**capture_config["capture"], "lease_s": 2.0},
            "ray": {"address": "auto"},
            "proxy": {"upstream": upstream.url, "model_ref": {"type": "test", "name": "chat"}},
            "collect": {
                "input": str(tmp_path / "rows.jsonl"),
                "output": str(tmp_path / "out.jsonl"),
                "rollout": "tests.collect.ray_rollouts:chat_rollout",
                "workers": 2,
                "worker_num_cpus": 0,
                "concurrency": ROLLOUTS,
                "retries": 0,
                "include_payloads": True,
            },
        }
        summary = await collect(load_config(config))
        await killing
    assert (len(summary.finished), summary.failed) == (ROLLOUTS, [])
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    # One address before and after, with the attempt's generation in it.
    assert len(launched) == 2
    assert len({record["base_url"].partition("/ng-rollout/")[0] for record in records}) == 1
    broken = 0
    for record in records:
        capture = record["ng_model_call_capture"]
        rollout_id = capture["rollout_id"]
        assert record["base_url"].endswith(f"/ng-rollout/{rollout_id}~1")
        captured = {call["response_id"] for call in capture["calls"]}
        assert len(record["answers"]) == TURNS
        assert set(record["answers"]) <= captured
        assert {json.dumps(call["model_ref"], sort_keys=True) for call in capture["calls"]} == {
            '{"name": "chat", "type": "test"}'
        }
        if server.asked[rollout_id] > len(capture["calls"]):
            # The model was asked, and the answer died with the proxy: that is said.
            broken += 1
            assert len(capture["gaps"]) == 1
        for gap in capture.get("gaps", []):
            assert gap["code"] == "model_call_capture_incomplete"
            assert gap["detail"].startswith(("lost=", "unaccounted="))
    assert broken >= 1
    store = CaptureStore(Path(capture_config["model_call_capture_dir"]))
    assert store.outstanding() == 0


def test_a_run_that_could_not_have_its_proxies_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    base = {
        "model_call_capture_dir": str(tmp_path / "captures"),
        "collect": {
            "input": str(tmp_path / "rows.jsonl"),
            "output": str(tmp_path / "out.jsonl"),
            "rollout": "tests.collect.ray_rollouts:chat_rollout",
        },
    }
    with pytest.raises(ConfigError, match=r"proxy\.upstream is 'model:8000'"):
        asyncio.run(collect(load_config(base, ["proxy.upstream=model:8000"])))
    with pytest.raises(ConfigError, match=r"proxy\.replicas 2"):
        asyncio.run(collect(load_config(base, ["proxy.upstream=http://x", "proxy.port=8100", "proxy.replicas=2"])))
    monkeypatch.setitem(PACKAGES, "proxy", ("no_such_package",))
    with pytest.raises(ImportError, match=r"pip install 'gym-capture\[proxy\]'"):
        asyncio.run(collect(load_config(base, ["proxy.upstream=http://x"])))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]
