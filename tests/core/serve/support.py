"""An engine that answers line by line, a server around it, and clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from openai import AsyncOpenAI
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from art_core.render import ChatMLHermesRenderer, TextTokenizer
from art_core.serve.server import ModelServer
from art_core.types import Checkpoint, Exchange, Sampling, TokenChunk

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END = 2


def _byte_tokenizer() -> TextTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate([*SPECIAL, *alphabet])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return TextTokenizer(tokenizer)


TOKENIZER = _byte_tokenizer()
RENDERER = ChatMLHermesRenderer(TOKENIZER)
TOOLS: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
USER: Any = {"role": "user", "content": "u"}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
SECRET = "sk-very-secret"


def ids_of(text: str, *, closed: bool = True) -> list[int]:
    return [*TOKENIZER.encode(text), *([END] if closed else [])]


def _alternatives(token_id: int) -> tuple[tuple[int, float], ...]:
    return ((70, -0.125), (token_id, -0.25 * (token_id % 7)), (71, float("-inf")))


@dataclass
class LineEngine:
    """Answers each prompt with the next line; after `stall_after` tokens it waits for ever."""

    lines: list[Sequence[int]] = field(default_factory=list)
    chunk_size: int = 1
    max_context_tokens: int = 4096
    policy_version: int = 3
    stall_after: int | None = None
    error: Exception | None = None
    prompts: list[tuple[tuple[int, ...], Sampling]] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    stalled: asyncio.Event = field(default_factory=asyncio.Event)
    freed: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, *texts: str, closed: bool = True) -> None:
        self.lines += [ids_of(text, closed=closed) for text in texts]

    async def stream(self, prompt_ids: Sequence[int], sampling: Sampling) -> AsyncGenerator[TokenChunk, None]:
        self.prompts.append((tuple(prompt_ids), sampling))
        self.asked.set()
        ids = self.lines.pop(0)
        try:
            for start in range(0, len(ids), self.chunk_size):
                if self.stall_after is not None and start >= self.stall_after:
                    if self.error:
                        raise self.error
                    self.stalled.set()
                    await asyncio.Event().wait()
                chunk = tuple(ids[start : start + self.chunk_size])
                last = start + self.chunk_size >= len(ids)
                reason: Any = ("stop" if ids[-1] == END else "length") if last else None
                await asyncio.sleep(0)
                top = tuple(_alternatives(t)[: sampling.top_logprobs] for t in chunk) if sampling.top_logprobs else ()
                logprobs = tuple(-0.25 * (t % 7) for t in chunk)
                yield TokenChunk(chunk, logprobs, self.policy_version, reason, top_logprobs=top)
        finally:
            self.freed.set()

    async def load(self, checkpoint: Checkpoint) -> None:
        self.policy_version = checkpoint.step

    async def aclose(self) -> None:
        return


class Kept:
    """A recorder that keeps everything."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    def record(self, *exchanges: Exchange) -> None:
        self.exchanges += exchanges


@dataclass
class Setup:
    engine: LineEngine
    server: ModelServer
    client: AsyncOpenAI
    outside: list[Exchange]

    def agent(self, trajectory_id: str) -> Any:
        """The client of one trajectory; `create` with model and tools filled in."""
        client = self.client.with_options(base_url=self.server.open_trajectory(trajectory_id))
        return lambda messages, **options: client.chat.completions.create(
            model="m", messages=messages, **{"tools": TOOLS, **options}
        )


async def collected(stream: Any) -> dict[str, Any]:
    """A streamed answer joined as clients do, in the shape of a plain choice."""
    joined: dict[str, Any] = {"content": None, "calls": {}, "token_ids": [], "logprobs": [], "finish_reason": None}
    async for chunk in stream:
        if hasattr(chunk, "prompt_token_ids"):
            joined["prompt_ids"] = chunk.prompt_token_ids
        for choice in chunk.choices:
            delta = choice.delta
            if delta.content is not None:
                joined["content"] = (joined["content"] or "") + delta.content
            for call in delta.tool_calls or []:
                assert call.index not in joined["calls"], "each call has an index of its own"
                joined["calls"][call.index] = (call.id, call.function.name, call.function.arguments)
            joined["token_ids"] += getattr(choice, "token_ids", None) or []
            joined["logprobs"] += choice.logprobs.content if choice.logprobs else []
            joined["finish_reason"] = choice.finish_reason or joined["finish_reason"]
            joined["malformed"] = getattr(choice, "malformed_tool_calls", None)
            joined["exchange_id"] = getattr(choice, "exchange_id", None)
    return joined


def raw(setup: Setup) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=setup.server.url, timeout=20, verify=False)  # no certificates to load
