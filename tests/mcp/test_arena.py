"""Rollouts of scenarios: what they earn is kept, what breaks is told apart from what the policy did."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from tokenizers import Tokenizer

from art_core.errors import DataError, EngineClosedError, InfrastructureError
from art_core.render import load_renderer
from art_core.serve.server import ModelServer
from art_core.testing import MemoryStore, ScriptedEngine, write_tiny_model
from art_core.trajectories import Trajectory
from art_core.types import Sampling
from art_mcp.arena import Arena, Job
from art_mcp.facts import Fact
from art_mcp.inspect import openai_tool
from art_mcp.progress import Progress
from art_mcp.report import count_outcomes
from art_mcp.rollout import AgentLimits
from art_mcp.scenarios import Scenario
from art_mcp.stack import RolloutCaller, ServedModel, Toolbox
from art_mcp.types import McpTool, ToolResult

ADD = McpTool(
    "add",
    "Add two numbers.",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
)
SCENARIOS = [
    Scenario(
        id=f"train-{number}",
        split="train",
        tool="add",
        arguments={"a": number, "b": 1},
        task=f"Add {number} and 1.",
        facts=(Fact(label="sum", kind="number"),),
    )
    for number in range(4)
]
IM_END = 2


def call(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


class Tools:
    """The one tool, which breaks for the values of `a` in `broken`."""

    def __init__(self, broken: Mapping[int, Exception]) -> None:
        self.tools = {"add": ADD}
        self.specs = [openai_tool(ADD)]
        self._broken = broken

    @contextlib.asynccontextmanager
    async def caller(self) -> AsyncIterator[RolloutCaller]:
        yield RolloutCaller(self._execute, None)

    async def _execute(self, _name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if arguments["a"] in self._broken:
            raise self._broken[arguments["a"]]
        total = arguments["a"] + arguments["b"]
        return ToolResult(str(total), structured=total, num_cut_chars=7 if arguments["a"] == 3 else 0)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


class Stage:
    """An arena whose model calls `add` as each task says, and then says the sum."""

    def __init__(self, arena: Arena, engine: ScriptedEngine, store: MemoryStore) -> None:
        self.arena, self.engine, self.store = arena, engine, store

    async def run(self, scenarios: list[Scenario], phase: str = "train") -> list[Trajectory]:
        return await self.arena.run([Job(phase, 1, scenario, 0) for scenario in scenarios])


@contextlib.asynccontextmanager
async def stage(
    folder: Path,
    *,
    broken: Mapping[int, Exception] | None = None,
    says: Mapping[int, str] | None = None,
    earned: Mapping[str, Trajectory] | None = None,
) -> AsyncIterator[Stage]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def script(prompt: tuple[int, ...], _sampling: Sampling) -> list[int]:
        text = tokenizer.decode(list(prompt), skip_special_tokens=False)
        number = next(number for number in range(9) if f"Add {number} and 1." in text)
        if "<|im_start|>tool" in text:
            answer = f"The sum is {number + 1}."
        else:
            answer = (says or {}).get(number, call(f'{{"name": "add", "arguments": {{"a": {number}, "b": 1}}}}'))
        return [*tokenizer.encode(answer, add_special_tokens=False).ids, IM_END]

    engine, store, renderer = ScriptedEngine(script), MemoryStore(), load_renderer(folder)
    with Progress(quiet=True) as progress:
        async with (
            ModelServer(engine, renderer, model_name="tiny") as server,
            _client(f"{server.url}/v1") as client,
        ):
            source: Any = SimpleNamespace(folder=folder)
            arena = Arena(
                model=ServedModel(source, renderer, engine, server, client, "tiny"),
                toolbox=cast(Toolbox, Tools(broken or {})),
                store=store,
                progress=progress,
                limits=AgentLimits(max_turns=2, max_tokens=200),
                eval_temperature=0.5,
                run_seed=0,
                max_concurrency=4,
                earned=dict(earned or {}),
            )
            yield Stage(arena, engine, store)


async def test_each_rollout_is_scored_and_stored(model_folder: Path) -> None:
    async with stage(model_folder) as it:
        done = await it.run(SCENARIOS)
    assert [trajectory.scenario_id for trajectory in done] == [scenario.id for scenario in SCENARIOS]
    assert [trajectory.metrics["success"] for trajectory in done] == [1.0] * 4
    assert [trajectory.metadata["answer"] for trajectory in done] == [f"The sum is {n + 1}." for n in range(4)]
    assert {record["id"] for record in it.store.records("trajectories")} == {trajectory.id for trajectory in done}


async def test_a_broken_tool_server_is_counted_and_what_was_sampled_is_kept(model_folder: Path) -> None:
    async with stage(model_folder, broken={1: InfrastructureError("the server died")}) as it:
        done = await it.run(SCENARIOS)
    failed = done[1]
    assert failed.error is not None
    assert (failed.error.kind, failed.error.message) == ("InfrastructureError", "the server died")
    assert failed.reward is None
    assert len(failed.exchanges) == 1
    assert failed.exchanges[0].response["tool_calls"][0]["function"]["name"] == "add"
    [stored] = [record for record in it.store.records("trajectories") if record["error"]]
    assert Trajectory.model_validate(stored) == failed
    assert [trajectory.metrics["success"] for trajectory in (done[0], *done[2:])] == [1.0] * 3


async def test_more_failures_than_not_end_the_run(model_folder: Path) -> None:
    broken = dict.fromkeys((0, 1, 2), InfrastructureError("the server died"))
    async with stage(model_folder, broken=broken) as it:
        with pytest.raises(InfrastructureError, match=r"3 of 4 rollouts failed.*the server died"):
            await it.run(SCENARIOS)
        assert len(it.store.records("trajectories")) == 4


async def test_a_defect_is_no_infrastructure_failure(model_folder: Path) -> None:
    async with stage(model_folder, broken={2: ZeroDivisionError("a bug")}) as it:
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await it.run(SCENARIOS)


async def test_a_scenario_that_cannot_be_verified_ends_the_run(model_folder: Path) -> None:
    stranger = SCENARIOS[0].model_copy(update={"id": "stranger", "tool": "subtract"})
    async with stage(model_folder) as it:
        with pytest.raises(DataError, match="subtract"):
            await it.run([*SCENARIOS, stranger])


async def test_a_dead_engine_ends_the_run(model_folder: Path) -> None:
    async with stage(model_folder) as it:
        it.engine.fail("out of memory")
        with pytest.raises(EngineClosedError, match="out of memory"):
            await it.run(SCENARIOS)
        assert it.store.records("trajectories") == []


async def test_what_was_earned_under_the_served_policy_is_not_made_again(model_folder: Path) -> None:
    async with stage(model_folder) as first:
        earned = {trajectory.id: trajectory for trajectory in await first.run(SCENARIOS[:2])}
    async with stage(model_folder, earned=earned) as second:
        done = await second.run(SCENARIOS)
        assert [trajectory.scenario_id for trajectory in done] == [scenario.id for scenario in SCENARIOS]
        assert len(second.engine.requests) == 2 * 2
        assert len(second.store.records("trajectories")) == 2


async def test_what_was_cut_or_could_not_be_read_is_counted(model_folder: Path) -> None:
    async with stage(model_folder, says={1: call("{add: 1}"), 2: "No idea."}) as it:
        await it.run(SCENARIOS)
        events: list[dict[str, Any]] = [
            {"servers": {"noise_lines": 2}},
            {"servers": {}},
            {"servers": {"noise_lines": 1}},
        ]
        counters = count_outcomes(it.store.records("trajectories"), [], events)
    assert counters["rollouts"] == 4
    assert counters["malformed_calls"] == 1
    assert counters["tool_results_cut"] == 1
    assert counters["tool_calls"] == 2
    assert counters["noise_lines"] == 3


async def test_training_samples_the_policy_itself_and_evaluation_as_an_agent_is_used(model_folder: Path) -> None:
    async with stage(model_folder) as it:
        for phase, temperature in (("train", 1.0), ("baseline", 0.5), ("final", 0.5), ("eval", 0.5)):
            it.engine.requests.clear()
            await it.run(SCENARIOS[:1], phase)
            assert {sampling.temperature for _, sampling in it.engine.requests} == {temperature}


def test_held_out_attempts_draw_from_the_same_stream_in_every_phase() -> None:
    seeds = {Job(phase, 0, SCENARIOS[0], 1).seed(7) for phase in ("baseline", "warmup", "final")}
    assert len(seeds) == 1
    others = {Job("train", step, SCENARIOS[0], 1).seed(7) for step in (1, 2)}
    assert len(others) == 2
    assert not others & seeds


def _client(base_url: str) -> AsyncOpenAI:
    http = DefaultAsyncHttpxClient(verify=False)  # certificates take longer to load than most tests
    return AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, http_client=http)
