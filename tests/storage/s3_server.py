"""A server of the S3 protocol on the loopback interface: objects in memory, requests counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyarrow import fs
from werkzeug.serving import make_server

BUCKET = "runs"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "an-id",
    "AWS_SECRET_ACCESS_KEY": "a-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


class S3Server:
    """What tests ask of it.

    Attributes:
        requests: each request's method and path, in order.
        read_bytes: bytes of objects that were answered.
        denying: refuse all requests, whoever makes them.
    """

    def __init__(self) -> None:
        # Takes long to import, and each process that shares the tests imports this file.
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._app: Any = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.requests: list[tuple[str, str]] = []
        self.read_bytes = 0
        self.denying = False
        self._reached: Any = None

    def uri(self, path: str, *, credentials: str = "", **options: str) -> str:
        """The URI of `bucket/path` here."""
        given = {"scheme": "http", "endpoint_override": f"127.0.0.1:{self._server.server_port}", "region": "us-east-1"}
        query = "&".join(f"{key}={value}" for key, value in {**given, **options}.items())
        return f"s3://{credentials}{path}?{query}"

    def reached(self) -> Any:
        """pyarrow's file system over it."""
        if self._reached is None:
            self._reached = fs.FileSystem.from_uri(self.uri(BUCKET, allow_bucket_creation="true"))[0]
        return self._reached

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        if self.denying or "HTTP_AUTHORIZATION" not in environ:
            start("403 Forbidden", [("Content-Type", "application/xml"), ("Content-Length", str(len(DENIED)))])
            return [DENIED]
        answer: Iterable[bytes] = self._app(environ, start)
        if environ["REQUEST_METHOD"] == "GET" and "list-type" not in environ["QUERY_STRING"]:
            answer = list(answer)
            self.read_bytes += sum(map(len, answer))
        return answer

    @contextmanager
    def serving(self) -> Iterator[S3Server]:
        """Serve, with one bucket."""
        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            self.reached().create_dir(BUCKET)
            yield self
        finally:
            self._server.shutdown()
            thread.join(10)
            self._server.server_close()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server that serves, with the credentials that it wants in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        with S3Server().serving() as server:
            yield server
