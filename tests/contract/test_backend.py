"""What every `Backend` promises: one that speaks to a server elsewhere, one that starts its own, and the fake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import art_core as art
from art_core.backends import LocalBackend, RemoteBackend
from art_core.backends.http import HttpBackend
from art_core.config import TrainConfig
from art_core.control import RegisterRequest, SftExample, SftRequest
from art_core.errors import ConfigError, DataError, ModelNotFoundError, UnknownTrajectoryError
from art_core.hosting.host import ModelHost
from art_core.hosting.options import HostOptions
from art_core.hosting.server import HostServer
from art_core.protocols import Backend
from art_core.testing import InProcessBackend, write_tiny_model
from art_core.trajectories import Trajectory, TrajectoryGroup
from tests.core.hosting.fakes import ask, client_of, group, rollout

pytestmark = pytest.mark.asyncio(loop_scope="module")
OPTIONS: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "lora": {"rank": 4}}
CONFIG = TrainConfig(learning_rate=1e-2)


@pytest.fixture(scope="module")
def base_model(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> str:
    return "scripted" if has_no_weights(backend) else str(write_tiny_model(tmp_path_factory.mktemp("tiny")))


def has_no_weights(backend: Backend) -> bool:
    return isinstance(backend, InProcessBackend)


BACKENDS = ["in process", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("remote", "local"))]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BACKENDS)
async def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backend]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "in process":
        async with InProcessBackend(lambda _: "a long answer", api_key="secret", path=folder) as fake:
            yield fake
        return
    if request.param == "local":
        async with LocalBackend(folder, **OPTIONS) as local:
            yield local
        return
    host = ModelHost(folder, options=HostOptions.made(OPTIONS, of="the server"))
    async with HostServer(host, api_key="secret") as server, RemoteBackend(server.url, "secret") as remote:
        yield remote


async def registered(backend: Backend, name: str, base_model: str) -> None:
    await backend.register(RegisterRequest(project="p", name=name, base_model=base_model))


async def test_satisfies_the_protocol(backend: Backend) -> None:
    assert isinstance(backend, Backend)


async def test_a_rollout_is_recorded_trained_on_and_answered_by_the_newer_step(
    backend: Backend, base_model: str
) -> None:
    request = RegisterRequest(project="p", name="whole", base_model=base_model)
    state = await backend.register(request)
    assert (state.inference_name, state.step, state.checkpoint_steps) == ("p/whole", 0, [])
    before = await group(backend, "whole", "before", max_tokens=8)
    assert [e.policy_version for t in before for e in t.exchanges] == [0, 0]
    phases: list[str] = []
    report = await backend.train("p", "whole", [before], CONFIG, on_progress=phases.append)
    assert (report.step, report.metrics["trajectories/trained"], report.metrics["step/skipped"]) == (1, 2.0, 0.0)
    assert report.metrics["train/trained_tokens"] == sum(t.num_trained_tokens for t in before)
    assert phases == ["training step 1 on 2 rows"]
    state = await backend.state("p", "whole")
    assert (state.step, state.checkpoint_steps) == (1, [1])
    async with client_of(backend, api_key=backend.api_key) as client:  # type: ignore[arg-type]
        versions = [
            (await ask(client, name, max_tokens=2)).choices[0].policy_version
            for name in ("p/whole", "p/whole@0", "p/whole@1")
        ]
    assert versions == [1, 0, 1]
    assert await backend.register(request) == state


async def test_a_model_may_stand_in_place_of_its_names(backend: Backend, base_model: str) -> None:
    model = art.TrainableModel(name="given", project="p", base_model=base_model)
    await model.register(backend)
    assert isinstance(backend, HttpBackend)
    result = await backend.train(model, [await group(backend, "given", "given", max_tokens=4)], learning_rate=1e-2)
    assert (result.step, result.skipped, await model.get_step()) == (1, None, 1)
    with pytest.raises(ConfigError, match=r"train has no option 'lerning_rate'.*'learning_rate'"):
        await backend.train(model, [], lerning_rate=1e-2)
    other = art.TrainableModel(name="given", project="p", base_model=base_model)
    with pytest.raises(ConfigError, match="not registered"):
        await backend.train(other, [])


async def test_registering_with_other_options_is_refused_with_the_difference(backend: Backend, base_model: str) -> None:
    await registered(backend, "same", base_model)
    with pytest.raises(ConfigError, match=r"'p/same'.*seed was 0, now 7"):
        await backend.register(RegisterRequest(project="p", name="same", base_model=base_model, config={"seed": 7}))
    with pytest.raises(ConfigError, match=r"base_model was .*, now 'smollm2-135m'"):
        await backend.register(RegisterRequest(project="p", name="same", base_model="smollm2-135m"))
    with pytest.raises(ConfigError, match=r"name '\.\./x' cannot be used"):
        await backend.register(RegisterRequest(project="p", name="../x", base_model=base_model))
    with pytest.raises(ConfigError, match=r"no option 'sed'.*seed"):
        await backend.register(RegisterRequest(project="p", name="other", base_model=base_model, config={"sed": 1}))
    if has_no_weights(backend):
        return
    for config, message in (
        ({"engine_args": {"batch": 1}}, "no option 'batch'.*max_concurrency"),
        ({"lora": {"modules_to_save": ["lm_head"]}}, "no option 'modules_to_save'"),  # B055
        ({"lora": {"target_modules": ["nothing"]}}, "nothing"),  # B055
    ):
        with pytest.raises(ConfigError, match=message):
            await backend.register(RegisterRequest(project="p", name="other", base_model=base_model, config=config))
    with pytest.raises(ModelNotFoundError, match="no-such-model"):
        await backend.register(RegisterRequest(project="p", name="other", base_model="no-such-model"))


async def test_groups_that_cannot_be_trained_on_are_refused_with_the_culprits(
    backend: Backend, base_model: str
) -> None:
    await registered(backend, "bad", base_model)
    good = await group(backend, "bad", "good", max_tokens=4)
    unscored = await rollout(backend, "bad", "unscored", None, max_tokens=4)
    silent = Trajectory(id="silent", scenario_id="s", reward=1.0)
    tempered = await rollout(backend, "bad", "tempered", 2.0, max_tokens=4, temperature=0.5)
    for trajectories, message in (
        ([*good, unscored], r"no reward on 1 of 3 trajectories \(unscored\)"),
        ([*good, silent], r"no recorded call \(silent\)"),
        ([*good, tempered], "trajectory 'tempered' was sampled at temperature 0.5"),
    ):
        with pytest.raises(DataError, match=message):
            await backend.train("p", "bad", [TrajectoryGroup(trajectories)], CONFIG)
    assert (await backend.state("p", "bad")).step == 0
    assert (await backend.train("p", "bad", [good], CONFIG)).step == 1
    with pytest.raises(DataError, match="trajectory 'good-0' was sampled from policy version 0, but version 1"):
        await backend.train("p", "bad", [good], CONFIG)


async def test_a_group_without_signal_makes_no_step(backend: Backend, base_model: str) -> None:
    await registered(backend, "flat", base_model)
    same = [await rollout(backend, "flat", f"flat-{index}", 1.0, max_tokens=4) for index in range(2)]
    report = await backend.train("p", "flat", [TrajectoryGroup(same)], CONFIG)
    assert (report.step, report.metrics["step/skipped"], report.metrics["groups/without_signal"]) == (0, 1.0, 1.0)
    nothing = await backend.train("p", "flat", [], CONFIG)
    assert (nothing.step, nothing.metrics["step/skipped"], nothing.metrics["groups/total"]) == (0, 1.0, 0.0)
    assert (await backend.state("p", "flat")).checkpoint_steps == []
    assert (await backend.state("p", "flat")).skipped_batches == 2


def examples(*answers: str) -> list[SftExample]:
    turns = [[{"role": "user", "content": "Say it."}, {"role": "assistant", "content": answer}] for answer in answers]
    return [SftExample(source=f"data.jsonl:{n}", messages=messages) for n, messages in enumerate(turns, 1)]


async def test_supervised_training_is_made_once_and_served(backend: Backend, base_model: str) -> None:
    await registered(backend, "taught", base_model)
    options = {"epochs": 2, "batch_size": 2, "save_every": 3, "learning_rate": 1e-2}
    request = SftRequest(examples=examples("a", "b", "c"), validation=examples("a"), options=options, num_failed=1)
    lines: list[str] = []
    report = await backend.train_sft("p", "taught", request, on_progress=lines.append)
    assert report.step == 4
    told = {
        "updates": 4.0,
        "examples": 3.0,
        "trained_tokens": 6.0,
        "trajectories_failed": 1.0,
        "validation_examples": 1.0,
    }
    assert {name: report.metrics[f"sft/{name}"] for name in told} == told
    if not has_no_weights(backend):
        assert report.metrics["sft/loss_last"] < report.metrics["sft/loss_first"]
        assert report.metrics["sft/validation_loss_after"] < report.metrics["sft/validation_loss_before"]
    assert any(line.startswith("update 4 of 4: loss ") for line in lines)
    state = await backend.state("p", "taught")
    assert (state.step, state.checkpoint_steps) == (4, [3, 4])
    again = await backend.train_sft("p", "taught", request)
    assert (again.step, again.metrics["sft/already_finished"]) == (4, 1.0)
    report = await backend.train("p", "taught", [await group(backend, "taught", "after", max_tokens=4)], CONFIG)
    assert report.step == 5
    again = await backend.train_sft("p", "taught", request)
    assert (again.step, again.metrics["sft/already_finished"]) == (5, 1.0)
    steps = (Path(state.folder) / "steps.jsonl").read_text()
    assert [f'"step": {step}' in steps for step in range(7)] == [False, True, True, True, True, True, False]


async def test_supervised_training_on_recorded_calls(backend: Backend, base_model: str) -> None:
    await registered(backend, "own", base_model)
    recorded = await rollout(backend, "own", "own", None, max_tokens=3, temperature=0.3)
    request = SftRequest(examples=[SftExample(source="t", exchanges=recorded.exchanges)])
    report = await backend.train_sft("p", "own", request)
    assert (report.step, report.metrics["sft/trained_tokens"]) == (1, float(recorded.num_trained_tokens))
    await registered(backend, "other", base_model)
    with pytest.raises(DataError, match="were answered by 'p/own' and not by 'p/other'"):
        await backend.train_sft("p", "other", request)


async def test_examples_that_cannot_be_trained_on_are_refused(backend: Backend, base_model: str) -> None:
    await registered(backend, "refused", base_model)
    long = SftRequest(examples=examples("a", "b" * 5000))
    with pytest.raises(DataError, match=r"1 of 2 examples have more than \d+ tokens.*data.jsonl:2 has 50\d\d"):
        await backend.train_sft("p", "refused", long)
    with pytest.raises(ConfigError, match="train_sft has no option 'peak_lr': use learning_rate"):
        await backend.train_sft("p", "refused", SftRequest(examples=examples("a"), options={"peak_lr": 1}))
    assert (await backend.state("p", "refused")).step == 0


async def test_calls_outside_a_trajectory_are_found_by_their_ids(backend: Backend, base_model: str) -> None:
    await registered(backend, "found", base_model)
    async with client_of(backend, api_key=backend.api_key) as client:  # type: ignore[arg-type]
        choices = [(await ask(client, "p/found", max_tokens=3, seed=seed)).choices[0] for seed in range(3)]
    ids = [choice.exchange_id for choice in choices]
    found = await backend.find_exchanges("p", "found", [ids[2], ids[0]])
    assert [exchange.id for exchange in found] == [ids[2], ids[0]]
    assert list(found[1].completion_ids) == choices[0].token_ids
    with pytest.raises(DataError, match=r"1 of 2 exchange ids .*\(nothing\)"):
        await backend.find_exchanges("p", "found", [ids[0], "nothing"])
    found = await backend.find_exchanges("p", "found", ["nothing", ids[1], "none", ids[0]], missing_ok=True)
    assert [exchange.id for exchange in found] == [ids[1], ids[0]]


async def test_a_record_is_given_out_again_to_whoever_asks_again(backend: Backend, base_model: str) -> None:
    await registered(backend, "again", base_model)
    trajectory = await rollout(backend, "again", "twice/ä", 1.0, max_tokens=3)
    assert len(trajectory.exchanges) == 1
    assert await backend.close_trajectory("twice/ä") == trajectory.exchanges
    with pytest.raises(UnknownTrajectoryError, match="'never'"):
        await backend.close_trajectory("never")


def _logs(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.rglob("*.jsonl"))


async def test_groups_and_metrics_are_kept_in_the_run_folder(backend: Backend, base_model: str) -> None:
    await registered(backend, "kept", base_model)
    scored = await group(backend, "kept", "kept", max_tokens=3)
    await backend.log("p", "kept", [scored], split="val", metrics={"val/accuracy": 0.5, "judge/cost": 2.0})
    with pytest.raises(DataError, match="'train/loss' given to log would be logged as 'train/loss'"):
        await backend.log("p", "kept", [], split="val", metrics={"train/loss": 0.5})
    text = _logs(Path((await backend.state("p", "kept")).folder))
    assert "kept-0" in text
    assert "accuracy" in text
    (record,) = await backend.logged_metrics("p", "kept")
    assert (record.step, record.metrics) == (0, {"val/accuracy": 0.5, "judge/cost": 2.0})


async def test_checkpoints_are_deleted_but_the_newest_and_those_to_keep(backend: Backend, base_model: str) -> None:
    await registered(backend, "pruned", base_model)
    for step in range(1, 4):
        groups = [await group(backend, "pruned", f"pruned-{step}", max_tokens=4)]
        assert (await backend.train("p", "pruned", groups, CONFIG)).step == step
    with pytest.raises(ConfigError, match=r"step 7.*\[1, 2, 3\]"):
        await backend.delete_checkpoints("p", "pruned", keep=[7])
    state = await backend.delete_checkpoints("p", "pruned", keep=[1])
    assert (state.step, state.checkpoint_steps) == (3, [1, 3])
    folders = sorted(path.name for path in (Path(state.folder) / "checkpoints").iterdir())
    assert folders == ["step-0001", "step-0003"]


async def test_an_unknown_model_is_refused(backend: Backend) -> None:
    for call in (
        backend.state("p", "unknown"),
        backend.open_trajectory("p", "unknown", "x"),
        backend.train("p", "unknown", [], CONFIG),
        backend.train_sft("p", "unknown", SftRequest(examples=examples("a"))),
    ):
        with pytest.raises(ModelNotFoundError, match="'p/unknown' is not registered"):
            await call


def _files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_a_backend_that_was_closed_refuses_whatever_comes_late(tmp_path: Path) -> None:
    for closed in (LocalBackend(tmp_path), RemoteBackend("http://127.0.0.1:9"), InProcessBackend(path=tmp_path)):
        await closed.close()
        await closed.close()
        for late in (
            closed.register(RegisterRequest(project="p", name="late", base_model="smollm2-135m")),
            closed.close_trajectory("late"),
            closed.__aenter__(),
        ):
            with pytest.raises(ConfigError, match=f"this {type(closed).__name__} was closed; make a new one"):
                await late
    assert _files(tmp_path) == []
