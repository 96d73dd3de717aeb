"""The embedded engine against a plain transformers forward pass, and what happens around its worker thread."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from art_core.engines import worker as worker_module
from art_core.engines.batcher import Batcher
from art_core.engines.embedded import EmbeddedEngine, EmbeddedEngineConfig
from art_core.errors import (
    AdapterMismatchError,
    ConfigError,
    ContextLengthError,
    DataError,
    EngineClosedError,
    ModelNotFoundError,
)
from art_core.testing import write_tiny_model
from art_core.types import Checkpoint, Sampling, TokenChunk
from art_core.weights.loading import load_causal_lm
from art_core.weights.lora import merged_weight, read_adapter

LENGTHS = (1, 5, 63, 64, 65, 127, 128, 129, 300, 700)
TOLERANCE = 1e-4


def prompt_of(length: int) -> list[int]:
    return torch.randint(3, 259, (length,), generator=torch.Generator().manual_seed(length)).tolist()


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def reference(model_folder: Path) -> Any:
    return load_causal_lm(model_folder, dtype=torch.float32, device=torch.device("cpu"))


def write_adapter(folder: Path, *, targets: tuple[str, ...], seed: int = 0, scale: float = 0.3) -> Path:
    """Random factors, none of them zero, in PEFT's format for the tiny model's two layers."""
    shapes = {"q_proj": (32, 32), "k_proj": (16, 32), "v_proj": (16, 32), "down_proj": (32, 64)}
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(2):
        for target in targets:
            parent = "mlp" if target == "down_proj" else "self_attn"
            name = f"base_model.model.model.layers.{layer}.{parent}.{target}"
            rows, columns = shapes[target]
            tensors[f"{name}.lora_A.weight"] = torch.randn(4, columns, generator=generator) * scale
            tensors[f"{name}.lora_B.weight"] = torch.randn(rows, 4, generator=generator) * scale
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    description = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": list(targets)}
    (folder / "adapter_config.json").write_text(json.dumps(description))
    return folder


def merge(model: Any, adapter_folder: Path) -> None:
    adapter = read_adapter(adapter_folder)
    for name, (a, b) in adapter.factors.items():
        weight = model.get_submodule(name).weight.data
        weight.copy_(merged_weight(weight.clone(), a, b, adapter.config.scale))


def open_engine(folder: Path, **options: Any) -> EmbeddedEngine:
    return EmbeddedEngine(EmbeddedEngineConfig(model_folder=folder, dtype="float32", num_threads=1, **options))


@pytest.fixture
async def engine(model_folder: Path) -> AsyncIterator[EmbeddedEngine]:
    engine = open_engine(model_folder)
    yield engine
    await engine.aclose()


async def complete(engine: EmbeddedEngine, prompt: list[int], sampling: Sampling) -> list[TokenChunk]:
    return [chunk async for chunk in engine.stream(prompt, sampling)]


async def sample(engine: EmbeddedEngine, prompt: list[int], sampling: Sampling) -> tuple[list[int], list[float]]:
    chunks = await complete(engine, prompt, sampling)
    return [chunk.token_ids[0] for chunk in chunks], [chunk.logprobs[0] for chunk in chunks]


@torch.no_grad()
def expected_logprobs(model: Any, prompt: list[int], completion: list[int], temperature: float = 1.0) -> torch.Tensor:
    logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits.double() / temperature, -1)
    return logprobs.gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1)


@torch.no_grad()
def greedy(model: Any, prompt: list[int], max_tokens: int) -> list[int]:
    ids = list(prompt)
    for _ in range(max_tokens):
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


async def check_against(model: Any, engine: EmbeddedEngine) -> None:
    """Greedy ids and sampled logprobs of prompts of many lengths, all in flight together, equal those of `model`."""
    prompts = [prompt_of(length) for length in LENGTHS]
    results = await asyncio.gather(
        *[sample(engine, prompt, Sampling(max_tokens=6, temperature=0)) for prompt in prompts],
        *[sample(engine, prompt, Sampling(max_tokens=6, temperature=0.8, seed=1)) for prompt in prompts],
    )
    for prompt, (ids, logprobs) in zip(prompts, results[: len(prompts)], strict=True):
        assert ids == greedy(model, prompt, 6)
        assert logprobs == pytest.approx(expected_logprobs(model, prompt, ids).tolist(), abs=TOLERANCE)
    for prompt, (ids, logprobs) in zip(prompts, results[len(prompts) :], strict=True):
        assert logprobs == pytest.approx(expected_logprobs(model, prompt, ids, 0.8).tolist(), abs=TOLERANCE)


@pytest.mark.slow
async def test_agrees_with_a_plain_forward_pass(engine: EmbeddedEngine, reference: Any) -> None:
    await check_against(reference, engine)


@pytest.mark.slow
async def test_agrees_with_a_plain_forward_pass_of_each_adapter_in_turn(
    engine: EmbeddedEngine, model_folder: Path, tmp_path: Path
) -> None:
    # The second adapter changes other layers: those of the first must be back at their base weights.
    for step, targets in enumerate([("q_proj", "down_proj"), ("k_proj", "v_proj")], start=1):
        folder = write_adapter(tmp_path / str(step), targets=targets, seed=step)
        model = load_causal_lm(model_folder, dtype=torch.float32, device=torch.device("cpu"))
        merge(model, folder)
        await engine.load(Checkpoint(step, folder))
        assert engine.policy_version == step
        await check_against(model, engine)


async def test_nothing_computed_before_a_load_is_used_after_it(engine: EmbeddedEngine, tmp_path: Path) -> None:
    prompt = prompt_of(300)
    before = await sample(engine, prompt, Sampling(max_tokens=5, seed=0))
    folder = write_adapter(tmp_path / "a", targets=("q_proj",))
    await engine.load(Checkpoint(1, folder))
    reused = engine.counts.prompt_tokens_reused
    after = await sample(engine, prompt, Sampling(max_tokens=5, seed=0))
    assert engine.counts.prompt_tokens_reused == reused
    assert after != before


SMALL = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
}


def write_model(folder: Path, config: Any) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        transformers.Qwen2Config(**SMALL),
        transformers.Qwen3Config(**SMALL, head_dim=24),
        transformers.GraniteConfig(**SMALL, logits_scaling=2.0, attention_multiplier=0.3),
    ],
    ids=lambda config: config.model_type,
)
async def test_agrees_with_a_plain_forward_pass_of_other_architectures(tmp_path: Path, config: Any) -> None:
    folder = write_model(tmp_path, config)
    engine = open_engine(folder)
    try:
        model = load_causal_lm(folder, dtype=torch.float32, device=torch.device("cpu"))
        await check_against(model, engine)
    finally:
        await engine.aclose()


async def test_a_sliding_window_limits_the_context_to_what_full_attention_computes_alike(tmp_path: Path) -> None:
    folder = write_model(tmp_path, transformers.MistralConfig(**SMALL, sliding_window=100))
    with pytest.raises(ConfigError, match=r"200.*at most 100"):
        open_engine(folder, max_context_tokens=200)
    engine = open_engine(folder)
    assert engine.max_context_tokens == 100
    model = load_causal_lm(folder, dtype=torch.float32, device=torch.device("cpu"))
    ids, logprobs = await sample(engine, prompt_of(90), Sampling(max_tokens=10, seed=0))
    await engine.aclose()
    assert logprobs == pytest.approx(expected_logprobs(model, prompt_of(90), ids).tolist(), abs=TOLERANCE)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (transformers.Gemma2Config(**SMALL, head_dim=8), "softcap"),
        (transformers.Qwen3Config(**SMALL, rope_parameters={"rope_type": "dynamic", "factor": 2.0}), "dynamic"),
    ],
    ids=["softcap", "dynamic positions"],
)
def test_architectures_that_are_computed_otherwise_are_refused(tmp_path: Path, config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_engine(write_model(tmp_path, config))


async def test_bfloat16_weights_are_served_with_float32_attention(model_folder: Path, reference: Any) -> None:
    engine = EmbeddedEngine(EmbeddedEngineConfig(model_folder=model_folder, dtype="bfloat16", num_threads=1))
    ids, logprobs = await sample(engine, prompt_of(140), Sampling(max_tokens=30, seed=2))
    await engine.aclose()
    # A weight has 8 significant bits: a few hundredths on logprobs of this model.
    expected = expected_logprobs(reference, prompt_of(140), ids).tolist()
    assert logprobs == pytest.approx(expected, abs=0.25)
    assert sum(abs(a - b) for a, b in zip(logprobs, expected, strict=True)) / 30 < 0.06


async def test_an_output_layer_that_is_tied_to_the_embedding_is_adapted_alone(
    engine: EmbeddedEngine, model_folder: Path, tmp_path: Path
) -> None:
    a, b = torch.randn(2, 32), torch.randn(259, 2) * 0.3
    save_file(
        {"base_model.model.lm_head.lora_A.weight": a, "base_model.model.lm_head.lora_B.weight": b},
        tmp_path / "adapter_model.safetensors",
    )
    description = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["lm_head"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(description))
    model = load_causal_lm(model_folder, dtype=torch.float32, device=torch.device("cpu"))
    assert isinstance(model.lm_head, torch.nn.Linear)
    model.lm_head.weight = torch.nn.Parameter(merged_weight(model.lm_head.weight.data, a, b, 1.0))
    await engine.load(Checkpoint(1, tmp_path))
    await check_against(model, engine)


def broken_adapter(tmp_path: Path, how: str) -> Path:
    folder = write_adapter(tmp_path / how, targets=("q_proj",))
    file = folder / "adapter_model.safetensors"
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    if how == "missing":
        return tmp_path / "nowhere"
    if how == "no rank":
        (folder / "adapter_config.json").write_text(json.dumps({"lora_alpha": 8, "target_modules": ["q_proj"]}))
    elif how == "damaged":
        file.write_bytes(file.read_bytes()[:100])
    elif how == "shape":
        save_file({f"{name}.lora_A.weight": torch.ones(4, 48), f"{name}.lora_B.weight": torch.ones(48, 4)}, file)
    elif how == "module":
        other = name.replace("q_proj", "w_proj")
        save_file({f"{other}.lora_A.weight": torch.ones(4, 32), f"{other}.lora_B.weight": torch.ones(32, 4)}, file)
    elif how == "nan":
        bad = torch.full((4, 32), float("nan"))
        save_file({f"{name}.lora_A.weight": bad, f"{name}.lora_B.weight": torch.ones(32, 4)}, file)
    return folder


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "nowhere"),
        ("no rank", "adapter_config.json"),
        ("damaged", "no readable adapter"),
        ("shape", r"q_proj.*\(48, 48\).*\(32, 32\)"),
        ("module", "w_proj"),
        ("nan", "NaN"),
    ],
)
async def test_an_adapter_that_does_not_fit_is_refused_and_the_old_weights_stay(
    engine: EmbeddedEngine, tmp_path: Path, how: str, message: str
) -> None:
    await engine.load(Checkpoint(1, write_adapter(tmp_path / "good", targets=("q_proj",), seed=9)))
    before = await sample(engine, prompt_of(20), Sampling(max_tokens=5, seed=0))
    with pytest.raises(AdapterMismatchError, match=message):
        await engine.load(Checkpoint(2, broken_adapter(tmp_path, how)))
    assert engine.policy_version == 1
    assert await sample(engine, prompt_of(20), Sampling(max_tokens=5, seed=0)) == before


async def test_sampling_defaults_in_the_model_folder_play_no_part(
    model_folder: Path, reference: Any, tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path / "m")
    defaults = {"do_sample": True, "top_k": 2, "top_p": 0.1, "repetition_penalty": 3.0, "temperature": 0.2}
    (folder / "generation_config.json").write_text(json.dumps(defaults))
    engine = open_engine(folder)
    try:
        ids, logprobs = await sample(engine, prompt_of(30), Sampling(max_tokens=60, seed=5))
    finally:
        await engine.aclose()
    assert logprobs == pytest.approx(expected_logprobs(reference, prompt_of(30), ids).tolist(), abs=TOLERANCE)
    assert len(set(ids)) > 10


async def test_without_a_seed_completions_differ(engine: EmbeddedEngine) -> None:
    first, second = [await sample(engine, prompt_of(9), Sampling(max_tokens=12)) for _ in range(2)]
    assert first != second


async def test_a_seed_is_not_disturbed_by_the_global_random_state(engine: EmbeddedEngine) -> None:
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        results.append(await sample(engine, prompt_of(9), Sampling(max_tokens=12, seed=77)))
    assert results[0] == results[1]


async def test_batch_invariance_holds_here_and_is_stated(engine: EmbeddedEngine) -> None:
    assert engine.batch_invariant is True


async def test_a_machine_that_is_not_batch_invariant_is_reported(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_module, "linear_rows_agree", lambda model: False)
    with caplog.at_level(logging.WARNING, logger="art_core"):
        engine = open_engine(model_folder)
    await engine.aclose()
    assert engine.batch_invariant is False
    assert "depend on load" in caplog.text


async def test_prompts_are_never_cut_off(engine: EmbeddedEngine) -> None:
    assert engine.max_context_tokens == 2048
    with pytest.raises(ContextLengthError, match=r"2050 tokens.*2048.*never cut off"):
        await complete(engine, prompt_of(2050), Sampling(max_tokens=1))
    with pytest.raises(ContextLengthError, match=r"2040 tokens .* 9 .*2049.*lower max_tokens to 8"):
        await complete(engine, prompt_of(2040), Sampling(max_tokens=9))
    assert len(await complete(engine, prompt_of(2040), Sampling(max_tokens=8))) == 8


@pytest.mark.parametrize("prompt", [[3, 259], [-1, 3]])
async def test_ids_that_the_model_does_not_have_are_refused(engine: EmbeddedEngine, prompt: list[int]) -> None:
    with pytest.raises(DataError, match=r"0 to 258"):
        await complete(engine, prompt, Sampling(max_tokens=1))


async def test_ids_that_are_not_whole_numbers_are_refused(engine: EmbeddedEngine) -> None:
    with pytest.raises(DataError, match="list of ids"):
        await complete(engine, [1.5, 2.0], Sampling(max_tokens=1))  # type: ignore[list-item]


async def test_cancelled_requests_leave_their_slots_to_others(model_folder: Path) -> None:
    engine = open_engine(model_folder, max_concurrency=2)
    try:
        long = [
            asyncio.create_task(complete(engine, prompt_of(4), Sampling(max_tokens=2000, seed=i))) for i in range(5)
        ]
        await asyncio.sleep(0.05)
        for task in long:
            task.cancel()
        await asyncio.gather(*long, return_exceptions=True)
        assert len(await asyncio.wait_for(complete(engine, prompt_of(4), Sampling(max_tokens=3)), 5)) == 3
        assert engine.num_active == 0
    finally:
        await engine.aclose()


async def test_a_cancelled_load_is_withdrawn(engine: EmbeddedEngine, tmp_path: Path) -> None:
    stream = engine.stream(prompt_of(4), Sampling(max_tokens=2000, seed=0))
    await anext(stream)
    loading = asyncio.create_task(engine.load(Checkpoint(1, write_adapter(tmp_path / "a", targets=("q_proj",)))))
    await asyncio.sleep(0.01)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    await stream.aclose()  # type: ignore[attr-defined]
    [chunk] = await complete(engine, prompt_of(4), Sampling(max_tokens=1))
    assert chunk.policy_version == 0


async def test_a_crash_in_the_worker_reaches_everyone_with_its_cause(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(model_folder, max_concurrency=1)
    running = engine.stream(prompt_of(4), Sampling(max_tokens=2000, seed=0))
    await anext(running)
    waiting = asyncio.create_task(complete(engine, prompt_of(4), Sampling(max_tokens=3)))
    loading = asyncio.create_task(engine.load(Checkpoint(1, tmp_path)))
    await asyncio.sleep(0)

    def explode(self: Batcher) -> None:
        raise MemoryError("no room for keys and values")

    monkeypatch.setattr(Batcher, "step", explode)

    async def drain() -> None:
        async for _ in running:
            pass

    for failing in (drain(), waiting, loading, complete(engine, prompt_of(4), Sampling(max_tokens=1))):
        with pytest.raises(EngineClosedError, match="MemoryError: no room") as caught:
            await asyncio.wait_for(failing, 5)
        assert isinstance(caught.value.__cause__, MemoryError)
    await engine.aclose()


async def test_damaged_weights_break_the_engine_loudly(model_folder: Path, tmp_path: Path) -> None:
    engine = open_engine(model_folder)
    folder = write_adapter(tmp_path / "huge", targets=("q_proj", "v_proj", "down_proj"), scale=1e19)
    await engine.load(Checkpoint(1, folder))
    with pytest.raises(EngineClosedError, match="not finite"):
        await complete(engine, prompt_of(40), Sampling(max_tokens=3))
    await engine.aclose()


def test_an_engine_serves_one_event_loop_after_another(model_folder: Path) -> None:
    engine = open_engine(model_folder)
    sampling = Sampling(max_tokens=4, seed=0)

    async def abandon() -> None:
        await anext(engine.stream(prompt_of(4), Sampling(max_tokens=2000, seed=0)))

    first = asyncio.run(sample(engine, prompt_of(4), sampling))
    asyncio.run(abandon())  # this loop is closed while its request is running
    assert asyncio.run(sample(engine, prompt_of(4), sampling)) == first
    asyncio.run(engine.aclose())


@pytest.mark.slow
def test_a_process_may_end_in_the_middle_of_a_request(model_folder: Path) -> None:
    script = f"""
