"""The run of a supervised training: its updates, its checkpoints, and how it goes on."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from art_core.canary import WeightSyncCanary
from art_core.control import SftExample
from art_core.errors import ConfigError, DataError
from art_core.sft.preparing import PreparedSet, prepare
from art_core.sft.run import SftRun
from art_core.sft_config import SftConfig
from art_core.storage import RunStore
from art_core.testing import RecordingTrainer, ScriptedEngine
from art_core.types import StepReport
from tests.core.sft.families import renderer_of

VOCABULARY = 60_000
CONFIG = SftConfig(epochs=2, batch_size=2, save_every=2, learning_rate=1.0, warmup_ratio=0.0)


class KilledError(Exception):
    """Stands for the end of the process."""


def data(*answers: str) -> PreparedSet:
    examples = [
        SftExample(
            source=f"d:{n}", messages=[{"role": "user", "content": "U"}, {"role": "assistant", "content": answer}]
        )
        for n, answer in enumerate(answers)
    ]
    return prepare(examples, renderer_of("chatml"), SftConfig(), max_context_tokens=1000)


FIVE = data("a", "b", "c", "d", "e")  # with CONFIG: three updates in each of two epochs


class Process:
    """What one process has open: a store, a trainer and an engine at its newest checkpoint."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.trainer = RecordingTrainer(vocabulary_size=VOCABULARY)
        self.engine = ScriptedEngine(lambda *_: [2], logprob=-math.log(VOCABULARY))
        self.logged: list[StepReport] = []
        self.lines: list[str] = []
        self.kill_at = ""

    def told(self, line: str) -> None:
        self.lines.append(line)
        if self.kill_at and line.startswith(self.kill_at):
            raise KilledError

    async def run(
        self,
        training: PreparedSet = FIVE,
        config: SftConfig = CONFIG,
        validation: PreparedSet | None = None,
        kill_at: str = "",
    ) -> StepReport:
        self.kill_at = kill_at
        return await SftRun(
            training=training,
            validation=validation,
            config=config,
            trainer=self.trainer,
            engine=self.engine,
            store=self.store,
            canary=WeightSyncCanary((2, 2), tolerance=1e-6),
            checkpoints={checkpoint.step: checkpoint for checkpoint in self.store.checkpoints()},
            log_step=self.logged.append,
            on_progress=self.told,
        ).execute()

    @property
    def texts(self) -> list[tuple[str, ...]]:
        """The answers of each update that this process made."""
        decode = renderer_of("chatml").token_text
        return [tuple(decode(row.token_ids[row.trained.index(True)]) for row in rows) for rows, _ in self.trainer.steps]

    @property
    def rates(self) -> list[float]:
        return [objective.learning_rate for _, objective in self.trainer.steps]


@contextlib.asynccontextmanager
async def process(folder: Path) -> AsyncIterator[Process]:
    with RunStore(folder) as store:
        made = Process(store)
        if (latest := store.latest()) is not None:
            made.trainer.restore(latest)
            await made.engine.load(latest)
        yield made


def steps(store: RunStore) -> list[int]:
    return [checkpoint.step for checkpoint in store.checkpoints()]


