"""One attempt at a scenario: an ordinary agent loop that talks to an OpenAI-compatible endpoint and an MCP server.

Nothing here knows about training. What the model did is recorded by the server behind `client`; this module returns
what the agent saw, so that it can be verified.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from art_mcp.types import AttemptedCall, ToolCaller, ToolResult

if TYPE_CHECKING:
    from openai import AsyncOpenAI

SYSTEM_PROMPT = "Call the tool that answers the request, then report its result in one short sentence."


@dataclass(frozen=True)
class Attempt:
    """What an agent did. `answer` is None when it never gave one (turns or context ran out in the middle)."""

    calls: tuple[AttemptedCall, ...] = ()
    answer: str | None = None
    num_turns: int = 0
    truncated: bool = False
    tool_errors: tuple[str, ...] = field(default=())


@dataclass(frozen=True, kw_only=True)
class AgentLimits:
    """Bounds of one attempt: model calls, and tokens of each."""

    max_turns: int = 3
    max_tokens: int = 96


async def attempt(
    task: str,
    *,
    client: AsyncOpenAI,
    model: str,
    tools: Sequence[Mapping[str, Any]],
    caller: ToolCaller,
    limits: AgentLimits,
    seed: int,
    temperature: float = 1.0,
) -> Attempt:
    """Let the model behind `client` work on `task` with `tools` until it answers without a tool call.

    A call that cannot be executed (unknown tool, arguments that are no JSON object) is answered with an error text
    that the model can react to, never by an exception. A context that is full ends the attempt as truncated.

    Raises:
        InfrastructureError: the tool server died or did not answer.
    """
    from openai import BadRequestError

    known = {str(tool["function"]["name"]) for tool in tools}
    messages: list[Any] = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": task}]
    calls: list[AttemptedCall] = []
    errors: list[str] = []
    for turn in range(limits.max_turns):
        try:
            completion = await client.chat.completions.create(
                model=model,
                messages=messages,
                tools=list(tools),  # type: ignore[arg-type]
                max_tokens=limits.max_tokens,
                temperature=temperature,
                seed=(seed + turn) % 2**63,
            )
        except BadRequestError as error:
            if error.code != "context_length_exceeded":
                raise
            return Attempt(tuple(calls), None, turn, truncated=True, tool_errors=tuple(errors))
        choice = completion.choices[0]
        message = choice.message
        messages.append(message.model_dump(exclude_none=True))
        requested = [call for call in message.tool_calls or [] if call.type == "function"]
        if not requested:
            truncated = choice.finish_reason == "length"
            return Attempt(tuple(calls), message.content or "", turn + 1, truncated, tuple(errors))
        for request in requested:
            call = await _execute(request.function.name, request.function.arguments, known, caller)
            calls.append(call)
            text = call.result.text if call.result else f"Error: {call.problem}"
            if call.result is None or call.result.is_error:
                errors.append(text)
            messages.append({"role": "tool", "tool_call_id": request.id, "content": text})
    return Attempt(tuple(calls), None, limits.max_turns, truncated=True, tool_errors=tuple(errors))


async def _execute(name: str, raw_arguments: str, known: set[str], caller: ToolCaller) -> AttemptedCall:
    arguments = parse_arguments(raw_arguments)
    if arguments is None:
        return AttemptedCall(name, None, raw_arguments, problem="the arguments are not a JSON object")
    if name not in known:
        problem = f"there is no tool {name!r}; the tools are {', '.join(sorted(known))}"
        return AttemptedCall(name, arguments, raw_arguments, problem=problem)
    result: ToolResult = await caller.call(name, arguments)
    return AttemptedCall(name, arguments, raw_arguments, result)


def parse_arguments(raw: str) -> dict[str, Any] | None:
    """The arguments of a tool call as an object; None if they are not one.

    Nothing at all and `null` mean no arguments; an object that was encoded twice is decoded twice.
    """
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw)
        if isinstance(value, str):
            value = json.loads(value) if value.strip() else None
    except ValueError:
        return None
    if value is None:
        return {}
    return value if isinstance(value, dict) else None
