"""The same questions, asked with each SDK: blocking or not, streamed or not, in each dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
    from openai import AsyncOpenAI, OpenAI

DIALECTS = ("chat", "responses", "messages")
TASK = "Find out about bolts, 東京 nuts, then order them."
CHAT = "Say something short."
_SCHEMA = {"type": "object", "additionalProperties": True}
_TOOLS = ("stock_of", "price_of", "place_order")


def request(dialect: str, task: str, **options: Any) -> dict[str, Any]:
    """The arguments of an SDK's call. A task that names things gets tools."""
    tools: dict[str, list[dict[str, Any]]] = {
        "chat": [{"type": "function", "function": {"name": name, "parameters": _SCHEMA}} for name in _TOOLS],
        "responses": [{"type": "function", "name": each, "parameters": _SCHEMA, "strict": False} for each in _TOOLS],
        "messages": [{"name": name, "input_schema": _SCHEMA} for name in _TOOLS],
    }
    given: dict[str, Any] = {"model": "scripted-7b", **options}
    if dialect == "responses":
        given["input"] = task
    else:
        given["messages"] = [{"role": "user", "content": task}]
    if dialect == "messages":
        given["max_tokens"] = 500
    if task == TASK:
        given["tools"] = tools[dialect]
    return given


async def ask_async(client: AsyncOpenAI | AsyncAnthropic, dialect: str, stream: bool, task: str, **options: Any) -> Any:
    """The SDK's whole response."""
    sdk: Any = client
    arguments = request(dialect, task, **options)
    if dialect == "chat":
        if not stream:
            return await sdk.chat.completions.create(**arguments)
        async with sdk.chat.completions.stream(**arguments, stream_options={"include_usage": True}) as events:
            return await events.get_final_completion()
    if dialect == "responses":
        if not stream:
            return await sdk.responses.create(**arguments)
        async with sdk.responses.stream(**arguments) as events:
            return await events.get_final_response()
    if not stream:
        return await sdk.messages.create(**arguments)
    async with sdk.messages.stream(**arguments) as events:
        return await events.get_final_message()


def ask_blocking(client: OpenAI | Anthropic, dialect: str, stream: bool, task: str, **options: Any) -> Any:
    """The SDK's whole response."""
    sdk: Any = client
    arguments = request(dialect, task, **options)
    if dialect == "chat":
        if not stream:
            return sdk.chat.completions.create(**arguments)
        with sdk.chat.completions.stream(**arguments, stream_options={"include_usage": True}) as events:
            return events.get_final_completion()
    if dialect == "responses":
        if not stream:
            return sdk.responses.create(**arguments)
        with sdk.responses.stream(**arguments) as events:
            return events.get_final_response()
    if not stream:
        return sdk.messages.create(**arguments)
    with sdk.messages.stream(**arguments) as events:
        return events.get_final_message()
