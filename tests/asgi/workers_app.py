"""An app for a server of several processes: it says which of them answered."""

from __future__ import annotations

import os

from fastapi import FastAPI

from gym_capture.asgi import CaptureMiddleware

server = FastAPI()
server.add_middleware(CaptureMiddleware)  # its client comes by the environment, in each process


@server.post("/v1/chat/completions")
def chat(body: dict[str, object]) -> dict[str, object]:
    """Answer with the process's id."""
    return {"id": str(os.getpid()), "choices": []}
