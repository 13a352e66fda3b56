"""`gym-capture proxy` in a process of its own, over an owner that runs without Ray."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.cases import ROOT

WITHIN_S = 60.0


class ProxyProcess:
    """A proxy that listens."""

    def __init__(self, process: asyncio.subprocess.Process, told: dict[str, Any], log: Path) -> None:
        self._process = process
        self.told = told
        self.port = int(told["url"].rpartition(":")[2])
        self.log = log

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        async with asyncio.timeout(WITHIN_S):
            return await self._process.wait()


@asynccontextmanager
async def proxy_process(folder: Path, captures: Path, upstream: str, *overrides: str) -> AsyncIterator[ProxyProcess]:
    """Start one on the loopback; it is killed when a test leaves it running."""
    config, log = folder / "proxy.yaml", folder / "proxy.log"
    config.write_text(f"model_call_capture_dir: {captures}\nproxy: {{host: 127.0.0.1}}\n")
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gym_capture", "proxy", "--json", "--config", str(config), "--upstream", upstream),
            *overrides,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WITHIN_S):
            document = b""
            while not document.endswith(b"\n}\n"):
                piece = await process.stdout.read(4096)
                assert piece, log.read_text()
                document += piece
        yield ProxyProcess(process, json.loads(document), log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
