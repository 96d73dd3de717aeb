"""`model.train_sft` against a real server with scripted answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import art_core as art
from art_core.errors import ConfigError, DataError
from art_core.testing import InProcessBackend
from art_core.types import RolloutError, TokenSample

USER = {"role": "user", "content": "2 + 2?"}
RIGHT = {"role": "assistant", "content": "4"}


@pytest.fixture
async def backend() -> AsyncIterator[InProcessBackend]:
    async with InProcessBackend(lambda _: "5") as made:
        yield made


@pytest.fixture
async def model(backend: InProcessBackend) -> art.TrainableModel:
    made = art.TrainableModel(name="m", project="p", base_model="b")
    await made.register(backend)
    return made


def trained(backend: InProcessBackend) -> list[list[str]]:
    """What each row of each update had to say."""
    return [[_text(backend, row) for row in rows] for rows, _ in backend.trainer.steps]


def _text(backend: InProcessBackend, row: TokenSample) -> str:
    return backend._tokenizer.decode([t for t, flag in zip(row.token_ids, row.trained, strict=True) if flag])


async def test_a_file(model: art.TrainableModel, backend: InProcessBackend, tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    lines = [{"messages": [USER, {**RIGHT, "content": text}]} for text in ("a", "b", "c")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told: list[str] = []
    result = await model.train_sft(path, batch_size=2, shuffle=False, epochs=1, on_progress=told.append)
    assert (result.step, result.skipped, await model.get_step()) == (2, None, 2)
    assert trained(backend) == [["a<|im_end|>", "b<|im_end|>"], ["c<|im_end|>"]]
    assert [line.split(" · ")[0] for line in told if line.startswith("update")] == [
        "update 1 of 2: loss 5.5568",
        "update 2 of 2: loss 5.5568",
    ]
    again = await model.train_sft(str(path), art.SftConfig(batch_size=2, shuffle=False))
    assert (again.step, again.skipped) == (2, "the same training was finished before")
    assert len(backend.trainer.steps) == 2


async def test_lines_on_stderr_where_nobody_listens(
    model: art.TrainableModel, capsys: pytest.CaptureFixture[str]
) -> None:
    await model.train_sft([art.Trajectory(messages_and_choices=[USER, RIGHT])])
    reading, update = capsys.readouterr().err.splitlines()
    assert reading == "sft m: reading 1 examples"
    assert update.startswith("sft m: update 1 of 1: loss ")


async def test_trajectories_of_every_kind(model: art.TrainableModel, backend: InProcessBackend) -> None:
    async def ask() -> Any:
        return await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=[{"role": "user", "content": "2 + 2?"}], temperature=0.5
        )

    written = art.Trajectory(messages_and_choices=[USER, RIGHT])
    appended = art.Trajectory(messages_and_choices=[USER, (await ask()).choices[0]])
    async with art.capture(model) as captured:
        await ask()
    foreign = (await ask()).choices[0].model_copy(update={"exchange_id": "ex-of-another-server"})
    foreign.id = foreign.system_fingerprint = None
    failed = art.Trajectory(error=RolloutError(kind="OSError", message="x"))
    group = art.TrajectoryGroup([written, failed, appended])
    result = await model.train_sft([group, captured], shuffle=False)
    assert trained(backend) == [["4<|im_end|>", "5<|im_end|>", "5<|im_end|>"]]
    assert result.metrics["sft/trajectories_failed"] == 1.0
    teacher = art.Trajectory(messages_and_choices=[USER, foreign])
    await model.train_sft([teacher])
    assert trained(backend)[1] == ["5<|im_end|>"], "an answer of another server is written anew"


async def test_what_is_refused(model: art.TrainableModel, backend: InProcessBackend, tmp_path: Path) -> None:
    good = art.Trajectory(messages_and_choices=[USER, RIGHT])
    with pytest.raises(ConfigError, match="train_sft has no option 'lr'"):
        await model.train_sft([good], lr=1e-4)
    with pytest.raises(ConfigError, match="no option 'max_tokens': use max_row_tokens"):
        await model.train_sft([good], max_tokens=9)
    with pytest.raises(ConfigError, match="on_progress is a str; wanted a function that takes a line of text"):
        await model.train_sft(tmp_path / "missing.jsonl", on_progress="loud")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"missing\.jsonl cannot be read"):
        await model.train_sft(tmp_path / "missing.jsonl")
    with pytest.raises(DataError, match="there is nothing to train on"):
        await model.train_sft([])
    with pytest.raises(DataError, match="there is no message of the assistant"):
        await model.train_sft([good], validation=[art.Trajectory(messages_and_choices=[USER])])
    long = art.Trajectory(messages_and_choices=[USER, {**RIGHT, "content": "x" * 9000}])
    with pytest.raises(DataError, match="1 of 2 examples have more than 4096 tokens"):
        await model.train_sft([good, long])
    assert backend.trainer.steps == []
    result = await model.train_sft([good, long], overlong="drop")
    assert (result.metrics["sft/dropped_overlong"], result.metrics["sft/examples"]) == (1.0, 1.0)


async def test_a_model_that_is_not_trained_has_none() -> None:
    with pytest.raises(AttributeError, match="only a TrainableModel"):
        art.Model(name="m").train_sft([])
