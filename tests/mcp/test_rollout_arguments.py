from __future__ import annotations

import pytest

from art_mcp.rollout import parse_arguments


@pytest.mark.parametrize(
    ("raw", "parsed"),
    [
        ('{"a": 1}', {"a": 1}),
        ("{}", {}),
        ("", {}),
        ("  \n", {}),
        ("null", {}),
        ('""', {}),
        ('"null"', {}),
        (r'"{\"q\": \"cats\"}"', {"q": "cats"}),
        ("5", None),
        ('"5"', None),
        ('["a"]', None),
        ('{"file": "notes.txt", "body": "abc', None),
        ('"text"', None),
        ("true", None),
    ],
)
def test_arguments_of_a_tool_call(raw: str, parsed: dict[str, object] | None) -> None:
    assert parse_arguments(raw) == parsed
