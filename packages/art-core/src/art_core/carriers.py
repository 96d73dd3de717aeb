"""How the id of a recorded exchange travels with an answer, also through libraries that drop what they do not know.

An exchange outside any trajectory is found again by its id only, so the id rides on several things that the server
sends, each of which `exchange_id_of` reads:

- `choice.exchange_id`, the id itself. The `openai` client keeps it, plain and in the last chunk of each choice of a
  stream (not what its `stream()` helper assembles); litellm as `choice.provider_specific_fields["exchange_id"]` of a
  plain answer.
- The id of the completion, `chatcmpl-<id>` or `cmpl-<id>`. The `openai` client keeps it; litellm, plain and streamed;
  the Vercel AI SDK, as `response.id`; LangChain, of a plain answer, as `response_metadata["id"]`.
- `system_fingerprint`, `fp_<id>`, of a plain answer and of the last chunk of each choice of a stream. LangChain keeps
  it in both modes in `response_metadata`: of a streamed answer without calls it keeps nothing else.
- The id of a tool call, `call_<id>_<k>`. Every library that lets an agent answer a tool call keeps it.

With `n` above 1 the ids of the choices are `<id of the call>-<index>`, and the completion has the id of the call: the
id of a choice is then the completion's with its index.
"""

from __future__ import annotations

import re
import secrets

_ID = r"[0-9a-f]{24}(?:-\d{1,3})?"
_CARRIER = re.compile(rf"(?:chatcmpl-|cmpl-|fp_)({_ID})|call_({_ID})_\d+")


def new_call_id() -> str:
    """An id for one request; short enough that every id made of it stays within the 40 characters of OpenAI's API."""
    return secrets.token_hex(12)


def choice_exchange_id(call_id: str, index: int, *, num_choices: int) -> str:
    """The id of the exchange that choice `index` of a call with `num_choices` choices is recorded as."""
    return call_id if num_choices == 1 else f"{call_id}-{index}"


def fingerprint(exchange_id: str) -> str:
    """The `system_fingerprint` of the answer of an exchange."""
    return f"fp_{exchange_id}"


def tool_call_id(exchange_id: str, index: int) -> str:
    """The id of the tool call `index` in the answer of an exchange."""
    return f"call_{exchange_id}_{index}"


def exchange_id_of(carrier: str) -> str | None:
    """The exchange id that one of the carriers above carries, or None.

    For the completion of a call with several choices it is the id of the call, which no exchange has by itself.
    """
    match = _CARRIER.fullmatch(carrier)
    return (match[1] or match[2]) if match else None
