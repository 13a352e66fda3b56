"""Which HTTP requests call a model, seen from the client: the dialect of a method and path."""

from __future__ import annotations

_ENDINGS = {
    "/chat/completions": "chat",
    "/v1/responses": "responses",
    "/openai/responses": "responses",
    "/v1/messages": "messages",
}


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
