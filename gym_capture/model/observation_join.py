"""The join of agent observations with the captured calls.

A reference resolves to a call by `model_call_id` (what else it says must agree) or by the exact pair of model server
and response id; never by time or position. A call belongs to at most one invocation: the first that refers to it.
What does not resolve to exactly one call stays as it was and is named in a gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gym_capture.model import gaps
from gym_capture.model.observations import AgentObservationBundle

Call = Mapping[str, Any]
Reference = dict[str, Any]
ReferenceKey = tuple[str | None, tuple[str, str] | None, str | None]

_CAPTURE_DETAIL = "capture:"
_RESOLVED_BY_JOIN = frozenset((gaps.REFERENCE_UNMATCHED, gaps.REFERENCE_AMBIGUOUS, gaps.REFERENCE_CONFLICT))


def join_observations(observations: Any, calls: Sequence[Call]) -> dict[str, Any]:
    """The bundle with its references resolved against the captured calls.

    Args:
        observations: the record's `ng_agent_observations`; it is not changed.
        calls: the rollout's derived records, in call order.

    Returns:
        The bundle as plain JSON values, every field present. Gaps of an earlier join are replaced by this one's.

    Raises:
        ValueError: the bundle is not valid (pydantic's `ValidationError`), or a call it must name has no identity.
    """
    bundle = AgentObservationBundle.model_validate(observations).plain()
    return _Join(calls).run(bundle)


class _Join:
    """One join: indexes over the calls, who owns which call, and the gaps found."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.owners: dict[int, str] = {}
        self.gaps: list[dict[str, Any]] = []
        self._by_id: dict[str, list[int]] = {}
        self._by_response: dict[tuple[tuple[str, str], str], list[int]] = {}
        for index, call in enumerate(calls):
            server, response_id = _server(call), call["response_id"]
            if call["model_call_id"]:
                self._by_id.setdefault(call["model_call_id"], []).append(index)
            if server is not None and response_id:
                self._by_response.setdefault((server, response_id), []).append(index)

    def run(self, bundle: dict[str, Any]) -> dict[str, Any]:
        invocations = [record for record in bundle["records"] if record["kind"] == "agent_invocation"]
        self._add_declared_calls({invocation["invocation_id"]: invocation for invocation in invocations})
        for invocation in invocations:
            owner = invocation["invocation_id"]
            invocation["model_calls"] = [self._owned(ref, owner) for ref in invocation["model_calls"]]
        # Only once every invocation has claimed its calls is it known whose a compaction's calls are.
        for record in bundle["records"]:
            if record["kind"] == "context_compaction":
                self._resolve_compaction(record)
        kept = [gap for gap in bundle["gaps"] if not _from_a_join(gap)]
        bundle["gaps"] = _distinct(kept + self.gaps + self._calls_without_owner())
        return bundle

    def _add_declared_calls(self, invocations: Mapping[str, dict[str, Any]]) -> None:
        """A call whose client named its session belongs to that invocation, referred to or not."""
        known = {name: {_key(ref) for ref in invocation["model_calls"]} for name, invocation in invocations.items()}
        for index, call in enumerate(self.calls):
            session = call["client_session_id"]
            if not session or not call["model_call_id"] or session not in invocations:
                continue
            if known[session].isdisjoint(_keys_naming(call)):
                reference = self._canonical(index)
                invocations[session]["model_calls"].append(reference)
                known[session].add(_key(reference))

    def _candidates(self, ref: Reference) -> list[int]:
        server, response_id = _server(ref), ref["response_id"]
        if not ref["model_call_id"]:
            return [] if server is None else self._by_response.get((server, response_id), [])
        return [
            index
            for index in self._by_id.get(ref["model_call_id"], [])
            if (server is None or server == _server(self.calls[index]))
            and (response_id is None or response_id == self.calls[index]["response_id"])
        ]

    def _only_candidate(self, ref: Reference, invocation_id: str, prefix: str) -> int | None:
        candidates = self._candidates(ref)
        if len(candidates) == 1:
            return candidates[0]
        code = gaps.REFERENCE_AMBIGUOUS if candidates else gaps.REFERENCE_UNMATCHED
        self._gap(code, invocation_id, prefix, ref)
        return None

    def _owned(self, ref: Reference, invocation_id: str) -> Reference:
        index = self._only_candidate(ref, invocation_id, "")
        if index is None:
            return ref
        if index in self.owners:
            self._gap(gaps.REFERENCE_CONFLICT, invocation_id, "", self.calls[index])
            return ref
        self.owners[index] = invocation_id
        return self._canonical(index)

    def _resolve_compaction(self, compaction: dict[str, Any]) -> None:
        invocation_id = compaction["invocation_id"]
        compaction["model_calls"] = [
            self._used(ref, invocation_id, "model_calls:", must_be_owned=True) for ref in compaction["model_calls"]
        ]
        for field in ("before_model_call", "after_model_call"):
            if compaction[field] is not None:
                compaction[field] = self._used(compaction[field], invocation_id, f"{field}:", must_be_owned=False)

    def _used(self, ref: Reference, invocation_id: str, prefix: str, *, must_be_owned: bool) -> Reference:
        index = self._only_candidate(ref, invocation_id, prefix)
        if index is None:
            return ref
        owner = self.owners.get(index)
        if owner is None and must_be_owned:
            self._gap(gaps.OWNERSHIP_UNAVAILABLE, invocation_id, prefix, self.calls[index])
            return ref
        if owner is not None and owner != invocation_id:
            self._gap(gaps.REFERENCE_CONFLICT, invocation_id, prefix, self.calls[index])
            return ref
        return self._canonical(index)

    def _canonical(self, index: int) -> Reference:
        call = self.calls[index]
        model_ref = call["model_ref"]
        return {
            "model_call_id": call["model_call_id"],
            "model_ref": None if model_ref is None else dict(model_ref),
            "response_id": call["response_id"],
        }

    def _calls_without_owner(self) -> list[dict[str, Any]]:
        return [
            _gap(
                gaps.OWNERSHIP_UNAVAILABLE,
                None,
                f"{_CAPTURE_DETAIL}{_name(call) or 'unknown'}:call_index={call['call_index']}",
            )
            for index, call in enumerate(self.calls)
            if index not in self.owners
        ]

    def _gap(self, code: str, invocation_id: str, prefix: str, named: Mapping[str, Any]) -> None:
        self.gaps.append(_gap(code, invocation_id, f"{prefix}{_name(named)}"))


def _gap(code: str, invocation_id: str | None, detail: str) -> dict[str, Any]:
    return {"code": code, "invocation_id": invocation_id, "detail": detail}


def _name(named: Mapping[str, Any]) -> Any:
    """What a gap calls a reference or a call."""
    return named["model_call_id"] or named["response_id"]


def _server(named: Mapping[str, Any]) -> tuple[str, str] | None:
    model_ref = named["model_ref"]
    return None if model_ref is None else (model_ref["type"], model_ref["name"])


def _key(ref: Reference) -> ReferenceKey:
    return (ref["model_call_id"], _server(ref), ref["response_id"])


def _keys_naming(call: Call) -> set[ReferenceKey]:
    """Every exact form of a reference to this call."""
    call_id, server, response_id = call["model_call_id"], _server(call), call["response_id"]
    keys: set[ReferenceKey] = {(call_id, by, to) for by in (None, server) for to in (None, response_id)}
    if server is not None and response_id is not None:
        keys.add((None, server, response_id))
    return keys


def _from_a_join(gap: Mapping[str, Any]) -> bool:
    if gap["code"] in _RESOLVED_BY_JOIN:
        return True
    return (
        gap["code"] == gaps.OWNERSHIP_UNAVAILABLE
        and gap["invocation_id"] is None
        and (gap["detail"] or "").startswith(_CAPTURE_DETAIL)
    )


def _distinct(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({(gap["code"], gap["invocation_id"], gap["detail"]): gap for gap in found}.values())