async def test_every_example_once_an_epoch_and_the_schedule_over_all_updates(tmp_path: Path) -> None:
    async with process(tmp_path) as p:
        report = await p.run()
        assert [len(update) for update in p.texts] == [2, 2, 1, 2, 2, 1]
        for epoch in (p.texts[:3], p.texts[3:]):
            assert sorted(text for update in epoch for text in update) == ["a", "b", "c", "d", "e"]
        assert p.texts[:3] != p.texts[3:], "each epoch has an order of its own"
        assert p.rates == pytest.approx([1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
        assert {objective.loss for _, objective in p.trainer.steps} == {"sft"}
        assert (report.step, p.engine.policy_version, steps(p.store)) == (6, 6, [2, 4, 6])
        loss = math.log(VOCABULARY)
        wanted = {"updates": 6.0, "epochs": 2.0, "examples": 5.0, "loss_first": loss, "loss_last": loss}
        assert {name: report.metrics[f"sft/{name}"] for name in wanted} == wanted
        assert report.metrics["sft/loss_mean"] == pytest.approx(loss)
        assert report.metrics["canary/error"] < 1e-6
        assert [r.step for r in p.logged] == [1, 2, 3, 4, 5, 6]
        assert [r.metrics["sft/epoch"] for r in p.logged] == [1, 1, 1, 2, 2, 2]
        assert [r.metrics["sft/update"] for r in p.logged] == [1, 2, 3, 4, 5, 6]
        assert p.lines[1].startswith(f"update 2 of 6: loss {loss:.4f} · ")
        assert "left" not in p.lines[-1]


async def test_without_shuffling_the_order_is_that_of_the_data(tmp_path: Path) -> None:
    async with process(tmp_path) as p:
        await p.run(config=replace(CONFIG, shuffle=False, epochs=1))
        assert p.texts == [("a", "b"), ("c", "d"), ("e",)]


@pytest.mark.parametrize("killed", range(1, 7))
async def test_killed_in_any_update_it_makes_the_same_updates(tmp_path: Path, killed: int) -> None:
    async with process(tmp_path / "whole") as p:
        whole = await p.run()
        wanted = p.trainer.steps
    async with process(tmp_path / "killed") as p:
        with pytest.raises(KilledError):
            await p.run(kill_at=f"update {killed} of 6")
        kept = [*p.trainer.steps]
        last = p.trainer.step_count
        logged = p.logged
    async with process(tmp_path / "killed") as p:
        done = p.trainer.step_count
        assert done == 2 * ((killed - 1) // 2), "the newest checkpoint"
        report = await p.run(config=replace(CONFIG, save_every=5))
        assert [*kept[:done], *p.trainer.steps] == wanted
        assert last == killed
        assert (f"going on behind update {done} of 6" in p.lines) is (done > 0)
        same = {name for name in whole.metrics if name.startswith("sft/")} - {"sft/resumed_after"}
        assert {n: report.metrics[n] for n in same} == {n: whole.metrics[n] for n in same}
        assert report.metrics["sft/resumed_after"] == done
        assert sorted({r.step for r in [*logged, *p.logged]}) == [1, 2, 3, 4, 5, 6]


async def test_reports_that_were_not_logged_before_the_end_are_in_the_checkpoint(tmp_path: Path) -> None:
    async with process(tmp_path) as p:
        with pytest.raises(KilledError):
            await p.run(kill_at="update 5 of 6")
    async with process(tmp_path) as p:
        await p.run()
        assert [r.step for r in p.logged] == [3, 4, 5, 6]
        assert [r.metrics["sft/update"] for r in p.logged] == [3, 4, 5, 6]


async def test_a_checkpoint_of_a_long_training_is_no_larger_than_one_of_a_short_one(tmp_path: Path) -> None:
    async with process(tmp_path) as p:
        await p.run(config=replace(CONFIG, epochs=20, save_every=3))
        cursors = [p.store.load(checkpoint) for checkpoint in p.store.checkpoints()]
        sizes = [len(json.dumps(cursor)) for cursor in cursors]
    assert len(sizes) == 20
    assert max(sizes) < min(sizes) + 100


async def test_what_was_finished_is_not_made_again(tmp_path: Path) -> None:
    async with process(tmp_path) as p:
        first = await p.run()
    async with process(tmp_path) as p:
        again = await p.run(config=replace(CONFIG, save_every=1))
        assert (again.step, again.metrics["sft/already_finished"], p.trainer.steps) == (6, 1.0, [])
        assert again.metrics["sft/loss_mean"] == first.metrics["sft/loss_mean"]
        other = await p.run(config=replace(CONFIG, epochs=1))
        assert (other.step, "sft/already_finished" in other.metrics) == (9, False)
        again = await p.run()
        assert (again.step, again.metrics["sft/already_finished"]) == (9, 1.0)
        anew = await p.run(config=replace(CONFIG, restart=True))
        assert (anew.step, "sft/already_finished" in anew.metrics) == (15, False)


async def test_killed_behind_its_last_update_only_the_end_is_made(tmp_path: Path) -> None:
    async with process(tmp_path) as p:
        with pytest.raises(KilledError):
            await p.run(validation=data("v"), kill_at="held-out loss after")
        assert steps(p.store) == [2, 4, 6]
    async with process(tmp_path) as p:
        report = await p.run(validation=data("v"))
        assert (report.step, p.trainer.steps, report.metrics["sft/resumed_after"]) == (6, [], 6.0)
        assert report.metrics["sft/validation_loss_after"] == pytest.approx(math.log(VOCABULARY))
        again = await p.run(validation=data("v"))
        assert again.metrics["sft/already_finished"] == 1.0


async def interrupted(folder: Path) -> None:
    async with process(folder) as p:
        with pytest.raises(KilledError):
            await p.run(kill_at="update 3 of 6")


async def test_another_one_is_refused_with_what_differs_while_one_is_unfinished(tmp_path: Path) -> None:
    await interrupted(tmp_path)
    async with process(tmp_path) as p:
        for training, validation, config, message in (
            (data("x"), None, CONFIG, "interrupted behind update 2 of 6: the examples were others. Give what"),
            (FIVE, data("v"), CONFIG, "the validation examples were others"),
            (FIVE, None, replace(CONFIG, epochs=3, seed=5), "epochs was 2, now 3; seed was 0, now 5"),
        ):
            with pytest.raises(ConfigError, match=message):
                await p.run(training, config, validation)
        assert p.trainer.steps == []
        report = await p.run(data("x"), replace(CONFIG, restart=True))
        assert (report.step, report.metrics["sft/updates"]) == (4, 2.0)
        assert (await p.run(data("x"))).metrics["sft/already_finished"] == 1.0


async def test_trained_otherwise_since_it_cannot_go_on(tmp_path: Path) -> None:
    await interrupted(tmp_path)
    async with process(tmp_path) as p:
        p.trainer._step_count += 1
        p.store.commit(p.trainer, {"counters": {}})
        with pytest.raises(ConfigError, match=r"behind update 2 of 6, and the model was trained otherwise since"):
            await p.run()


async def test_interrupted_before_its_first_checkpoint_nothing_is_left_behind(tmp_path: Path) -> None:
    async with process(tmp_path) as p:
        with pytest.raises(KilledError):
            await p.run(kill_at="update 1 of 6")
    async with process(tmp_path) as p:
        assert (await p.run(data("x"), CONFIG)).step == 2


async def test_held_out_loss_is_that_of_the_trained_tokens(tmp_path: Path) -> None:
    class Known(RecordingTrainer):
        """Gives the token at place p of a row the logprob -p."""

        async def logprobs(self, token_ids: Sequence[int], *, num_completion: int) -> list[float]:
            if len(token_ids) < 6:  # the canary's
                return await super().logprobs(token_ids, num_completion=num_completion)
            return [-float(place) for place in range(len(token_ids) - num_completion, len(token_ids))]

    turn: list[Any] = [{"role": "user", "content": "U"}, {"role": "assistant", "content": "a"}]
    two = SftExample(source="v", messages=[*turn, *turn, {"role": "user", "content": "no answer"}])
    held_out = prepare([two], renderer_of("chatml"), SftConfig(), max_context_tokens=1000)
    [row] = held_out.rows
    places = [place for place, flag in enumerate(row.trained) if flag]
    assert len(places) == 4
    async with process(tmp_path) as p:
        p.trainer = Known(vocabulary_size=VOCABULARY)
        report = await p.run(validation=held_out)
        for when in ("before", "after"):
            assert report.metrics[f"sft/validation_loss_{when}"] == sum(places) / 4
        assert report.metrics["sft/validation_examples"] == 1.0
        assert report.metrics["sft/validation_in_training"] == 0.0
        same = await p.run(data("a"), validation=data("a", "b"))
        assert same.metrics["sft/validation_in_training"] == 1.0


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"event": 7},
        {"event": ["begun"]},
        {"event": "begun"},
        {"event": "begun", "run": "r", "start": "a", "updates": 2, "identity": {}},
        {"event": "finished", "run": "r", "step": 1, "metrics": {}},
    ],
)
async def test_a_log_that_was_damaged_by_hand_is_told_by_its_line(tmp_path: Path, record: dict[str, Any]) -> None:
    async with process(tmp_path) as p:
        await p.run()
        p.store.append("sft", record)
        with pytest.raises(DataError, match=r"line 3 of sft\.jsonl .* or remove the line to go on"):
            await p.run(config=replace(CONFIG, epochs=1))
        assert p.trainer.step_count == 6
        assert (await p.run(config=replace(CONFIG, epochs=1, restart=True))).step == 9


