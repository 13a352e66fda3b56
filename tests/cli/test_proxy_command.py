"""`gym-capture proxy`: what is wrong is told before anything starts, and what it started ends with it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gym_capture.cli.exits import Exit
from gym_capture.cli.main import app
from gym_capture.cli.proxy import tell
from gym_capture.config import load_config
from gym_capture.directory.locate import Liveness, liveness
from gym_capture.errors import RayUnavailable
from gym_capture.extras import PACKAGES
from gym_capture.storage.store import CaptureStore
from gym_capture.testing.threaded_owner import ThreadedOwner
from tests.asgi.proxy_process import proxy_process
from tests.asgi.raw_http import UpstreamConnection, raw_upstream, roundtrip

ANSWER = json.dumps({"id": "r1", "object": "chat.completion", "model": "m", "choices": []}).encode()


def invoke(folder: Path, *arguments: str, **proxy: Any) -> Result:
    config = folder / "run.yaml"
    config.write_text(json.dumps({"model_call_capture_dir": str(folder / "captures"), "proxy": proxy}))
    return CliRunner().invoke(app, ["proxy", "--config", str(config), *arguments])


async def answer(connection: UpstreamConnection) -> None:
    while True:
        head = await connection.head()
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        await connection.reader.readexactly(length)
        await connection.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER))


def call(prefix: str) -> bytes:
    return (
        f"POST {prefix}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{{}}"
    ).encode()


def test_an_upstream_is_needed(tmp_path: Path) -> None:
    ran = invoke(tmp_path)
    assert ran.exit_code == Exit.USAGE
    assert "give --upstream URL, or set proxy.upstream" in ran.stderr


@pytest.mark.parametrize("url", ["model:8000", "http://", "http://u:p@x", "http://x/?a=1", ""])
def test_an_upstream_that_cannot_be_is_a_usage_error(tmp_path: Path, url: str) -> None:
    ran = invoke(tmp_path, "--upstream", url)
    assert ran.exit_code == Exit.USAGE
    assert "error: proxy.upstream is" in ran.stderr
    assert not (tmp_path / "captures").exists()


def test_a_missing_extra_is_told_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PACKAGES, "proxy", ("aiohttp", "no_such_package"))
    ran = invoke(tmp_path, "--upstream", "http://127.0.0.1:1")
    assert ran.exit_code == Exit.ERROR
    assert "needs no_such_package" in ran.stderr
    assert "pip install 'gym-capture[proxy]' (from a checkout: pip install '.[proxy]')" in ran.stderr


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ("--upstream", "http://127.0.0.1:1", "--host", "127.0.0.1", "--port", str(port))
        ran = invoke(tmp_path, "observability_enabled=false", *arguments)
    assert ran.exit_code == Exit.ERROR
    assert f"cannot listen on 127.0.0.1 port {port}" in ran.stderr


def test_options_win_over_the_configuration_and_overrides(tmp_path: Path) -> None:
    ran = invoke(tmp_path, "proxy.upstream=http://x", "--upstream", "given:1", upstream="http://y")
    assert "'given:1'" in ran.stderr


class RecordingScreen:
    """What a command shows."""

    def __init__(self) -> None:
        from io import StringIO

        from rich.console import Console

        self.as_json = False
        self.stdout = StringIO()
        self.out = Console(file=self.stdout, width=200, highlight=False)


def test_it_tells_how_the_sdks_find_it(tmp_path: Path) -> None:
    screen = RecordingScreen()
    config = load_config({"model_call_capture_dir": str(tmp_path)})
    tell(screen, config, "http://10.0.0.1:8100", "http://10.0.0.7:8000")  # type: ignore[arg-type]  # all it needs of one
    shown = screen.stdout.getvalue()
    assert 'OpenAI(base_url="http://10.0.0.1:8100/ng-rollout/<rollout id>/v1")' in shown
    assert 'Anthropic(base_url="http://10.0.0.1:8100/ng-rollout/<rollout id>")' in shown
    assert str(tmp_path) in shown


async def test_a_live_owner_is_joined_without_ray_and_left_running(tmp_path: Path) -> None:
    owner = ThreadedOwner(tmp_path / "captures")
    owner.start()
    try:
        async with (
            raw_upstream(answer) as upstream,
            proxy_process(tmp_path, owner.directory, upstream.url, 'proxy.model_ref={type: t, name: "n"}') as proxy,
        ):
            assert proxy.told["anthropic_base_url"] == f"{proxy.told['url']}/ng-rollout/<rollout id>"
            assert proxy.told["upstream"] == upstream.url
            got = await roundtrip(proxy.port, call("/ng-rollout/0-0"))
            assert got.endswith(ANSWER)
            assert (await roundtrip(proxy.port, call(""))).endswith(ANSWER)
            assert len(upstream.connections) == 1
            proxy.signal(signal.SIGTERM)
            assert await proxy.ended() == Exit.OK
        assert liveness(owner.directory) is Liveness.REACHABLE
        [exchange] = CaptureStore(owner.directory).read("0-0")
        assert exchange["model_ref"] == {"type": "t", "name": "n"}
        assert (exchange["upstream_attempted"], exchange["status_code"]) == (True, 200)
        assert CaptureStore(owner.directory).rollout_ids() == ["0-0"]
    finally:
        owner.close()


def joined(folder: Path, *overrides: str) -> Result:
    """What a proxy says that joins a live owner and then finds its port taken."""
    owner = ThreadedOwner(folder / "captures")
    owner.start()
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            return invoke(folder, *overrides, "--upstream", "http://127.0.0.1:1", "--host", "127.0.0.1", "--port", port)
    finally:
        owner.close()


def test_a_live_owner_that_takes_less_out_than_configured_is_not_joined(tmp_path: Path) -> None:
    ran = joined(tmp_path, "capture.redact.patterns=[sk-live-\\w+]")
    assert "runs without some of this configuration's capture.redact" in ran.stderr
    assert "cannot listen" not in ran.stderr


def test_settings_that_a_live_owner_overrules_are_told(tmp_path: Path) -> None:
    ran = joined(tmp_path, "capture.patience_s=7")
    assert "the running owner's settings hold: capture.patience_s (120 there, 7 here)" in ran.stderr
    assert "cannot listen" in ran.stderr


def test_before_an_owner_is_started_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any) -> None:
        raise RayUnavailable("no Ray here")

    monkeypatch.setattr("gym_capture.api.start", fail)
    ran = invoke(tmp_path, "--upstream", "http://127.0.0.1:1", "--json")
    assert json.loads(ran.stdout)["error"]["type"] == "RayUnavailable"
    assert f"starting an owner for {tmp_path / 'captures'}" in ran.stderr.replace("\n", "")
    assert "starting an owner" not in joined(tmp_path).stderr


@pytest.mark.ray
async def test_an_owner_that_it_started_ends_with_it(tmp_path: Path) -> None:
    captures = tmp_path / "captures"
    async with (
        raw_upstream(answer) as upstream,
        proxy_process(tmp_path, captures, upstream.url, "ray.num_cpus=1") as proxy,
    ):
        assert liveness(captures) is Liveness.REACHABLE
        assert (await roundtrip(proxy.port, call("/ng-rollout/0-0"))).endswith(ANSWER)
        proxy.signal(signal.SIGINT)
        assert await proxy.ended() == Exit.OK, await asyncio.to_thread(proxy.log.read_text)
    assert liveness(captures) is Liveness.AT_REST
    store = CaptureStore(captures)
    assert [each["model_call_id"] is not None for each in store.read("0-0")] == [True]
    assert store.outstanding() == 0
