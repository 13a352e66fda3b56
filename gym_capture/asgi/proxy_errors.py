"""What a client hears when the proxy has no answer of the upstream's to give: status, JSON in its dialect, cause."""

from __future__ import annotations

import json
from dataclasses import dataclass

from gym_capture.errors import GymCaptureError

MESSAGES_PATHS = ("/v1/messages", "/v1/messages/count_tokens")


class UpstreamBroken(GymCaptureError):
    """The upstream's answer broke off after it had begun; raised so that the client's connection breaks too.

    Args:
        message: what happened.
        error_category: `stream_truncated`, `connection` or `timeout`.
    """

    def __init__(self, message: str, *, error_category: str) -> None:
        super().__init__(message, error_category=error_category)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (str(self), str(self.error_category)))


def _rebuild(message: str, error_category: str) -> UpstreamBroken:
    return UpstreamBroken(message, error_category=error_category)


@dataclass(frozen=True, slots=True)
class LocalAnswer(Exception):
    """An answer that the proxy gives itself.

    Args:
        status: HTTP status.
        reason: a word for it (`local_response_reason` of the exchange, `code` of the error).
        message: for whoever reads it.
        error_category: of the exchange, where the status alone does not say it.
        attempted: whether the upstream was called.
    """

    status: int
    reason: str
    message: str
    error_category: str | None = None
    attempted: bool = True


def error_body(path: str, answer: LocalAnswer) -> bytes:
    """The JSON body of a local answer, as the SDK of the path's dialect expects errors.

    Args:
        path: the request's, without a rollout's prefix.
        answer: what to say.
    """
    if path.endswith(MESSAGES_PATHS):
        kind = "invalid_request_error" if answer.status < 500 else _ANTHROPIC.get(answer.status, "api_error")
        return _encoded({"type": "error", "error": {"type": kind, "message": answer.message}})
    kind = "invalid_request_error" if answer.status < 500 else "upstream_error"
    error = {"message": answer.message, "type": kind, "param": None, "code": answer.reason}
    return _encoded({"error": error})


_ANTHROPIC = {504: "timeout_error"}


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