def _lose(folder: Path, *lost: int) -> None:
    for step in lost:
        (folder / "checkpoints" / f"step-{step:04d}" / "recording.json").write_text("cut")


@pytest.mark.parametrize("lost", [(6,), (4, 6)])
async def test_a_finished_training_that_lost_its_end_makes_the_end_again_and_no_more(
    tmp_path: Path, lost: tuple[int, ...]
) -> None:
    async with process(tmp_path) as p:
        whole = await p.run()
        texts = p.texts
    _lose(tmp_path, *lost)
    async with process(tmp_path) as p:
        again = await p.run()
        assert p.texts == texts[lost[0] - 2 :]
        assert (again.step, again.metrics["sft/resumed_after"]) == (6, lost[0] - 2)
        assert again.metrics["sft/loss_mean"] == whole.metrics["sft/loss_mean"]
        assert (await p.run()).metrics["sft/already_finished"] == 1


async def test_of_two_finished_trainings_the_one_whose_end_is_lost_goes_on(tmp_path: Path) -> None:
    second = replace(CONFIG, epochs=1)
    async with process(tmp_path) as p:
        await p.run()
        assert (await p.run(config=second)).step == 9
        texts = p.texts
    _lose(tmp_path, 6, 8, 9)
    async with process(tmp_path) as p:
        with pytest.raises(ConfigError, match="interrupted behind update 4 of 6: epochs was 2, now 1"):
            await p.run(config=second)
        assert (await p.run()).step == 6
        assert (await p.run(config=second)).step == 9
        assert p.texts == texts[4:]
        assert (await p.run()).metrics["sft/already_finished"] == 1
