"""What each request of the page is answered with: structs of `reading` as JSON values that are safe to show."""

from __future__ import annotations

import json
from typing import Any

from gym_capture.errors import RolloutNotFound
from gym_capture.model.exchange import PAYLOADS
from gym_capture.reading.conversation import Conversation, Turn
from gym_capture.reading.difference import difference_of
from gym_capture.reading.message import json_text
from gym_capture.reading.nearest import nearest_ids
from gym_capture.reading.plain_json import plain_json
from gym_capture.reading.plain_text import plain_line
from gym_capture.reading.rollout_overview import OverviewQuery
from gym_capture.reading.timeline import read_timeline
from gym_capture.storage.standing import RolloutStanding
from gym_capture.storage.store import CaptureStore
from gym_capture.viewer.captured import OpenedDirectory
from gym_capture.viewer.shown import shown, shown_text

OLDEST_CLAIMS = 20
TURN_MESSAGES = 100
"""Messages of one turn that a page is given; a call that begins anew has its whole history."""

TURN_CHARACTERS = 400_000
"""What all messages of one side of a turn may take together."""

RAW_CHARACTERS = 2_000_000
RAW_LINES = 100_000
DIFFERENCE_PAIRS = 2_000

Json = dict[str, Any]


def run_view(opened: OpenedDirectory) -> Json:
    """The run as a whole, as far as it was read."""
    progress = opened.read_ahead()
    claims = opened.store.open_claims()
    return {
        "reading": plain_json(progress),
        "run": shown(plain_json(opened.figures())),
        "claims": shown([claim._asdict() for claim in claims[:OLDEST_CLAIMS]]),
        "claims_open": len(claims),
    }


def about_view(store: CaptureStore) -> Json:
    """Which directory it is, and what of its log cannot be read."""
    return {"directory": plain_line(store.directory), "damage": _damage_view(store)}


def _damage_view(store: CaptureStore) -> Json | None:
    report = store.report
    if not report.damaged:
        return None
    places = [f"{place.segment.file} at {place.offset:,} ({place.length:,} bytes)" for place in report.damages]
    places += [f"the header of {segment.file}" for segment in report.headers]
    places += [*map(str, report.indexes), *(f"calls in {file}" for file in report.call_files)]
    return {"places": places[:20], "count": len(places), "affected": len(report.affected)}


def list_view(opened: OpenedDirectory, query: OverviewQuery) -> Json:
    """A page of rollouts; `page` is null while the records that it needs are being read."""
    if not query.needs_records:
        return {"page": shown(plain_json(opened.page(query))), "reading": None}
    progress = opened.read_ahead()
    page = opened.page(query)
    return {"page": None if page is None else shown(plain_json(page)), "reading": plain_json(progress)}


def standing_of(opened: OpenedDirectory, rollout_id: str) -> RolloutStanding:
    """How a rollout stands.

    Raises:
        InvalidRolloutId: it is no rollout id.
        RolloutNotFound: the directory does not know it; `nearest` has those that are like it.
    """
    store = opened.store
    standing = store.standing(rollout_id)
    if standing.calls or standing.outstanding or store.knows(rollout_id):
        return standing
    known = [each.rollout_id for each in store.standings()]
    if rollout_id in known:
        return standing
    near = nearest_ids(rollout_id, known)
    hint = f"Did you mean {', '.join(near)}?" if near else "It may have been cleared, or not have begun."
    raise RolloutNotFound(
        f"the directory has no rollout {plain_line(rollout_id, 200)}. {hint}", rollout_id=rollout_id, nearest=near
    )


def rollout_view(conversation: Conversation, first: int, limit: int) -> Json:
    """A rollout's turns from place `first` on, with its summary, gaps and open claims.

    Args:
        limit: turns at most.
    """
    return {
        "rollout_id": conversation.rollout_id,
        "generation": conversation.generation,
        "summary": shown(plain_json(conversation.summary)),
        "waiting": shown(plain_json(conversation.waiting)),
        "first": first,
        "count": len(conversation.turns),
        "turns": [_turn_view(turn) for turn in conversation.turns[first : first + limit]],
    }


def _turn_view(turn: Turn) -> Json:
    plain = plain_json(turn)
    view: Json = {}
    for side in ("added", "answer"):
        view[side], view[f"{side}_left_out"] = _messages_view(plain.pop(side))
    return {**shown(plain), **view}


def _messages_view(messages: list[Json]) -> tuple[list[Json], int]:
    """Messages up to what a page can bear, and how many were left out."""
    kept: list[Json] = []
    characters = 0
    for message in messages[:TURN_MESSAGES]:
        view = shown(message)
        characters += sum(len(piece["text"]) for piece in view["pieces"])
        if kept and characters > TURN_CHARACTERS:
            break
        kept.append(view)
    return kept, len(messages) - len(kept)


def timeline_view(store: CaptureStore, rollout_id: str) -> Json:
    """A rollout's calls as bars in lanes."""
    view: Json = shown(plain_json(read_timeline(store, rollout_id)))
    return view


def raw_view(store: CaptureStore, rollout_id: str, call_index: int) -> Json:
    """One call's payloads as JSON text; `payloads` is null where they cannot be read."""
    found = store.read_payloads(rollout_id, [call_index]).get(call_index)
    if found is None:
        return {"call_index": call_index, "payloads": None}
    return {
        "call_index": call_index,
        "payloads": {name: _raw_text(found[name]) for name in PAYLOADS if found.get(name) is not None},
    }


def _raw_text(value: Any) -> str:
    if isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, indent=2, default=repr)
        except (RecursionError, ValueError):
            text = json_text(value)  # which says why
    return shown_text(text, RAW_CHARACTERS, RAW_LINES, RAW_CHARACTERS)


def difference_view(left: Conversation, right: Conversation) -> Json:
    """Two rollouts compared, with what each of their calls said."""
    found = plain_json(difference_of(left, right))
    left_out = max(0, len(found["pairs"]) - DIFFERENCE_PAIRS)
    found["pairs"] = found["pairs"][:DIFFERENCE_PAIRS]
    return {**shown(found), "left_out": left_out}


__all__ = [
    "about_view",
    "difference_view",
    "list_view",
    "raw_view",
    "rollout_view",
    "run_view",
    "standing_of",
    "timeline_view",
]
