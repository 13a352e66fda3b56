"""A server of several processes: each has a client of its own, and none loses a call."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.asgi.served_app import a_run

ROOT = Path(__file__).parents[2]
WITHIN_S = 90.0


@contextmanager
def two_processes(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Uvicorn with two workers, and the port that they share."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        number = listening.fileno()
        command = [sys.executable, "-m", "uvicorn", "tests.asgi.workers_app:server", "--workers", "2"]
        with subprocess.Popen(
            [*command, "--fd", str(number), "--log-level", "error"],
            cwd=ROOT,
            env={**os.environ, "GYM_CAPTURE_DIR": str(directory)},
            pass_fds=[number],
        ) as server:
            try:
                yield server, listening.getsockname()[1]
            finally:
                server.terminate()
                server.wait(30.0)


async def test_each_process_of_a_server_connects_for_itself_and_captures(tmp_path: Path) -> None:
    answered: list[str] = []
    async with a_run(tmp_path / "captures") as run:
        with two_processes(run.owner.directory) as (server, port):
            url = f"http://127.0.0.1:{port}/ng-rollout/7-0/v1/chat/completions"
            async with asyncio.timeout(WITHIN_S):
                while len(set(answered)) < 2:
                    answered += await asyncio.gather(*(one(url) for _ in range(16)))
                    assert server.poll() is None
        assert str(server.pid) not in answered
        captured = await run.exchanges("7-0")
        assert sorted(each["response"]["id"] for each in captured) == sorted(answered)
        assert all(each["error_category"] is None for each in captured)


async def one(url: str) -> str:
    """A call on a connection of its own, which may be any process's."""
    async with httpx.AsyncClient(timeout=WITHIN_S) as client:
        answer = (await client.post(url, json={"messages": []})).json()
    said: str = answer["id"]
    return said
