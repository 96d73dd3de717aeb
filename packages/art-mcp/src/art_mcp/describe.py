"""What a server offers, for people and for programs: its tools, what it says of them, and what may be called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from art_mcp.connect import ServerCommand, open_session
from art_mcp.safety import Permission, permissions
from art_mcp.settings import RunSettings
from art_mcp.types import ToolAnnotations


@dataclass(frozen=True)
class ServerDescription:
    """A server that was started once, and the decision on each of its tools."""

    command: ServerCommand
    name: str
    version: str
    protocol_version: str
    permissions: list[Permission]

    def as_json(self) -> dict[str, Any]:
        return {
            "server": " ".join(self.command.argv),
            "name": self.name,
            "version": self.version,
            "protocol": self.protocol_version,
            "isolation": "a folder per rollout" if self.command.uses_workdir else "a process per rollout",
            "tools": [
                {
                    "name": permission.tool.name,
                    "callable": permission.callable,
                    "reason": permission.reason,
                    "annotations": _stated(permission.tool.annotations),
                    "description": permission.tool.description,
                    "input_schema": dict(permission.tool.input_schema),
                }
                for permission in self.permissions
            ],
        }

    def as_text(self) -> str:
        lines = [f"{self.name} {self.version}".rstrip() + f", protocol {self.protocol_version}"]
        width = max((len(permission.tool.name) for permission in self.permissions), default=0)
        for permission in self.permissions:
            stated = ", ".join(
                name if value else f"not {name}" for name, value in _stated(permission.tool.annotations).items()
            )
            mark = "callable" if permission.callable else "blocked "
            description = " ".join(permission.tool.description.split())
            lines.append(f"  {mark}  {permission.tool.name:<{width}}  {permission.reason}")
            lines.append(f"            {'':<{width}}  {description[:100]}" + (f" [{stated}]" if stated else ""))
        callable_count = sum(permission.callable for permission in self.permissions)
        lines.append(f"{callable_count} of {len(self.permissions)} tools would be called")
        return "\n".join(lines)


def _stated(annotations: ToolAnnotations) -> dict[str, bool]:
    """The annotations that the server gives, by their names in words."""
    values = {
        "read-only": annotations.read_only,
        "destructive": annotations.destructive,
        "idempotent": annotations.idempotent,
        "open-world": annotations.open_world,
    }
    return {name: value for name, value in values.items() if value is not None}


async def inspect_server(settings: RunSettings, say: Callable[[str], None]) -> ServerDescription:
    """Start the server once, list its tools and decide which may be called.

    Raises:
        ServerStartError: it does not start, exits, or never answers.
        ConfigError: an option names a tool that it does not have.
    """
    command = ServerCommand.parse(settings.server)
    async with open_session(command, start_timeout_s=settings.start_timeout_s, log=say) as session:
        return ServerDescription(
            command,
            session.server_name,
            session.server_version or "",
            session.protocol_version,
            permissions(
                session.tools,
                allow_tools=settings.allow_tools,
                allow_writes=settings.allow_writes,
                deny_tools=settings.deny_tools,
            ),
        )
