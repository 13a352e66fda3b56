"""A request's scope with its rollout's prefix, and without."""

from __future__ import annotations

from urllib.parse import quote

from gym_capture.asgi.messages import Scope
from gym_capture.recording.routes import InvalidPrefix, Route, find_route

NOTES_KEY = "gym_capture.notes"
"""Where an app finds a dict for what it knows of its own call (`recording.recorder.NOTES`)."""

_BYTES_UNSEEN = ("http.response.pathsend", "http.response.zerocopysend")
"""Extensions by which an app sends bytes that pass no `send`."""


def route_of(scope: Scope) -> Route | InvalidPrefix | None:
    """What the path of an HTTP scope means. A `root_path` (of a mount, say) is looked past."""
    raw = _raw_path(scope)
    return find_route(raw[_root_length(scope, raw) :])


def without_prefix(scope: Scope, route: Route) -> Scope:
    """A copy of the scope as the app is to see it: without the prefix, and with a dict for its notes."""
    inner = dict(scope)
    raw, path = _raw_path(scope), scope["path"]
    root = _root(scope)
    inner["path"] = (root if _begins(path, root) else "") + route.path
    if scope.get("raw_path") is not None:
        inner["raw_path"] = (raw[: _root_length(scope, raw)] + route.rest).encode("latin-1")
    extensions = scope.get("extensions")
    if extensions and any(name in extensions for name in _BYTES_UNSEEN):
        inner["extensions"] = {name: value for name, value in extensions.items() if name not in _BYTES_UNSEEN}
    inner[NOTES_KEY] = {}
    return inner


def prefixed_root(scope: Scope, route: Route) -> tuple[str, str]:
    """The path that the app is mounted at (`""` mostly), and the same with the rollout's prefix, as on the wire."""
    raw = _raw_path(scope)
    root = raw[: _root_length(scope, raw)]
    return root, root + route.prefix


def _raw_path(scope: Scope) -> str:
    """The path before decoding. Where a server gives none, it can only be guessed."""
    raw = scope.get("raw_path")
    if raw is None:
        return quote(scope["path"], safe="/~:@!$&'()*+,;=")
    text: str = raw.decode("latin-1")
    return text.partition("?")[0]


def _root_length(scope: Scope, raw: str) -> int:
    root = _root(scope)
    for form in (root, quote(root)) if root else ():
        if _begins(raw, form):
            return len(form)
    return 0


def _root(scope: Scope) -> str:
    root: str = scope.get("root_path") or ""
    return root.rstrip("/")


def _begins(path: str, root: str) -> bool:
    """Whether the path lies under that root."""
    return path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/")
