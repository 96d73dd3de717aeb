"""`POST /tokenize`: the prompt that a call would have, without a call. The answer has vLLM's shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from art_core.serve.chat_request import ChatRequest
from art_core.serve.requests import CompletionRequest, json_object
from art_core.serve.served import Catalogue
from art_core.serve.session import whole_prompt
from art_core.serve.wire import invalid


async def tokenized(body: bytes, catalogue: Catalogue, check_size: Callable[[int, int], None]) -> dict[str, Any]:
    """The token ids that the body of a chat call, or of a text call with one prompt, would be sampled after.

    A prompt too long for the model is answered as well: that is what one asks for. `check_size`, given the bytes of the
    body and the tokens that the model can read, refuses what is longer by far. Nothing is recorded.

    Raises:
        ApiError, DataError: the call would be refused.
    """
    if "messages" in json_object(body):
        chat = ChatRequest.parse(body)
        model = await catalogue.find(chat.model)
        check_size(len(body), model.engine.max_context_tokens)
        ids = whole_prompt(model.renderer, chat.messages, list(chat.calling.offered)).ids
    else:
        text = CompletionRequest.parse(body)
        if len(text.prompts) != 1:
            raise invalid(f"'prompt' has {len(text.prompts)} prompts; wanted one", "prompt")
        model = await catalogue.find(text.model)
        check_size(len(body), model.engine.max_context_tokens)
        (prompt,) = text.prompts
        ids = tuple(model.renderer.encode(prompt) if isinstance(prompt, str) else prompt)
    return {"count": len(ids), "max_model_len": model.engine.max_context_tokens, "tokens": list(ids)}
