"""`capture` over a real socket, with real clients."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import pickle
import threading
import warnings
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import httpx2
import pytest
from openai import AsyncOpenAI, NotFoundError, OpenAI

import art_core as art
from art_core.capturing import CapturedTrajectory
from art_core.errors import ConfigError
from art_core.runs import Run
from art_core.testing import InProcessBackend
from art_core.transport import LoopsTransport
from art_core.types import RolloutError

KEY = "sk-very-secret"


def last_message(prompt: str) -> str:
    return prompt.rsplit("<|im_start|>user\n", 1)[1].split("<|im_end|>")[0].upper()


@pytest.fixture
async def backend() -> AsyncIterator[InProcessBackend]:
    async with InProcessBackend(last_message, api_key=KEY) as made:
        yield made


@pytest.fixture
async def model(backend: InProcessBackend) -> art.TrainableModel:
    made = art.TrainableModel(name="clerk", project="shop", base_model="scripted")
    await made.register(backend)
    return made


def user(text: str) -> Any:
    return {"role": "user", "content": text}


async def ask(client: AsyncOpenAI, text: str, *before: Any) -> Any:
    completion = await client.chat.completions.create(model="shop/clerk", messages=[*before, user(text)])
    return completion.choices[0]


def ask_sync(client: OpenAI, text: str) -> str | None:
    return client.chat.completions.create(model="shop/clerk", messages=[user(text)]).choices[0].message.content


def texts(trajectory: art.Trajectory) -> list[str]:
    return [exchange.response["content"] for exchange in trajectory.exchanges]


async def test_calls_of_a_client_made_before_are_recorded_and_told_as_conversation(model: art.TrainableModel) -> None:
    client = model.openai_client()
    async with art.capture(model, scenario_id="s", metadata={"k": 1}) as trajectory:
        first = await ask(client, "one")
        await ask(client, "two", user("one"), {"role": "assistant", "content": first.message.content})
        trajectory.reward = 1.0
    assert texts(trajectory) == ["ONE", "TWO"]
    assert [message["content"] for message in trajectory.messages()] == ["one", "ONE", "two", "TWO"]
    assert [getattr(item, "exchange_id", None) for item in trajectory.messages_and_choices] == [
        None,
        trajectory.exchanges[0].id,
        None,
        trajectory.exchanges[1].id,
    ]
    assert trajectory.additional_histories == []
    assert (trajectory.scenario_id, trajectory.metadata, trajectory.reward) == ("s", {"k": 1}, 1.0)
    assert {exchange.trajectory_id for exchange in trajectory.exchanges} == {trajectory.id}
    assert trajectory.exchanges[1].forked is False


async def test_sub_agents_become_additional_histories(model: art.TrainableModel) -> None:
    async with art.capture(model) as trajectory:
        client = model.openai_client()
        await ask(client, "main")
        await ask(client, "sub")
    assert [message["content"] for message in trajectory.messages()] == ["main", "MAIN"]
    (sub,) = trajectory.additional_histories
    assert [message["content"] for message in sub.messages()] == ["sub", "SUB"]


async def test_parallel_rollouts_and_parallel_branches_keep_apart(model: art.TrainableModel) -> None:
    client = model.openai_client()

    async def rollout(name: str) -> art.Trajectory:
        async with art.capture(model) as trajectory:
            await asyncio.gather(*(ask(client, f"{name}{branch}") for branch in range(3)))
        return trajectory

    made = await asyncio.gather(*(rollout(name) for name in "abcdefgh"))
    assert [sorted(texts(t)) for t in made] == [[f"{name}{branch}" for branch in range(3)] for name in "ABCDEFGH"]


async def test_outside_a_capture_nothing_is_recorded_into_a_trajectory(model: art.TrainableModel) -> None:
    client = model.openai_client()
    await ask(client, "before")
    async with art.capture(model) as trajectory:
        await ask(client, "inside")
    await ask(client, "after")
    assert texts(trajectory) == ["INSIDE"]
    assert "capture/calls_outside" not in trajectory.metrics


async def test_the_inner_of_two_captures_wins_and_the_outer_is_restored(model: art.TrainableModel) -> None:
    client = model.openai_client()
    async with art.capture(model) as outer:
        await ask(client, "a")
        async with art.capture(model) as inner:
            await ask(client, "b")
        await ask(client, "c")
    assert (texts(outer), texts(inner)) == (["A", "C"], ["B"])


async def test_a_capture_of_another_model_leaves_this_ones_alone(model: art.TrainableModel) -> None:
    async with InProcessBackend(lambda _: "other") as second:
        other = art.TrainableModel(name="judge", project="shop", base_model="scripted")
        await other.register(second)
        async with art.capture(model) as outer, art.capture(other) as inner:
            await ask(model.openai_client(), "a")
            await other.openai_client().chat.completions.create(model="shop/judge", messages=[user("b")])
        assert (texts(outer), texts(inner)) == (["A"], ["other"])


async def test_an_exception_goes_on_with_the_record_kept(model: art.TrainableModel) -> None:
    kept: list[art.Trajectory] = []

    async def rollout() -> None:
        async with art.capture(model) as trajectory:
            kept.append(trajectory)
            await ask(model.openai_client(), "a")
            raise RuntimeError("agent broke")

    with pytest.raises(RuntimeError, match="agent broke"):
        await rollout()
    (trajectory,) = kept
    assert texts(trajectory) == ["A"]
    assert trajectory.error == RolloutError(kind="RuntimeError", message="agent broke")


async def refuses_calls(trajectory: CapturedTrajectory) -> bool:
    async with AsyncOpenAI(base_url=trajectory.base_url, api_key=trajectory.api_key, max_retries=0) as client:
        with pytest.raises(NotFoundError, match="is not open"):
            await ask(client, "late")
    return True


async def test_a_cancellation_closes_the_record(model: art.TrainableModel) -> None:
    kept: list[CapturedTrajectory] = []
    asked = asyncio.Event()

    async def rollout() -> None:
        async with art.capture(model) as trajectory:
            kept.append(trajectory)
            await ask(model.openai_client(), "a")
            asked.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(rollout())
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert texts(kept[0]) == ["A"]
    assert kept[0].error is not None
    assert await refuses_calls(kept[0])


async def test_any_client_is_recorded_by_the_address(model: art.TrainableModel) -> None:
    async with art.capture(model) as trajectory:
        async with AsyncOpenAI(base_url=trajectory.base_url, api_key=trajectory.api_key) as client:
            await ask(client, "mine")
        async with AsyncOpenAI(base_url=model.inference_base_url, api_key=model.inference_api_key) as client:
            await ask(client, "as in ART")
    assert texts(trajectory) == ["MINE", "AS IN ART"]


async def test_a_call_after_the_capture_to_its_address_is_refused(model: art.TrainableModel) -> None:
    async with art.capture(model) as trajectory:
        pass
    assert await refuses_calls(trajectory)


async def test_another_id_set_inside_is_that_of_the_trajectory_and_not_of_its_record(model: art.TrainableModel) -> None:
    async with art.capture(model) as trajectory:
        await ask(model.openai_client(), "a")
        trajectory.id = "mine"
    assert (trajectory.id, texts(trajectory)) == ("mine", ["A"])
    assert await refuses_calls(trajectory)


async def test_errors_that_no_file_can_hold_or_that_cannot_be_printed_are_kept_readable(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("broken as well")

    kept: list[art.Trajectory] = []

    async def rollout(error: Exception) -> None:
        async with art.capture(model) as trajectory:
            kept.append(trajectory)
            trajectory.log("half \ud83d of it")
            raise error

    for error in (ValueError("half \ud83d of it"), SilentError()):
        with pytest.raises(type(error)):
            await rollout(error)
    wanted = ["half \ufffd of it", "(its message cannot be read: RuntimeError)"]
    assert [t.error.message for t in kept if t.error] == wanted
    await model.log(kept, split="train")
    stored = list(Run(backend.folder("shop", "clerk")).trajectories())
    assert [t.error.message for t in stored if t.error] == wanted
    assert [t.logs for t in stored] == [["half \ufffd of it"]] * 2


async def test_a_sync_agent_in_a_thread(model: art.TrainableModel) -> None:
    client = model.sync_openai_client()

    def agent(name: str) -> art.Trajectory:
        with art.capture(model) as trajectory:
            ask_sync(client, name)
            ask_sync(model.sync_openai_client(), name * 2)
        return trajectory

    made = await asyncio.gather(*(asyncio.to_thread(agent, name) for name in "abcd"))
    assert [texts(t) for t in made] == [["A", "AA"], ["B", "BB"], ["C", "CC"], ["D", "DD"]]


async def test_threads_that_carry_the_context_record_into_the_capture(model: art.TrainableModel) -> None:
    client = model.sync_openai_client()
    loop = asyncio.get_running_loop()
    async with art.capture(model) as trajectory:
        await asyncio.to_thread(ask_sync, client, "to_thread")
        with ThreadPoolExecutor(1) as pool:
            await loop.run_in_executor(pool, contextvars.copy_context().run, ask_sync, client, "copied")
    assert texts(trajectory) == ["TO_THREAD", "COPIED"]


async def test_calls_that_lost_the_context_are_counted_and_told(
    model: art.TrainableModel, caplog: pytest.LogCaptureFixture
) -> None:
    client = model.sync_openai_client()
    loop = asyncio.get_running_loop()
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(1) as pool:
        async with art.capture(model) as trajectory:
            await loop.run_in_executor(pool, ask_sync, client, "lost")
    assert texts(trajectory) == []
    assert trajectory.metrics == {"capture/calls_outside": 1}
    assert "1 calls of model 'clerk' were made in no capture" in caplog.text
    assert "copy_context().run" in caplog.text


async def test_an_agent_with_an_event_loop_of_its_own_in_a_thread(model: art.TrainableModel) -> None:
    client = model.openai_client()
    async with art.capture(model) as trajectory:
        await ask(client, "here")
        for name in "ab":
            await asyncio.to_thread(lambda name=name: asyncio.run(ask(client, name)))  # type: ignore[misc]
    assert texts(trajectory) == ["HERE", "A", "B"]
    assert model._registered is not None
    assert list(model._registered.transport._pools) == [asyncio.get_running_loop()]


async def test_a_client_that_is_dropped_unclosed_leaves_no_fault(
    model: art.TrainableModel, backend: InProcessBackend
) -> None:
    faults: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: faults.append(context))
    client = httpx2.AsyncClient(transport=LoopsTransport(backend.base_url))
    await client.get(f"{backend.base_url}/healthz")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # its connections were left open
        del client
        gc.collect()
        await asyncio.sleep(0.05)
        gc.collect()
    assert faults == []


async def test_a_rollout_that_times_out_leaves_no_open_record_and_can_be_retried(model: art.TrainableModel) -> None:
    attempts: list[CapturedTrajectory] = []

    async def rollout() -> art.Trajectory:
        async with art.capture(model) as trajectory:
            attempts.append(trajectory)
            await ask(model.openai_client(), "a")
            if len(attempts) == 1:
                await asyncio.sleep(60)
        return trajectory

    (made,) = await art.gather_trajectories([rollout], timeout_s=2, max_retries=1)
    assert made is attempts[1]
    assert [texts(trajectory) for trajectory in attempts] == [["A"], ["A"]]
    assert attempts[0].id != attempts[1].id
    for trajectory in attempts:
        assert await refuses_calls(trajectory)


async def test_a_rollout_that_fails_keeps_what_was_recorded(model: art.TrainableModel) -> None:
    other = art.TrainableModel(name="helper", project="shop", base_model="scripted")
    await other.register(model.backend())
    attempts = 0

    async def rollout(stuck: bool) -> art.Trajectory:
        nonlocal attempts
        attempts += 1
        async with art.capture(model, scenario_id="sc", metadata={"k": 1}) as trajectory:
            trajectory.log(f"attempt {attempts}")
            trajectory.metrics["calls"] = 1
            trajectory.reward = 1.0
            await ask(model.openai_client(), "a")
            async with art.capture(other):
                await asyncio.sleep(60 if stuck else 0)
                raise OSError("broken pipe")

    async def fails_afterwards() -> art.Trajectory:
        async with art.capture(model, scenario_id="sc"):
            await ask(model.openai_client(), "b")
        raise ValueError("cannot be scored")

    async def fails_before() -> art.Trajectory:
        raise OSError("no database")

    (group,) = await art.gather_trajectory_groups(
        [art.TrajectoryGroup([fails_before, partial(rollout, False), fails_afterwards])], max_retries=1, pbar_desc=None
    )
    before, broken, after = group
    assert (group.scenario_id, before.exchanges, texts(broken), texts(after)) == ("sc", [], ["A"], ["B"])
    assert [message["content"] for message in broken.messages()] == ["a", "A"]
    assert (broken.scenario_id, broken.metadata, broken.reward) == ("sc", {"k": 1}, None)
    assert broken.metrics == {"calls": 1, "retries": 1}
    assert broken.logs == ["attempt 2", "attempt 1 failed: OSError: broken pipe"]
    assert [error.message for error in group.errors] == ["no database", "broken pipe", "cannot be scored"]

    (late,) = await art.gather_trajectories([partial(rollout, True)], timeout_s=2, pbar_desc=None)
    assert (late.error, texts(late), late.reward) == (
        RolloutError(kind="TimeoutError", message="no result after 2 s"),
        ["A"],
        None,
    )
    (member,) = await art.TrajectoryGroup([partial(rollout, False)])
    assert texts(member) == ["A"]


async def test_a_second_cancellation_while_the_record_is_closed_changes_nothing(
    model: art.TrainableModel, backend: InProcessBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, go = asyncio.Event(), asyncio.Event()
    close = backend.close_trajectory

    async def slow_close(trajectory_id: str) -> list[art.Exchange]:
        closing.set()
        await go.wait()
        return await close(trajectory_id)

    monkeypatch.setattr(backend, "close_trajectory", slow_close)
    kept: list[art.Trajectory] = []

    async def rollout() -> None:
        async with art.capture(model) as trajectory:
            kept.append(trajectory)
            await ask(model.openai_client(), "a")

    task = asyncio.create_task(rollout())
    await closing.wait()
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert texts(kept[0]) == ["A"]


@pytest.mark.parametrize("error", [None, RuntimeError("agent broke")])
async def test_a_record_that_cannot_be_fetched_is_an_error_unless_the_rollout_failed_itself(
    error: Exception | None,
    model: art.TrainableModel,
    backend: InProcessBackend,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def rollout() -> None:
        async with art.capture(model):
            await backend.close()
            if error:
                raise error

    with pytest.raises(RuntimeError if error else ConfigError, match="agent broke" if error else "was closed"):
        await rollout()
    assert ("is lost" in caplog.text) == (error is not None)


def test_a_script_without_an_event_loop() -> None:
    """The server lives in another thread; the script registers with `asyncio.run` and is synchronous from then on."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    backend = InProcessBackend(last_message)

    class FromOutside:
        """Carries calls into the loop of the server, as HTTP would."""

        api_key = None

        @property
        def base_url(self) -> str:
            return backend.base_url

        def __getattr__(self, name: str) -> Any:
            async def call(*args: Any) -> Any:
                done = asyncio.run_coroutine_threadsafe(getattr(backend, name)(*args), loop)
                return await asyncio.wrap_future(done)

            return call

    model = art.TrainableModel(name="clerk", project="shop", base_model="scripted")
    try:
        asyncio.run(model.register(cast(art.Backend, FromOutside())))
        with art.capture(model) as trajectory:
            ask_sync(model.sync_openai_client(), "a")
        assert texts(trajectory) == ["A"]
    finally:
        asyncio.run_coroutine_threadsafe(backend.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def test_the_address_may_be_spelled_in_any_way(backend: InProcessBackend) -> None:
    model = art.TrainableModel(name="clerk", project="shop", base_model="scripted")

    class Spelled(InProcessBackend):
        @property
        def base_url(self) -> str:
            return super().base_url.replace("http://127", "HTTP://127") + "/"

    async with Spelled(last_message) as spelled:
        await model.register(spelled)
        async with art.capture(model) as trajectory:
            await ask(model.openai_client(), "a")
    assert texts(trajectory) == ["A"]


async def test_streams_are_recorded_too(model: art.TrainableModel) -> None:
    async with art.capture(model) as trajectory:
        stream = await model.openai_client().chat.completions.create(
            model="shop/clerk", messages=[user("flow")], stream=True
        )
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert (streamed, texts(trajectory)) == ("FLOW", ["FLOW"])


async def test_conversations_that_the_rollout_wrote_stay(model: art.TrainableModel) -> None:
    async with art.capture(model) as trajectory:
        trajectory.messages_and_choices.append(user("mine"))
        await ask(model.openai_client(), "a")
    assert trajectory.messages() == [user("mine")]
    assert texts(trajectory) == ["A"]


async def test_the_key_is_in_no_record_print_or_pickle(model: art.TrainableModel) -> None:
    async with art.capture(model) as trajectory:
        await ask(model.openai_client(), "a")
    assert trajectory.api_key == KEY
    for text in (trajectory.model_dump_json(), repr(trajectory), str(trajectory), str(trajectory.for_logging())):
        assert KEY not in text
        assert "127.0.0.1" not in text
    assert KEY.encode() not in pickle.dumps(trajectory)
    read = art.Trajectory.model_validate_json(trajectory.model_dump_json())
    assert read.exchanges == trajectory.exchanges
    assert read.messages() == trajectory.messages()


async def test_with_where_a_loop_runs_and_second_use_are_refused(model: art.TrainableModel) -> None:
    used = art.capture(model)
    with pytest.raises(ConfigError, match="async with capture"), used:
        pass
    async with used:
        pass
    with pytest.raises(ConfigError, match="used before"):
        await used.__aenter__()


async def test_models_that_are_not_registered_or_not_ours_are_refused() -> None:
    model = art.TrainableModel(name="m", project="p", base_model="b")
    with pytest.raises(ConfigError, match=r"await model\.register\(backend\)"):
        async with art.capture(model):
            pass
    with pytest.raises(ConfigError, match="cannot be captured"):
        art.capture(art.Model(name="gpt"))
