"""Record what an ordinary agent does, as token ids with logprobs, and turn it into training rows.

    python examples/record_an_agent.py [smollm2-135m | a local folder | a hub id]

The agent below knows nothing of art: it is a few lines around the `openai` client. It is recorded because of the URL it
talks to, so an agent in any language is recorded the same way.
"""

from __future__ import annotations

import asyncio
import sys

from openai import AsyncOpenAI

from art_core import Trajectory, to_samples
from art_core.registry import open_engine
from art_core.render import load_renderer
from art_core.serve.server import ModelServer
from art_core.weights.source import resolve_model


async def agent(base_url: str, model: str) -> str:
    """Two turns of conversation with whatever is behind `base_url`."""
    messages: list[dict[str, str]] = [{"role": "user", "content": "Name a city in Europe."}]
    async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
        for follow_up in ("In which country is it?", None):
            completion = await client.chat.completions.create(
                model=model,
                messages=messages,  # type: ignore[arg-type]
                max_tokens=24,
                seed=7,
            )
            answer = completion.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": answer})
            if follow_up is not None:
                messages.append({"role": "user", "content": follow_up})
    return answer


async def main(model_name: str) -> None:
    source = resolve_model(model_name, progress=print)
    engine = open_engine("embedded", model_folder=source.folder)
    try:
        async with ModelServer(engine, load_renderer(source.folder), model_name=source.name) as server:
            base_url = server.open_trajectory("rollout-1")
            answer = await agent(base_url, source.name)
            trajectory = Trajectory(id="rollout-1", scenario_id="demo", exchanges=server.close_trajectory("rollout-1"))
    finally:
        await engine.aclose()
    trajectory.reward = 1.0 if answer.strip() else 0.0
    for exchange in trajectory.exchanges:
        print(
            f"exchange: {len(exchange.prompt_ids)} prompt tokens, {len(exchange.completion_ids)} sampled, "
            f"policy version {exchange.policy_version}, forked {exchange.forked}"
        )
    for row in to_samples(trajectory, advantage=1.0):
        print(f"row: {len(row.token_ids)} tokens, {row.num_trained} of them trained")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"))
