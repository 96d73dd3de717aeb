"""What every `Engine` promises, run on the embedded engine and on the scripted one."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from art_core.engines.embedded import EmbeddedEngine, EmbeddedEngineConfig
from art_core.errors import ConfigError, ContextLengthError, DataError, EngineClosedError
from art_core.protocols import Engine
from art_core.testing import ScriptedEngine, write_tiny_model
from art_core.types import Checkpoint, Sampling, TokenChunk

CONTEXT = 256
PROMPT = [1, 40, 50, 60]
Opener = Callable[[], AbstractAsyncContextManager[Engine]]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), max_context_tokens=CONTEXT)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """An adapter that changes the tiny model a lot, as step 3."""
    folder = tmp_path_factory.mktemp("adapter")
    generator = torch.Generator().manual_seed(5)
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    save_file(
        {
            f"{name}.lora_A.weight": torch.randn(4, 32, generator=generator),
            f"{name}.lora_B.weight": torch.randn(32, 4, generator=generator),
        },
        folder / "adapter_model.safetensors",
    )
    description = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(description))
    return Checkpoint(step=3, path=folder)


@pytest.fixture(params=["embedded", "scripted"])
def open_engine(request: pytest.FixtureRequest, model_folder: Path) -> Opener:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Engine]:
        engine: Engine
        if request.param == "embedded":
            engine = EmbeddedEngine(EmbeddedEngineConfig(model_folder=model_folder, dtype="float32", num_threads=1))
        else:
            engine = ScriptedEngine(
                lambda prompt, sampling: [(prompt[-1] + i) % 200 + 3 for i in range(1000)], max_context_tokens=CONTEXT
            )
        try:
            yield engine
        finally:
            await engine.aclose()

    return opened


async def collect(engine: Engine, prompt: list[int], sampling: Sampling) -> list[TokenChunk]:
    return [chunk async for chunk in engine.stream(prompt, sampling)]


def ids(chunks: list[TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def logprobs(chunks: list[TokenChunk]) -> list[float]:
    return [value for chunk in chunks for value in chunk.logprobs]


async def test_satisfies_the_protocol_and_starts_at_version_0(open_engine: Opener) -> None:
    async with open_engine() as engine:
        assert isinstance(engine, Engine)
        assert engine.policy_version == 0
        assert engine.max_context_tokens == CONTEXT


async def test_completion_has_max_tokens_and_one_finite_logprob_each(open_engine: Opener) -> None:
    async with open_engine() as engine:
        chunks = await collect(engine, PROMPT, Sampling(max_tokens=7, seed=1))
    assert len(ids(chunks)) == len(logprobs(chunks)) == 7
    assert all(math.isfinite(value) and value <= 0.0 for value in logprobs(chunks))


async def test_only_the_last_chunk_has_a_finish_reason(open_engine: Opener) -> None:
    async with open_engine() as engine:
        chunks = await collect(engine, PROMPT, Sampling(max_tokens=4, seed=1))
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == "length"


async def test_a_stop_token_that_was_drawn_ends_the_completion_and_is_part_of_it(open_engine: Opener) -> None:
    async with open_engine() as engine:
        free = ids(await collect(engine, PROMPT, Sampling(max_tokens=6, seed=1)))
        stop = free[2]
        stopped = await collect(engine, PROMPT, Sampling(max_tokens=6, seed=1, stop_token_ids=(stop,)))
    assert ids(stopped) == free[: free.index(stop) + 1]
    assert stopped[-1].finish_reason == "stop"


async def test_the_same_seed_gives_the_same_completion(open_engine: Opener) -> None:
    async with open_engine() as engine:
        first = await collect(engine, PROMPT, Sampling(max_tokens=8, seed=-3))
        assert await collect(engine, PROMPT, Sampling(max_tokens=8, seed=-3)) == first


async def test_a_prompt_that_leaves_too_little_context_is_refused_with_the_numbers(open_engine: Opener) -> None:
    async with open_engine() as engine:
        assert len(ids(await collect(engine, [5] * 246, Sampling(max_tokens=10)))) == 10
        with pytest.raises(ContextLengthError, match=r"247 tokens .* 10 .*256"):
            await collect(engine, [5] * 247, Sampling(max_tokens=10))
        with pytest.raises(ContextLengthError, match=r"300 tokens.*256"):
            await collect(engine, [5] * 300, Sampling(max_tokens=1))


async def test_an_empty_prompt_is_refused(open_engine: Opener) -> None:
    async with open_engine() as engine:
        with pytest.raises(DataError, match="prompt is empty"):
            await collect(engine, [], Sampling(max_tokens=1))


async def test_load_changes_the_version_that_later_chunks_carry(open_engine: Opener, checkpoint: Checkpoint) -> None:
    async with open_engine() as engine:
        before = await collect(engine, PROMPT, Sampling(max_tokens=2, seed=0))
        await engine.load(checkpoint)
        after = await collect(engine, PROMPT, Sampling(max_tokens=2, seed=0))
        assert engine.policy_version == 3
    assert {chunk.policy_version for chunk in before} == {0}
    assert {chunk.policy_version for chunk in after} == {3}


async def test_requests_in_flight_finish_on_the_version_they_began_with(
    open_engine: Opener, checkpoint: Checkpoint
) -> None:
    async with open_engine() as engine:
        stream = engine.stream(PROMPT, Sampling(max_tokens=30, seed=0))
        chunks = [await anext(stream)]
        loading = asyncio.create_task(engine.load(checkpoint))
        await asyncio.sleep(0)
        later = asyncio.create_task(collect(engine, PROMPT, Sampling(max_tokens=3, seed=0)))
        chunks += [chunk async for chunk in stream]
        await loading
        assert {chunk.policy_version for chunk in chunks} == {0}
        assert len(ids(chunks)) == 30
        assert {chunk.policy_version for chunk in await later} == {3}


async def test_closing_the_iterator_frees_the_place(open_engine: Opener, checkpoint: Checkpoint) -> None:
    async with open_engine() as engine:
        stream = engine.stream(PROMPT, Sampling(max_tokens=250, seed=0))
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        # A load waits for everything in flight: it returns at once only if nothing is.
        await asyncio.wait_for(engine.load(checkpoint), 5)
        assert engine.num_active == 0  # type: ignore[attr-defined]


async def test_cancelling_the_consumer_frees_the_place(open_engine: Opener) -> None:
    async with open_engine() as engine:
        started = asyncio.Event()

        async def consume() -> None:
            async for _ in engine.stream(PROMPT, Sampling(max_tokens=250, seed=0)):
                started.set()

        task = asyncio.create_task(consume())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.num_active == 0  # type: ignore[attr-defined]


async def test_closing_fails_what_is_in_flight_and_all_that_follows(
    open_engine: Opener, checkpoint: Checkpoint
) -> None:
    async with open_engine() as engine:
        stream = engine.stream(PROMPT, Sampling(max_tokens=250, seed=0))
        await anext(stream)
        await engine.aclose()
        with pytest.raises(EngineClosedError):
            [chunk async for chunk in stream]
        with pytest.raises(EngineClosedError, match="closed"):
            await collect(engine, PROMPT, Sampling(max_tokens=1))
        with pytest.raises(EngineClosedError, match="closed"):
            await engine.load(checkpoint)
        await engine.aclose()


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"temperature": 0.0}])
async def test_alternatives_are_sorted_finite_a_part_of_one_and_agree_with_the_logprob(
    open_engine: Opener, options: dict[str, float]
) -> None:
    async with open_engine() as engine:
        plain = await collect(engine, PROMPT, Sampling(max_tokens=8, seed=1, **options))  # type: ignore[arg-type]
        sampling = Sampling(max_tokens=8, seed=1, top_logprobs=5, **options)  # type: ignore[arg-type]
        chunks = await collect(engine, PROMPT, sampling)
    assert (ids(chunks), logprobs(chunks)) == (ids(plain), logprobs(plain))
    assert all(chunk.top_logprobs == () for chunk in plain)
    assert all(len(chunk.top_logprobs) == len(chunk.token_ids) for chunk in chunks)
    for chunk in chunks:
        for token, logprob, top in zip(chunk.token_ids, chunk.logprobs, chunk.top_logprobs, strict=True):
            values = [value for _, value in top]
            assert len(top) == len(dict(top)) == 5
            assert values == sorted(values, reverse=True)
            assert all(math.isfinite(value) and value <= 0.0 for value in values)
            assert sum(math.exp(value) for value in values) < 1.0 + 1e-6
            assert dict(top)[token] == logprob if token in dict(top) else values[-1] >= logprob


async def test_top_logprobs_stay_finite_where_top_k_leaves_one_token(open_engine: Opener) -> None:
    async with open_engine() as engine:
        chunks = await collect(engine, PROMPT, Sampling(max_tokens=3, seed=1, top_k=1, top_logprobs=5))
    values = [value for chunk in chunks for top in chunk.top_logprobs for _, value in top]
    assert len(values) >= 3
    assert all(math.isfinite(value) for value in values)


GRAMMAR = 'start: "a" /[xy]{2}/ "b"'


async def test_no_token_is_forced_without_a_grammar(open_engine: Opener) -> None:
    async with open_engine() as engine:
        chunks = await collect(engine, PROMPT, Sampling(max_tokens=5, seed=1))
    assert not any(forced for chunk in chunks for forced in chunk.forced)


@pytest.fixture
def open_obedient(request: pytest.FixtureRequest, open_engine: Opener) -> Opener:
    """Engines that follow a grammar: all but the scripted one."""
    if request.node.callspec.params["open_engine"] == "scripted":
        pytest.skip("a script says what is drawn")
    return open_engine


async def test_a_grammar_is_followed_to_its_end_and_marks_what_it_forced(open_obedient: Opener) -> None:
    async with open_obedient() as engine:
        chunks = await collect(
            engine, PROMPT, Sampling(max_tokens=20, seed=1, grammar=GRAMMAR, stop_token_ids=(2,), top_logprobs=2)
        )
    forced = [mark for chunk in chunks for mark in chunk.forced]
    assert forced == [True, False, False, True, True]
    letters = [byte_id(letter) for letter in "axyb"]
    assert [ids(chunks)[0], *ids(chunks)[3:]] == [letters[0], letters[3], 2]
    assert set(ids(chunks)[1:3]) <= set(letters[1:3])
    assert chunks[-1].finish_reason == "stop"
    assert all(math.isfinite(value) and value < 0.0 for value in logprobs(chunks))


async def test_a_grammar_that_is_not_finished_at_max_tokens_ends_with_length(open_obedient: Opener) -> None:
    async with open_obedient() as engine:
        chunks = await collect(engine, PROMPT, Sampling(max_tokens=4, seed=1, grammar=GRAMMAR, stop_token_ids=(2,)))
    assert len(ids(chunks)) == 4
    assert chunks[-1].finish_reason == "length"


async def test_a_grammar_that_cannot_be_used_is_refused_before_the_first_chunk(open_obedient: Opener) -> None:
    async with open_obedient() as engine:
        with pytest.raises(ConfigError, match=r'unknown name: "nothing"'):
            await collect(engine, PROMPT, Sampling(max_tokens=4, grammar="start: nothing", stop_token_ids=(2,)))
        with pytest.raises(ConfigError, match=r"wanted at least one in `stop_token_ids`"):
            await collect(engine, PROMPT, Sampling(max_tokens=4, grammar=GRAMMAR))
        assert engine.num_active == 0  # type: ignore[attr-defined]


def byte_id(letter: str) -> int:
    """Id of a printable ASCII letter in the tiny model's tokenizer: `!` is 3."""
    return 3 + ord(letter) - ord("!")
