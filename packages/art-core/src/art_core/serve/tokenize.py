"""`POST /tokenize`: the prompt that a call would have, without a call. The answer has vLLM's shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from art_core.serve.chat_request import ChatRequest
from art_core.serve.requests import CompletionRequest, json_object
from art_core.serve.served import Catalogue
from art_core.serve.session import whole_prompt
from art_core.serve.wire import invalid


class _Conversation(ChatRequest):
    continue_final_message: bool = True

    @property
    def begins_answer(self) -> bool:
        return self.continue_final_message and super().begins_answer


async def tokenized(body: bytes, catalogue: Catalogue, check_size: Callable[[int, int], None]) -> dict[str, Any]:
    """The token ids that the body of a chat call, or of a text call with one prompt, would be sampled after.

    With `continue_final_message: false`, an assistant's message at the end is no beginning of the answer, but a turn
    that is whole.

    A prompt too long for the model is answered as well: that is what one asks for. `check_size`, given the bytes of the
    body and the tokens that the model can read, refuses what is longer by far. Nothing is recorded.

    Raises:
        ApiError, DataError: the call would be refused.
    """
    if "messages" in json_object(body):
        chat = _Conversation.parse(body)
        model = await catalogue.find(chat.model)
        check_size(len(body), model.engine.max_context_tokens)
        tools = list(chat.calling.offered)
        if chat.continue_final_message:
            ids = whole_prompt(model.renderer, chat.messages, tools).ids
        else:
            ids = tuple(model.renderer.render_ids(chat.messages, tools=tools, add_generation_prompt=True))
    else:
        text = CompletionRequest.parse(body)
        if len(text.prompts) != 1:
            raise invalid(f"'prompt' has {len(text.prompts)} prompts; wanted one", "prompt")
        model = await catalogue.find(text.model)
        check_size(len(body), model.engine.max_context_tokens)
        (prompt,) = text.prompts
        ids = tuple(model.renderer.encode(prompt) if isinstance(prompt, str) else prompt)
    return {"count": len(ids), "max_model_len": model.engine.max_context_tokens, "tokens": list(ids)}
