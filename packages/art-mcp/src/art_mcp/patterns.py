"""Texts that match a simple regular expression: literals, classes, groups, alternatives and counted repeats."""

from __future__ import annotations

import random
import re
import string

_CLASSES = {"d": string.digits, "w": string.ascii_lowercase + string.digits, "s": " "}
_MAX_REPEAT = 4
_MAX_LENGTH = 64


class _UnsupportedPatternError(Exception):
    pass


def make_matching(pattern: str, rng: random.Random, size: int) -> list[str]:
    """Up to `size` different texts that `pattern` matches (as JSON Schema searches); none if it is not a simple one."""
    found: dict[str, None] = {}
    for _ in range(size * 3):
        try:
            text = _Generator(pattern, rng).run()
            if re.search(pattern, text):
                found[text] = None
        except (_UnsupportedPatternError, re.error):
            return []
        if len(found) == size:
            break
    return list(found)


class _Generator:
    def __init__(self, pattern: str, rng: random.Random) -> None:
        self._left = list(pattern)
        self._rng = rng

    def run(self) -> str:
        text = self._alternatives()
        if self._left:
            raise _UnsupportedPatternError
        return text

    def _next(self) -> str:
        if not self._left:
            raise _UnsupportedPatternError
        return self._left.pop(0)

    def _alternatives(self) -> str:
        branches = [self._sequence()]
        while self._left[:1] == ["|"]:
            self._next()
            branches.append(self._sequence())
        return self._rng.choice(branches)

    def _sequence(self) -> str:
        parts: list[str] = []
        while self._left and self._left[0] not in "|)":
            before = list(self._left)
            made = self._atom()
            lowest, highest = self._repeat()
            if (lowest, highest) == (1, 1):
                parts.append(made)
                continue
            after = list(self._left)
            for _ in range(self._rng.randint(lowest, highest)):
                self._left = list(before)
                parts.append(self._atom())
            self._left = after
        return "".join(parts)

    def _atom(self) -> str:
        char = self._next()
        if char in "^$":
            return ""
        if char == "(":
            if self._left[:1] == ["?"]:
                if self._left[1:2] != [":"]:
                    raise _UnsupportedPatternError
                self._left = self._left[2:]
            text = self._alternatives()
            if self._next() != ")":
                raise _UnsupportedPatternError
            return text
        if char == "[":
            return self._rng.choice(self._class())
        if char == "\\":
            return self._escape(self._next())
        if char == ".":
            return self._rng.choice(string.ascii_lowercase)
        if char in "*+?{}":
            raise _UnsupportedPatternError
        return char

    def _escape(self, char: str) -> str:
        if char in _CLASSES:
            return self._rng.choice(_CLASSES[char])
        if char == "b":
            return ""
        if char.isalnum():
            raise _UnsupportedPatternError
        return char

    def _class(self) -> str:
        members: list[str] = []
        if self._left[:1] == ["^"]:
            raise _UnsupportedPatternError
        while (char := self._next()) != "]":
            if char == "\\":
                escaped = self._next()
                members += _CLASSES.get(escaped, escaped)
            elif self._left[:1] == ["-"] and self._left[1:2] != ["]"]:
                self._next()
                members += [chr(code) for code in range(ord(char), ord(self._next()) + 1)]
            else:
                members.append(char)
        if not members:
            raise _UnsupportedPatternError
        return "".join(members)

    def _repeat(self) -> tuple[int, int]:
        sign = self._left[0] if self._left else ""
        if sign in ("*", "+", "?"):
            self._next()
            return (1 if sign == "+" else 0, 1 if sign == "?" else _MAX_REPEAT)
        if sign != "{":
            return 1, 1
        match = re.match(r"\{(\d+)(?:(,)(\d*))?\}", "".join(self._left))
        if match is None:
            raise _UnsupportedPatternError
        self._left = self._left[match.end() :]
        lowest = int(match[1])
        if lowest > _MAX_LENGTH:
            raise _UnsupportedPatternError
        if match[2] is None:
            return lowest, lowest
        longest = lowest + _MAX_REPEAT
        return lowest, min(longest, int(match[3])) if match[3] else longest
