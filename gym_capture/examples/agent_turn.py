"""One model call of the example's agent, made with the real SDKs: a dialect's way to ask, and what came back."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gym_capture.errors import MissingExtra
from gym_capture.examples import chat_dialect, messages_dialect, responses_dialect
from gym_capture.examples.local_model import local_model_url
from gym_capture.examples.scripted_model import MODEL, TOOLS, ToolCall
from gym_capture.extras import how_to_install

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

    from gym_capture.collect.session import Session

History = list[tuple[tuple[ToolCall, ...], list[str]]]
"""Each turn's tool calls, and their results."""

LOCAL_KEY = "scripted"
_SCHEMA = {"type": "object", "additionalProperties": True}
_MOST_TOKENS = 1024
_SDK_MODULES = (
    "anthropic.lib.streaming",
    "anthropic.resources.messages",
    "openai.lib.streaming.chat",
    "openai.lib.streaming.responses",
    "openai.resources.chat",
    "openai.resources.completions",
    "openai.resources.responses",
)


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model said. `whole`: it did not run out of tokens."""

    text: str
    tool_calls: tuple[ToolCall, ...]
    whole: bool


class Model(Protocol):
    """A dialect's way to ask."""

    async def ask(self, task: str, history: History, *, stream: bool, headers: Mapping[str, str]) -> Turn:
        """One call. Raises what the SDK raises."""

    async def close(self) -> None:
        """Close the SDK's client."""


async def load_sdks() -> None:
    """Import what the SDKs import when they are first used: seconds, in which no call should be under way.

    Raises:
        MissingExtra: one of them is not installed.
    """
    try:
        await asyncio.to_thread(lambda: [importlib.import_module(name) for name in _SDK_MODULES])
    except ImportError as error:
        raise MissingExtra(
            f"the example's agent uses both SDKs ({error}); {how_to_install('openai,anthropic')}"
        ) from error


def model_of(dialect: str, session: Session, timeout_s: float) -> Model:
    """The model that speaks a dialect, reached as the session says.

    Args:
        dialect: `chat`, `responses` or `messages`.
        timeout_s: how long the SDK waits for an answer, or for the next piece of one, seconds.

    Raises:
        ValueError: another dialect.
    """
    if dialect == "messages":
        return MessagesModel(anthropic_of(session, timeout=timeout_s))
    if dialect == "chat":
        return ChatModel(openai_of(session, timeout=timeout_s))
    if dialect == "responses":
        return ResponsesModel(openai_of(session, timeout=timeout_s))
    raise ValueError(f"dialect {dialect!r}: give chat, responses or messages")


def openai_of(session: Session, **options: Any) -> AsyncOpenAI:
    """The session's client: of the run's proxy, or, where the run has none, of a model server in this process."""
    if session.proxy is None:
        options |= {"base_url": f"{local_model_url()}/v1", "api_key": LOCAL_KEY}
    return session.openai(**options)


def anthropic_of(session: Session, **options: Any) -> AsyncAnthropic:
    """As `openai_of`."""
    if session.proxy is None:
        options |= {"base_url": local_model_url(), "api_key": LOCAL_KEY}
    return session.anthropic(**options)


class ChatModel:
    """Chat completions of the openai SDK."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    async def ask(self, task: str, history: History, *, stream: bool, headers: Mapping[str, str]) -> Turn:
        """See `Model`."""
        request: dict[str, Any] = {
            "model": MODEL,
            "messages": chat_dialect.request_body(task, history),
            "tools": [{"type": "function", "function": {"name": name, "parameters": _SCHEMA}} for name in TOOLS],
            "extra_headers": headers,
        }
        if stream:
            async with self._client.chat.completions.stream(
                **request, stream_options={"include_usage": True}
            ) as events:
                choice: Any = (await events.get_final_completion()).choices[0]
        else:
            choice = (await self._client.chat.completions.create(**request)).choices[0]
        calls = tuple(
            ToolCall(call.id, call.function.name, json.loads(call.function.arguments))
            for call in choice.message.tool_calls or ()
        )
        return Turn(choice.message.content or "", calls, choice.finish_reason != "length")

    async def close(self) -> None:
        """See `Model`."""
        await self._client.close()


class ResponsesModel:
    """Responses of the openai SDK."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    async def ask(self, task: str, history: History, *, stream: bool, headers: Mapping[str, str]) -> Turn:
        """See `Model`."""
        request: dict[str, Any] = {
            "model": MODEL,
            "input": responses_dialect.request_body(task, history),
            "tools": [{"type": "function", "name": name, "parameters": _SCHEMA, "strict": False} for name in TOOLS],
            "extra_headers": headers,
        }
        if stream:
            response = await self._streamed(request)
        else:
            response = await self._client.responses.create(**request)
        calls = tuple(
            ToolCall(item.call_id, item.name, json.loads(item.arguments))
            for item in response.output
            if item.type == "function_call"
        )
        return Turn(response.output_text, calls, response.status == "completed")

    async def _streamed(self, request: dict[str, Any]) -> Any:
        response: Any = None
        async for event in await self._client.responses.create(**request, stream=True):
            if event.type in ("response.completed", "response.incomplete"):
                response = event.response
        if response is None:
            raise EOFError("the stream ended without a response")
        return response

    async def close(self) -> None:
        """See `Model`."""
        await self._client.close()


class MessagesModel:
    """Messages of the anthropic SDK."""

    def __init__(self, client: AsyncAnthropic) -> None:
        self._client = client

    async def ask(self, task: str, history: History, *, stream: bool, headers: Mapping[str, str]) -> Turn:
        """See `Model`."""
        request: dict[str, Any] = {
            "model": MODEL,
            "max_tokens": _MOST_TOKENS,
            "messages": messages_dialect.request_body(task, history),
            "tools": [{"name": name, "input_schema": _SCHEMA} for name in TOOLS],
            "extra_headers": headers,
        }
        if stream:
            async with self._client.messages.stream(**request) as events:
                message: Any = await events.get_final_message()
        else:
            message = await self._client.messages.create(**request)
        calls = tuple(ToolCall(part.id, part.name, part.input) for part in message.content if part.type == "tool_use")
        text = "".join(part.text for part in message.content if part.type == "text")
        return Turn(text, calls, message.stop_reason != "max_tokens")

    async def close(self) -> None:
        """See `Model`."""
        await self._client.close()
