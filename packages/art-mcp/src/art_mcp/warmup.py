"""Supervised warm-up: demonstrations built from reference calls, as rows with the `sft` objective.

A group that never succeeds teaches nothing. A few demonstrations make success possible; reinforcement does the rest.
"""

from __future__ import annotations

import hashlib
import json
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from art_core.errors import DataError, InfrastructureError
from art_core.protocols import Store
from art_core.samples import demonstration as supervised_row
from art_core.types import ChatMessage, TokenSample
from art_mcp.connect import WORKDIR_PREFIX
from art_mcp.results import parse_json
from art_mcp.rollout import SYSTEM_PROMPT, AgentLimits
from art_mcp.scenarios import Scenario
from art_mcp.settings import RunSettings
from art_mcp.stack import ServedModel, Toolbox
from art_mcp.types import ToolResult
from art_mcp.verify import demonstration

_CALL_ID = "call_reference"


async def demonstration_rows(
    store: Store, model: ServedModel, toolbox: Toolbox, scenarios: Sequence[Scenario], *, answer_every: int = 1
) -> list[TokenSample]:
    """One row per scenario: task, reference call, the server's real result, and an answer that carries its facts.

    The call is what takes most demonstrations to learn, the result most of the tokens to compute. So of each tool only
    every `answer_every`-th row, from the first on, has result and answer; the others end with the call. The rows are
    stored when they are first made, so that an interrupted warm-up goes on with the same ones.
    """
    stored = {record["trajectory_id"]: record for record in store.records("demonstrations")}
    rows = []
    num_of: Counter[str] = Counter()
    for scenario in scenarios:
        answered = num_of[scenario.tool] % answer_every == 0
        num_of[scenario.tool] += 1
        record = stored.get(f"demo-{scenario.id}")
        if record is None:
            row = (
                await _demonstrate(scenario, model, toolbox)
                if answered
                else _demonstrate_call(scenario, model, toolbox)
            )
            store.append(
                "demonstrations",
                {"trajectory_id": row.trajectory_id, "token_ids": list(row.token_ids), "trained": list(row.trained)},
            )
        else:
            row = _row(record["trajectory_id"], record["token_ids"], record["trained"])
        rows.append(row)
    return rows


async def _demonstrate(scenario: Scenario, model: ServedModel, toolbox: Toolbox) -> TokenSample:
    async with toolbox.caller() as caller:
        scenario = scenario.in_workdir(caller.workdir)
        result = await caller.call(scenario.tool, scenario.arguments)
    if result.is_error:
        raise InfrastructureError(
            f"the reference call of scenario {scenario.id!r} fails now, though it worked when it was proposed: "
            f"{result.text[:200]}; remove the scenario from scenarios.jsonl and start a new run"
        )
    messages = [
        *_reference_call(scenario),
        {"role": "tool", "tool_call_id": _CALL_ID, "content": result.text},
        {"role": "assistant", "content": demonstration(scenario, result)},
    ]
    rendered = model.renderer.render(messages, tools=toolbox.specs)
    return _row(f"demo-{scenario.id}", rendered.token_ids, rendered.sampled_mask)


def _demonstrate_call(scenario: Scenario, model: ServedModel, toolbox: Toolbox) -> TokenSample:
    rendered = model.renderer.render(_reference_call(_in_some_workdir(scenario)), tools=toolbox.specs)
    return _row(f"demo-{scenario.id}", rendered.token_ids, rendered.sampled_mask)


def _in_some_workdir(scenario: Scenario) -> Scenario:
    """The scenario as it may read in a rollout, each in a folder of another name, where no server runs to make one."""
    name = WORKDIR_PREFIX + hashlib.sha256(scenario.id.encode()).hexdigest()[:8]
    return scenario.in_workdir(Path(tempfile.gettempdir()) / name)


def longest_reference_turn(scenarios: Sequence[Scenario], model: ServedModel, toolbox: Toolbox) -> int:
    """Tokens of the longest turn of a perfect agent: the reference call, or the answer to its recorded result."""
    longest = 0
    for scenario in scenarios:
        filled = _in_some_workdir(scenario)
        call = model.renderer.render(_reference_call(filled), tools=toolbox.specs)
        longest = max(longest, sum(call.sampled_mask))
        answer = _reference_answer(filled)
        if answer is not None:
            turn = model.renderer.render([{"role": "user", "content": ""}, {"role": "assistant", "content": answer}])
            longest = max(longest, sum(turn.sampled_mask))
    return longest


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


def _row(trajectory_id: str, token_ids: Sequence[int], trained: Sequence[bool]) -> TokenSample:
    return supervised_row(trajectory_id, (((token,), flag) for token, flag in zip(token_ids, trained, strict=True)))


def agent_limits(
    settings: RunSettings, scenarios: Sequence[Scenario], model: ServedModel, toolbox: Toolbox
) -> AgentLimits:
    """The bounds of an attempt. Completions may be a tenth longer than the longest reference turn, unless it was said.

    What an untrained model rambles on beyond that costs time and earns nothing.
    """
    max_tokens = settings.max_tokens
    if max_tokens is None:
        max_tokens = round(1.1 * longest_reference_turn(scenarios, model, toolbox)) + 4
    return AgentLimits(max_turns=settings.max_turns, max_tokens=max_tokens)


def warmup_batches(rows: Sequence[TokenSample], *, size: int, epochs: int, seed: int) -> list[list[TokenSample]]:
    """`rows` in batches of at most `size`, each row once per epoch, in a seeded order."""
    batches = []
    for epoch in range(epochs):
        order = list(rows)
        random.Random(f"{seed}/warmup-{epoch}").shuffle(order)
        batches += [order[start : start + size] for start in range(0, len(order), size)]
    return batches
