"""Train a model to play tic-tac-toe against an opponent that moves at random: rollouts of several turns.

    python examples/tic_tac_toe.py [--model smollm2-135m | a folder | a hub id] [--steps 3]

Each turn extends the conversation before it, so that a whole game becomes one training row.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import statistics
from typing import Any

import art_core as art

LINES = ("012", "345", "678", "036", "147", "258", "048", "246")
RULES = "You play tic-tac-toe as X. Answer with the number of a free square and nothing else."


def winner(board: list[str]) -> str | None:
    """X or O, "draw", or None while the game goes on."""
    for line in LINES:
        marks = {board[int(square)] for square in line}
        if marks in ({"X"}, {"O"}):
            return marks.pop()
    return None if any(mark.isdigit() for mark in board) else "draw"


async def rollout(model: art.TrainableModel, seed: int) -> art.Trajectory:
    opponent = random.Random(seed)
    board = list("123456789")
    messages: Any = [{"role": "system", "content": RULES}]
    moves = 0
    async with art.capture(model) as trajectory:
        client = model.openai_client()
        while True:
            rows = "\n".join(" ".join(board[start : start + 3]) for start in (0, 3, 6))
            messages.append({"role": "user", "content": f"{rows}\nYour move?"})
            completion = await client.chat.completions.create(
                model=model.get_inference_name(), messages=messages, max_tokens=16
            )
            messages.append(completion.choices[0].message)
            square = re.search(r"[1-9]", completion.choices[0].message.content or "")
            if square is None or square[0] not in board:
                trajectory.reward = -1.0 + 0.1 * moves  # an illegal move loses; the later, the better
                break
            moves += 1
            board[board.index(square[0])] = "X"
            if winner(board) is None:
                board[board.index(opponent.choice([mark for mark in board if mark.isdigit()]))] = "O"
            if (result := winner(board)) is not None:
                trajectory.reward = {"X": 1.0, "draw": 0.5, "O": 0.0}[result]
                break
        trajectory.metrics.update(moves=moves, won=winner(board) == "X")
    return trajectory


async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name="tic-tac-toe", project="examples", base_model=options.model)
    key = os.environ.get("ART_API_KEY")
    backend = art.RemoteBackend(options.url, key) if options.url else art.LocalBackend(options.path)
    async with backend:
        await model.register(backend)
        for _ in range(options.steps):
            step = await model.get_step()
            groups = await art.gather_trajectory_groups(
                (art.TrajectoryGroup(rollout(model, 2 * step + game) for _ in range(8)) for game in range(2)),
                max_concurrent=16,
                timeout_s=600,
            )
            result = await model.train(groups, learning_rate=options.learning_rate)
            await model.log(groups, split="train")
            rewards = [member.reward for group in groups for member in group if member.reward is not None]
            print(f"step {result.step}  reward {statistics.mean(rewards):.2f}  {result.skipped or ''}".rstrip())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a model to play tic-tac-toe.")
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id of the base model")
    parser.add_argument("--steps", type=int, default=3, help="training steps to make now")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--url", help="of a running `art serve`, with its key in ART_API_KEY; default: start a server")
    parser.add_argument("--path", default=".art", help="where the server that is started keeps its runs")
    asyncio.run(main(parser.parse_args()))
