"""`gym-capture view` as a process: where it listens, whom it lets in, how it ends; and when it does not start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from gym_capture.cli.exits import Exit
from gym_capture.cli.main import app
from gym_capture.errors import MissingExtra
from gym_capture.extras import require_extra
from tests.reading.calls import chat, user, written

WITHIN_S = 60


@pytest.fixture
def captures(tmp_path: Path) -> Path:
    written(tmp_path / "captures", {"r": [chat("1", [user("hi")])]})
    return tmp_path / "captures"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_on_loopback_until_it_is_told_to_stop(captures: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "gym_capture", "view", str(captures), "--no-browser", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(5)]
            told = json.loads("".join(lines))
            assert (told["directory"], told["pid"]) == (str(captures), process.pid)
            url = httpx.URL(told["url"])
            assert url.host == "127.0.0.1"
            assert len(url.path.strip("/")) >= 32
            with httpx.Client() as client:  # which keeps its connection open meanwhile
                assert client.get(url.join("api/run")).json()["run"]["calls"] == 1
                assert client.get(url.copy_with(path="/")).status_code == 403
                process.send_signal(number)
                _, errors = process.communicate(timeout=WITHIN_S)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")


def test_each_start_has_a_token_of_its_own(monkeypatch: pytest.MonkeyPatch, captures: Path) -> None:
    urls: list[str] = []

    def browse(url: str) -> None:
        urls.append(url)
        os.kill(os.getpid(), signal.SIGINT)  # as if its user had seen enough

    monkeypatch.setattr("webbrowser.open", browse)
    for _ in range(2):
        ran = CliRunner().invoke(app, ["view", str(captures)])
        assert ran.exit_code == Exit.OK, ran.output
        assert urls[-1] in ran.stdout
    assert urls[0].split("/")[3] != urls[1].split("/")[3]


def test_a_port_that_is_taken_is_told(captures: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = CliRunner().invoke(app, ["view", str(captures), "--no-browser", "--port", str(taken.getsockname()[1])])
    assert ran.exit_code == Exit.ERROR
    assert "cannot listen on 127.0.0.1" in ran.stderr


def test_what_is_no_capture_directory_is_refused_before_anything_listens(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["view", str(tmp_path), "--no-browser"])
    assert ran.exit_code == Exit.ERROR
    assert "is no capture directory" in ran.stderr


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"uvicorn, starlette.*gym-capture\[view\]"):
        require_extra("view", "the viewer")


def test_it_ends_though_the_disk_does_not_answer(captures: Path) -> None:
    command = [sys.executable, "-m", "gym_capture", "view", str(captures), "--no-browser", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = httpx.URL(json.loads("".join(process.stdout.readline() for _ in range(5)))["url"])
            os.mkfifo(captures / "SEALED")  # who opens it waits for ever, as on a mount that is gone
            with pytest.raises(httpx.ReadTimeout):
                httpx.get(url.join("api/run"), timeout=1.0)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=WITHIN_S)
        finally:
            process.kill()
    assert (process.returncode, "Traceback" in errors) == (0, False)
