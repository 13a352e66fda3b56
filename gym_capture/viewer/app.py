"""The viewer as an ASGI application: the page's files, and JSON that says which version it is of.

A request that names the version it has (`If-None-Match`) is answered 304 without anything being made, so a page that
asks every second costs a look at the directory's files.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from gym_capture.errors import ConfigError, GymCaptureError, InvalidRolloutId, RolloutNotFound
from gym_capture.reading.conversation import Conversation, read_conversation
from gym_capture.reading.plain_text import plain_line
from gym_capture.reading.rollout_overview import SORT_KEYS, OverviewQuery
from gym_capture.reading.rollout_status import STATUSES
from gym_capture.service.executor import Executor
from gym_capture.viewer import views
from gym_capture.viewer.captured import SLICE_S, Captured, OpenedDirectory
from gym_capture.viewer.gate import Gate

STATIC = Path(__file__).parent / "static"
PAGE_ROWS = 500
PAGE_TURNS = 200
PATIENCE_S = 20.0
"""How long an answer may take before the page is told that it still waits, seconds: a disk or a store may hang."""
KEPT_ANSWERS = 16
"""Answers that took longer, and are kept until they are asked for again."""
KEPT_CONVERSATIONS = 4
"""Rollouts whose turns are kept for their next page; one may hold thousands of long messages."""

_SILENT = {
    "error": {
        "type": "Silent",
        "message": "What was asked for is still being read, or the disk or the store does not answer. It is waited "
        "for; what is shown is the last that was read.",
    }
}

_View = Callable[[Request, OpenedDirectory], "_Answer"]


class _Answer:
    """An answer that need not be made.

    Args:
        version: of what it is made from; None: it changes with every look.
        make: makes it.
    """

    def __init__(self, version: str | None, make: Callable[[], dict[str, Any]]) -> None:
        self.version = version
        self.make = make


class _Pages:
    """The answers. All of them are made in one thread, which a store needs.

    Args:
        captured: the directory.
        executor: of one thread.
        patience_s: how long an answer may take, seconds.
    """

    def __init__(self, captured: Captured, executor: Executor, patience_s: float) -> None:
        self._captured = captured
        self._executor = executor
        self._patience_s = patience_s
        self._late: dict[str, tuple[str | None, asyncio.Future[Response]]] = {}
        self._conversations: dict[tuple[str, str], Conversation] = {}

    def route(self, path: str, view: _View) -> Route:
        async def endpoint(request: Request) -> Response:
            path, tag = str(request.url), request.headers.get("if-none-match")
            late = self._late.get(path)
            if late is not None and late[1].done():
                del self._late[path]
                response = late[1].result()
                # That nothing has changed is said of the version that was asked with.
                if response.status_code != 304 or late[0] == tag:
                    return response
            if all(answering.done() for _, answering in self._late.values()):
                answering = asyncio.ensure_future(self._executor.run(functools.partial(self._respond, request, view)))
                # Cancelled where the server ends: it does not wait for what hangs.
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([answering], timeout=self._patience_s)
                if answering.done():
                    return answering.result()
                while len(self._late) >= KEPT_ANSWERS:
                    del self._late[next(iter(self._late))]
                self._late[path] = (tag, answering)
            # Nothing more is queued behind what hangs.
            return _json(_SILENT, 503)

        answer: Callable[[Request], Awaitable[Response]] = endpoint
        return Route(path, answer)

    def _respond(self, request: Request, view: _View) -> Response:
        try:
            opened = self._captured.look()
            answer = view(request, opened)
            tag = None if answer.version is None else f'"{answer.version}"'
            headers = {"cache-control": "no-store"} | ({"etag": tag} if tag else {})
            if tag and request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers=headers)
            return _json({**answer.make(), "about": views.about_view(opened.store)}, headers=headers)
        except (InvalidRolloutId, RolloutNotFound) as error:
            return _json(_told(error), 404)
        except ConfigError as error:
            return _json(_told(error), 400)
        except (GymCaptureError, OSError) as error:
            return _json(_told(error), 503)

    def run(self, request: Request, opened: OpenedDirectory) -> _Answer:
        """The run as a whole. Its version is the directory's, once everything is read."""
        progress = opened.read_ahead()
        return _Answer(self._captured.version if progress.whole else None, lambda: views.run_view(opened))

    def rollouts(self, request: Request, opened: OpenedDirectory) -> _Answer:
        """A page of the list."""
        query = _query(request)
        whole = not query.needs_records or opened.page(query) is not None
        return _Answer(self._captured.version if whole else None, lambda: views.list_view(opened, query))

    def rollout(self, request: Request, opened: OpenedDirectory) -> _Answer:
        """A rollout's turns."""
        rollout_id = request.path_params["rollout_id"]
        first = _number(request, "first", 0, 10**9)
        limit = _number(request, "limit", 50, PAGE_TURNS)
        version = self._version(opened, rollout_id)
        return _Answer(version, lambda: views.rollout_view(self._conversation(opened, rollout_id), first, limit))

    def timeline(self, request: Request, opened: OpenedDirectory) -> _Answer:
        """A rollout's timeline."""
        rollout_id = request.path_params["rollout_id"]
        return _Answer(self._version(opened, rollout_id), lambda: views.timeline_view(opened.store, rollout_id))

    def raw(self, request: Request, opened: OpenedDirectory) -> _Answer:
        """One call's payloads."""
        rollout_id, index = request.path_params["rollout_id"], request.path_params["index"]
        return _Answer(self._version(opened, rollout_id), lambda: views.raw_view(opened.store, rollout_id, index))

    def difference(self, request: Request, opened: OpenedDirectory) -> _Answer:
        """Two rollouts compared."""
        left, right = request.query_params.get("left", ""), request.query_params.get("right", "")
        version = f"{self._version(opened, left)}.{self._version(opened, right)}"
        return _Answer(
            version,
            lambda: views.difference_view(self._conversation(opened, left), self._conversation(opened, right)),
        )

    def _version(self, opened: OpenedDirectory, rollout_id: str) -> str:
        standing = views.standing_of(opened, rollout_id)
        return f"{self._captured.session}-{opened.rollout_version(standing)}"

    def _conversation(self, opened: OpenedDirectory, rollout_id: str) -> Conversation:
        key = (rollout_id, self._version(opened, rollout_id))
        kept = self._conversations.pop(key, None) or read_conversation(opened.store, rollout_id)
        self._conversations[key] = kept
        while len(self._conversations) > KEPT_CONVERSATIONS:
            del self._conversations[next(iter(self._conversations))]
        return kept


