"""Which HTTP requests call a model, seen from the client: what a method and a path mean, whatever stands before it."""

from __future__ import annotations

from collections.abc import Sequence

from gym_capture.recording.routes import NonGenerating

_ENDINGS = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/v1/messages": "messages",
}
"""`/messages` alone is no call: `POST /v1/threads/<id>/messages` adds one."""


def dialect_of(method: str, path: str) -> str | None:
    """`chat`, `responses` or `messages` when the request calls a model in that dialect, after any prefix; else None.

    Args:
        method: the HTTP method.
        path: the path, without the query.
    """
    if method.upper() != "POST":
        return None
    trimmed = path.rstrip("/")
    return next((dialect for ending, dialect in _ENDINGS.items() if trimmed.endswith(ending)), None)


class Unobserved:
    """Tells the requests that may call a model in a way that is not recorded.

    Args:
        non_generating: further requests that call none, as in `CaptureMiddleware`.

    Raises:
        TypeError: one pattern where a list is asked for.
    """

    def __init__(self, non_generating: Sequence[str] = ()) -> None:
        if isinstance(non_generating, str):
            raise TypeError(f"non_generating takes several patterns: give a list, [{non_generating!r}]")
        self._harmless = NonGenerating(non_generating)

    def matches(self, method: str, path: str) -> bool:
        """Whether it is such a request: a POST of no dialect that is not known to call no model.

        Args:
            path: decoded, without the query; a base URL's own segments, with or without `/v1`, may stand before.
        """
        if method.upper() != "POST" or dialect_of(method, path) is not None:
            return False
        begins = [index for index, character in enumerate(path) if character == "/"]
        ends = [path[index:] for index in begins]
        return not any(self._harmless.matches(method, form) for end in ends for form in (end, f"/v1{end}"))
