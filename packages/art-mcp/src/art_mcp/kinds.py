"""Recognise what kind of value a property wants, from its name, its description and its format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_FORMATS = {
    "date": "date",
    "date-time": "datetime",
    "time": "clock_time",
    "email": "email",
    "idn-email": "email",
    "uri": "url",
    "url": "url",
    "iri": "url",
    "uuid": "uuid",
    "ipv4": "ip_address",
}
_BY_NAME: tuple[tuple[str, frozenset[str]], ...] = (
    ("expression", frozenset({"expression", "expr", "formula", "equation", "calculation"})),
    ("datetime", frozenset({"datetime", "timestamp"})),
    ("email", frozenset({"email", "mail", "recipient"})),
    ("url", frozenset({"url", "uri", "link", "website", "href"})),
    ("uuid", frozenset({"uuid", "guid"})),
    ("ip_address", frozenset({"ip", "ipv4"})),
    ("folder", frozenset({"directory", "dir", "folder", "cwd"})),
    ("file", frozenset({"path", "file", "filename", "filepath"})),
    ("currency", frozenset({"currency", "currencies"})),
    ("language", frozenset({"language", "lang", "locale"})),
    ("country", frozenset({"country", "nation"})),
    ("city", frozenset({"city", "town", "location", "place", "destination"})),
    ("weekday", frozenset({"weekday"})),
    ("month", frozenset({"month"})),
    ("date", frozenset({"date", "day", "birthday", "since", "until"})),
    ("clock_time", frozenset({"time", "hour"})),
    ("unit", frozenset({"unit", "units"})),
    ("colour", frozenset({"colour", "color"})),
    ("size", frozenset({"size"})),
    ("person", frozenset({"person", "user", "username", "firstname", "author", "employee", "customer"})),
    ("text", frozenset({"text", "message", "content", "sentence", "body", "note", "comment", "prompt", "input"})),
    ("word", frozenset({"word", "query", "keyword", "term", "search", "topic", "subject", "title", "tag", "q"})),
)
_BY_DESCRIPTION: tuple[tuple[str, str], ...] = (
    ("time_zone", r"\btime ?zones?\b|\bIANA\b"),
    ("expression", r"\b(math(ematical)?|arithmetic) (expression|formula)|\bexpression to (evaluate|calculate|compute)"),
    ("clock_time", r"\bHH:MM\b|\b(24|12)-hour\b"),
    ("datetime", r"\bISO[- ]?8601\b.*\btime\b|\bdate[- ]?time\b|YYYY-MM-DD[T ]HH"),
    ("date", r"\bYYYY-MM-DD\b|\bISO[- ]?8601\b"),
    ("currency", r"\bcurrenc(y|ies)\b|\bISO[- ]?4217\b"),
    ("country", r"\bcountry\b"),
    ("language", r"\blanguage\b"),
    ("folder", r"\b(directory|folder) (path|to)\b|\bpath (to|of) (a|the) (directory|folder)\b"),
    ("file", r"\bpath (to|of) (a|the) file\b|\bfile ?(path|name)\b"),
    ("email", r"\be-?mail address\b"),
    ("url", r"\bURLs?\b"),
    ("city", r"\bcity\b"),
)
_CODE = re.compile(r"\b(code|ISO[- ]?(639|3166)|two[- ]letter|2[- ]letter|alpha-2)\b", re.IGNORECASE)
_FOLDERS = re.compile(r"director(y|ies)|folder|(?<![a-z])dir(?![a-z])", re.IGNORECASE)
_ROOTS = frozenset({"repo", "repository", "root", "workspace", "project"})
_PAGING = frozenset({"cursor", "nextcursor", "pagetoken", "page_token", "next_token", "nexttoken", "continuation"})


def words_of(name: str) -> list[str]:
    """The words of an identifier: `sourceTimezone`, `source_timezone` and `source-timezone` are all two."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return [word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word]


def is_root(name: str) -> bool:
    """Whether a path argument means the whole folder that a server works on, not something inside it."""
    return bool(_ROOTS & set(words_of(name)))


def is_paging(name: str) -> bool:
    """Whether an argument asks for a further page: its values are opaque and no task can state one."""
    words = words_of(name)
    return name.lower() in _PAGING or "".join(words) in _PAGING or words[-1:] == ["cursor"]


def text_kind(name: str, schema: Mapping[str, Any], *, tool_name: str = "", tool_description: str = "") -> str | None:
    """The kind of text that a string property of a tool wants; None if nothing tells."""
    kind_by_format = _FORMATS.get(str(schema.get("format", "")))
    if kind_by_format is not None:
        return kind_by_format
    described = f"{schema.get('title', '')} {schema.get('description', '')}"
    words = words_of(name)
    if re.search(r"\bSQL\b", f"{described} {tool_description}") and {"query", "sql", "statement"} & set(words):
        return "sql"
    if "tz" in words or re.search(r"time_?zone", "_".join(words)):
        return "time_zone"
    kind = _of_words(words, described)
    if kind is None:
        kind = next((k for k, pattern in _BY_DESCRIPTION if re.search(pattern, described, re.IGNORECASE)), None)
    if kind == "file" and words[-1:] == ["path"] and _FOLDERS.search(tool_name):
        return "folder"
    if kind in ("country", "language") and (_CODE.search(described) or "code" in words or "lang" in words):
        return f"{kind}_code"
    return kind


def _of_words(words: list[str], described: str) -> str | None:
    """By the last word that says something; "time" means what the description says it means."""
    if words[-2:] == ["date", "time"]:
        return "datetime"
    for word in reversed(words):
        kind = next((kind for kind, known in _BY_NAME if word in known), None)
        if kind == "clock_time" and re.search(r"\bISO[- ]?8601\b|YYYY", described):
            return "datetime"
        if (
            kind == "file"
            and word == "path"
            and (re.search(r"\b(directory|folder|repo)\b", described, re.IGNORECASE) or _ROOTS & set(words))
        ):
            return "folder"
        if kind is not None:
            return kind
    return None


_NUMBER_RANGES: tuple[tuple[frozenset[str], tuple[int, int]], ...] = (
    (frozenset({"latitude", "lat"}), (-60, 60)),
    (frozenset({"longitude", "lon", "lng", "long"}), (-170, 170)),
    (frozenset({"year"}), (1990, 2030)),
    (frozenset({"month"}), (1, 12)),
    (frozenset({"day"}), (1, 28)),
    (frozenset({"hour"}), (0, 23)),
    (frozenset({"minute", "second"}), (0, 59)),
    (frozenset({"percent", "percentage"}), (1, 99)),
    (
        frozenset({"limit", "count", "size", "max", "top", "k", "days", "page", "head", "tail", "lines", "depth"}),
        (1, 20),
    ),
    (frozenset({"age"}), (18, 80)),
    (frozenset({"id", "index", "offset"}), (0, 30)),
)
DEFAULT_RANGE = (2, 99)
_MEASURES = frozenset(
    {"amount", "price", "value", "weight", "height", "length", "width", "temperature", "distance", "radius", "speed"}
    | {"rate", "x", "y", "latitude", "longitude", "lat", "lon", "mass", "volume", "area"}
)


def number_range(name: str) -> tuple[int, int]:
    """The range within which a number of this name is likely to make sense, both ends included."""
    words = words_of(name)
    return next((bounds for known, bounds in _NUMBER_RANGES if known & set(words)), DEFAULT_RANGE)


def is_measure(name: str) -> bool:
    """Whether a number of this name is often not whole."""
    return bool(_MEASURES & set(words_of(name)))
