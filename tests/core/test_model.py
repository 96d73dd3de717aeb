"""`TrainableModel` and `Model` against a real server: training by capture and by explicit choices."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

import art_core as art
from art_core.errors import ConfigError, DataError
from art_core.protocols import Backend
from art_core.runs import Run
from art_core.testing import InProcessBackend
from art_core.types import RolloutError

USER: Any = {"role": "user", "content": "hi"}


@pytest.fixture
async def backend() -> AsyncIterator[InProcessBackend]:
    numbers = itertools.count()
    async with InProcessBackend(lambda _: f"answer {next(numbers)}") as made:
        yield made


@pytest.fixture
async def model(backend: InProcessBackend) -> art.TrainableModel:
    made = art.TrainableModel(name="clerk", project="shop", base_model="scripted")
    await made.register(backend)
    return made


async def answer(model: art.TrainableModel, messages: list[Any] | None = None) -> Any:
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=messages or [USER]
    )
    return completion.choices[0]


async def explicit(model: art.TrainableModel, reward: float | None) -> art.Trajectory:
    trajectory = art.Trajectory(messages_and_choices=[USER], reward=reward)
    trajectory.messages_and_choices.append(await answer(model))
    return trajectory


async def captured(model: art.TrainableModel, reward: float | None) -> art.Trajectory:
    async with art.capture(model) as trajectory:
        await answer(model)
        trajectory.reward = reward
    return trajectory


Style = Callable[[art.TrainableModel, float | None], Awaitable[art.Trajectory]]
both_styles = pytest.mark.parametrize("style", [explicit, captured])


async def group_of(style: Style, model: art.TrainableModel, *rewards: float | None) -> art.TrajectoryGroup:
    return art.TrajectoryGroup([await style(model, reward) for reward in rewards])


def trained_text(backend: InProcessBackend) -> list[str]:
    rows, _ = backend.trainer.steps[-1]
    chosen = [[t for t, own in zip(row.token_ids, row.trained, strict=True) if own] for row in rows]
    return [backend._tokenizer.decode(ids) for ids in chosen]


async def test_the_fake_satisfies_the_seam(model: art.TrainableModel, backend: InProcessBackend) -> None:
    seam: Backend = backend
    assert isinstance(seam, Backend)


@both_styles
async def test_a_step_trains_exactly_the_sampled_tokens(
    style: Style, model: art.TrainableModel, backend: InProcessBackend
) -> None:
    result = await model.train([await group_of(style, model, 0.0, 1.0)], learning_rate=1e-4, scale_rewards=False)
    assert (result.step, result.skipped) == (1, None)
    assert result.metrics["trajectories/trained"] == 2
    assert trained_text(backend) == ["answer 0<|im_end|>", "answer 1<|im_end|>"]
    rows, objective = backend.trainer.steps[0]
    assert [row.advantage for row in rows] == [-0.5, 0.5]
    assert objective.learning_rate == 1e-4
    assert await model.get_step() == 1
    assert backend.engine.policy_version == 1


async def test_backend_train_is_model_train(model: art.TrainableModel, backend: InProcessBackend) -> None:
    result = await backend.train(model, [await group_of(explicit, model, 0.0, 1.0)], learning_rate=2e-5)
    assert isinstance(result, art.TrainResult)
    assert result.step == 1
    assert backend.trainer.steps[0][1].learning_rate == 2e-5
    async with InProcessBackend() as other:
        with pytest.raises(ConfigError, match="registered with another backend"):
            await other.train(model, [])


async def test_only_the_choices_of_a_mixture_are_trained(model: art.TrainableModel, backend: InProcessBackend) -> None:
    mixed = await explicit(model, 1.0)
    mixed.messages_and_choices[:0] = [USER, {"role": "assistant", "content": "written by hand"}]
    other = await explicit(model, 0.0)
    await model.train([art.TrajectoryGroup([mixed, other])])
    assert trained_text(backend) == ["answer 0<|im_end|>", "answer 1<|im_end|>"]


async def test_choices_of_additional_histories_are_trained(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    first, second = await explicit(model, 1.0), await explicit(model, 0.0)
    first.additional_histories.append(art.History(messages_and_choices=[USER, await answer(model)]))
    await model.train([art.TrajectoryGroup([first, second])])
    assert trained_text(backend) == ["answer 0<|im_end|>", "answer 2<|im_end|>", "answer 1<|im_end|>"]


async def test_an_earlier_tool_call_is_context_and_only_the_last_turn_is_trained(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1,"b":2}'}}
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    messages.append({"role": "tool", "tool_call_id": "c1", "content": "3"})
    trajectories = [
        art.Trajectory(messages_and_choices=[*messages, await answer(model, messages)], reward=reward)
        for reward in (0.0, 1.0)
    ]
    await model.train([art.TrajectoryGroup(trajectories)])
    rows, _ = backend.trainer.steps[0]
    for row in rows:
        text = backend._tokenizer.decode(row.token_ids)
        assert len(re.findall(r'"name": ?"add"', text)) == 1
        assert row.num_trained == len("answer 0") + 1
        assert list(row.trained) == sorted(row.trained)


async def test_a_trajectory_that_was_written_and_read_trains_the_same(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    group = await group_of(explicit, model, 0.0, 1.0)
    read = [art.Trajectory.model_validate_json(trajectory.model_dump_json()) for trajectory in group]
    assert [t.messages() for t in read] == [t.messages() for t in group]
    await model.train([art.TrajectoryGroup(read)])
    assert trained_text(backend) == ["answer 0<|im_end|>", "answer 1<|im_end|>"]


async def test_choices_that_other_libraries_copied_are_found(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    from langchain_core.messages import AIMessage

    choices = [await answer(model) for _ in range(4)]
    ids = [choice.exchange_id for choice in choices]
    copies: list[Any] = [
        choices[0].model_dump(),
        choices[1].model_copy(deep=True),
        AIMessage(content="answer 2", response_metadata={"id": f"chatcmpl-{ids[2]}"}),
        {"role": "assistant", "content": "answer 3", "id": f"chatcmpl-{ids[3]}"},
    ]
    group = art.TrajectoryGroup(
        art.Trajectory(messages_and_choices=[USER, item], reward=float(reward)) for reward, item in enumerate(copies)
    )
    for trajectory, number in zip(group, range(4), strict=True):
        assert trajectory.messages()[-1]["content"] == f"answer {number}"
        read = art.Trajectory.model_validate_json(trajectory.model_dump_json())
        assert art.to_samples(read, 1.0) == []
    await model.train([group])
    assert [[exchange.id for exchange in trajectory.exchanges] for trajectory in group] == [[each] for each in ids]


# What cannot be trained on is refused by name


async def refused(model: art.TrainableModel, backend: InProcessBackend, group: art.TrajectoryGroup) -> str:
    with pytest.raises(DataError) as caught:
        await model.train([group])
    assert backend.trainer.steps == []
    assert await model.get_step() == 0
    return str(caught.value)


async def test_dict_assistants_alone_are_refused(model: art.TrainableModel, backend: InProcessBackend) -> None:
    hand: Any = [USER, {"role": "assistant", "content": "hello"}]
    group = art.TrajectoryGroup(
        [await explicit(model, 1.0), art.Trajectory(id="t7", messages_and_choices=hand, reward=0.0)]
    )
    message = await refused(model, backend, group)
    assert "trajectory 1 of group 0 (id 't7'): nothing in it was sampled by the model" in message
    assert "append completion.choices[0]" in message


async def test_a_capture_without_calls_is_refused(model: art.TrainableModel, backend: InProcessBackend) -> None:
    async with art.capture(model) as empty:
        empty.reward = 1.0
    assert "has no recorded call" in await refused(model, backend, art.TrajectoryGroup([empty]))


async def test_ids_that_the_server_does_not_know_are_refused(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    trajectory = await explicit(model, 1.0)
    trajectory.messages_and_choices[-1].exchange_id = "nowhere"
    message = await refused(model, backend, art.TrajectoryGroup([await explicit(model, 0.0), trajectory]))
    assert "1 of 2 exchange ids are of no recorded call (nowhere)" in message
    assert "trajectory 1 of group 0" in message
    assert "messages_and_choices[1] says exchange 'nowhere'" in message
    assert trajectory.exchanges == []


async def test_choices_of_another_model_are_refused(model: art.TrainableModel, backend: InProcessBackend) -> None:
    async with InProcessBackend() as second:
        other = art.TrainableModel(name="other", project="shop", base_model="scripted")
        await other.register(second)
        foreign = await explicit(other, 1.0)
    message = await refused(model, backend, art.TrajectoryGroup([await explicit(model, 0.0), foreign]))
    assert "trajectory 1 of group 0" in message
    assert "choices that this model answered with" in message


async def test_choices_without_id_and_logprobs_are_refused_as_such(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    group = await group_of(explicit, model, 0.0, 1.0)
    choice = group.trajectories[1].messages_and_choices[-1]
    choice.exchange_id, choice.token_ids = None, None
    message = await refused(model, backend, group)
    assert "messages_and_choices[1] is a choice that carries no exchange id, no logprobs and no token ids" in message
    assert "equal" not in message


async def test_one_answer_in_two_trajectories_is_refused(model: art.TrainableModel, backend: InProcessBackend) -> None:
    first = await explicit(model, 1.0)
    cached = art.Trajectory(messages_and_choices=list(first.messages_and_choices), reward=0.0)
    message = await refused(model, backend, art.TrajectoryGroup([first, cached]))
    assert re.search(r"is in trajectory 0 of group 0 .* and in trajectory 1 of group 0 .*cache of responses", message)


async def test_two_trajectories_of_one_id_are_refused(model: art.TrainableModel, backend: InProcessBackend) -> None:
    """Weights and minibatches are by trajectory id: two of one id would count as one."""
    group, other = await group_of(captured, model, 0.0, 1.0), await group_of(captured, model, 0.0, 1.0)
    other.trajectories[1].id = group.trajectories[0].id
    message = await refused(model, backend, art.TrajectoryGroup([*group, *other]))
    assert re.search(r"trajectory 0 of group 0 .* and trajectory 3 of group 0 .* have the same id", message)


async def test_explicit_choices_are_logged_with_their_token_ids_at_the_step_they_were_sampled_at(
    model: art.TrainableModel, backend: InProcessBackend, caplog: pytest.LogCaptureFixture
) -> None:
    early = await group_of(explicit, model, 0.0, 1.0)
    failed = await explicit(model, None)
    failed.error = RolloutError(kind="OSError", message="gone")
    await model.train([await group_of(captured, model, 0.0, 1.0)])
    lost = await explicit(model, 0.5)
    lost.messages_and_choices[1] = lost.messages_and_choices[1].model_copy(update={"exchange_id": "x" * 32})
    context = art.Trajectory(messages_and_choices=[USER, {"role": "assistant", "content": "ok"}], reward=0.0)
    members = [*early, failed, lost, context]
    with caplog.at_level(logging.WARNING, logger="art_core.model"):
        await model.log([art.TrajectoryGroup(members)], split="train")
        await model.log([art.TrajectoryGroup([lost, context])], split="train", step=0)
    run = Run(backend.folder("shop", "clerk"))
    kept = list(run.trajectories("train", 0))
    assert [len(trajectory.exchanges) for trajectory in kept] == [1, 1, 1, 0, 0, 0, 0]
    assert [t.exchanges[0].id for t in kept[:3]] == [t.messages_and_choices[1].exchange_id for t in [*early, failed]]
    assert backend.logged[-2].metrics["train/calls_not_found"] == 1
    assert caplog.text.count("calls that the server does not know") == 1


async def test_training_twice_on_the_same_objects_looks_nothing_up_twice(model: art.TrainableModel) -> None:
    group = await group_of(explicit, model, 0.0, 0.0)
    await model.train([group])
    await model.train([group])
    assert [len(trajectory.exchanges) for trajectory in group] == [1, 1]


@both_styles
async def test_a_missing_reward_is_refused_and_is_not_zero(
    style: Style, model: art.TrainableModel, backend: InProcessBackend
) -> None:
    group = await group_of(style, model, None, -1.0, -1.0, -1.0)
    assert group.trajectories[0].id in await refused(model, backend, group)


def test_a_reward_that_is_not_finite_is_refused_when_it_is_set() -> None:
    trajectory = art.Trajectory()
    with pytest.raises(ValueError, match="not a finite number"):
        trajectory.reward = float("nan")
    assert trajectory.reward is None


async def test_failed_members_are_excluded_and_counted(model: art.TrainableModel, backend: InProcessBackend) -> None:
    group = await group_of(captured, model, 0.0, 1.0)
    with_failure = art.TrajectoryGroup([*group, TimeoutError("slow")])
    result = await model.train([with_failure], scale_rewards=False)
    assert result.metrics["trajectories/excluded"] == 1
    assert [row.advantage for row in backend.trainer.steps[0][0]] == [-0.5, 0.5]


@pytest.mark.parametrize(
    ("rewards", "failures", "reason"),
    [
        ((), 0, "there are no groups"),
        ((1.0, 1.0), 0, "in 1 of 1 groups all rewards are equal"),
        (
            (1.0,),
            2,
            "1 of 1 groups have fewer than two trajectories that can be compared; 2 trajectories failed and are "
            "excluded (OSError 2)",
        ),
    ],
)
async def test_nothing_to_learn_from_is_said_with_its_reason(
    rewards: tuple[float, ...],
    failures: int,
    reason: str,
    model: art.TrainableModel,
    backend: InProcessBackend,
    caplog: pytest.LogCaptureFixture,
) -> None:
    members = [await explicit(model, reward) for reward in rewards]
    groups = [art.TrajectoryGroup([*members, *[OSError("down")] * failures])] if rewards else []
    with caplog.at_level(logging.WARNING, logger="art_core.model"):
        result = await model.train(groups)
    assert (result.step, result.skipped) == (0, reason)
    assert result.metrics["step/skipped"] == 1
    assert reason in caplog.text
    assert backend.trainer.steps == []


@pytest.mark.parametrize(
    ("is_terminal", "verbose", "told"),
    [(True, None, True), (False, None, False), (True, False, False), (False, True, True)],
)
async def test_a_step_is_told_on_a_terminal_or_when_asked_and_always_logged(
    is_terminal: bool,
    verbose: bool | None,
    told: bool,
    model: art.TrainableModel,
    backend: InProcessBackend,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = await group_of(captured, model, 0.0, 1.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    with caplog.at_level(logging.INFO, logger="art_core.model"):
        result = await model.train([group], verbose=verbose)
    assert str(result).startswith("step 1: reward 0.500 · ")
    assert f"model {model.name}: {result}" in caplog.text
    assert (f"{model.name}: {result}\n" in capsys.readouterr().err) is told


async def test_a_trajectory_of_many_rows_counts_once_in_its_group(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    async with art.capture(model) as many:
        for text in "abc":
            await answer(model, [{"role": "user", "content": text}])
        many.reward = 1.0
    await model.train([art.TrajectoryGroup([many, await captured(model, 0.0)])], scale_rewards=False)
    assert [row.advantage for row in backend.trainer.steps[0][0]] == [0.5, 0.5, 0.5, -0.5]


async def test_a_history_that_is_compacted_gives_two_rows_of_what_was_sent(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    async with art.capture(model) as trajectory:
        messages: list[Any] = [USER]
        for turn in range(5):
            if turn == 3:
                messages = [{"role": "user", "content": "summary"}]
            choice = await answer(model, messages)
            messages = [*messages, choice.message.model_dump(exclude_none=True), USER]
        trajectory.reward = 1.0
    prompts = [prompt for prompt, _ in backend.engine.requests]
    assert [exchange.prompt_ids for exchange in trajectory.exchanges] == prompts
    assert [len(history.messages()) for history in (trajectory, *trajectory.additional_histories)] == [6, 4]
    await model.train([art.TrajectoryGroup([trajectory, await captured(model, 0.0)])], scale_rewards=False)
    rows = backend.trainer.steps[0][0]
    assert [row.advantage for row in rows] == [0.5, 0.5, -0.5]
    assert trained_text(backend)[:2] == [
        "".join(f"answer {number}<|im_end|>" for number in numbers) for numbers in ((0, 1, 2), (3, 4))
    ]


# Options, names, addresses


async def test_options_go_before_the_config_and_unknown_ones_are_refused(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    config = art.TrainConfig(learning_rate=1e-3, loss="cispo")
    await model.train([await group_of(explicit, model, 0.0, 1.0)], config, learning_rate=5e-3)
    objective = backend.trainer.steps[0][1]
    assert (objective.learning_rate, objective.loss) == (5e-3, "cispo")
    with pytest.raises(ConfigError, match="train has no option 'lr'; its options are"):
        await model.train([], lr=1)
    with pytest.raises(ConfigError, match="no option 'epsilon': use clip_low"):
        await model.train([], epsilon=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": True}, "learning_rate is True; wanted a finite number"),
        ({"learning_rate": "1e-5"}, "learning_rate is '1e-5'"),
        ({"clip_high": float("inf")}, "clip_high is inf; wanted a finite number"),
        ({"clip_low": "0.2"}, "clip_low is '0.2'"),
        ({"scale_rewards": 1}, "scale_rewards is 1; wanted True or False, one of 'group', 'batch', 'none', or None"),
        ({"loss": None}, "loss is None; wanted one of 'ppo', 'dapo', 'dr_grpo'"),
        ({"scale_rewards": "false"}, "scale_rewards is 'false'; wanted True or False"),
        ({"roles": 3}, "roles is 3; wanted names of roles"),
        ({"config": {"learning_rate": 1e-5}}, "config is a dict; wanted TrainConfig"),
    ],
)
async def test_options_of_another_kind_are_refused(
    options: dict[str, Any], message: str, model: art.TrainableModel
) -> None:
    with pytest.raises(ConfigError, match=message):
        await model.train([], **options)


async def test_groups_that_were_not_awaited_are_told_apart(model: art.TrainableModel) -> None:
    with pytest.raises(DataError, match="groups is a coroutine; wanted TrajectoryGroups: await it first"):
        await model.train(art.gather_trajectory_groups([]))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="groups is a int"):
        await model.train(3)  # type: ignore[arg-type]


def test_a_config_that_is_no_data_is_refused() -> None:
    for config, message in (
        ({"lora": {"rank": float("nan")}}, r"config\['lora'\]\['rank'\] is nan"),
        ({"engine_args": object()}, r"config\['engine_args'\] is a object"),
        ("rank=8", "config is a str; wanted a dict"),
    ):
        with pytest.raises(ConfigError, match=message):
            art.TrainableModel(name="m", project="p", base_model="b", config=config)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="name 5 cannot be used"):
        art.TrainableModel(name=5, project="p", base_model="b")  # type: ignore[arg-type]


async def test_a_trajectory_that_cannot_be_sent_is_named(model: art.TrainableModel) -> None:
    good, bad = await captured(model, 0.0), await captured(model, 1.0)
    bad.metadata["seen"] = []
    bad.metadata["seen"].append(object())
    for send in (model.train, model.log):
        with pytest.raises(DataError, match=rf"trajectory 1 of group 0 \(id '{bad.id}'\).*metadata\['seen'\]\[0\]"):
            await send([art.TrajectoryGroup([good, bad])])
    assert await model.get_step() == 0


async def test_groups_that_have_not_been_run_are_refused(model: art.TrainableModel) -> None:
    pending = art.TrajectoryGroup([explicit(model, 1.0)])
    with pytest.raises(DataError, match="group 0 has not been run; await gather_trajectory_groups"):
        await model.train([pending])  # type: ignore[list-item]
    await pending
    with pytest.raises(DataError, match="group 0 is a Trajectory"):
        await model.train([art.Trajectory()])  # type: ignore[list-item]


async def test_the_name_means_the_newest_weights_and_a_step_pins_one(model: art.TrainableModel) -> None:
    before = model.get_inference_name()
    await model.train([await group_of(explicit, model, 0.0, 1.0)])
    assert (before, model.get_inference_name(), model.get_inference_name(step=3)) == (
        "shop/clerk",
        "shop/clerk",
        "shop/clerk@3",
    )
    assert (await answer(model)).policy_version == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model.openai_client(),
        lambda model: model.sync_openai_client(),
        lambda model: model.get_inference_name(),
        lambda model: model.inference_base_url,
        lambda model: model.inference_api_key,
        lambda model: asyncio.run(model.get_step()),
        lambda model: asyncio.run(model.train([])),
        lambda model: asyncio.run(model.log([])),
        lambda model: asyncio.run(model.delete_checkpoints()),
    ],
)
def test_before_register_every_use_names_the_next_step(use: Callable[[art.TrainableModel], Any]) -> None:
    with pytest.raises(ConfigError, match=r"is not registered; call `await model\.register\(backend\)` first"):
        use(art.TrainableModel(name="m", project="p", base_model="b"))


@pytest.mark.parametrize("name", ["", "a/b", "a@1", "..", "a\\b", "a b", "ä"])
def test_names_that_cannot_name_a_folder_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"name .* cannot be used"):
        art.TrainableModel(name=name, project="p", base_model="b")
    with pytest.raises(ConfigError, match=r"project .* cannot be used"):
        art.TrainableModel(name="m", project=name, base_model="b")


async def test_clients_may_be_closed_or_not(model: art.TrainableModel) -> None:
    async with model.openai_client() as client:
        await client.models.list()
    assert (await answer(model)).message.content == "answer 0"


def test_one_client_serves_many_event_loops() -> None:
    """A module-level client and two `asyncio.run` in a row."""

    async def use() -> list[str]:
        async with InProcessBackend() as backend:
            model = art.TrainableModel(name="m", project="p", base_model="b")
            await model.register(backend)
            client = model.openai_client()

            async def call() -> str:
                made = await client.chat.completions.create(model="p/m", messages=[USER])
                return str(made.choices[0].message.content)

            return [await call()] + [await asyncio.to_thread(lambda: asyncio.run(call())) for _ in range(2)]

    assert asyncio.run(use()) == ["ok", "ok", "ok"]


async def test_a_model_that_is_not_trained_is_a_client_with_an_address(model: art.TrainableModel) -> None:
    plain = art.Model(
        name="gpt",
        project="shop",
        inference_base_url=f"{model.inference_base_url}",
        inference_api_key="k",
        inference_model_name="shop/clerk",
    )
    async with plain.openai_client() as client:
        made = await client.chat.completions.create(model=plain.get_inference_name(), messages=[USER])
    assert made.choices[0].message.content == "answer 0"

    def ask() -> Any:
        with plain.sync_openai_client() as sync_client:
            assert isinstance(sync_client, OpenAI)
            return sync_client.chat.completions.create(model="shop/clerk", messages=[USER])

    assert (await asyncio.to_thread(ask)).choices[0].message.content == "answer 1"
    with pytest.raises(ConfigError, match="has no steps"):
        plain.get_inference_name(step=1)
    with pytest.raises(ConfigError, match="give it inference_base_url"):
        art.Model(name="gpt").openai_client()


# Logging and checkpoints


async def test_log_keeps_groups_with_their_means(model: art.TrainableModel, backend: InProcessBackend) -> None:
    made = [art.Trajectory(reward=1.0, metrics={"turns": 2, "won": True}), art.Trajectory(reward=0.0)]
    group = art.TrajectoryGroup(made, exceptions=[OSError("down")], metrics={"judged": 1})
    await model.log([group], split="train", metrics={"margin": 0.5, "time/s": 3})
    (logged,) = backend.logged
    assert (logged.split, logged.step) == ("train", 0)
    assert logged.metrics == {
        "train/exception_rate": 1 / 3,
        "train/group_judged": 1.0,
        "train/margin": 0.5,
        "train/reward": 0.5,
        "train/reward_std_dev": 0.5,
        "train/turns": 2.0,
        "train/won": 1.0,
        "time/s": 3.0,
    }
    await model.log(made, step=4)
    assert [t.reward for t in backend.logged[1].groups[0]] == [1.0, 0.0]
    assert (backend.logged[1].split, backend.logged[1].step) == ("val", 4)
    with pytest.raises(DataError, match="metric 'val/loss' is nan"):
        await model.log(metrics={"loss": float("nan")})


async def test_a_metric_that_would_hide_one_of_training_is_refused(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    group = art.TrajectoryGroup([art.Trajectory(reward=1.0, metrics={"loss": 0.25}), art.Trajectory(reward=0.0)])
    told = "metric 'loss' of trajectories would be logged as 'train/loss', which .* rename it: 'own_loss', for example"
    with pytest.raises(DataError, match=told):
        await model.log([group], split="train")
    for split, name in (("train", "loss"), ("val", "train/loss"), ("reward", "mean")):
        with pytest.raises(DataError, match=f"metric '{name}' given to log would be logged as"):
            await model.log(metrics={name: 1.0}, split=split)
    assert backend.logged == []
    await model.log([group])
    await model.log([group], split="val", metrics={"rows": 3.0})
    assert [logged.metrics["val/loss"] for logged in backend.logged] == [0.25, 0.25]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metrics": ["reward"]}, "metrics is .'reward'.; wanted numbers by name"),
        ({"metrics": {"a": 1.0}, "step": "3"}, "step is '3'; wanted a whole number, 0 or more, or None"),
        ({"metrics": {"a": 1.0}, "step": -1}, "step is -1; wanted a whole number"),
    ],
)
async def test_what_log_cannot_take_is_refused(
    model: art.TrainableModel, backend: InProcessBackend, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        await model.log(**options)
    assert backend.logged == []


async def test_a_step_is_a_number_wherever_one_is_named(model: art.TrainableModel) -> None:
    wrong: Any = "3"
    with pytest.raises(ConfigError, match="step is '3'; wanted a whole number"):
        model.get_inference_name(step=wrong)
    with pytest.raises(ConfigError, match="step is '3'; wanted a whole number"):
        await model.fork("other", step=wrong)


async def test_a_metric_with_a_name_of_ours_is_told_once(
    model: art.TrainableModel, backend: InProcessBackend, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        await model.log([art.Trajectory(reward=1.0, metrics={"reward": 50})])
    assert [logged.metrics["val/reward"] for logged in backend.logged] == [1.0, 1.0]
    assert caplog.text.count("metrics named ['reward'], which mean something else") == 1


async def test_groups_are_logged_for_the_step_they_were_sampled_at(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    group = await group_of(captured, model, 0.0, 1.0)
    await model.train([group])
    await model.log([group], split="train")
    await model.log(metrics={"loss": 0.5})
    assert [logged.step for logged in backend.logged] == [0, 1]


async def trained_to(model: art.TrainableModel, steps: int) -> None:
    for _ in range(steps):
        await model.train([await group_of(explicit, model, 0.0, 1.0)])


async def test_the_best_and_the_newest_checkpoint_stay(model: art.TrainableModel) -> None:
    await trained_to(model, 4)
    for step, reward in ((1, 0.5), (2, 0.9), (3, 0.1), (7, 5.0)):
        await model.log([art.TrajectoryGroup([art.Trajectory(reward=reward)])], split="val", step=step)
    assert await model.delete_checkpoints() == [2, 4]


async def test_without_the_metric_nothing_is_deleted(model: art.TrainableModel, backend: InProcessBackend) -> None:
    await trained_to(model, 2)
    with pytest.raises(ConfigError, match=r"'val/reward'.*nothing was deleted; logged are no metrics at all"):
        await model.delete_checkpoints()
    await model.log(metrics={"loss": 1.0}, step=1)
    with pytest.raises(ConfigError, match=r"'val/typo'.*logged are \['val/loss'\]"):
        await model.delete_checkpoints("val/typo")
    assert (await backend.state("shop", "clerk")).checkpoint_steps == [1, 2]


async def test_errors_of_a_group_are_those_of_its_rollouts(model: art.TrainableModel) -> None:
    async def broken() -> art.Trajectory:
        raise ValueError("agent broke")

    (group,) = await art.gather_trajectory_groups([art.TrajectoryGroup([captured(model, 1.0), broken()])])
    assert group.errors == [RolloutError(kind="ValueError", message="agent broke")]
    assert [len(trajectory.exchanges) for trajectory in group] == [1, 0]


async def run_epoch(model: art.TrainableModel, seen: list[tuple[int, list[str]]], *, stop_after: int = 99) -> None:
    """A script that trains on one batch at a time. The batches of "flat" teach nothing, those of "none" are empty."""
    tasks = ["a", "flat", "b", "none", "c", "d"]
    batches = art.iterate_dataset(tasks, num_epochs=2, initial_step=await model.get_num_batches())
    for number, batch in enumerate(batches, 1):
        seen.append((batch.step, batch.items))
        rewards = {"flat": [1.0, 1.0], "none": []}.get(batch.items[0], [0.0, 1.0])
        await model.train([await group_of(captured, model, *rewards)] if rewards else [])
        if number == stop_after:
            return


@pytest.mark.slow
@pytest.mark.parametrize("stop_after", range(1, 8))
async def test_a_script_that_is_started_again_sees_each_batch_once_also_after_skipped_steps(
    stop_after: int, tmp_path: Path
) -> None:
    seen: list[tuple[int, list[str]]] = []
    for limit in (stop_after, 99):
        async with InProcessBackend(path=tmp_path) as backend:
            model = art.TrainableModel(name="clerk", project="shop", base_model="scripted")
            await model.register(backend)
            await run_epoch(model, seen, stop_after=limit)
            await model.log(metrics={"batches": 1.0})  # other metrics do not count
    wanted = [(batch.step, batch.items) for batch in art.iterate_dataset(["a", "flat", "b", "none", "c", "d"], 1, 2)]
    assert seen == wanted
    reports = Run(tmp_path / "shop" / "clerk").steps()
    assert sum(report.metrics["step/skipped"] for report in reports) == 4


@pytest.mark.slow
async def test_batches_behind_a_lost_checkpoint_are_made_again_and_no_others(tmp_path: Path) -> None:
    seen: list[tuple[int, list[str]]] = []
    async with InProcessBackend(path=tmp_path) as backend:
        model = art.TrainableModel(name="clerk", project="shop", base_model="scripted")
        await model.register(backend)
        await run_epoch(model, seen, stop_after=5)  # three of which make a step
    for step in (2, 3):
        shutil.rmtree(tmp_path / "shop" / "clerk" / "checkpoints" / f"step-{step:04d}")
    async with InProcessBackend(path=tmp_path) as backend:
        model = art.TrainableModel(name="clerk", project="shop", base_model="scripted")
        await model.register(backend)
        assert await model.get_step() == 1
        await run_epoch(model, seen)
    _, second, _ = (at for at, (_, items) in enumerate(seen[:5]) if items not in (["flat"], ["none"]))
    once = [(batch.step, batch.items) for batch in art.iterate_dataset(["a", "flat", "b", "none", "c", "d"], 1, 2)]
    assert seen == [*once[:5], *once[second:]]
    # Skipped ones among them are made again as well, and are counted once.
    async with InProcessBackend(path=tmp_path) as backend:
        model = art.TrainableModel(name="clerk", project="shop", base_model="scripted")
        await model.register(backend)
        assert await model.get_num_batches() == len(once)


async def test_before_the_first_step_there_is_no_checkpoint_to_delete(model: art.TrainableModel) -> None:
    assert await model.delete_checkpoints() == []


async def test_rollouts_of_which_no_token_was_chosen_make_no_step_and_the_next_one_does(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    forced = await group_of(captured, model, 0.0, 1.0)
    for trajectory in forced:
        trajectory.exchanges = [
            exchange.model_copy(update={"forced": (True,) * len(exchange.completion_ids)})
            for exchange in trajectory.exchanges
        ]
    result = await model.train([forced])
    assert (result.step, result.skipped) == (0, "2 trajectories have no trained token")
    assert (result.metrics["trajectories/without_tokens"], result.metrics["trajectories/trained"]) == (2, 0)
    assert backend.trainer.steps == []
    assert (await model.train([await group_of(captured, model, 0.0, 1.0)])).step == 1
