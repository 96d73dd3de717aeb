"""Key/value storage and the prefix tree, with numbers in place of attention states."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from art_core.engines.attention import PIECE
from art_core.engines.cache import PrefixCache, Segments, SlotStore, Tokens, common_length

BYTES_PER_TOKEN = 8


def tokens(*values: int) -> Tokens:
    return np.array(values, dtype=np.int64)


def states(ids: Tokens) -> Tensor:
    """Stand-ins for the keys and values of `ids`: each depends on all tokens up to it, like real ones."""
    sums = torch.tensor(np.cumsum(ids * 31 + 7), dtype=torch.float32)
    return torch.stack([sums, -sums]).view(2, 1, -1, 1)  # one layer, one head, head size 1


def remember(cache: PrefixCache, ids: Tokens) -> None:
    for start, stop in cache.missing(ids):
        cache.insert(ids[:stop], start, states(ids)[:, :, start:stop].clone())


def recall(cache: PrefixCache, ids: Tokens) -> Tensor:
    match = cache.match(ids)
    parts = [*match.blocks, *([match.tail[:, :, : match.tail_length]] if match.tail is not None else [])]
    return torch.cat(parts, 2) if parts else torch.zeros(2, 1, 0, 1)


def test_common_length() -> None:
    assert common_length(tokens(1, 2, 3), tokens(1, 2, 4)) == 2
    assert common_length(tokens(1, 2), tokens(1, 2, 4)) == 2
    assert common_length(tokens(), tokens(1)) == 0


def test_a_prefix_is_found_token_by_token() -> None:
    cache = PrefixCache(1 << 20)
    text = np.arange(3 * PIECE + 10)
    remember(cache, text)
    for length in (1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 10):
        other = np.concatenate([text[:length], tokens(-1, -1)])
        assert cache.match(other).length == length
        assert torch.equal(recall(cache, other), states(text)[:, :, :length])


def test_texts_that_share_blocks_store_them_once() -> None:
    cache = PrefixCache(1 << 20)
    shared = np.arange(2 * PIECE)
    for end in (5, 6, 7):
        remember(cache, np.concatenate([shared, tokens(end, end, end)]))
    assert cache.size_bytes == (2 * PIECE + 3 * 3) * BYTES_PER_TOKEN


def test_a_longer_tail_replaces_the_shorter_one_and_a_shorter_one_adds_nothing() -> None:
    cache = PrefixCache(1 << 20)
    remember(cache, tokens(1, 2, 3))
    remember(cache, tokens(1, 2, 3, 4, 5))
    remember(cache, tokens(1, 2))
    assert cache.size_bytes == 5 * BYTES_PER_TOKEN


def test_what_was_used_longest_ago_goes_first() -> None:
    cache = PrefixCache(3 * PIECE * BYTES_PER_TOKEN)
    first, second, third = (np.full(PIECE, value) for value in (1, 2, 3))
    for text in (first, second, third):
        remember(cache, text)
    cache.match(first)
    remember(cache, np.full(PIECE, 4))
    assert [cache.match(text).length for text in (first, second, third)] == [PIECE, 0, PIECE]


def test_a_block_is_never_dropped_before_those_that_continue_it() -> None:
    cache = PrefixCache(3 * PIECE * BYTES_PER_TOKEN)
    long = np.arange(3 * PIECE)
    remember(cache, long)
    remember(cache, np.full(PIECE, -5))
    assert cache.match(long).length == 2 * PIECE


def test_a_cache_of_no_bytes_stores_nothing() -> None:
    cache = PrefixCache(0)
    remember(cache, tokens(1, 2, 3))
    assert not cache.enabled
    assert cache.match(tokens(1, 2, 3)).length == 0


def test_clear_forgets_everything() -> None:
    cache = PrefixCache(1 << 20)
    remember(cache, np.arange(2 * PIECE))
    cache.clear()
    assert (cache.size_bytes, cache.match(np.arange(2 * PIECE)).length) == (0, 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 2 * PIECE + 9)), max_size=12))
def test_what_is_found_is_what_belongs_there_and_the_size_stays_bounded(texts: list[tuple[int, int, int]]) -> None:
    cache = PrefixCache(5 * PIECE * BYTES_PER_TOKEN)
    for kind, branch, length in texts:
        ids = np.full(length, kind)
        ids[length // 2 :] = branch
        match = cache.match(ids)
        assert torch.equal(recall(cache, ids), states(ids)[:, :, : match.length])
        remember(cache, ids)
        assert cache.size_bytes <= cache.max_bytes
        assert cache.match(ids).length == length


def store() -> SlotStore:
    return SlotStore(num_layers=2, num_heads=1, head_dim=3, max_slots=5, max_length=700, device=torch.device("cpu"))


def test_storage_grows_in_leaps_but_never_beyond_its_bounds() -> None:
    made = store()
    for num_slots in range(1, 6):
        made.ensure(num_slots, PIECE)
        assert num_slots <= made.keys[0].shape[0] <= 5
    lengths = []
    for length in range(PIECE, 700 + PIECE, PIECE):
        made.ensure(5, min(length, 700))
        lengths.append(made.keys[0].shape[2] // PIECE)
    assert lengths == [1, 2, 3, 5, 5, 6]  # 6 pieces hold 700 positions; half as many again as 5 would take 8
    made.ensure(6, 9 * PIECE)
    assert (made.keys[0].shape[0], made.keys[0].shape[2]) == (6, 9 * PIECE)  # what is needed is there all the same


def test_growing_keeps_what_is_stored() -> None:
    slots = store()
    slots.ensure(1, 5)
    block = torch.randn(4, 1, 5, 3)
    slots.write(0, 0, block)
    slots.ensure(9, PIECE + 1)
    assert torch.equal(slots.read(0, 0, 5), block)
    assert slots.keys[0].shape[0] >= 9
    assert slots.keys[0].shape[2] % PIECE == 0


def test_moving_a_slot_takes_its_columns_along() -> None:
    slots = store()
    slots.ensure(3, 8)
    block = torch.randn(4, 1, 8, 3)
    slots.write(2, 0, block)
    slots.move(2, 0, 8)
    assert torch.equal(slots.read(0, 0, 8), block)


def test_a_segment_is_assembled_once_and_freed_with_its_last_reader() -> None:
    segments = Segments()
    ids = np.arange(PIECE)
    first = segments.acquire(ids, [states(ids)])
    assert segments.acquire(ids, [states(ids)]) is first
    segments.release(ids)
    assert segments.acquire(ids, [states(ids)]) is first
    segments.release(ids)
    segments.release(ids)
    assert segments.acquire(ids, [states(ids)]) is not first
