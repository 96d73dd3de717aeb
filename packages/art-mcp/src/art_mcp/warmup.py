"""Supervised warm-up: demonstrations built from reference calls, as rows with the `sft` objective.

A group that never succeeds teaches nothing. A few demonstrations make success possible; reinforcement does the rest.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_core.control import SftExample
from art_core.errors import ConfigError, DataError, InfrastructureError
from art_core.protocols import Store
from art_core.samples import demonstration as supervised_row
from art_core.sft.masks import answers_of, rows_of_answers
from art_core.sft.preparing import PreparedSet
from art_core.sft_config import SftConfig
from art_core.types import ChatMessage, TokenSample
from art_mcp.connect import WORKDIR_PREFIX
from art_mcp.results import parse_json
from art_mcp.rollout import SYSTEM_PROMPT, AgentLimits
from art_mcp.scenarios import Scenario
from art_mcp.settings import RunSettings
from art_mcp.stack import Say, ServedModel, Toolbox
from art_mcp.types import ToolResult
from art_mcp.verify import demonstration

_CALL_ID = "call_reference"


def demonstrated(scenarios: Sequence[Scenario], count: int) -> list[Scenario]:
    """The `count` scenarios to demonstrate: of each tool in turn, in their order."""
    by_tool: dict[str, list[Scenario]] = {}
    for scenario in scenarios:
        by_tool.setdefault(scenario.tool, []).append(scenario)
    rounds = itertools.zip_longest(*by_tool.values())
    return [scenario for each in rounds for scenario in each if scenario is not None][:count]


async def demonstrations(
    store: Store, model: ServedModel, toolbox: Toolbox, scenarios: Sequence[Scenario], *, answer_every: int, say: Say
) -> PreparedSet:
    """One example per scenario: task, reference call, the server's real result, and an answer that carries its facts.

    The call is what takes most demonstrations to learn, the result most of the tokens to compute. So of each tool only
    every `answer_every`-th, from the first on, has result and answer; the others end with the call. So does, with a
    word to the user, one whose result does not fit the context or cannot be had; where the call does not fit either,
    there is no example. What is made is stored, so that an interrupted warm-up goes on with the same.

    Raises:
        DataError: none fits the context.
    """
    stored = {record["trajectory_id"]: record for record in store.records("demonstrations")}
    examples = []
    num_of: Counter[str] = Counter()
    for scenario in scenarios:
        answered = num_of[scenario.tool] % answer_every == 0
        num_of[scenario.tool] += 1
        record = stored.get(f"demo-{scenario.id}")
        if record is None:
            record = await _demonstration(scenario, model, toolbox, answered=answered, say=say)
            store.append("demonstrations", record)
        if record["rows"]:
            examples.append([_row(record["trajectory_id"], **stored_row) for stored_row in record["rows"]])
    if not examples:
        raise DataError(
            f"none of the {len(scenarios)} demonstrations fits into {model.engine.max_context_tokens} tokens; "
            "raise --max-context, or leave the warm-up out with --warmup off"
        )
    return PreparedSet.of(examples)


async def _demonstration(
    scenario: Scenario, model: ServedModel, toolbox: Toolbox, *, answered: bool, say: Say
) -> dict[str, Any]:
    """A record for the store; `shortened` tells that it holds less than was to be shown."""
    limit = model.engine.max_context_tokens
    problem = ""
    if answered:
        try:
            rows = _rows(scenario, await _with_answer(scenario, toolbox), model, toolbox)
            if _longest(rows) <= limit:
                return _record(scenario, rows, shortened=False)
            problem = f"with the result it has {_longest(rows)} tokens, the context {limit}"
        except (InfrastructureError, DataError) as error:
            problem = str(error)
        say(f"the demonstration of {scenario.id} ends with the call: {problem}")
    rows = _rows(scenario, _reference_call(_in_some_workdir(scenario, toolbox)), model, toolbox)
    if _longest(rows) > limit:
        say(f"no demonstration of {scenario.id}: the call takes {_longest(rows)} tokens, the context {limit}")
        return _record(scenario, [], shortened=True)
    return _record(scenario, rows, shortened=bool(problem))


def _rows(
    scenario: Scenario, messages: list[ChatMessage], model: ServedModel, toolbox: Toolbox
) -> Sequence[TokenSample]:
    """The rows in which what the agent says in `messages` is trained: one, unless the template rewrites history."""
    example = SftExample(source=f"demo-{scenario.id}", messages=messages, tools=toolbox.specs)
    return rows_of_answers(answers_of(example, model.renderer, "all"), example.source)


def _longest(rows: Sequence[TokenSample]) -> int:
    return max(len(row.token_ids) for row in rows)


def _record(scenario: Scenario, rows: Sequence[TokenSample], *, shortened: bool) -> dict[str, Any]:
    return {
        "trajectory_id": f"demo-{scenario.id}",
        "rows": [{"token_ids": list(row.token_ids), "trained": list(row.trained)} for row in rows],
        "shortened": shortened,
    }


def _row(source: str, *, token_ids: Sequence[int], trained: Sequence[bool]) -> TokenSample:
    return supervised_row(source, (((token,), flag) for token, flag in zip(token_ids, trained, strict=True)))


async def _with_answer(scenario: Scenario, toolbox: Toolbox) -> list[ChatMessage]:
    """The conversation of a perfect agent, with the result that the server gives now."""
    async with toolbox.caller() as caller:
        scenario = scenario.in_workdir(caller.workdir)
        result = await caller.call(scenario.tool, scenario.arguments)
    if result.is_error:
        raise InfrastructureError(f"its reference call, which worked before, now fails with {result.text[:200]!r}")
    return [
        *_reference_call(scenario),
        {"role": "tool", "tool_call_id": _CALL_ID, "content": result.text},
        {"role": "assistant", "content": demonstration(scenario, result)},
    ]


def _in_some_workdir(scenario: Scenario, toolbox: Toolbox) -> Scenario:
    """The scenario as it may read in a rollout, each in a folder of another name, where no server runs to make one."""
    if not toolbox.command.uses_workdir:
        return scenario
    name = WORKDIR_PREFIX + hashlib.sha256(scenario.id.encode()).hexdigest()[:8]
    return scenario.in_workdir(Path(tempfile.gettempdir()) / name)


@dataclass(frozen=True)
class _Lengths:
    """Tokens, of the scenario that has most: of the prompt, and of a turn of a perfect agent (call or answer)."""

    prompt: int
    turn: int


def _reference_lengths(scenarios: Sequence[Scenario], model: ServedModel, toolbox: Toolbox) -> _Lengths:
    prompt = turn = 0
    for scenario in scenarios:
        filled = _in_some_workdir(scenario, toolbox)
        call = model.renderer.render(_reference_call(filled), tools=toolbox.specs)
        num_sampled = sum(call.sampled_mask)
        prompt = max(prompt, len(call.token_ids) - num_sampled)
        turn = max(turn, num_sampled)
        answer = _reference_answer(filled)
        if answer is not None:
            said = model.renderer.render([{"role": "user", "content": ""}, {"role": "assistant", "content": answer}])
            turn = max(turn, sum(said.sampled_mask))
    return _Lengths(prompt, turn)


def _reference_answer(scenario: Scenario) -> str | None:
    """What a perfect agent says to the result that was recorded with `scenario`; None where that cannot be told."""
    if scenario.reference is None:
        return None
    try:
        return demonstration(scenario, ToolResult(scenario.reference, structured=parse_json(scenario.reference)))
    except DataError:  # a reference that was shortened may lack its facts
        return None


def _reference_call(scenario: Scenario) -> list[ChatMessage]:
    """The conversation up to and with the reference call."""
    call = {
        "id": _CALL_ID,
        "type": "function",
        "function": {"name": scenario.tool, "arguments": json.dumps(scenario.arguments, ensure_ascii=False)},
    }
    return [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": scenario.task},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]


def agent_limits(
    settings: RunSettings, scenarios: Sequence[Scenario], model: ServedModel, toolbox: Toolbox
) -> AgentLimits:
    """The bounds of an attempt. Completions may be a tenth longer than the longest reference turn, unless it was said.

    What an untrained model rambles on beyond that costs time and earns nothing.

    Raises:
        ConfigError: the context does not hold the tools, a task and a completion.
    """
    lengths = _reference_lengths(scenarios, model, toolbox)
    max_tokens = settings.max_tokens
    if max_tokens is None:
        max_tokens = round(1.1 * lengths.turn) + 4
    if lengths.prompt + max_tokens > model.engine.max_context_tokens:
        raise ConfigError(
            f"the tools and a task take up to {lengths.prompt} tokens and a completion {max_tokens}, but the context "
            f"holds {model.engine.max_context_tokens}; raise --max-context, or leave tools out with --deny-tool"
        )
    return AgentLimits(max_turns=settings.max_turns, max_tokens=max_tokens)


def supervision(settings: RunSettings) -> SftConfig:
    """How the warm-up learns, with a checkpoint after each update, so that none is lost.

    Demonstrations stay in their order, in which tools and phrasings take turns: no update is of one kind. The learning
    rate falls, so that the last few demonstrations do not decide what is known.
    """
    return SftConfig(
        learning_rate=settings.warmup_learning_rate,
        epochs=settings.warmup_epochs,
        batch_size=settings.warmup_batch,
        schedule="linear",
        warmup_ratio=0.0,
        shuffle=False,
        save_every=1,
    )
