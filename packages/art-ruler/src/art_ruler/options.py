"""The options that every command of `art-ruler` has, each declared once, and what they make of themselves."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from art_ruler.errors import ConfigError
from art_ruler.fakes import built_in
from art_ruler.files import content_digest
from art_ruler.scored import HASHED

if TYPE_CHECKING:
    from art_ruler import Ruler

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, 5.6.2
_FROM_ENVIRONMENT = "env:"


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """How judges are asked. Each field is an option of a command that is registered through `with_judge_options`."""

    rubric: Annotated[str | None, typer.Option(help="Criteria for the judge; by default four general ones.")] = None
    rubric_file: Annotated[Path | None, typer.Option(help="File with the criteria.")] = None
    seed: Annotated[int, typer.Option(help="Decides the orders in which attempts are shown.")] = 0
    max_group: Annotated[int, typer.Option(help="Attempts shown at once; larger groups are judged in chunks.")] = 8
    context_tokens: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N|MODEL=N",
            help="Longest prompt in tokens, of all judges or of one; by default what is known of it. Repeatable.",
        ),
    ] = None
    concurrency: Annotated[int, typer.Option(min=1, help="Judge calls in flight.")] = 8
    timeout: Annotated[float, typer.Option(help="Seconds a judge call may take.")] = 60.0
    total_timeout: Annotated[
        float | None,
        typer.Option(help="Seconds a group may take, with all calls; what takes longer is left for another run."),
    ] = None
    max_retries: Annotated[int, typer.Option(min=0, help="Times a call is repeated that may succeed another time.")] = 3
    cache: Annotated[
        Path | None, typer.Option(help="Folder of the answers so far; equal calls are not made again.")
    ] = None
    max_cost: Annotated[float | None, typer.Option(help="Budget of this run in US dollars.")] = None
    max_tokens: Annotated[
        int | None, typer.Option(help="Budget of this run in tokens, prompts and answers together.")
    ] = None
    api_base: Annotated[
        str | None, typer.Option(help="Base URL of an OpenAI-compatible server, for every judge and fall-back.")
    ] = None
    api_key_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Environment variable with the key; by default the one of the provider."),
    ] = None
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="'NAME: VALUE'",
            help="HTTP header of each call; as in 'X-Org: env:MY_ORG', the value of an environment variable, which "
            "other users cannot read. Repeatable.",
        ),
    ] = None
    judge_param: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=JSON", help="Sent with each call, as in temperature=0. Repeatable."),
    ] = None

    def decisive(self) -> dict[str, Any]:
        """Arguments of `Ruler` that scores depend on."""
        return {
            "rubric": self._rubric(),
            "seed": self.seed,
            "max_group": self.max_group,
            "context_tokens": self._context_tokens(),
            "api_base": self.api_base,
            "judge_params": _judge_params(self.judge_param),
        }

    def settings(self, judges: Sequence[str]) -> dict[str, Any]:
        """The same for the output, where a later run compares them: without secrets, and short.

        In the place of `api_base` stands the server that `judges` are asked at, also where the environment names it: as
        text where it is one for all, else one for each.
        """
        from art_ruler._litellm import server_of

        decisive = self.decisive()
        for name in HASHED:
            if decisive[name] is not None:
                decisive[name] = content_digest(decisive[name])
        servers = {name: server_of(name, self.api_base) for name in judges if not built_in(name)}
        one = set(servers.values())
        return {**decisive, "api_base": servers if len(one) > 1 else (*one, "")[0] or None}

    def ruler(self, judges: Sequence[str], fallbacks: Sequence[str] = (), **more: Any) -> Ruler:
        """A ruler of `judges`; `more` are arguments of `Ruler`.

        Raises:
            ConfigError: an option is impossible or does not go with another.
        """
        from art_ruler import Ruler

        arguments = self.decisive()
        if arguments["rubric"] is None:
            del arguments["rubric"]
        return Ruler(
            [_named(name) for name in judges],
            fallbacks=[_named(name) for name in fallbacks],
            max_concurrency=self.concurrency,
            timeout_s=self.timeout,
            total_timeout_s=self.total_timeout,
            max_retries=self.max_retries,
            cache=self.cache,
            max_cost_usd=self.max_cost,
            max_tokens=self.max_tokens,
            api_key=_key(self.api_key_env),
            extra_headers=_headers(self.header),
            **arguments,
            **more,
        )

    def rulers(self, judges: Sequence[str], **more: Any) -> dict[str, Ruler]:
        """A ruler for each of `judges` alone, by its name.

        Raises:
            ConfigError: an option is impossible, or is for none of them.
        """
        context = self._context_tokens()
        if isinstance(context, dict) and (unknown := sorted(set(context) - set(judges))):
            raise ConfigError(f"--context-tokens names {unknown[0]!r}, but the judges are {', '.join(judges)}")
        fakes = [name for name in judges if built_in(name)]
        rulers = {}
        for name in judges:
            own = self
            if isinstance(context, dict):
                own = replace(own, context_tokens=[str(context[name])] if name in context else None)
            if name in fakes and len(fakes) < len(judges):  # what is for models is for the others
                own = replace(own, api_base=None, api_key_env=None, header=None, judge_param=None)
            rulers[name] = own.ruler([name], **more)
        return rulers

    def _rubric(self) -> str | None:
        if self.rubric is not None and self.rubric_file is not None:
            raise ConfigError("--rubric and --rubric-file are both given; give one of them")
        if self.rubric_file is None:
            return self.rubric
        try:
            return self.rubric_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is not UTF-8"
            raise ConfigError(f"--rubric-file {self.rubric_file} cannot be read: {reason}") from None

    def _context_tokens(self) -> int | dict[str, int] | None:
        given = self.context_tokens or []
        limits: dict[str, int] = {}
        for text in given:
            name, equals, number = text.rpartition("=")
            if not number.isdecimal() or (equals and not name):
                raise ConfigError(f"--context-tokens is {text!r}; wanted a number, or MODEL=NUMBER")
            if not equals and len(given) > 1:
                raise ConfigError("--context-tokens is given for all judges and again; give one number, or one a judge")
            limits[name] = int(number)
        return limits.get("", limits) if limits else None


def with_judge_options(command: Callable[..., None]) -> Callable[..., None]:
    """`command`, whose argument `options` is a `JudgeOptions`, as typer wants it: with an argument for each field."""
    hints = get_type_hints(JudgeOptions, include_extras=True)
    shared = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(JudgeOptions)
    ]
    own = inspect.signature(command, eval_str=True).parameters.values()

    @functools.wraps(command)
    def registered(**given: Any) -> None:
        options = JudgeOptions(**{parameter.name: given.pop(parameter.name) for parameter in shared})
        command(**given, options=options)

    registered.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own if p.name != "options"),
            *shared,
        ]
    )
    registered.__annotations__ = {}  # those of `command` know nothing of the options
    del registered.__wrapped__
    return registered


def _named(name: str) -> str:
    if not name.strip():
        raise ConfigError("--judge is empty; name a model, as in openai/gpt-5-mini, or `heuristic` to try without one")
    return name


def _key(variable: str | None) -> str | None:
    return None if variable is None else _from_environment("--api-key-env", variable, "the key")


def _from_environment(option: str, variable: str, what: str) -> str:
    if not (value := os.environ.get(variable, "").strip()):
        raise ConfigError(f"{option} names {variable}, which is not set; put {what} into that variable")
    return value


def _headers(given: list[str] | None) -> dict[str, str] | None:
    """Headers by name. What is refused is not quoted, since it may hold a secret."""
    headers: dict[str, str] = {}
    for text in given or ():
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not colon or not _HEADER_NAME.fullmatch(name):
            raise ConfigError("a --header has no name; wanted 'NAME: VALUE', or 'NAME: env:VARIABLE'")
        if value.startswith(_FROM_ENVIRONMENT):
            variable = value.removeprefix(_FROM_ENVIRONMENT).strip()
            value = _from_environment(f"--header {name}", variable, "its value")
        if not value or not value.isascii() or not value.isprintable():
            raise ConfigError(f"--header {name} has no value that can be sent; wanted plain ASCII in one line")
        if name.lower() in (known.lower() for known in headers):
            raise ConfigError(f"--header {name} is given twice; give each header once")
        headers[name] = value
    return headers or None


def _judge_params(pairs: list[str] | None) -> dict[str, Any] | None:
    params: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--judge-param is {pair!r}; wanted NAME=JSON, as in temperature=0")
        try:
            params[name] = json.loads(value)
        except ValueError:
            params[name] = value  # a plain word needs no quotes
    return params or None
