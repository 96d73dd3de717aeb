"""Train a model to play the first moves of 2048, each an answer that has to follow a JSON schema.

python examples/game_2048.py [--model smollm2-135m | a folder | a hub id] [--steps 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
from typing import Any

import art_core as art

SIZE, MAX_MOVES, RULES = 4, 12, "You play 2048. Answer with the direction to slide in."
SCHEMA = {"type": "object", "properties": {"move": {"enum": ["left", "right", "up", "down"]}}, "required": ["move"]}
MOVE: Any = {"type": "json_schema", "json_schema": {"name": "move", "schema": SCHEMA}}
Board = list[list[int]]


def slid_left(row: list[int]) -> list[int]:
    tiles, merged = [tile for tile in row if tile], []
    while tiles:
        tile = tiles.pop(0)
        merged.append(tile + tiles.pop(0) if tiles[:1] == [tile] else tile)
    return merged + [0] * (SIZE - len(merged))


def slid(board: Board, move: str) -> Board:
    if move in ("up", "down"):
        turned = [list(column) for column in zip(*board, strict=True)]
        after = slid(turned, "left" if move == "up" else "right")
        return [list(column) for column in zip(*after, strict=True)]
    return [slid_left(row) if move == "left" else slid_left(row[::-1])[::-1] for row in board]


def add_tile(board: Board, chance: random.Random) -> None:
    row, column = chance.choice([(r, c) for r in range(SIZE) for c in range(SIZE) if not board[r][c]])
    board[row][column] = 2


async def rollout(model: art.TrainableModel, seed: int) -> art.Trajectory:
    chance = random.Random(seed)
    board = [[0] * SIZE for _ in range(SIZE)]
    add_tile(board, chance)
    messages: Any = [{"role": "system", "content": RULES}]
    async with art.capture(model) as trajectory:
        client, moves = model.openai_client(), 0
        while moves < MAX_MOVES:
            messages.append({"role": "user", "content": "\n".join(" ".join(map(str, row)) for row in board)})
            completion = await client.chat.completions.create(
                model=model.get_inference_name(), messages=messages, response_format=MOVE, max_tokens=32
            )
            choice = completion.choices[0]
            if choice.finish_reason == "length":  # an answer without an end
                break
            messages.append(choice.message)
            after = slid(board, json.loads(choice.message.content or "")["move"])
            if after == board:
                break  # nothing moved
            board, moves = after, moves + 1
            add_tile(board, chance)
        merges = 1 + moves - sum(tile > 0 for row in board for tile in row)
        trajectory.reward = (moves + merges) / (2 * MAX_MOVES)
        trajectory.metrics["moves"] = moves
    return trajectory


async def main(options: argparse.Namespace) -> None:
    model = art.TrainableModel(name="game-2048", project="examples", base_model=options.model)
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
    parser = argparse.ArgumentParser(description="Train a model to play 2048.")
    parser.add_argument("--model", default="smollm2-135m", help="name, folder or hub id of the base model")
    parser.add_argument("--steps", type=int, default=3, help="training steps to make now")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--url", help="of a running `art serve`, with its key in ART_API_KEY; default: start a server")
    parser.add_argument("--path", default=".art", help="where the server that is started keeps its runs")
    asyncio.run(main(parser.parse_args()))
