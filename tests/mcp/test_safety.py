"""Which tools may be called."""

from __future__ import annotations

import pytest

from art_core.errors import ConfigError
from art_mcp.safety import permissions
from art_mcp.types import McpTool, ToolAnnotations

READ = McpTool("read", "", {}, annotations=ToolAnnotations(read_only=True))
WRITE = McpTool("write", "", {}, annotations=ToolAnnotations(read_only=False))
ERASE = McpTool("erase", "", {}, annotations=ToolAnnotations(destructive=True))
SILENT = McpTool("silent", "", {})
TOOLS = [READ, WRITE, ERASE, SILENT]


def test_only_tools_that_say_they_are_read_only_are_callable() -> None:
    granted = permissions(TOOLS)
    assert [permission.tool for permission in granted] == TOOLS
    assert [(permission.callable, permission.reason) for permission in granted] == [
        (True, "read-only (annotation)"),
        (False, "may write (annotation): allow with --allow-tool write"),
        (False, "may destroy data (annotation): allow with --allow-tool erase"),
        (False, "not annotated as read-only: allow with --allow-tool silent"),
    ]


def test_a_tool_can_be_allowed_by_name() -> None:
    granted = permissions(TOOLS, allow_tools=["silent"])
    assert [permission.callable for permission in granted] == [True, False, False, True]
    assert granted[3].reason == "not annotated as read-only, allowed (--allow-tool)"


def test_all_tools_can_be_allowed_and_denial_wins() -> None:
    granted = permissions(TOOLS, allow_writes=True, allow_tools=["erase"], deny_tools=["read", "erase"])
    assert [permission.callable for permission in granted] == [False, True, False, True]
    assert granted[0].reason == "denied (--deny-tool)"


@pytest.mark.parametrize("option", ["allow_tools", "deny_tools"])
def test_an_unknown_name_is_refused_with_the_nearest_one(option: str) -> None:
    flag = "--allow-tool" if option == "allow_tools" else "--deny-tool"
    with pytest.raises(ConfigError, match=f"{flag} 'wirte': the server has no such tool; did you mean 'write'?"):
        permissions(TOOLS, **{option: ["wirte"]})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="it has: read, write, erase, silent"):
        permissions(TOOLS, **{option: ["zzz"]})  # type: ignore[arg-type]
