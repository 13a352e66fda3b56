"""Rollouts as a person reads them: what each call adds, in three dialects, side by side, cut, failed and damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym_capture.model.ids import rollout_id_from_record
from gym_capture.reading.conversation import read_conversation
from gym_capture.reading.message import Piece
from gym_capture.storage.names import nemo_gym_file
from gym_capture.storage.store import CaptureStore
from tests.cases import read_cases
from tests.reading.calls import SYSTEM, answered, assistant, chat, flip, said, turns, user, written
from tests.storage.owners import Batch


def test_a_call_shows_what_it_adds_and_not_what_is_repeated() -> None:
    first, second = turns(
        chat("a", [SYSTEM, user("one")]),
        chat("b", [SYSTEM, user("one"), assistant("answer a"), user("two")], at=2),
    )
    assert (first.history, first.after, said(first)) == ("start", None, ["system text: be brief", "user text: one"])
    assert (second.history, second.after, second.shared, second.echoed) == ("extends", 0, 2, 1)
    assert said(second) == ["user text: two"]
    assert answered(second) == ["assistant text: answer b"]
    assert (second.latency_ms, second.ttft_ms, second.tokens_in, second.tokens_out) == (1000.0, 100.0, 10, 2)
    assert first.settings == {"model": '"m"'}
    assert second.settings is None, "as in the call that it goes on from"


def test_an_answer_that_was_changed_before_it_came_back_is_shown() -> None:
    _, second = turns(
        chat("a", [user("one")]),
        chat("b", [user("one"), assistant("something else"), user("two")], at=2),
    )
    assert (second.history, second.echoed) == ("extends", 0)
    assert said(second) == ["assistant text: something else", "user text: two"]


def test_calls_side_by_side_each_go_on_from_their_own() -> None:
    left, right, left_on, right_on = turns(
        chat("l1", [SYSTEM, user("left")], at=0),
        chat("r1", [SYSTEM, user("right")], at=0.5),
        chat("l2", [SYSTEM, user("left"), assistant("answer l1"), user("more")], at=2),
        chat("r2", [SYSTEM, user("right"), assistant("answer r1"), user("more")], at=2.5),
    )
    assert (left.beside, right.beside, left_on.beside) == ((1,), (0,), (3,))
    assert (right.history, right.after, right.shared) == ("anew", 0, 1)
    assert said(right) == ["system text: be brief", "user text: right"]
    assert (left_on.after, right_on.after) == (0, 1)
    assert said(left_on) == said(right_on) == ["user text: more"]


def test_of_two_samples_of_a_step_the_one_whose_answer_was_taken_is_gone_on_from() -> None:
    _, second, third = turns(
        chat("a", [user("one")]),
        chat("b", [user("one")], at=2),
        chat("c", [user("one"), assistant("answer a"), user("two")], at=4),
    )
    assert (second.history, second.after, second.added) == ("repeats", 0, ())
    assert (third.history, third.after, said(third)) == ("extends", 0, ["user text: two"])


def test_a_history_that_was_summed_up_begins_anew_and_is_shown_whole() -> None:
    *_, third = turns(
        chat("a", [SYSTEM, user("one")]),
        chat("b", [SYSTEM, user("one"), assistant("answer a"), user("two")], at=2),
        chat("c", [SYSTEM, user("summary of all"), user("three")], at=4),
    )
    assert (third.history, third.after, third.shared) == ("anew", 1, 1)
    assert said(third) == ["system text: be brief", "user text: summary of all", "user text: three"]


def test_turns_stand_in_the_order_in_which_they_began() -> None:
    found = turns(chat("late", [user("x")], at=5), chat("early", [user("y")], at=1))
    assert [turn.model_call_id for turn in found] == ["early", "late"]
    unknown = turns(chat("late", [user("x")], at=5), chat("early", [user("y")], started_at=None, completed_at=None))
    assert [turn.model_call_id for turn in unknown] == ["late", "early"]


def test_tool_calls_results_and_reasoning_in_chat() -> None:
    answer = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "look it up",
        "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}],
    }
    back = {key: value for key, value in answer.items() if key != "reasoning_content"}
    first, second = turns(
        chat("a", [user("one")], answer),
        chat("b", [user("one"), back, {"role": "tool", "tool_call_id": "t1", "content": "found"}], at=2),
    )
    assert [piece for message in first.answer for piece in message.pieces] == [
        Piece("reasoning", "look it up"),
        Piece("tool_call", '{"q": 1}', "find", "t1"),
    ]
    assert [message.pieces for message in second.added] == [(Piece("tool_result", "found", None, "t1"),)]


def test_responses_items_and_references() -> None:
    def responses(call: str, request: dict[str, Any], output: list[Any], at: float) -> dict[str, Any]:
        return chat(call, [], at=at) | {
            "dialect": "responses",
            "request": request,
            "response": {"id": f"resp-{call}", "output": output},
        }

    call = {"type": "function_call", "call_id": "t1", "name": "find", "arguments": "{}"}
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    result = {"type": "function_call_output", "call_id": "t1", "output": "found"}
    first, second, third, fourth = turns(
        responses("a", {"instructions": "be brief", "input": "one"}, [reasoning, call], 0),
        responses("b", {"instructions": "be brief", "input": [user("one"), call, result]}, [], 2),
        responses("c", {"previous_response_id": "resp-b", "input": [user("three")]}, [], 4),
        responses("d", {"previous_response_id": "resp-elsewhere", "input": "four"}, [], 6),
    )
    assert said(first) == ["system text: be brief", "user text: one"]
    assert answered(first) == ["assistant reasoning: hm", "assistant tool_call: {}"]
    assert (second.history, second.after, second.echoed, said(second)) == ("extends", 0, 1, ["tool tool_result: found"])
    assert (third.history, third.after, said(third)) == ("refers", 1, ["user text: three"])
    assert (fourth.history, fourth.after) == ("refers", None)


def test_messages_with_a_cache_mark_that_moves_go_on_all_the_same() -> None:
    def messages(call: str, items: list[Any], content: list[Any], at: float) -> dict[str, Any]:
        request = {"system": "be brief", "messages": items, "tools": [{"name": "find"}]}
        response = {"role": "assistant", "content": content}
        return chat(call, [], at=at) | {"dialect": "messages", "request": request, "response": response}

    block = {"type": "text", "text": "one"}
    use = {"type": "tool_use", "id": "t1", "name": "find", "input": {"q": 1}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "found"}]}
    first, second = turns(
        messages("a", [{"role": "user", "content": [block | {"cache_control": {"type": "ephemeral"}}]}], [use], 0),
        messages(
            "b",
            [
                {"role": "user", "content": [block]},
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result]},
            ],
            [{"type": "thinking", "thinking": "so"}, {"type": "text", "text": "done"}],
            2,
        ),
    )
    assert said(first) == ["system text: be brief", "user text: one"]
    assert answered(first) == ['assistant tool_call: {"q": 1}']
    assert first.tools == ("find",)
    assert (second.history, said(second)) == ("extends", ["user tool_result: found"])
    assert answered(second) == ["assistant reasoning: so", "assistant text: done"]


def test_a_failed_call_shows_its_error_and_a_body_that_is_no_json_its_text() -> None:
    failed, garbled = turns(
        chat(
            "a",
            [user("one")],
            response={"error": {"message": "slow down"}},
            status_code=429,
            error_category="rate_limit",
        ),
        chat("b", [user("two")], response=None, response_raw="<html>", status_code=502, at=2),
    )
    assert (failed.error, answered(failed)) == ("rate_limit", ['error error: {"message": "slow down"}'])
    assert (garbled.error, answered(garbled)) == ("status 502", ["response raw: <html>"])


@pytest.mark.parametrize(
    "request_", [None, [], "text", {"prompt": "old"}, {"messages": 3}, {"messages": [1, None, {}]}]
)
def test_a_request_of_any_shape_is_shown(request_: Any) -> None:
    (turn,) = turns(chat("a", [], request=request_))
    assert turn.history in ("none", "start")
    assert answered(turn) == ["assistant text: answer a"]


def test_images_are_told_and_not_shown() -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9000}}]
    (turn,) = turns(chat("a", [{"role": "user", "content": content}]))
    [piece] = turn.added[0].pieces
    assert (piece.kind, piece.name) == ("media", "image_url")
    assert piece.text.startswith("data:image/png;base64 9,022 characters, sha256 ")


def test_a_deeply_nested_message_ends_nothing() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    (turn,) = turns(chat("a", [{"role": "user", "content": [{"type": "odd", "held": deep}]}]))
    assert turn.added[0].pieces[0].text.startswith("(cannot be written as JSON")


def test_a_damaged_payload_leaves_the_calls_figures_and_the_other_calls(tmp_path: Path) -> None:
    store = written(tmp_path, {"r": [chat("a", [user("flip me")]), chat("b", [user("two")], at=2)]})
    flip(tmp_path, b"flip me")
    found = read_conversation(CaptureStore(store.directory), "r")
    assert [(turn.call_index, turn.damaged, turn.tokens_in) for turn in found.turns] == [(0, True, 10), (1, False, 10)]
    assert said(found.turns[1]) == ["user text: two"]


def test_open_claims_and_what_is_missing_are_there(tmp_path: Path) -> None:
    batch = Batch().claim("r", 1).claim("r", 2).release("r", 2)
    found = read_conversation(written(tmp_path, {"r": [chat("a", [user("one")])]}, batch), "r")
    assert found.status == "incomplete"
    assert [gap["code"] for gap in found.gaps] == ["model_call_capture_incomplete", "model_call_capture_pending"]
    assert [(each.model_call_id, each.opened_at) for each in found.waiting] == [("", 1_700_000_000.0)]


def test_a_nemo_gym_file_is_a_conversation_too(tmp_path: Path) -> None:
    import json

    lines = [json.dumps(chat("a", [user("one")])), "{damaged", json.dumps(chat("c", [user("three")], at=4))]
    (tmp_path / nemo_gym_file("r")).write_text("\n".join(lines) + "\n")
    found = read_conversation(CaptureStore(tmp_path), "r")
    assert [(turn.call_index, turn.damaged) for turn in found.turns] == [(0, False), (1, True), (2, False)]
    assert found.status == "incomplete"


def test_every_real_rollout_goes_on_from_call_to_call_and_nothing_is_told_twice(tmp_path: Path) -> None:
    cases = read_cases("real_rollouts.jsonl")
    rollouts = {str(rollout_id_from_record(case["record"])): case["exchanges"] for case in cases}
    store = written(tmp_path, rollouts)
    for rollout_id, exchanges in rollouts.items():
        found = read_conversation(store, rollout_id)
        assert [turn.history for turn in found.turns] == ["start"] + ["extends"] * (len(exchanges) - 1)
        assert [turn.after for turn in found.turns] == [None, *range(len(exchanges) - 1)]
        for turn, exchange in zip(found.turns, exchanges, strict=True):
            items = exchange["request"]["input"]
            count = (1 if isinstance(items, str) else len(items)) + bool(exchange["request"].get("instructions"))
            assert turn.shared + turn.echoed + len(turn.added) == count
            assert turn.answer
