"""What a request's path means to capture: whose rollout it belongs to, and which dialect is spoken there.

`/ng-rollout/<id>/v1/...` or `/ng-rollout/<id>~<generation>/v1/...`, also with one more segment before `/v1`. The path
is split as it stands on the wire, before percent-decoding: an encoded slash in an id is then part of the id (and makes
it invalid), never a segment of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import unquote

from gym_capture.errors import InvalidRolloutId
from gym_capture.model.ids import split_rollout_token

ROLLOUT_SEGMENT = "ng-rollout"

_DIALECT_PATH = re.compile(r"(?:/[^/]+)?/v1/(responses|chat/completions|messages)")
_DIALECT = {"responses": "responses", "chat/completions": "chat", "messages": "messages"}
_BEFORE_V1 = re.compile(r"/[^/]+(?=/v1/)")
_SLASHES = re.compile(r"/{2,}")
_HARMLESS = ("HEAD", "OPTIONS")
_DOT_SEGMENT = re.compile(r"(?:^|[/\\])\s*\.\.?\s*(?:$|[/\\;])")
_ENCODED_AT_MOST = 3
_IGNORED = " .\t\r\n\0"
_WRITTEN_OTHERWISE = (
    "it is not written as one. Give it without doubled or encoded slashes, dot segments or capital letters."
)

NON_GENERATING = (
    "OPTIONS *",
    "HEAD *",
    "GET /",
    "GET /docs*",
    "GET /favicon.ico",
    "GET /get_model_info",
    "GET /get_server_info",
    "GET /health*",
    "GET /live*",
    "GET /load",
    "GET /metrics*",
    "GET /model_info",
    "GET /openapi.json",
    "GET /ping",
    "GET /ready*",
    "GET /redoc*",
    "GET /server_info",
    "GET /version",
    "GET /v1/chat/completions*",
    "GET /v1/models*",
    "GET /v1/responses/*",
    "DELETE /v1/chat/completions/*",
    "DELETE /v1/responses/*",
    "POST /detokenize",
    "POST /ping",
    "POST /tokenize",
    "POST /v1/messages/count_tokens",
    "POST /v1/responses/*/cancel",
    "POST /v1/responses/input_tokens",
)
"""Requests that call no model: `METHOD pattern`."""


@dataclass(frozen=True, slots=True)
class Route:
    """A request of a rollout.

    Args:
        rollout_id: whose it is.
        generation: the token that its caller carries, or None.
        prefix: what the server's app is not to see, as it stands in the raw path (`/ng-rollout/7-0~1`).
        rest: the raw path without it; starts with a slash.
        path: `rest`, decoded.
    """

    rollout_id: str
    generation: int | None
    prefix: str
    rest: str
    path: str

    def dialect(self, method: str) -> str | None:
        """The dialect that a model is called in here; None where none is."""
        if method.upper() != "POST":
            return None
        found = _DIALECT_PATH.fullmatch(_SLASHES.sub("/", self.path))
        return _DIALECT[found[1]] if found is not None else None


@dataclass(frozen=True, slots=True)
class InvalidPrefix:
    """A path that begins as a rollout's and names none.

    Args:
        message: what is wrong, for the caller.
    """

    message: str


def find_route(raw_path: str | bytes) -> Route | InvalidPrefix | None:
    """The rollout that a request belongs to; None for a request of no rollout.

    Args:
        raw_path: the request's path as it stands on the wire; a query after it is left out.
    """
    text = raw_path.decode("latin-1") if isinstance(raw_path, bytes) else raw_path
    path = text.partition("?")[0]
    empty, _, after = path.partition("/")
    name, _, after = after.partition("/")
    if empty or (name != ROLLOUT_SEGMENT and unquote(name) != ROLLOUT_SEGMENT):
        return InvalidPrefix(_WRITTEN_OTHERWISE) if _resembles(path) else None
    token, _, rest = after.partition("/")
    try:
        rollout_id, generation = split_rollout_token(unquote(token))
    except InvalidRolloutId as error:
        return InvalidPrefix(str(error))
    rest = f"/{rest}"
    return Route(rollout_id, generation, f"/{name}/{token}", rest, unquote(rest))


def _resembles(path: str) -> bool:
    """Whether a lenient server behind this one could read a rollout's prefix out of a path that has none as it stands.

    Such a request is a rollout's that was put together wrongly (a doubled slash, mostly); passed on, it would call a
    model with nobody counting it.
    """
    text = path.lower()
    if not text.startswith("/") or ("%" not in text and ROLLOUT_SEGMENT not in text):
        return False
    for _ in range(_ENCODED_AT_MOST):
        text = unquote(text).lower()
    first: list[str] = []
    for segment in text.replace("\\", "/").split("/"):
        name = segment.partition(";")[0].strip(_IGNORED)
        if segment.strip() == "..":
            del first[-1:]
        elif name:
            first.append(name)
    return first[:1] == [ROLLOUT_SEGMENT]


class NonGenerating:
    """The requests that call no model, so that nothing is missing when they are not recorded.

    Args:
        patterns: paths of any method, or `METHOD path`, beside the usual ones; `*` matches anything.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = [_split(pattern) for pattern in (*NON_GENERATING, *patterns)]

    def matches(self, method: str, path: str) -> bool:
        """Whether that request calls no model, as far as is known.

        A path with dot segments matches no pattern: where it leads is for the server to say.

        Args:
            path: decoded, without the rollout's prefix.
        """
        name, path = method.upper(), _SLASHES.sub("/", path)
        if name not in _HARMLESS and _DOT_SEGMENT.search(path):
            return False
        shorter = _BEFORE_V1.sub("", path, count=1) if _BEFORE_V1.match(path) else path
        return any(
            wanted in ("*", name) and (fnmatchcase(path, pattern) or fnmatchcase(shorter, pattern))
            for wanted, pattern in self._patterns
        )


def _split(pattern: str) -> tuple[str, str]:
    method, space, path = pattern.strip().partition(" ")
    return (method.upper(), path.strip()) if space else ("*", method)
