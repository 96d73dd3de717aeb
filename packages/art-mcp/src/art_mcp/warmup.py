"""Supervised warm-up: demonstrations built from reference calls, as rows with the `sft` objective.

A group that never succeeds teaches nothing. A few demonstrations make success possible; reinforcement does the rest.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from art_core.errors import InfrastructureError
from art_core.protocols import Store
from art_core.types import TokenSample
from art_mcp.rollout import SYSTEM_PROMPT
from art_mcp.scenarios import Scenario
from art_mcp.stack import ServedModel, Toolbox
from art_mcp.verify import demonstration


async def demonstration_rows(
    store: Store, model: ServedModel, toolbox: Toolbox, scenarios: Sequence[Scenario]
) -> list[TokenSample]:
    """One row per scenario: task, reference call, the server's real result, and an answer that carries its facts.

    The rows are stored when they are first made, so that an interrupted warm-up goes on with the same ones.
    """
    stored = {record["trajectory_id"]: record for record in store.records("demonstrations")}
    rows = []
    for scenario in scenarios:
        record = stored.get(f"demo-{scenario.id}")
        if record is None:
            row = await _demonstrate(scenario, model, toolbox)
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
    call = {
        "id": "call_demo",
        "type": "function",
        "function": {"name": scenario.tool, "arguments": json.dumps(scenario.arguments, ensure_ascii=False)},
    }
    messages = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": scenario.task},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_demo", "content": result.text},
        {"role": "assistant", "content": demonstration(scenario, result)},
    ]
    rendered = model.renderer.render(messages, tools=toolbox.specs)
    return _row(f"demo-{scenario.id}", rendered.token_ids, rendered.sampled_mask)


def _row(trajectory_id: str, token_ids: Sequence[int], trained: Sequence[bool]) -> TokenSample:
    return TokenSample(
        token_ids=tuple(token_ids),
        trained=tuple(trained),
        logprobs=(0.0,) * len(token_ids),
        advantage=1.0,
        policy_version=0,
        trajectory_id=trajectory_id,
    )


def warmup_batches(rows: Sequence[TokenSample], *, size: int, epochs: int, seed: int) -> list[list[TokenSample]]:
    """`rows` in batches of at most `size`, each row once per epoch, in a seeded order."""
    batches = []
    for epoch in range(epochs):
        order = list(rows)
        random.Random(f"{seed}/warmup-{epoch}").shuffle(order)
        batches += [order[start : start + size] for start in range(0, len(order), size)]
    return batches
