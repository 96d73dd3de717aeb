"""Makes transcripts fit what a judge model can read. Pure."""

from __future__ import annotations

import math

from art_ruler.inputs import Block, Message, Transcript

_TOKENS_PER_BLOCK = 9  # its line of structure
_HEAD_SHARE = 0.4  # how an attempt ends says more about it than how it began


def estimate_tokens(text: str) -> int:
    """An upper estimate of the tokens in `text`: one for three bytes of UTF-8.

    Tokenizers differ between judges; English prose has about four bytes per token, code and JSON about three.
    """
    num_bytes = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return math.ceil(num_bytes / 3)


def transcript_tokens(transcript: Transcript) -> int:
    """An upper estimate of the tokens that showing `transcript` takes."""
    return sum(_TOKENS_PER_BLOCK + estimate_tokens(block.text) for message in transcript for block in message.blocks)


def cut_to(transcript: Transcript, max_tokens: int) -> Transcript:
    """`transcript` itself if it fits, else one of at most `max_tokens` (by the estimate) without its middle.

    What is left out is named in a block of its own kind, which no text of the transcript can imitate. Beginning and
    end are kept; where even the marks of what is left would not fit, little more than that block remains.
    """
    if transcript_tokens(transcript) <= max_tokens:
        return transcript
    total = sum(len(block.text) for message in transcript for block in message.blocks)
    low, high = 0, total  # the most characters that can stay
    while low < high:
        keep = (low + high + 1) // 2
        if transcript_tokens(_without_middle(transcript, keep, total)) <= max_tokens:
            low = keep
        else:
            high = keep - 1
    return _without_middle(transcript, low, total)


def _without_middle(transcript: Transcript, keep: int, total: int) -> Transcript:
    """Keep the first and last characters, `keep` in all; blocks that lose everything go, and one block says so."""
    start = int(keep * _HEAD_SHARE)
    end = total - (keep - start)
    notice = Message((Block("cut", f"({end - start} characters left out here)"),))
    head: list[Message] = []
    tail: list[Message] = []
    at = 0
    for message in transcript:
        first: list[Block] = []
        last: list[Block] = []
        for block in message.blocks:
            before, after = block.text[: max(0, start - at)], block.text[max(0, end - at) :]
            at += len(block.text)
            if before:
                first.append(Block(block.kind, before))
            if after and at > end:
                last.append(Block(block.kind, after))
        if first:
            head.append(Message(tuple(first)))
        if last:
            tail.append(Message(tuple(last)))
    return (*head, notice, *tail)
