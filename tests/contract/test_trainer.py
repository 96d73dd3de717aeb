"""What every trainer promises: run on the native one, with a tiny model, and on the fake."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import torch

from art_core.errors import (
    AdapterMismatchError,
    DataError,
    NonFiniteLossError,
    StorageError,
    TrainerClosedError,
)
from art_core.objective import Objective
from art_core.protocols import Trainer
from art_core.testing import RecordingTrainer, write_tiny_model
from art_core.trainers.native import NativeTrainer, NativeTrainerConfig
from art_core.types import Checkpoint, TokenSample

MakeTrainer = Callable[[], Trainer]
RL = Objective(loss="ppo", learning_rate=1e-3)


def row(
    *,
    trained: tuple[bool, ...] = (False, False, True, True),
    logprob: float = -5.0,
    advantage: float = 1.0,
    policy_version: int = 0,
    trajectory_id: str = "t",
) -> TokenSample:
    return TokenSample(
        token_ids=(1, 20, 30, 40, 50)[: len(trained)],
        trained=trained,
        logprobs=tuple(logprob if is_trained else 0.0 for is_trained in trained),
        advantage=advantage,
        policy_version=policy_version,
        trajectory_id=trajectory_id,
    )


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small gain nothing from threads, and waiting for a busy core makes them a hundred times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(params=["native", "recording"])
async def make(request: pytest.FixtureRequest, tiny: Path) -> AsyncIterator[MakeTrainer]:
    made: list[Trainer] = []

    def make_trainer() -> Trainer:
        trainer: Trainer
        if request.param == "native":
            trainer = NativeTrainer(NativeTrainerConfig(model_folder=tiny, base_model="tiny", seed=1))
        else:
            trainer = RecordingTrainer()
        made.append(trainer)
        return trainer

    yield make_trainer
    for trainer in made:
        await trainer.aclose()


@pytest.fixture
def trainer(make: MakeTrainer) -> Trainer:
    return make()


PROBE = [1, 20, 30, 40, 50, 60]


async def probe(trainer: Trainer) -> list[float]:
    return await trainer.logprobs(PROBE, num_completion=4)


def saved(trainer: Trainer, folder: Path) -> Checkpoint:
    folder.mkdir()
    trainer.save(folder)
    return Checkpoint(trainer.step_count, folder)


async def test_satisfies_the_protocol(trainer: Trainer) -> None:
    assert isinstance(trainer, Trainer)


async def test_each_step_counts_one_and_reports_its_number(trainer: Trainer) -> None:
    assert trainer.step_count == 0
    assert (await trainer.step([row()], RL)).step == 1
    assert (await trainer.step([row(), row(advantage=-1.0)], RL)).step == 2
    assert trainer.step_count == 2


async def test_the_report_counts_rows_and_trained_tokens(trainer: Trainer) -> None:
    report = await trainer.step([row(), row(trained=(False, True, False, True, True))], RL)
    assert report.metrics["train/trained_tokens"] == 5.0
    assert report.metrics["train/rows"] == 2.0
    assert all(math.isfinite(value) for value in report.metrics.values())


@pytest.mark.parametrize("loss", ["ppo", "cispo", "sft"])
async def test_every_loss_makes_a_step(trainer: Trainer, loss: str) -> None:
    objective = Objective(loss=loss, learning_rate=1e-3)  # type: ignore[arg-type]
    assert (await trainer.step([row()], objective)).step == 1


@pytest.mark.parametrize("rows", [[], [row(trained=(False, False, False))]], ids=["no row", "no trained token"])
async def test_nothing_to_learn_from_is_refused_and_changes_nothing(trainer: Trainer, rows: list[TokenSample]) -> None:
    before = await probe(trainer)
    with pytest.raises(DataError, match=r"no.* trained token|nothing to learn"):
        await trainer.step(rows, RL)
    assert trainer.step_count == 0
    assert await probe(trainer) == before


async def test_a_row_without_trained_tokens_beside_others_is_no_error(trainer: Trainer) -> None:
    report = await trainer.step([row(trained=(False, False, False)), row()], RL)
    assert report.metrics["train/trained_tokens"] == 2.0


@pytest.mark.parametrize(
    "bad",
    [
        row(logprob=math.nan, trajectory_id="culprit"),
        row(logprob=-math.inf, trajectory_id="culprit"),
        row(advantage=math.nan, trajectory_id="culprit"),
        row(advantage=math.inf, trajectory_id="culprit"),
    ],
    ids=["logprob nan", "logprob -inf", "advantage nan", "advantage inf"],
)
async def test_a_loss_that_is_not_finite_names_the_trajectory_and_changes_nothing(
    trainer: Trainer, bad: TokenSample
) -> None:
    before = await probe(trainer)
    with pytest.raises(NonFiniteLossError, match="culprit"):
        await trainer.step([row(), bad], RL)
    assert trainer.step_count == 0
    assert await probe(trainer) == before
    assert (await trainer.step([row()], RL)).step == 1


async def test_numbers_of_a_row_that_is_not_trained_do_not_matter(trainer: Trainer) -> None:
    untrained = row(trained=(False, False), advantage=math.nan)
    assert (await trainer.step([untrained, row()], RL)).step == 1


async def test_supervised_rows_need_no_record(trainer: Trainer) -> None:
    objective = Objective(loss="sft", learning_rate=1e-3)
    assert (await trainer.step([row(advantage=math.nan, logprob=math.nan, policy_version=7)], objective)).step == 1


async def test_a_row_of_a_policy_that_does_not_exist_yet_is_refused(trainer: Trainer) -> None:
    with pytest.raises(DataError, match=r"'future'.*version 1.*0 steps"):
        await trainer.step([row(policy_version=1, trajectory_id="future")], RL)
    assert trainer.step_count == 0


async def test_an_unknown_token_id_is_refused(trainer: Trainer) -> None:
    bad = TokenSample((1, 9999, 2), (False, False, True), (0.0, 0.0, -1.0), 1.0, 0, "t")
    with pytest.raises(DataError, match="9999"):
        await trainer.step([bad], RL)
    with pytest.raises(DataError, match="9999"):
        await trainer.logprobs([1, 9999, 2], num_completion=1)


async def test_logprobs_are_one_finite_negative_number_per_completion_token(trainer: Trainer) -> None:
    values = await trainer.logprobs(PROBE, num_completion=3)
    assert len(values) == 3
    assert all(-30.0 < value < 0.0 for value in values)
    assert (await probe(trainer))[1:] == pytest.approx(values, abs=1e-5)


@pytest.mark.parametrize("num_completion", [0, -1, 6, 7])
async def test_logprobs_of_an_impossible_number_of_tokens_are_refused(trainer: Trainer, num_completion: int) -> None:
    with pytest.raises(DataError, match=f"{num_completion} completion tokens of a sequence of 6"):
        await trainer.logprobs(PROBE, num_completion=num_completion)


async def test_a_restored_trainer_goes_on_where_the_saved_one_stood(make: MakeTrainer, tmp_path: Path) -> None:
    first = make()
    await first.step([row()], RL)
    checkpoint = saved(first, tmp_path / "checkpoint")
    second = make()
    second.restore(checkpoint)
    assert second.step_count == 1
    assert await probe(second) == await probe(first)
    for trainer in (first, second):
        assert (await trainer.step([row(policy_version=1)], RL)).step == 2
    assert await probe(second) == await probe(first)


async def test_restore_goes_back_as_well(trainer: Trainer, tmp_path: Path) -> None:
    before = await probe(trainer)
    checkpoint = saved(trainer, tmp_path / "checkpoint")
    await trainer.step([row()], RL)
    trainer.restore(checkpoint)
    assert trainer.step_count == 0
    assert await probe(trainer) == before


async def test_saving_changes_nothing(trainer: Trainer, tmp_path: Path) -> None:
    await trainer.step([row()], RL)
    before = await probe(trainer)
    saved(trainer, tmp_path / "checkpoint")
    assert trainer.step_count == 1
    assert await probe(trainer) == before


async def test_an_empty_checkpoint_is_refused_and_changes_nothing(trainer: Trainer, tmp_path: Path) -> None:
    await trainer.step([row()], RL)
    before = await probe(trainer)
    with pytest.raises((StorageError, AdapterMismatchError), match=str(tmp_path)):
        trainer.restore(Checkpoint(3, tmp_path))
    assert trainer.step_count == 1
    assert await probe(trainer) == before


async def test_a_checkpoint_under_the_name_of_another_step_is_refused(trainer: Trainer, tmp_path: Path) -> None:
    checkpoint = saved(trainer, tmp_path / "checkpoint")
    with pytest.raises(AdapterMismatchError, match=r"step 0.*step 5"):
        trainer.restore(Checkpoint(5, checkpoint.path))


async def test_a_closed_trainer_says_so(trainer: Trainer, tmp_path: Path) -> None:
    await trainer.aclose()
    await trainer.aclose()
    with pytest.raises(TrainerClosedError):
        await trainer.step([row()], RL)
    with pytest.raises(TrainerClosedError):
        await trainer.logprobs(PROBE, num_completion=1)
    with pytest.raises(TrainerClosedError):
        trainer.save(tmp_path)
    with pytest.raises(TrainerClosedError):
        trainer.restore(Checkpoint(0, tmp_path))
