"""Completions under grammars, made by the batcher on a tiny random model, and once by a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art_core.engines.batcher import Batcher, Failed, Request, Sampled
from art_core.engines.cache import PrefixCache
from art_core.engines.embedded import EmbeddedEngine, EmbeddedEngineConfig
from art_core.engines.grammar import Grammars
from art_core.engines.served import ServedModel
from art_core.errors import ConfigError, DataError
from art_core.render import TextTokenizer, load_renderer
from art_core.render.grammars import json_object_grammar, json_schema_grammar, regex_grammar
from art_core.testing import write_tiny_model
from art_core.types import Sampling
from art_core.weights.loading import load_causal_lm
from art_core.weights.source import default_cache

END = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def served(folder: Path) -> ServedModel:
    return ServedModel(folder, dtype="float32", max_context_tokens=None)


@pytest.fixture(scope="module")
def grammars(folder: Path) -> Grammars:
    return Grammars(folder, 259)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return TextTokenizer.from_file(folder / "tokenizer.json")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return load_causal_lm(folder, dtype=torch.float32, device=torch.device("cpu"))


def new_batcher(served: ServedModel, *, max_running: int = 32) -> Batcher:
    cache = PrefixCache(1 << 26)
    return Batcher(served.model, served.new_store(max_running), cache, device=served.device, max_running=max_running)


def prompt_of(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 259, size=length)


def request(
    grammars: Grammars, grammar: str | None, *, prompt: np.ndarray, seed: int = 0, max_tokens: int = 40, **options: Any
) -> Request:
    sampling = Sampling(max_tokens=max_tokens, grammar=grammar, stop_token_ids=(END,), **options)
    return Request(prompt, sampling, seed, None if grammar is None else grammars.matcher(grammar, (END,)))


def run(batcher: Batcher, *requests: Request) -> list[list[Sampled]]:
    results: dict[Request, list[Sampled]] = {member: [] for member in requests}
    batcher.waiting.extend(requests)
    while not batcher.idle:
        for event in batcher.step():
            assert isinstance(event, Sampled)
            results[event.request].append(event)
    return list(results.values())


def outcome(events: list[Sampled]) -> list[tuple[Any, ...]]:
    return [(e.token, e.logprob, e.finish_reason, e.forced, e.top_logprobs) for e in events]


@torch.no_grad()
def policy_logprobs(model: Any, prompt: np.ndarray, completion: list[int], temperature: float) -> list[float]:
    logits = model(input_ids=torch.tensor([[*prompt.tolist(), *completion]])).logits[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits.double() / temperature, -1)
    return logprobs.gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1).tolist()


SCALARS: list[dict[str, Any]] = [
    {"type": "boolean"},
    {"type": "null"},
    {"type": "integer", "minimum": -3, "maximum": 120},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"enum": ["a", "bc", 7, None]},
    {"const": 'x"y'},
    {"type": "string", "maxLength": 4},
    {"type": "string", "pattern": "^[a-c]{1,3}$"},
    {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
]


def containers(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    objects = st.dictionaries(st.sampled_from(["a", "b", 'q"', "é"]), inner, max_size=3).flatmap(
        lambda properties: st.builds(
            lambda required: {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            },
            st.lists(st.sampled_from(sorted(properties)), unique=True) if properties else st.just([]),
        )
    )
    arrays = st.builds(
        lambda items, least, more: {"type": "array", "items": items, "minItems": least, "maxItems": least + more},
        inner,
        st.integers(0, 2),
        st.integers(0, 2),
    )
    return objects | arrays | st.builds(lambda *parts: {"anyOf": list(parts)}, inner, inner)


SCHEMAS = st.recursive(st.sampled_from(SCALARS), containers, max_leaves=4)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    schema=SCHEMAS,
    seed=st.integers(0, 2**32),
    options=st.sampled_from([{}, {"temperature": 0.0}, {"temperature": 0.8}, {"top_k": 3}, {"top_p": 0.5}]),
)
def test_completions_of_schemas_parse_validate_and_mark_exactly_what_was_forced(
    served: ServedModel,
    grammars: Grammars,
    tokenizer: TextTokenizer,
    reference: Any,
    schema: dict[str, Any],
    seed: int,
    options: dict[str, Any],
) -> None:
    grammar = json_schema_grammar(schema)
    prompt = prompt_of(1 + seed % 30, seed)
    events = run(
        new_batcher(served), *(request(grammars, grammar, prompt=prompt, seed=seed + i, **options) for i in range(3))
    )
    for sampled in events:
        ids = [event.token for event in sampled]
        replay = grammars.matcher(grammar, (END,))
        for event in sampled:
            assert replay.allowed[event.token]
            assert event.forced == (replay.allowed.sum() == 1)
            if event.token != END:
                replay.advance(event.token)
        if options in ({}, {"temperature": 0.0}, {"temperature": 0.8}):
            expected = policy_logprobs(reference, prompt, ids, options.get("temperature", 1.0) or 1.0)
            assert [event.logprob for event in sampled] == pytest.approx(expected, abs=1e-4)
        if sampled[-1].finish_reason == "stop":
            assert ids[-1] == END
            jsonschema.validate(json.loads(tokenizer.decode(ids[:-1])), schema)
        else:
            assert (sampled[-1].finish_reason, len(ids)) == ("length", 40)


GRAMMARS = (
    None,
    json_object_grammar(),
    json_schema_grammar({"type": "array", "items": {"enum": ["x", "yz"]}, "maxItems": 3}),
    regex_grammar("[ab]{3,8}"),
    None,
    'start: "only this"',
)
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.0},
    {"top_k": 4},
    {"top_logprobs": 2},
    {"temperature": 0.9},
)
NUM_FAMILY = 18


def family(grammars: Grammars, index: int) -> Request:
    return request(
        grammars,
        GRAMMARS[index % len(GRAMMARS)],
        prompt=prompt_of(4 + index % 3 * 60, seed=index % 4),
        seed=index,
        max_tokens=4 + index % 11,
        **OPTIONS[index % len(OPTIONS)],
    )


@pytest.fixture(scope="module")
def alone(served: ServedModel, grammars: Grammars) -> list[list[tuple[Any, ...]]]:
    return [outcome(run(new_batcher(served), family(grammars, index))[0]) for index in range(NUM_FAMILY)]


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(NUM_FAMILY)), max_running=st.sampled_from([2, 32]))
def test_members_with_and_without_a_grammar_do_not_change_each_others_bits(
    served: ServedModel,
    grammars: Grammars,
    alone: list[list[tuple[Any, ...]]],
    order: list[int],
    max_running: int,
) -> None:
    together = run(new_batcher(served, max_running=max_running), *(family(grammars, index) for index in order))
    for index, events in zip(order, together, strict=True):
        assert outcome(events) == alone[index]


def test_a_grammar_that_allows_what_would_be_drawn_anyway_changes_no_bit(
    served: ServedModel, grammars: Grammars
) -> None:
    prompt = prompt_of(30, seed=3)
    [free] = run(new_batcher(served), request(grammars, None, prompt=prompt, seed=5, temperature=0.6))
    # Every sequence of byte tokens, valid text or not.
    anything = "start: (<[0-258]>)*"
    [bound] = run(new_batcher(served), request(grammars, anything, prompt=prompt, seed=5, temperature=0.6))
    assert outcome(bound) == outcome(free)


def test_a_request_whose_grammar_fails_on_the_way_gives_up_its_place_and_spares_the_others(
    served: ServedModel, grammars: Grammars, tokenizer: TextTokenizer
) -> None:
    [b] = tokenizer.encode("b")
    prompt = prompt_of(9, seed=1)
    doomed = Request(
        prompt,
        Sampling(max_tokens=9, grammar='start: "ab"', stop_token_ids=(b,)),
        0,
        grammars.matcher('start: "ab"', (b,)),
    )
    other = request(grammars, regex_grammar("[ab]{5}"), prompt=prompt, seed=2)
    batcher = new_batcher(served)
    batcher.waiting.extend([doomed, other])
    events = []
    while not batcher.idle:
        events += batcher.step()
    mine = [event for event in events if event.request is doomed]
    assert [type(event) for event in mine] == [Sampled, Failed]
    assert isinstance(mine[1], Failed)
    assert "no token of this model continues it" in str(mine[1].error)
    [expected] = run(new_batcher(served), request(grammars, regex_grammar("[ab]{5}"), prompt=prompt, seed=2))
    rest = [event for event in events if event.request is other]
    assert outcome([event for event in rest if isinstance(event, Sampled)]) == outcome(expected)


async def test_the_engine_raises_what_its_grammar_meets_on_the_way_and_serves_on(
    folder: Path, tokenizer: TextTokenizer
) -> None:
    [b] = tokenizer.encode("b")
    engine = EmbeddedEngine(EmbeddedEngineConfig(model_folder=folder, dtype="float32", num_threads=1))
    try:
        stream = engine.stream([5], Sampling(max_tokens=9, grammar='start: "ab"', stop_token_ids=(b,)))
        first = await anext(stream)
        assert (first.finish_reason, first.forced) == (None, (True,))
        with pytest.raises(DataError, match="no token of this model"):
            await anext(stream)
        assert engine.num_active == 0
        with pytest.raises(ConfigError, match="Unimplemented keys"):
            await anext(
                engine.stream(
                    [5], Sampling(max_tokens=9, grammar=json_schema_grammar({"not": {}}), stop_token_ids=(END,))
                )
            )
        sampling = Sampling(max_tokens=9, grammar='start: "ab"', stop_token_ids=(END,))
        chunks = [chunk async for chunk in engine.stream([5], sampling)]
        assert [chunk.forced for chunk in chunks] == [(True,)] * 3
        assert chunks[-1].finish_reason == "stop"
        free = [chunk async for chunk in engine.stream([5], Sampling(max_tokens=3))]
        assert {(chunk.forced, chunk.top_logprobs) for chunk in free} == {((), ())}
    finally:
        await engine.aclose()


@pytest.mark.slow
async def test_smollm2_answers_a_schema_with_json_that_validates() -> None:
    folder = default_cache() / "models" / "smollm2-135m"
    if not folder.is_dir():
        pytest.skip("smollm2-135m is not in the cache")
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 30},
            "population": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
            "capital": {"type": "boolean"},
        },
        "required": ["city", "population", "capital"],
        "additionalProperties": False,
    }
    renderer = load_renderer(folder)
    question = "Describe Paris as JSON with the keys city, population and capital."
    prompt = renderer.render_ids([{"role": "user", "content": question}], add_generation_prompt=True)
    tokenizer = TextTokenizer.from_file(folder / "tokenizer.json")
    engine = EmbeddedEngine(EmbeddedEngineConfig(model_folder=folder))
    try:
        for options in ({"temperature": 0.0}, {"seed": 1}, {"seed": 2, "temperature": 2.0}):
            sampling = Sampling(
                max_tokens=200,
                grammar=json_schema_grammar(schema),
                stop_token_ids=tuple(renderer.get_stop_token_ids()),
                top_logprobs=3,
                **options,
            )
            chunks = [chunk async for chunk in engine.stream(prompt, sampling)]
            ids = [token for chunk in chunks for token in chunk.token_ids]
            forced = [mark for chunk in chunks for mark in chunk.forced]
            assert chunks[-1].finish_reason == "stop"
            jsonschema.validate(json.loads(tokenizer.decode(ids[:-1])), schema)
            assert True in forced
            assert False in forced
    finally:
        await engine.aclose()
