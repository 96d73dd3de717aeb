"""A small, deterministic MCP server: three read-only tools, one without annotations, one destructive.

`remember` and `erase` share the memory of the process, so they tell whether two sessions share a process.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

City = Literal[
    "Berlin",
    "Cairo",
    "Canberra",
    "Lima",
    "Nairobi",
    "Oslo",
    "Ottawa",
    "Paris",
    "Quito",
    "Rome",
    "Tokyo",
    "Vienna",
]


class Facts(TypedDict):
    country: str
    currency: str
    dialling_code: int


FACTS: dict[str, Facts] = {
    "Berlin": {"country": "Germany", "currency": "euro", "dialling_code": 49},
    "Cairo": {"country": "Egypt", "currency": "Egyptian pound", "dialling_code": 20},
    "Canberra": {"country": "Australia", "currency": "Australian dollar", "dialling_code": 61},
    "Lima": {"country": "Peru", "currency": "sol", "dialling_code": 51},
    "Nairobi": {"country": "Kenya", "currency": "Kenyan shilling", "dialling_code": 254},
    "Oslo": {"country": "Norway", "currency": "Norwegian krone", "dialling_code": 47},
    "Ottawa": {"country": "Canada", "currency": "Canadian dollar", "dialling_code": 1},
    "Paris": {"country": "France", "currency": "euro", "dialling_code": 33},
    "Quito": {"country": "Ecuador", "currency": "US dollar", "dialling_code": 593},
    "Rome": {"country": "Italy", "currency": "euro", "dialling_code": 39},
    "Tokyo": {"country": "Japan", "currency": "yen", "dialling_code": 81},
    "Vienna": {"country": "Austria", "currency": "euro", "dialling_code": 43},
}

server = MCPServer("clerk", log_level="ERROR")
memory: list[str] = []


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def lookup(city: City) -> Facts:
    """Country, currency and dialling code of a city."""
    return FACTS[city]


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def shout(text: str) -> str:
    """The text in capital letters, for example 'good morning'."""
    return text.upper()


@server.tool()
def remember(word: str) -> int:
    """Remember a word; answers how many are remembered."""
    memory.append(word)
    return len(memory)


@server.tool(annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True))
def erase() -> int:
    """Forget all words; answers how many there were."""
    num_words = len(memory)
    memory.clear()
    return num_words


if __name__ == "__main__":
    server.run("stdio")
