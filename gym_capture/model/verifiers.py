"""Verifier invocations: who else called models inside a rollout, and what that came to.

A verifier (an LLM judge, say) declares itself in its exchange: `verifier_invocation: {invocation_id, name}`. Its
calls stay among the rollout's calls, are left out of the rollout's metrics, and are summed for each invocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict, Field

from gym_capture.model.json_values import clean_text, is_unicode
from gym_capture.model.metrics import aggregate

VERIFIER_KEY = "verifier_invocation"
VERIFIER_ID_FIELD = "verifier_invocation_id"

VERIFIER_ID_HEADER = "x-ng-verifier-invocation-id"
VERIFIER_NAME_HEADER = "x-ng-verifier-name"
"""The headers that declare a verifier's call over HTTP. Their values are percent-encoded UTF-8."""

DEFAULT_VERIFIER_NAME = "verifier"
"""The name of an invocation whose request names none."""


class VerifierInvocation(BaseModel):
    """One run of one verifier inside a rollout.

    Args:
        invocation_id: unique within the rollout; every call of this run carries it.
        name: the verifier's name.
    """

    model_config = ConfigDict(frozen=True)

    invocation_id: str = Field(min_length=1)
    name: str = Field(min_length=1)


def verifier_headers(invocation: VerifierInvocation) -> dict[str, str]:
    """The headers that declare an invocation."""
    return {
        VERIFIER_ID_HEADER: quote(invocation.invocation_id, safe=""),
        VERIFIER_NAME_HEADER: quote(invocation.name, safe=""),
    }


def verifier_from_headers(headers: Mapping[str, str]) -> VerifierInvocation | None:
    """The invocation that a request's headers declare; None when they name no id.

    Args:
        headers: by lower-case name. What is no percent-encoded UTF-8 is taken as it stands.
    """
    invocation_id = _from_header(headers.get(VERIFIER_ID_HEADER))
    if not invocation_id:
        return None
    name = _from_header(headers.get(VERIFIER_NAME_HEADER))
    return VerifierInvocation(invocation_id=invocation_id, name=name or DEFAULT_VERIFIER_NAME)


def _from_header(value: str | None) -> str:
    text = (value or "").strip(" \t")
    try:
        return clean_text(unquote(text, errors="strict"))
    except UnicodeDecodeError:
        return clean_text(text)


def verifier_declaration(exchange: Mapping[str, Any]) -> tuple[str, str] | None:
    """`(invocation_id, name)` as an exchange declares them; None without a valid declaration (two non-empty texts)."""
    declared = exchange.get(VERIFIER_KEY)
    if declared is None or not isinstance(declared, Mapping):
        return None
    invocation_id, name = declared.get("invocation_id"), declared.get("name")
    if type(invocation_id) is str and type(name) is str and invocation_id and name:
        return (invocation_id, name) if is_unicode(invocation_id) and is_unicode(name) else None
    return None


def resolve_verifiers(declarations: Iterable[tuple[str, str]]) -> tuple[dict[str, VerifierInvocation], list[str]]:
    """Settle the name of each invocation: the first declared one stands.

    Args:
        declarations: `(invocation_id, name)` in call order.

    Returns:
        The invocations by id, in the order they first appear, and the ids that were declared under two names.
    """
    verifiers: dict[str, VerifierInvocation] = {}
    conflicts: dict[str, None] = {}
    for invocation_id, name in declarations:
        known = verifiers.setdefault(invocation_id, VerifierInvocation(invocation_id=invocation_id, name=name))
        if known.name != name:
            conflicts[invocation_id] = None
    return verifiers, list(conflicts)


def split_metrics(
    records: Sequence[Mapping[str, Any]], verifiers: Mapping[str, VerifierInvocation]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The rollout's own metrics, and those of each verifier invocation.

    Args:
        records: derived records in call order.
        verifiers: invocations by id, as `resolve_verifiers` settled them.

    Returns:
        The metrics of the calls that are no verifier's, and one `{invocation_id, name, metrics}` for each invocation
        that has calls, in call order. An invocation whose name is not known has the name None.
    """
    own: list[Mapping[str, Any]] = []
    calls: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        invocation_id = record.get(VERIFIER_ID_FIELD)
        if invocation_id is None:
            own.append(record)
        else:
            calls.setdefault(invocation_id, []).append(record)
    summed = [
        {
            "invocation_id": invocation_id,
            "name": verifiers[invocation_id].name if invocation_id in verifiers else None,
            "metrics": aggregate(theirs),
        }
        for invocation_id, theirs in calls.items()
    ]
    return aggregate(own), summed
