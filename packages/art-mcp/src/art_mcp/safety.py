"""Which tools may be called. Read-only by the server's own word, or allowed by name; everything else is refused."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from art_core.errors import ConfigError
from art_mcp.types import McpTool


@dataclass(frozen=True)
class Permission:
    """Whether a tool may be called, and why, in words."""

    tool: McpTool
    callable: bool
    reason: str


def permissions(
    tools: Sequence[McpTool],
    *,
    allow_tools: Collection[str] = (),
    allow_writes: bool = False,
    deny_tools: Collection[str] = (),
) -> list[Permission]:
    """One permission per tool, in the order given.

    A tool that says it is read-only is callable. `allow_tools` makes the named ones callable whatever they say,
    `allow_writes` makes all of them callable, and `deny_tools` wins over both.

    Annotations are the server's own word, not a guarantee: a server that is not trusted at all belongs in a sandbox.

    Raises:
        ConfigError: a name in `allow_tools` or `deny_tools` is no tool of this server.
    """
    names = [tool.name for tool in tools]
    _check_known(allow_tools, names, "--allow-tool")
    _check_known(deny_tools, names, "--deny-tool")
    return [_permission(tool, set(allow_tools), allow_writes, set(deny_tools)) for tool in tools]


def _permission(tool: McpTool, allowed: set[str], allow_writes: bool, denied: set[str]) -> Permission:
    says = tool.annotations
    if tool.name in denied:
        return Permission(tool, False, "denied (--deny-tool)")
    if says.read_only is True:
        return Permission(tool, True, "read-only (annotation)")
    if says.destructive is True:
        nature = "may destroy data (annotation)"
    elif says.read_only is False:
        nature = "may write (annotation)"
    else:
        nature = "not annotated as read-only"
    if tool.name in allowed:
        return Permission(tool, True, f"{nature}, allowed (--allow-tool)")
    if allow_writes:
        return Permission(tool, True, f"{nature}, allowed (--allow-writes)")
    return Permission(tool, False, f"{nature}: allow with --allow-tool {tool.name}")


def _check_known(given: Collection[str], names: Sequence[str], option: str) -> None:
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has: {', '.join(names) or 'no tools'}"
            raise ConfigError(f"{option} {name!r}: the server has no such tool; {hint}")
