"""The values that art_mcp's parts hand to each other. Plain data, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import JsonValue


@dataclass(frozen=True, kw_only=True)
class ToolAnnotations:
    """What the server says of a tool; None where it says nothing. Hints, not guarantees."""

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


@dataclass(frozen=True)
class McpTool:
    """One tool of a server. The schemas are JSON Schema as the server sent them."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None = None
    annotations: ToolAnnotations = field(default_factory=ToolAnnotations)


@dataclass(frozen=True)
class ToolResult:
    """What a tool call gave.

    `text` is what the model is shown: text parts joined by newlines, a placeholder for what a text model cannot read,
    cut in the middle when too long (`num_cut_chars` > 0, and the text says so). `structured` is the server's
    structured content, or the text parsed as JSON where it is JSON, or None. `is_error` means the tool refused or
    failed: information for the model, not an infrastructure failure.
    """

    text: str
    structured: JsonValue = None
    is_error: bool = False
    num_cut_chars: int = 0


@dataclass(frozen=True)
class AttemptedCall:
    """One tool call that a model made in a rollout.

    `name` and `arguments` are None where the call's JSON could not be understood; `raw_arguments` is the text as
    sampled. `result` is None when the call was never executed; `problem` then says why in a few words.
    """

    name: str | None
    arguments: dict[str, Any] | None
    raw_arguments: str
    result: ToolResult | None = None
    problem: str | None = None


class ToolCaller(Protocol):
    """Anything that executes tool calls: a live server session, or a fake in a test."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Execute one call.

        Raises:
            art_core.errors.InfrastructureError: the server died, broke the protocol or did not answer in time.
        """
        ...
