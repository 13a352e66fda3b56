"""The middleware in a FastAPI ingress on Ray Serve: the app travels pickled, the client in it finds its owner again."""

import socket
from collections.abc import Iterator
from typing import Any

import fastapi
import httpx
import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

import gym_capture
from gym_capture.asgi import CaptureMiddleware, current_rollout_id
from tests.recording.exchanges import REASSEMBLED, REQUEST, STREAM

# Serve warns of its own dependencies' deprecations, when it is imported and later.
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]


def ingress(serve: Any, capture: Any) -> Any:
    """A deployment that streams a chat. Made in a function, so that the app is pickled whole."""
    events = list(STREAM)
    app = fastapi.FastAPI()
    app.add_middleware(CaptureMiddleware, capture=capture)

    class Model:
        @app.post("/v1/chat/completions")
        async def chat(self, request: Request) -> StreamingResponse:
            assert (await request.json())["model"] == "policy"
            headers = {"x-rollout": str(current_rollout_id())}
            return StreamingResponse(iter(events), media_type="text/event-stream", headers=headers)

    deployment: Any = serve.deployment(ray_actor_options={"num_cpus": 0.1})(serve.ingress(app)(Model))
    return deployment.bind()


@pytest.fixture
def serve(ray_cluster: Any) -> Iterator[Any]:
    """Ray Serve, and the free port of the loopback that it listens on."""
    from ray import serve as started

    serve: Any = started
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield serve, port
    serve.shutdown()


def test_a_stream_through_an_ingress_is_captured(serve: Any, capture_config: dict[str, Any]) -> None:
    module, port = serve
    with gym_capture.start(capture_config).sync as capture:
        token = capture.clear(["7-0"])["7-0"]
        module.run(ingress(module, capture._client), name="model", route_prefix="/")
        url = f"http://127.0.0.1:{port}/ng-rollout/7-0~{token}/v1/chat/completions"
        answer = httpx.post(url, content=REQUEST, headers={"content-type": "application/json"}, timeout=30.0)
        assert (answer.status_code, answer.content) == (200, b"".join(STREAM))
        assert answer.headers["x-rollout"] == "7-0"
        record = capture.merge({"_ng_rollout_id": "7-0"}, include_payloads=True, generation=token, issued=1)
        captured = record["ng_model_call_capture"]
        assert "gaps" not in captured
        (call,) = captured["calls"]
        assert (call["response"], call["error_category"]) == (REASSEMBLED, None)
        capture.stop()
