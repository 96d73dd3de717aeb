"""What a request may say.

One rule for fields: a field that this server does not know is refused by name, since it might change the answer. Known
are the fields of the models below. Some of them are accepted without any effect: those that only concern OpenAI's own
service (`prompt_cache_key`, `prompt_cache_retention`, `safety_identifier`, `service_tier`, `store`,
`user`), `return_token_ids` (ids are always returned), the neutral values of what is not supported (`_ONLY`), `strict`
of a tool and of a `response_format` (a schema is enforced either way), and unknown fields of a message. `metadata`
changes no answer either: it is kept with the record of the call.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from art_core.errors import ContextLengthError
from art_core.messages import STRICT_DECODER, compact_json
from art_core.serve.wire import ApiError, invalid, unsupported
from art_core.types import Sampling

MAX_CHOICES = 128
MAX_STOPS = 4
MAX_TOP_LOGPROBS = 20

_SEED_BITS = 63
_MAX_DEPTH = 64
_ONLY = {
    "frequency_penalty": "0",
    "presence_penalty": "0",
    "logit_bias": "{}",
    "modalities": "['text']",
    "echo": "false",
    "best_of": "1",
    "suffix": "''",
}


class StreamOptions(BaseModel):
    """`include_usage` asks for a last chunk with the token counts. Obfuscation is accepted and has no effect."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Request(BaseModel):
    """What every call that samples may say. Null stands for a missing field, as at OpenAI. `top_k` is an extension.

    `stop`: up to 4 strings. Sampling ends with the token that completes the first of them in the text as it is
    sampled; neither it nor anything after it is part of the answer's text, while `token_ids` and the record keep every
    token that was drawn.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    temperature: float | None = Field(default=None, ge=0.0, le=2.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    top_k: int | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = Field(default=None, ge=-(2**_SEED_BITS), lt=2**_SEED_BITS)
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    stop: Annotated[
        list[Annotated[str, StringConstraints(min_length=1)]] | None,
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    ] = Field(default=None, max_length=MAX_STOPS)
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    frequency_penalty: float | None = Field(default=None, ge=0.0, le=0.0)
    presence_penalty: float | None = Field(default=None, ge=0.0, le=0.0)
    logit_bias: dict[str, float] | None = Field(default=None, max_length=0)
    return_token_ids: bool | None = None
    user: str | None = None

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """The request in `body`.

        Raises:
            ApiError: 400, naming the field, when it is not JSON, not of this shape, or asks for what is not supported.
        """
        value = json_object(body)
        try:
            request = cls.model_validate(value)
        except ValidationError as error:
            raise _refusal(error, value, known=cls.model_fields) from error
        if request.stream_options is not None and not request.stream:
            raise invalid("stream_options is given, but stream is not true", "stream_options")
        request.check()
        return request

    def check(self) -> None:
        """Refuse what single fields do not tell."""

    @property
    def token_limit(self) -> int | None:
        """Most tokens of one answer; None for what the context leaves."""
        return self.max_tokens

    @property
    def num_alternatives(self) -> int:
        """Alternatives wanted for each token."""
        return 0

    def sampling(
        self,
        *,
        num_prompt_tokens: int,
        max_context_tokens: int,
        stop_token_ids: Sequence[int],
        index: int = 0,
        grammar: str | None = None,
    ) -> Sampling:
        """How to draw choice `index`. Without a limit, the answer may fill what the prompt leaves of the context.

        Raises:
            ContextLengthError: the prompt alone, or with the answer asked for, does not fit.
        """
        rest = max_context_tokens - num_prompt_tokens
        wanted = self.token_limit
        if rest < (wanted or 1):
            asked = f" and {wanted} tokens were asked for" if wanted else ""
            raise ContextLengthError(  # the first words are OpenAI's, by which libraries recognise the error
                f"This model's maximum context length is {max_context_tokens} tokens, but the prompt has "
                f"{num_prompt_tokens}{asked}; shorten the prompt or lower max_tokens"
            )
        return Sampling(
            max_tokens=wanted or rest,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            stop_token_ids=tuple(stop_token_ids),
            seed=None if self.seed is None else choice_seed(self.seed, index),
            grammar=grammar,
            top_logprobs=self.num_alternatives,
        )


AnyRequest = TypeVar("AnyRequest", bound=Request)


class CompletionRequest(Request):
    """The body of `POST /v1/completions`: text in, text out, without any chat template.

    `prompt` is a text, a list of texts, token ids or a list of lists of them; each is answered `n` times, in order. A
    text is encoded as text: the spelling of a special token does not become that token, so send ids for one. Without
    `max_tokens` 16 tokens are sampled, as at OpenAI.
    """

    prompt: Any
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: str | None = Field(default=None, max_length=0)

    @property
    def token_limit(self) -> int:
        return self.max_tokens or 16

    @property
    def num_alternatives(self) -> int:
        return self.logprobs or 0

    @property
    def prompts(self) -> list[str | list[int]]:
        """One text or list of ids for each prompt.

        Raises:
            ApiError: 400, anything else, or none, or more choices than a request may have.
        """
        value = self.prompt
        single = isinstance(value, str) or (isinstance(value, list) and value and all(map(_is_id, value)))
        prompts = [value] if single else value
        if not isinstance(prompts, list) or not all(_is_prompt(item) for item in prompts):
            raise invalid("'prompt' is not a text, a list of texts, token ids or a list of lists of ids", "prompt")
        if not all(prompts) or not prompts:
            raise invalid(
                "'prompt' is empty; wanted at least one token, since a completion follows something", "prompt"
            )
        if len(prompts) * (self.n or 1) > MAX_CHOICES:
            raise invalid(
                f"{len(prompts)} prompts with n={self.n or 1} are more than the {MAX_CHOICES} choices of a request", "n"
            )
        return prompts

    def check(self) -> None:
        _ = self.prompts


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index`: that of the request for the first, others that follow from it for the rest."""
    if index == 0:
        return seed
    digest = hashlib.sha256(f"{seed}/{index}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`.

    Raises:
        ApiError: 400, it is something else, or nested too deeply.
    """
    try:
        text = body.decode().strip()
        value, end = STRICT_DECODER.raw_decode(text)
        if end < len(text):
            raise ValueError(f"something follows the JSON value, at character {end}")
        _check_depth(value)
        if "\\u" in text:
            compact_json(value).encode()  # half a surrogate pair cannot be passed on as text
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise ApiError(400, f"the body is a JSON {type(value).__name__}; wanted an object", code="invalid_json")
    return value


def shown(value: Any) -> str:
    """`value` as an error message quotes it: not more than 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _refusal(error: ValidationError, value: dict[str, Any], *, known: Iterable[str]) -> ApiError:
    problem = error.errors(include_url=False, include_context=False)[0]
    param = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return invalid(f"{param!r} is missing", param, code="missing_required_parameter")
    if problem["type"] == "extra_forbidden":
        meant = difflib.get_close_matches(param, list(known), n=1, cutoff=0.8)
        instead = f"leave it out, or did you mean {meant[0]!r}?" if meant else "leave it out"
        return unsupported(f"{param!r} is not supported by this server; {instead}", param)
    if (name := str(problem["loc"][0])) in _ONLY:
        return unsupported(f"{name!r} is {shown(value[name])}; this server supports only {_ONLY[name]}", param)
    return invalid(f"{param!r}: {problem['msg']}; got {shown(problem['input'])}", param)


def _check_depth(value: Any) -> None:
    """Refuse what later code, which recurses, could not write out again."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        containers = [item for item in level if isinstance(item, dict | list)]
        if not containers:
            return
        level = [child for item in containers for child in (item.values() if isinstance(item, dict) else item)]
    raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(map(_is_id, value)))