import asyncio
from pathlib import Path
from art_core.engines.embedded import EmbeddedEngine, EmbeddedEngineConfig
from art_core.types import Sampling
engine = EmbeddedEngine(EmbeddedEngineConfig(model_folder=Path({str(model_folder)!r})))
async def begin():
    await anext(engine.stream([4, 5], Sampling(max_tokens=2000)))
asyncio.run(begin())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_engine_that_nobody_holds_ends_its_thread(model_folder: Path) -> None:
    engine = open_engine(model_folder)
    worker = engine._worker
    del engine
    gc.collect()
    worker.join()
    assert not worker._thread.is_alive()


async def test_tokens_of_one_pass_arrive_in_one_wake_up(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[int] = []
    post: Callable[..., bool] = worker_module._post

    def counting(loop: asyncio.AbstractEventLoop, items: Any) -> bool:
        posted.append(len(items))
        return post(loop, items)

    monkeypatch.setattr(worker_module, "_post", counting)
    await asyncio.gather(*[complete(engine, prompt_of(4), Sampling(max_tokens=20, seed=i)) for i in range(8)])
    assert sum(posted) == 160
    assert len(posted) < 40


@pytest.mark.parametrize(
    "options", [{"max_concurrency": 0}, {"max_context_tokens": 1}, {"prefix_cache_bytes": -1}, {"num_threads": 0}]
)
def test_impossible_options_are_refused(tmp_path: Path, options: dict[str, int]) -> None:
    [name] = options
    with pytest.raises(ConfigError, match=name):
        EmbeddedEngineConfig(model_folder=tmp_path, **options)  # type: ignore[arg-type]


def test_a_context_beyond_the_models_is_refused(model_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"4096.*at most 2048"):
        open_engine(model_folder, max_context_tokens=4096)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=tmp_path.name):
        open_engine(tmp_path)


