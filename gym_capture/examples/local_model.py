"""A model server in this process, for a run that names none."""

from __future__ import annotations

from functools import cache

from gym_capture.examples.model_server import ModelServer
from gym_capture.examples.server_thread import serve_from_now_on

SEED = 7
PACE_S = 0.002


@cache
def local_model_url() -> str:
    """Where it listens; started when it is first asked for."""
    return serve_from_now_on(ModelServer(seed=SEED, pace_s=PACE_S))
