"""References resolve by exact identity, to one call, for one owner."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import ValidationError

from gym_capture.model.observation_join import join_observations

SERVER = {"type": "responses_api_models", "name": "policy"}
OTHER = {"type": "responses_api_models", "name": "other"}


def call(index: int, call_id: str | None, response_id: str | None = None, **fields: Any) -> dict[str, Any]:
    known = {"model_call_id": call_id, "response_id": response_id, "client_session_id": None, "model_ref": SERVER}
    return {**known, "call_index": index, **fields}


def ref(call_id: str | None = None, model_ref: Any = None, response_id: str | None = None) -> dict[str, Any]:
    return {"model_call_id": call_id, "model_ref": model_ref, "response_id": response_id}


def invocation(name: str, *refs: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "agent_invocation", "invocation_id": name, "model_calls": list(refs)}


def compaction(name: str, *refs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"kind": "context_compaction", "invocation_id": name, "model_calls": list(refs), **fields}


def join(calls: list[dict[str, Any]], *records: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return join_observations({"source": "agent", "records": list(records), **fields}, calls)


def gaps(joined: dict[str, Any]) -> list[tuple[str, str | None, str | None]]:
    return [(each["code"], each["invocation_id"], each["detail"]) for each in joined["gaps"]]


@pytest.mark.parametrize("given", [ref("m"), ref("m", SERVER), ref("m", None, "r"), ref(None, SERVER, "r")])
def test_a_reference_that_names_one_call_says_all_that_is_known_of_it(given: dict[str, Any]) -> None:
    joined = join([call(0, "m", "r")], invocation("i", given))
    assert joined["records"][0]["model_calls"] == [ref("m", SERVER, "r")]
    assert joined["gaps"] == []


@pytest.mark.parametrize("given", [ref("m", OTHER), ref("m", None, "wrong"), ref("n"), ref(None, OTHER, "r")])
def test_a_reference_that_disagrees_in_any_part_is_unmatched(given: dict[str, Any]) -> None:
    joined = join([call(0, "m", "r")], invocation("i", given))
    assert joined["records"][0]["model_calls"] == [given]
    assert gaps(joined) == [
        ("model_call_reference_unmatched", "i", given["model_call_id"] or given["response_id"]),
        ("model_call_ownership_unavailable", None, "capture:m:call_index=0"),
    ]


def test_two_calls_of_one_response_id_are_ambiguous() -> None:
    joined = join([call(0, "a", "r"), call(1, "b", "r")], invocation("i", ref(None, SERVER, "r")))
    assert gaps(joined)[0] == ("model_call_reference_ambiguous", "i", "r")
    assert len(gaps(joined)) == 3


def test_a_call_belongs_to_the_first_invocation_that_refers_to_it() -> None:
    joined = join([call(0, "m", "r")], invocation("i", ref("m")), invocation("j", ref("m"), ref(None, SERVER, "r")))
    assert joined["records"][1]["model_calls"] == [ref("m"), ref(None, SERVER, "r")]
    assert gaps(joined) == [("model_call_reference_conflict", "j", "m")]


def test_a_call_without_identity_has_no_owner() -> None:
    assert gaps(join([call(4, None, model_ref=None)])) == [
        ("model_call_ownership_unavailable", None, "capture:unknown:call_index=4")
    ]


def test_a_declared_session_adds_the_call_to_its_invocation() -> None:
    calls = [call(0, "m", "r", client_session_id="i"), call(1, "n", client_session_id="elsewhere")]
    joined = join(calls, invocation("i"))
    assert joined["records"][0]["model_calls"] == [ref("m", SERVER, "r")]
    assert gaps(joined) == [("model_call_ownership_unavailable", None, "capture:n:call_index=1")]


@pytest.mark.parametrize("given", [ref("m"), ref("m", SERVER, "r"), ref(None, SERVER, "r")])
def test_a_declared_session_does_not_repeat_a_reference(given: dict[str, Any]) -> None:
    joined = join([call(0, "m", "r", client_session_id="i")], invocation("i", given))
    assert joined["records"][0]["model_calls"] == [ref("m", SERVER, "r")]
    assert joined["gaps"] == []


def test_a_compactions_calls_are_its_invocations_own() -> None:
    calls = [call(0, "mine"), call(1, "theirs"), call(2, "nobodys")]
    joined = join(
        calls,
        compaction("i", ref("mine"), ref("theirs"), ref("nobodys"), ref("absent")),
        invocation("i", ref("mine")),
        invocation("j", ref("theirs")),
    )
    resolved = joined["records"][0]["model_calls"]
    assert resolved == [ref("mine", SERVER), ref("theirs"), ref("nobodys"), ref("absent")]
    assert gaps(joined) == [
        ("model_call_reference_conflict", "i", "model_calls:theirs"),
        ("model_call_ownership_unavailable", "i", "model_calls:nobodys"),
        ("model_call_reference_unmatched", "i", "model_calls:absent"),
        ("model_call_ownership_unavailable", None, "capture:nobodys:call_index=2"),
    ]


def test_the_calls_around_a_compaction_may_be_nobodys_but_not_anothers() -> None:
    calls = [call(0, "theirs"), call(1, "nobodys")]
    around = {"before_model_call": ref("theirs"), "after_model_call": ref("nobodys")}
    joined = join(calls, invocation("j", ref("theirs")), compaction("i", **around))
    assert joined["records"][1]["before_model_call"] == ref("theirs")
    assert joined["records"][1]["after_model_call"] == ref("nobodys", SERVER)
    assert gaps(joined)[0] == ("model_call_reference_conflict", "i", "before_model_call:theirs")


def test_gaps_of_an_earlier_join_are_replaced_and_the_harnesses_own_are_kept() -> None:
    given = [
        {"code": "sandbox_unavailable", "detail": "x"},
        {"code": "model_call_reference_ambiguous", "detail": "old"},
        {"code": "model_call_ownership_unavailable", "detail": "capture:old:call_index=9"},
        {"code": "model_call_ownership_unavailable", "invocation_id": "i", "detail": "capture:kept"},
        {"code": "sandbox_unavailable", "detail": "x"},
    ]
    assert gaps(join([], gaps=given)) == [
        ("sandbox_unavailable", None, "x"),
        ("model_call_ownership_unavailable", "i", "capture:kept"),
    ]


def test_joining_again_resolves_and_names_the_same() -> None:
    calls = [call(0, "m", "r", client_session_id="i"), call(1, "n")]
    once = join(calls, invocation("i", ref("absent")), compaction("i", ref("n")))
    again = join_observations(once, calls)
    assert again["records"] == once["records"]
    assert len(again["gaps"]) == len(once["gaps"]) == 3
    assert set(gaps(again)) == set(gaps(once))


def test_what_was_given_is_not_changed() -> None:
    given = {"source": "agent", "records": [invocation("i", ref("m"))]}
    calls = [call(0, "m", "r")]
    before = copy.deepcopy((given, calls))
    join_observations(given, calls)
    assert (given, calls) == before


def test_an_invalid_bundle_raises() -> None:
    with pytest.raises(ValidationError):
        join_observations({"source": "agent", "records": [{"kind": "nonsense"}]}, [])
