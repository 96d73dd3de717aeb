"""How models that write a call as one JSON object write it, and grammars of nothing but such calls. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art_core.render.grammars import json_rule, text_rule

HERMES_OPEN = "<tool_call>"
HERMES_CLOSE = "</tool_call>"


@dataclass(frozen=True)
class CallFormat:
    """One spelling of a call: `{"name": ..., "arguments": ...}`, on a line between two tags where there are tags.

    arguments_key: what the arguments are called.
    separators: what stands behind an item and behind a key.
    several: whether an answer may hold more than one call.
    """

    opening: str = ""
    closing: str = ""
    arguments_key: str = "arguments"
    separators: tuple[str, str] = (", ", ": ")
    several: bool = True

    def text(self, name: str, arguments: Any) -> str:
        """A call as the model writes it. `arguments` may be any JSON value."""
        body = {"name": name, self.arguments_key: arguments}
        text = json.dumps(body, ensure_ascii=False, separators=self.separators)
        return f"{self.opening}\n{text}\n{self.closing}" if self.opening else text

    def grammar(
        self,
        functions: Sequence[Mapping[str, Any]],
        *,
        only_one: bool,
        instead: Mapping[str, Any] | None = None,
        special: Collection[str] = (),
    ) -> str:
        """A grammar of calls of `functions`, one or, where several can be, several on lines of their own.

        Calls are spelled as in `text`; the arguments follow the function's `parameters`, which describe an object.
        With `instead`, a JSON value of that schema is the other possible answer. Tags that are `special` tokens of the
        model are those tokens.
        """
        item, key = self.separators
        spacing = {"whitespace_flexible": False, "item_separator": item, "key_separator": key}
        rules = []
        for index, function in enumerate(functions):
            name = json.dumps(function["name"], ensure_ascii=False)
            head = f'{{"name"{key}{name}{item}{json.dumps(self.arguments_key)}{key}'
            schema = {**(function.get("parameters") or {}), "type": "object", "x-guidance": spacing}
            rules.append(f"call_{index}: {self._tagged(head, f'arguments_{index}', special)}")
            rules.append(f"arguments_{index}: {json_rule(schema)}")
        calls = f"call ({text_rule(chr(10))} call)*" if self.several and not only_one else "call"
        start = f"start: calls\ncalls: {calls}" if instead is None else f"start: calls | answer\ncalls: {calls}"
        rules = [start, f"call: {' | '.join(f'call_{index}' for index in range(len(functions)))}", *rules]
        if instead is not None:
            rules.append(f"answer: {json_rule(instead)}")
        return "\n".join(rules)

    def _tagged(self, head: str, arguments: str, special: Collection[str]) -> str:
        if not self.opening:
            return f"{text_rule(head)} {arguments} {text_rule('}')}"
        opening, closing = (tag if tag in special else text_rule(tag) for tag in (self.opening, self.closing))
        return f"{opening} {text_rule(chr(10) + head)} {arguments} {text_rule('}' + chr(10))} {closing}"


# Without spaces a call takes a sixth fewer tokens, each of which costs a decoding step.
COMPACT_HERMES = CallFormat(HERMES_OPEN, HERMES_CLOSE, separators=(",", ":"))
HERMES = CallFormat(HERMES_OPEN, HERMES_CLOSE)
LLAMA_JSON = CallFormat(arguments_key="parameters")
KNOWN_FORMATS = (HERMES, COMPACT_HERMES, LLAMA_JSON)