@pytest.mark.slow
async def test_sixty_four_mixed_requests_agree_with_a_plain_forward_pass(model_folder: Path, reference: Any) -> None:
    engine = open_engine(model_folder, max_concurrency=24, prefix_cache_bytes=1 << 20)
    system = prompt_of(290)

    async def converse(index: int) -> None:
        prompt = system[: 290 - index % 5] + prompt_of(1 + 11 * (index % 16))
        for turn in range(2):
            sampling = Sampling(max_tokens=5 + index % 30, temperature=1.3, seed=10 * index + turn)
            ids, logprobs = await sample(engine, prompt, sampling)
            assert logprobs == pytest.approx(expected_logprobs(reference, prompt, ids, 1.3).tolist(), abs=TOLERANCE)
            prompt = prompt + ids + prompt_of(20 + index)

    try:
        await asyncio.gather(*[converse(index) for index in range(64)])
        assert engine.num_active == 0
    finally:
        await engine.aclose()


async def test_an_engine_at_rest_frees_the_memory_of_its_requests_once(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[Batcher] = []
    free_slots = Batcher.free_slots

    def counted(batcher: Batcher) -> None:
        freed.append(batcher)
        free_slots(batcher)

    monkeypatch.setattr(worker_module, "_REST_S", 0.05)
    monkeypatch.setattr(Batcher, "free_slots", counted)
    engine = open_engine(model_folder)
    try:
        await asyncio.sleep(0.3)
        for _ in range(2):
            before = len(freed)
            await complete(engine, [1, 2, 3], Sampling(max_tokens=4, seed=0))
            await asyncio.sleep(0.3)
            assert len(freed) == before + 1
            await asyncio.sleep(0.3)
            assert len(freed) == before + 1
    finally:
        await engine.aclose()
