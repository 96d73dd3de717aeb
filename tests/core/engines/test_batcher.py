"""Continuous batching on a tiny model: bits that do not depend on load, and what is computed how often."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art_core.engines import attention
from art_core.engines.attention import PIECE
from art_core.engines.batcher import PROMPT_ROWS, Batcher, Request, Sampled
from art_core.engines.cache import PrefixCache, SlotStore
from art_core.engines.invariance import attention_rows_agree, linear_rows_agree, requests_agree
from art_core.engines.served import ServedModel
from art_core.testing import write_tiny_model
from art_core.types import Sampling

Result = list[tuple[int, float]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    torch.set_num_threads(1)
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    return ServedModel(folder, dtype="float32", max_context_tokens=None)


def new_batcher(served: ServedModel, *, cache_bytes: int = 1 << 26, max_running: int = 32) -> Batcher:
    cache = PrefixCache(cache_bytes)
    return Batcher(served.model, served.new_store(max_running), cache, device=served.device, max_running=max_running)


def text(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 259, size=length)


def request(prompt: np.ndarray, *, seed: int = 0, max_tokens: int = 4, **sampling: float) -> Request:
    return Request(prompt, Sampling(max_tokens=max_tokens, **sampling), seed)  # type: ignore[arg-type]


def finish(batcher: Batcher, results: dict[Request, Result]) -> None:
    while not batcher.idle:
        step(batcher, results)


def step(batcher: Batcher, results: dict[Request, Result]) -> None:
    for event in batcher.step():
        assert isinstance(event, Sampled)
        results.setdefault(event.request, []).append((event.token, event.logprob))


def run(batcher: Batcher, *requests: Request) -> list[Result]:
    results: dict[Request, Result] = {}
    batcher.waiting.extend(requests)
    finish(batcher, results)
    return [results[request] for request in requests]


# Lengths around the borders of pieces, so that every kind of split occurs; all texts begin alike.
LENGTHS = (1, 2, 63, 64, 65, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 60, PROMPT_ROWS + 70)
BASE = text(2 * PIECE + 20, seed=1)
OPTIONS: list[dict[str, float]] = [{}, {"temperature": 0.0}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 7}]


def family(index: int) -> Request:
    """Request number `index` of a fixed family: prompts that share prefixes of different lengths."""
    length = LENGTHS[index % len(LENGTHS)]
    shared = BASE[: max(0, length - 1 - index % 7)]
    prompt = np.concatenate([shared, text(length - shared.size, seed=index)])
    options = OPTIONS[index % len(OPTIONS)]
    return request(prompt, seed=index, max_tokens=3 + index % 9, **options)


NUM_FAMILY = 22


@pytest.fixture(scope="module")
def alone(served: ServedModel) -> list[Result]:
    """Each request of the family by itself, with nothing cached."""
    return [run(new_batcher(served, cache_bytes=0), family(index))[0] for index in range(NUM_FAMILY)]


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_results_do_not_depend_on_load_order_or_cache(
    served: ServedModel, alone: list[Result], data: st.DataObject
) -> None:
    batcher = new_batcher(
        served,
        cache_bytes=data.draw(st.sampled_from([0, 60 * PIECE * 256, 1 << 26]), label="cache bytes"),
        max_running=data.draw(st.sampled_from([1, 3, 32]), label="max running"),
    )
    order = data.draw(st.permutations(range(NUM_FAMILY)), label="order")
    results: dict[Request, Result] = {}
    by_index: dict[int, list[Request]] = {index: [] for index in range(NUM_FAMILY)}
    doomed: list[Request] = []
    for index in [*order, *order[:6]]:  # the last six a second time, when much is cached
        by_index[index].append(family(index))
        batcher.waiting.append(by_index[index][-1])
        if data.draw(st.integers(0, 5)) == 0:  # somebody who hangs up
            doomed.append(request(np.concatenate([BASE[:200], text(5, seed=index)]), max_tokens=100))
            batcher.waiting.append(doomed[-1])
        for _ in range(data.draw(st.integers(0, 2))):
            step(batcher, results)
        hang_up = data.draw(st.booleans())
        if doomed and hang_up:
            batcher.cancel(doomed.pop())
    for extra in doomed:
        batcher.cancel(extra)
    finish(batcher, results)
    for index, requests in by_index.items():
        for member in requests:
            assert results[member] == alone[index]


def test_a_following_turn_gives_the_same_bits_from_decoded_and_from_recomputed_states(served: ServedModel) -> None:
    batcher = new_batcher(served)
    first = request(BASE, seed=3, max_tokens=40)
    [answer] = run(batcher, first)
    following = np.concatenate([BASE, [token for token, _ in answer], text(30, seed=8)]).astype(np.int64)
    warm = run(batcher, request(following, seed=4))
    # All but the last sampled token, whose keys and values nobody has needed yet.
    assert batcher.counts.prompt_tokens_reused == BASE.size + 39
    assert warm == run(new_batcher(served, cache_bytes=0), request(following, seed=4))


def test_a_group_with_one_prompt_computes_it_once(served: ServedModel) -> None:
    batcher = new_batcher(served)
    prompt = text(300, seed=2)
    run(batcher, *[request(prompt, seed=seed) for seed in range(8)])
    # Only the last position is computed by each, for its logits.
    assert batcher.counts.prompt_tokens_reused == 7 * 299


def test_groups_that_share_a_system_prompt_compute_it_once(served: ServedModel) -> None:
    batcher = new_batcher(served)
    prompts = [np.concatenate([BASE, text(40, seed=group)]) for group in range(3)]
    run(batcher, *[request(prompts[i % 3], seed=i) for i in range(12)])
    total = 12 * prompts[0].size
    assert total - batcher.counts.prompt_tokens_reused == BASE.size + 3 * 40 + 9


def test_members_of_a_large_group_read_their_prefix_together(served: ServedModel) -> None:
    batcher = new_batcher(served)
    batcher.waiting.extend(request(BASE, seed=seed, max_tokens=10) for seed in range(6))
    batcher.step()
    batcher.step()
    batcher.step()
    segments = {id(member.segment) for member in batcher.running if member.segment is not None}
    assert len(segments) == 1
    assert {member.prefix_length for member in batcher.running} == {0, 2 * PIECE}


def test_no_more_requests_run_than_there_are_slots(served: ServedModel) -> None:
    batcher = new_batcher(served, max_running=2)
    batcher.waiting.extend(request(text(5, seed=i), seed=i) for i in range(5))
    most = 0
    while not batcher.idle:
        batcher.step()
        most = max(most, len(batcher.running))
    assert most == 2


def test_a_prompt_is_computed_in_bounded_passes_while_others_decode(served: ServedModel) -> None:
    batcher = new_batcher(served)
    short = request(text(5, seed=0), max_tokens=50)
    batcher.waiting.append(short)
    batcher.step()
    batcher.waiting.append(request(text(3 * PROMPT_ROWS, seed=1)))
    before = short.num_sampled
    for _ in range(3):
        batcher.step()
    assert short.num_sampled == before + 3


def test_cancelling_a_leader_lets_its_followers_go_on(served: ServedModel) -> None:
    batcher = new_batcher(served)
    prompt = text(2 * PROMPT_ROWS, seed=5)
    leader, follower = request(prompt, seed=1), request(prompt, seed=2)
    batcher.waiting.extend([leader, follower])
    batcher.step()
    assert (batcher.running, batcher.waiting) == ([leader], [follower])
    batcher.cancel(leader)
    results: dict[Request, Result] = {}
    finish(batcher, results)
    assert [results[follower]] == run(new_batcher(served), request(prompt, seed=2))


def test_clear_forgets_requests_and_everything_computed(served: ServedModel) -> None:
    batcher = new_batcher(served)
    batcher.waiting.extend(request(BASE, seed=seed) for seed in range(3))
    batcher.step()
    batcher.clear()
    assert batcher.idle
    assert batcher.cache.size_bytes == 0
    assert batcher.step() == []


def test_the_check_at_start_holds_here(served: ServedModel) -> None:
    assert linear_rows_agree(served.model)
    assert attention_rows_agree(served.new_store(3), served.facts.num_query_heads)
    assert requests_agree(new_batcher(served), 259)


@pytest.mark.parametrize(("num_heads", "num_query_heads"), [(3, 9), (2, 2), (1, 8), (2, 10)])
def test_attention_agrees_for_every_ratio_of_query_to_key_heads(num_heads: int, num_query_heads: int) -> None:
    store = SlotStore(
        num_layers=1, num_heads=num_heads, head_dim=64, max_slots=3, max_length=256, device=torch.device("cpu")
    )
    assert attention_rows_agree(store, num_query_heads)


def test_too_few_query_rows_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MIN_QUERY_ROWS", 1)
    store = SlotStore(num_layers=1, num_heads=3, head_dim=64, max_slots=3, max_length=256, device=torch.device("cpu"))
    if torch.equal(*_one_and_four_rows()):
        pytest.skip("this machine multiplies one row as it multiplies four")
    assert not attention_rows_agree(store, 3)


def _one_and_four_rows() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows, keys = torch.randn(3, 4, 64, generator=generator), torch.randn(3, 64, 128, generator=generator)
    return torch.bmm(rows[:, :1], keys), torch.bmm(rows, keys)[:, :1]


def test_freed_slots_change_nothing_but_memory(served: ServedModel, alone: list[Result]) -> None:
    store = served.new_store(3)
    batcher = Batcher(served.model, store, PrefixCache(1 << 26), device=served.device, max_running=32)
    before = run(batcher, *(family(index) for index in range(6)))
    assert store.keys[0].numel() > 0
    batcher.free_slots()
    assert store.keys[0].numel() == store.values[-1].numel() == 0
    assert run(batcher, *(family(index) for index in range(6))) == before == alone[:6]
