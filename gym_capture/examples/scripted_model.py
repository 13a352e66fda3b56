"""What the example's model says: a script that follows from the request, without network, clock or state.

A conversation that offers tools and asks for a list of things gets two lookups a turn, side by side, one turn an item,
then an order, then a closing text. Any other gets a few words. The same seed and request always get the same answer.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import Any

MODEL = "scripted-7b"
TOOLS = ("stock_of", "price_of", "place_order")

STOP = "stop"
TOOL_CALLS = "tool_calls"
LENGTH = "length"

_ITEMS = re.compile(r"Find out about (.+), then order")
_WORDS = (
    "Here",
    "is",
    "what",
    "was",
    "found:",
    "naïve",
    "estimates",
    "hold,",
    "東京",
    "agrees,",
    "fine",
    "🙂",
    "so",
    "far.",
)
_EPOCH = 1_760_000_000


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model wants called."""

    call_id: str
    name: str
    arguments: dict[str, Any]

    @property
    def arguments_text(self) -> str:
        """The arguments as the JSON text that travels."""
        return json.dumps(self.arguments)


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a request of any dialect comes to.

    Args:
        model: the model that is asked for.
        task: the first user message's text.
        results: how many tool results it carries.
        tools: names of the tools on offer.
        size_bytes: of everything that the model reads, as JSON.
        known_bytes: of the part of it that an earlier turn sent already.
        choices: how many answers are wanted.
        most_tokens: where the answer is cut off; None: nowhere.
        stream, stream_usage: is it to be streamed, and with usage at the end where the dialect asks.
    """

    model: str
    task: str
    results: int
    tools: tuple[str, ...]
    size_bytes: int
    known_bytes: int
    choices: int = 1
    most_tokens: int | None = None
    stream: bool = False
    stream_usage: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer: reasoning, then text, then tool calls, each of which may be absent."""

    reasoning: str
    text: str
    tool_calls: tuple[ToolCall, ...]
    finish: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model says, and what it cost, tokens. `tokens_in` holds the cached ones, `tokens_out` the reasoning."""

    name: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    tokens_in: int
    cached: int
    tokens_out: int
    reasoning: int


def answer(conversation: Conversation, chance: random.Random, *, too_long: bool = False) -> Answer:
    """The answer to a conversation.

    Args:
        chance: everything that is not in the conversation follows from it.
        too_long: the model runs out of tokens.
    """
    name = f"{chance.getrandbits(64):016x}"
    choices = tuple(_choice(conversation, chance, too_long) for _ in range(conversation.choices))
    out = sum(_tokens(choice) for choice in choices)
    reasoning = sum(len(choice.reasoning) // 4 for choice in choices)
    return Answer(
        name=name,
        created=_EPOCH + chance.getrandbits(20),
        model=conversation.model,
        choices=choices,
        tokens_in=max(conversation.size_bytes // 4, 1),
        cached=conversation.known_bytes // 4 // 16 * 16,
        tokens_out=out,
        reasoning=reasoning,
    )


def turns(items: list[str]) -> int:
    """Turns that the script takes for a list of things when nothing fails."""
    return len(items) + 2


def _choice(conversation: Conversation, chance: random.Random, too_long: bool) -> Choice:
    wanted = _ITEMS.search(conversation.task)
    calls: tuple[ToolCall, ...] = ()
    if wanted is not None and set(TOOLS) <= set(conversation.tools):
        items = wanted[1].split(", ")
        calls = _next_calls(items, conversation.results, chance)
        reasoning = f"{items[conversation.results // 2 % len(items)]} come next." if calls else "Everything is there."
        text = "" if calls else f"I looked up {wanted[1]} and placed the order."
    else:
        reasoning = "A short answer will do."
        text = " ".join(chance.choice(_WORDS) for _ in range(chance.randint(6, 14)))
    if too_long:
        return Choice(reasoning, text[: len(text) // 2], calls, LENGTH)
    most = conversation.most_tokens
    if most is not None and len(text) > most * 4 and not calls:
        return Choice(reasoning, text[: most * 4], calls, LENGTH)
    return Choice(reasoning, text, calls, TOOL_CALLS if calls else STOP)


def _next_calls(items: list[str], results: int, chance: random.Random) -> tuple[ToolCall, ...]:
    turn = results // 2
    lookups: list[tuple[str, dict[str, Any]]] = []
    if turn < len(items):
        lookups = [(name, {"item": items[turn]}) for name in TOOLS[:2]]
    elif results == 2 * len(items):
        lookups = [(TOOLS[2], {"items": items, "quantity": chance.randint(1, 9)})]
    return tuple(ToolCall(f"call_{turn}_{chance.getrandbits(32):08x}", *each) for each in lookups)


def _tokens(choice: Choice) -> int:
    arguments = sum(len(call.arguments_text) + len(call.name) for call in choice.tool_calls)
    return (len(choice.reasoning) + len(choice.text) + arguments) // 4 + 1
