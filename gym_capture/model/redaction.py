"""Redaction: what `capture.redact` takes out of an exchange before anything is derived from it or leaves the process.

JSON paths replace whole values, patterns what they match in any text. Redacting never raises: where a rule fails or
cannot look, the whole payload is withheld, because what was not searched must not pass. Only `dialect` and a
`model_call_id` that is settled already are left as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from gym_capture.model.json_text import to_json
from gym_capture.model.redaction_rules import RedactionRules, compile_path, compile_pattern
from gym_capture.model.searched_text import (
    EVENT_STREAM,
    MOST_ESCAPING,
    as_text,
    has_several_values,
    parse_bytes,
    repeats_a_field,
    unescaped,
)

REDACTED = "[redacted]"
"""What stands in the place of what was taken out."""

_PAYLOADS = ("request", "response", "request_raw", "response_raw")
_SETTLED = ("model_call_id", "dialect")

_KNOWN = frozenset(
    (
        *_PAYLOADS,
        *_SETTLED,
        "model_ref",
        "started_at",
        "completed_at",
        "latency_ms",
        "latency_ttft_ms",
        "status_code",
        "error_category",
        "client_session_id",
        "upstream_attempted",
        "response_source",
        "upstream_status_code",
        "local_response_reason",
        "verifier_invocation",
    )
)
"""Keys of an exchange whose names say nothing; any other key is a text like those below it."""


class Redacted(NamedTuple):
    """An exchange without what was to be taken out.

    Fields: its values, payloads as bytes where they were given as bytes or are withheld; which payloads changed; and
    whether anything else did.
    """

    values: dict[str, Any]
    payloads: set[str]
    others: bool


@lru_cache(maxsize=16)
def redaction_of(rules: RedactionRules) -> Redaction:
    """The rules, compiled; once a process.

    Raises:
        ValueError: a rule cannot be compiled.
    """
    return Redaction(rules)


class Redaction:
    """Compiled rules. Safe in any thread. Made by `redaction_of`."""

    def __init__(self, rules: RedactionRules) -> None:
        self._paths = [compile_path(path) for path in rules.paths]
        self._patterns = [compile_pattern(pattern) for pattern in rules.patterns]

    def identity(self, model_call_id: str) -> str:
        """A caller's `model_call_id` as it may be written. The same for every exchange that it is given with."""
        try:
            if self._matches({"model_call_id": model_call_id}):
                return REDACTED
            return self._in_text(model_call_id)
        except Exception:  # noqa: BLE001 - whatever a rule does, the id must not pass unsearched
            return REDACTED

    def exchange(self, values: Mapping[str, Any], sizes: Mapping[str, int]) -> Redacted:
        """An exchange without what the rules match.

        Args:
            values: plain JSON values that nobody else holds (they may be changed), payloads also as bytes.
            sizes: how many bytes each payload has, for the note on one that is withheld.
        """
        trees: dict[str, Any] = {}
        raw: dict[str, str | bytes] = {}
        loaded: set[str] = set()
        changed: set[str] = set()
        for key, value in values.items():
            if isinstance(value, bytes):
                parsed = None if key.endswith("_raw") else parse_bytes(value)
                if parsed is None or type(parsed.value) is str:
                    raw[key] = value
                    continue
                loaded.add(key)
                value = parsed.value
                if parsed.repeats:
                    changed.add(key)
            if key in _PAYLOADS and type(value) is str:
                raw[key] = value
            else:
                trees[key] = value
        withheld = self._take_out_paths(trees, changed)
        self._take_out_patterns(trees, changed, withheld)
        for key, text in raw.items():
            trees[key] = self._in_raw(text)
            if trees[key] is not text:
                changed.add(key)
        for key in withheld:
            trees[key] = self._note(key, sizes.get(key), "a rule failed on it")
            changed.add(key)
        for key in (loaded & changed) - withheld:
            try:
                trees[key] = to_json(trees[key]).text
            except Exception:  # noqa: BLE001 - nested too deeply to be written again
                trees[key] = self._note(key, sizes.get(key), "it cannot be written again")
        for key in loaded - changed:
            trees[key] = values[key]
        ordered = {key: trees[key] for key in (*values, *trees) if key in trees}
        return Redacted(ordered, changed & {*_PAYLOADS}, bool(changed - {*_PAYLOADS}))

    def fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Derived fields that joined or parsed what stood apart: patterns may match only now. Raises what rules do."""
        redacted = dict(fields)
        if isinstance(reasoning := fields.get("reasoning_content"), str):
            redacted["reasoning_content"] = self._in_text(reasoning)
        if isinstance(calls := fields.get("tool_calls"), list):
            redacted["tool_calls"] = [
                {key: self._in_tree(value) for key, value in call.items()} if isinstance(call, dict) else call
                for call in calls
            ]
        return redacted

    # -- paths --------------------------------------------------------------------------------------------------

    def _matches(self, values: Mapping[str, Any]) -> set[tuple[int | str, ...]]:
        return {match.parts for path in self._paths for match in path.finditer(values)}

    def _take_out_paths(self, trees: dict[str, Any], changed: set[str]) -> set[str]:
        """Replace what paths match. Returns the keys of what they fail on."""
        if not self._paths:
            return set()
        failed = set()
        try:
            found = self._matches(trees)
        except Exception:  # noqa: BLE001 - nested too deeply, say: what that holds for is withheld
            failed = {key for key, value in trees.items() if key not in _SETTLED and self._fails_on(key, value)}
            for key in failed:
                trees[key] = None
            try:
                found = self._matches(trees)
            except Exception:  # noqa: BLE001 - not one value's fault: then none passes
                return {key for key in trees if key not in _SETTLED}
        # From the deepest up: what is replaced has nothing below it any more.
        for parts in sorted(found, key=len, reverse=True):
            if len(parts) == 1 and parts[0] in _SETTLED:
                continue
            above: Any = trees
            for part in parts[:-1]:
                above = above[part]
            above[parts[-1]] = REDACTED
            changed.add(str(parts[0]))
        return failed

    def _fails_on(self, key: str, value: Any) -> bool:
        try:
            self._matches({key: value})
        except Exception:  # noqa: BLE001 - see _take_out_paths
            return True
        return False

    # -- patterns -----------------------------------------------------------------------------------------------

    def _take_out_patterns(self, trees: dict[str, Any], changed: set[str], withheld: set[str]) -> None:
        if not self._patterns:
            return
        names = _Names()
        for key, value in list(trees.items()):
            if key in _SETTLED or key in withheld:
                continue
            try:
                tree = self._in_tree(value)
                name = key if key in _KNOWN else self._in_text(key)
            except Exception:  # noqa: BLE001 - nested too deeply, say
                withheld.add(key)
                continue
            if tree is not value:
                trees[key] = tree
                changed.add(key)
            if name is not key:
                del trees[key]
                trees[names.unused(name, trees)] = tree
                changed.add(key)

    def _in_tree(self, value: Any) -> Any:
        """The value without what patterns match; the same object when they match nothing."""
        kind = type(value)
        if kind is str:
            return self._in_text(value)
        if kind is list:
            items = [self._in_tree(item) for item in value]
            return value if all(map(_is, items, value)) else items
        if kind is not dict:
            return value
        entries: dict[str, Any] = {}
        names = _Names()
        same = True
        for key, item in value.items():
            name, below = self._in_text(key), self._in_tree(item)
            if name is not key:
                name = names.unused(name, value, entries)
            same = same and name is key and below is item
            entries[name] = below
        return value if same else entries

    def _in_text(self, text: str) -> str:
        """The same for a text. One that hides a match behind escapes is replaced whole."""
        if text is REDACTED:
            return text
        replaced = self._substituted(text)
        return REDACTED if self._hides(replaced) else replaced

    def _substituted(self, text: str) -> str:
        for pattern in self._patterns:
            replaced = pattern.sub(_replacement, text)
            if replaced != text:
                text = replaced
        return text

    def _hides(self, text: str) -> bool:
        """Whether a pattern matches once escapes are read (JSON in a text, tool arguments say), however often."""
        for _ in range(MOST_ESCAPING):
            if "\\" not in text:
                return False
            plain = unescaped(text)
            if plain == text:
                return False
            text = plain
            if any(found[0] for pattern in self._patterns for found in pattern.finditer(text)):
                return True
        return True

    # -- raw text -----------------------------------------------------------------------------------------------

    def _in_raw(self, given: str | bytes) -> str | bytes:
        """Raw text, or the note on why it is withheld."""
        if not given:
            return given
        try:
            text = given if isinstance(given, str) else as_text(given)
            why = self._unsearchable(text)
            if why is None and text is not None:
                replaced = self._substituted(text)
                if not self._hides(replaced):
                    if replaced is text:
                        return given
                    return replaced if isinstance(given, str) else replaced.encode("utf-8", "surrogateescape")
                why = "a rule matches what it escapes"
        except Exception:  # noqa: BLE001 - whatever a rule does, what it failed on must not pass
            why = "a rule failed on it"
        size = len(given) if isinstance(given, bytes) else len(given.encode("utf-8", "surrogatepass"))
        note = _note(size, why)
        return note if isinstance(given, str) else note.encode("ascii")

    def _unsearchable(self, text: str | None) -> str | None:
        if text is None:
            return "it is no text that rules can search"
        if self._paths:
            return "JSON paths do not reach into raw text"
        if EVENT_STREAM.search(text):
            return "what a rule matches may be split over the events of a stream"
        if repeats_a_field(text) or has_several_values(text):
            return "what a rule matches may be split over its lines"
        return None

    @staticmethod
    def _note(key: str, size: int | None, why: str) -> str | bytes:
        note = _note(size, why)
        # Bytes that are no JSON: the payload is read back as null, and the note under its raw key.
        return note.encode("ascii") if key in _PAYLOADS else note


def _replacement(match: re.Match[str]) -> str:
    return REDACTED if match[0] else ""


def _is(one: object, other: object) -> bool:
    return one is other


class _Names:
    """Names for the keys of one object, of which several may have become the same."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def unused(self, name: str, *taken: Mapping[str, Any]) -> str:
        """`name`, with the next number that is free where it is taken; each number is tried once."""
        number = self._last.get(name, 0)
        while True:
            number += 1
            candidate = name if number == 1 else f"{name} ({number})"
            if not any(candidate in names for names in taken):
                self._last[name] = number
                return candidate


def _note(size: int | None, why: str | None) -> str:
    had = "" if size is None else f"{size} bytes "
    return f"{REDACTED} {had}withheld: {why}"