def viewer_app(
    place: str | Path,
    token: str,
    hosts: Collection[str],
    executor: Executor,
    slice_s: float = SLICE_S,
    patience_s: float = PATIENCE_S,
) -> ASGIApp:
    """The application.

    Args:
        place: the capture directory, absolute, or the URI of a sealed run; it is opened by the first request.
        token: what every path begins with.
        hosts: what the Host header may say.
        executor: of one thread, which then reads what was captured.
        slice_s: how long one request may read ahead, seconds.
        patience_s: how long one may take, seconds; after that the page is told, and what was asked goes on.
    """
    pages = _Pages(Captured(place, slice_s), executor, patience_s)
    routes = [
        Route("/", _index),
        pages.route("/api/run", pages.run),
        pages.route("/api/rollouts", pages.rollouts),
        pages.route("/api/rollouts/{rollout_id}", pages.rollout),
        pages.route("/api/rollouts/{rollout_id}/timeline", pages.timeline),
        pages.route("/api/rollouts/{rollout_id}/calls/{index:int}", pages.raw),
        pages.route("/api/difference", pages.difference),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False  # a redirect would lose the token
    return Gate(app, token, hosts)


async def _index(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", media_type="text/html")


def _json(value: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    # In ASCII: what a browser makes of a lone surrogate in UTF-8 is its own affair.
    return Response(json.dumps(value, allow_nan=False), status, headers, "application/json")


def _told(error: Exception) -> dict[str, Any]:
    return {"error": {"type": type(error).__name__, "message": plain_line(str(error))}}


def _query(request: Request) -> OverviewQuery:
    asked = request.query_params
    status = next((each for each in STATUSES if each == asked.get("status")), None)
    sort = next((each for each in SORT_KEYS if each == asked.get("sort", "id")), None)
    if sort is None:
        raise ConfigError(f"sort {asked['sort']!r} is not known; give one of {', '.join(SORT_KEYS)}.")
    if status is None and asked.get("status"):
        raise ConfigError(f"status {asked['status']!r} is not known; give one of {', '.join(STATUSES)}.")
    return OverviewQuery(
        text=asked.get("text", ""),
        model=asked.get("model", ""),
        status=status,
        errors=asked.get("errors") == "1",
        gaps=asked.get("gaps") == "1",
        open=asked.get("open") == "1",
        sort=sort,
        descending=asked.get("descending") == "1",
        offset=_number(request, "offset", 0, 10**9),
        limit=_number(request, "limit", 50, PAGE_ROWS),
    )


def _number(request: Request, name: str, default: int, most: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) < 11):
        raise ConfigError(f"{name} {given[:40]!r} is no whole number from 0 on.")
    return min(int(given), most)


__all__ = ["viewer_app"]
