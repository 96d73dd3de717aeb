"""A host over a real socket, with an engine and a trainer that have no weights."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIStatusError, AuthenticationError, InternalServerError, NotFoundError

from art_core.backends.remote import RemoteBackend
from art_core.config import TrainConfig
from art_core.control import RegisterRequest
from art_core.errors import (
    BackendError,
    ConfigError,
    DataError,
    EngineClosedError,
    RunLockedError,
    StorageError,
    UnknownTrajectoryError,
    WeightSyncError,
)
from art_core.runs import Run
from art_core.serve.guard import check_exposure
from art_core.types import Checkpoint
from tests.core.hosting.fakes import FakeEngine, Open, ask, client_of, group, register, rollout, until

CONFIG = TrainConfig()
SLOW = {"engine_args": {"delay_s": 0.02, "letters": 60}}


async def started(engine: FakeEngine) -> None:
    await until(lambda: engine.num_active > 0)


async def test_calls_that_come_in_while_weights_are_swapped_wait_and_none_fails(
    open_server: Open, base_model: str
) -> None:
    server, backend = await open_server(options=SLOW)
    await register(backend, base_model)
    scored = await group(backend, "m", "t", max_tokens=2)
    async with client_of(server) as client:
        long = asyncio.create_task(ask(client, "p/m"))
        await started(FakeEngine.opened[0])
        training = asyncio.create_task(backend.train("p", "m", [scored], CONFIG))
        await until(lambda: not server.host._models["p/m"]._ready.is_set())
        later = [asyncio.create_task(ask(client, "p/m", max_tokens=2)) for _ in range(8)]
        await asyncio.sleep(0.1)
        assert not any(call.done() for call in later)
        assert (await long).choices[0].policy_version == 0
        assert [(await call).choices[0].policy_version for call in later] == [1] * 8
        assert (await training).step == 1


async def test_a_wait_beyond_the_bound_is_503_with_retry_after(open_server: Open, base_model: str) -> None:
    server, backend = await open_server(options={"max_wait_s": 0.2, **SLOW})
    await register(backend, base_model)
    scored = await group(backend, "m", "t", max_tokens=2)
    async with client_of(server) as client:
        long = asyncio.create_task(ask(client, "p/m"))
        await started(FakeEngine.opened[0])
        training = asyncio.create_task(backend.train("p", "m", [scored], CONFIG))
        await until(lambda: not server.host._models["p/m"]._ready.is_set())
        with pytest.raises(InternalServerError, match=r"still being changed after 0.2 s") as caught:
            await ask(client, "p/m")
        assert (caught.value.status_code, caught.value.code) == (503, "weights_are_changing")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        await asyncio.gather(long, training)
        assert (await ask(client, "p/m", max_tokens=2)).choices[0].policy_version == 1


async def test_steps_asked_for_at_once_are_made_one_after_the_other(open_server: Open, base_model: str) -> None:
    _, backend = await open_server()
    await register(backend, base_model)
    first, second = await group(backend, "m", "a"), await group(backend, "m", "b")
    results = await asyncio.gather(
        *(backend.train("p", "m", [scored], CONFIG) for scored in (first, second)), return_exceptions=True
    )
    assert getattr(results[0], "step", results[0]) == 1
    assert isinstance(results[1], DataError), "it was sampled from the step before"
    assert (await backend.state("p", "m")).step == 1


@pytest.mark.slow
async def test_a_pinned_step_is_served_by_an_engine_of_its_own_and_few_are_open(
    open_server: Open, base_model: str
) -> None:
    server, backend = await open_server(options={"max_pinned": 1, "pinned_idle_s": 0.4})
    await register(backend, base_model)
    for step in range(2):
        await backend.train("p", "m", [await group(backend, "m", f"t{step}")], CONFIG)
    async with client_of(server) as client:
        names = ["p/m", "p/m@2", "p/m@1", "p/m@1", "p/m@0"]
        assert [(await ask(client, name)).choices[0].policy_version for name in names] == [2, 2, 1, 1, 0]
        main, first, second = FakeEngine.opened
        assert (main._closed.is_set(), first._closed.is_set(), second._closed.is_set()) == (False, True, False)
        await until(lambda: second._closed.is_set())
        for name in ("p/m@3", "p/m@x", "p/m@", "p/other", "m", "gpt-4o"):
            with pytest.raises(NotFoundError) as caught:
                await ask(client, name)
            assert caught.value.code == "model_not_found"
            if name == "p/m@3":
                assert "[0, 1, 2]" in str(caught.value)


@pytest.mark.slow
async def test_while_all_pinned_engines_are_in_use_another_step_waits_with_a_bound(
    open_server: Open, base_model: str
) -> None:
    server, backend = await open_server(options={"max_wait_s": 0.3, **SLOW})
    await register(backend, base_model)
    for step in range(2):
        await backend.train("p", "m", [await group(backend, "m", f"t{step}", max_tokens=2)], CONFIG)
    async with client_of(server) as client:
        long = asyncio.create_task(ask(client, "p/m@0"))
        await until(lambda: len(FakeEngine.opened) > 1 and FakeEngine.opened[1].num_active > 0)
        with pytest.raises(InternalServerError) as caught:
            await ask(client, "p/m@1")
        assert caught.value.status_code == 503
        assert "retry-after" in caught.value.response.headers
        assert (await long).choices[0].policy_version == 0


async def test_a_pinned_engine_with_other_weights_than_its_step_had_answers_nothing(
    open_server: Open, base_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, backend = await open_server()
    await register(backend, base_model)
    for step in range(2):
        await backend.train("p", "m", [await group(backend, "m", f"t{step}")], CONFIG)
    await server.host.close()
    server, backend = await open_server()  # which knows by the run folder what step 1 answered
    await register(backend, base_model)
    load = FakeEngine.load

    async def load_badly(engine: FakeEngine, checkpoint: Checkpoint) -> None:
        await load(engine, checkpoint)
        engine._logprob = -3.0

    async with client_of(server) as client:
        with monkeypatch.context() as patch:
            patch.setattr(FakeEngine, "load", load_badly)
            with pytest.raises(InternalServerError, match=r"p/m@1: .* nats from what that step answered") as caught:
                await ask(client, "p/m@1")
            assert (caught.value.status_code, caught.value.code) == (503, "WeightSyncError")
            assert FakeEngine.opened[-1]._closed.is_set()
        assert (await ask(client, "p/m@1")).choices[0].policy_version == 1
        assert (await ask(client, "p/m")).choices[0].policy_version == 2


async def test_a_damaged_log_of_probes_stops_nothing(
    open_server: Open, base_model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, backend = await open_server()
    await register(backend, base_model)
    await backend.train("p", "m", [await group(backend, "m", "t")], CONFIG)
    await server.host.close()
    (log,) = (tmp_path / "runs").rglob("canary.jsonl")
    log.write_text("\n".join(["null", *log.read_text().splitlines()[1:]]) + "\n")  # without that of step 0
    server, backend = await open_server()
    await register(backend, base_model)
    assert "1 damaged lines; engines for the steps they were of are not checked" in caplog.text
    async with client_of(server) as client:
        assert (await ask(client, "p/m@0")).choices[0].policy_version == 0
    assert "p/m@0 is not checked: what it once answered is not kept" in caplog.text


async def test_several_models_and_projects_keep_apart(open_server: Open, base_model: str, tmp_path: Path) -> None:
    server, backend = await open_server()
    names = [("p", "a"), ("p", "b"), ("q", "a")]
    for project, name in names:
        await backend.register(RegisterRequest(project=project, name=name, base_model=base_model))
    await backend.train("p", "a", [await group(backend, "a", "t")], CONFIG)
    assert [(await backend.state(*name)).step for name in names] == [1, 0, 0]
    async with client_of(server) as client:
        assert [model.id async for model in client.models.list()] == ["p/a", "p/b", "q/a"]
    assert {str(path.relative_to(tmp_path)) for path in (tmp_path / "runs").glob("*/*")} == {
        "runs/p/a",
        "runs/p/b",
        "runs/q/a",
    }


async def test_what_was_open_when_the_server_ended_is_there_after_a_restart(open_server: Open, base_model: str) -> None:
    server, backend = await open_server()
    await register(backend, base_model)
    url = await backend.open_trajectory("p", "m", "long/one")
    async with client_of(server, base_url=url) as client:
        ids = [(await ask(client, "p/m")).choices[0].exchange_id for _ in range(2)]
    async with client_of(server) as client:
        outside = (await ask(client, "p/m")).choices[0].exchange_id
    await server.__aexit__(None, None, None)

    server, backend = await open_server()
    path = url.partition("/t/")[2]
    async with client_of(server, base_url=f"{server.url}/t/{path}") as client:
        ids.append((await ask(client, "p/m")).choices[0].exchange_id)  # goes on as if nothing had happened
    assert [exchange.id for exchange in await backend.close_trajectory("long/one")] == ids
    assert [exchange.id for exchange in await backend.find_exchanges("p", "m", [outside])] == [outside]
    with pytest.raises(UnknownTrajectoryError):
        await backend.close_trajectory("never")


async def test_b038_b042_a_model_goes_on_from_its_newest_whole_checkpoint(open_server: Open, base_model: str) -> None:
    server, backend = await open_server()
    await register(backend, base_model)
    for step in range(2):
        await backend.train("p", "m", [await group(backend, "m", f"t{step}")], CONFIG)
    folder = Path((await backend.state("p", "m")).folder) / "checkpoints"
    await server.__aexit__(None, None, None)
    (folder / "step-0002" / "recording.json").write_text("{")
    (folder / "0007 (copy)").mkdir()
    (folder / ".tmp-step-0003").mkdir()
    server, backend = await open_server()
    await register(backend, base_model)
    state = await backend.state("p", "m")
    assert (state.step, state.checkpoint_steps) == (1, [1])
    report = await backend.train("p", "m", [await group(backend, "m", "again")], CONFIG)
    assert (report.step, (await backend.state("p", "m")).checkpoint_steps) == (2, [1, 2])


async def test_b057_an_engine_that_dies_fails_its_calls_and_registering_opens_another(
    open_server: Open, base_model: str
) -> None:
    server, backend = await open_server(options=SLOW)
    await register(backend, base_model)
    await backend.train("p", "m", [await group(backend, "m", "t", max_tokens=2)], CONFIG)
    async with client_of(server) as client:
        call = asyncio.create_task(ask(client, "p/m"))
        await started(FakeEngine.opened[0])
        FakeEngine.opened[0].fail("out of memory")
        with pytest.raises(InternalServerError, match=r"out of memory.*register 'p/m' again to go on from step 1"):
            await call
        with pytest.raises(InternalServerError, match="out of memory"):
            await ask(client, "p/m")
        await register(backend, base_model)
        assert (await ask(client, "p/m", max_tokens=2)).choices[0].policy_version == 1
    report = await backend.train("p", "m", [await group(backend, "m", "u", max_tokens=2)], CONFIG)
    assert report.step == 2


async def test_b056_weights_that_do_not_match_stop_the_model_until_it_is_registered_again(
    open_server: Open, base_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, backend = await open_server()
    await register(backend, base_model)
    scored = await group(backend, "m", "t")
    FakeEngine.opened[0]._logprob = -3.0  # it serves other weights than were trained
    with pytest.raises(WeightSyncError, match="the engine serves other weights than were trained"):
        await backend.train("p", "m", [scored], CONFIG)
    async with client_of(server) as client:
        with pytest.raises(InternalServerError, match="could not be checked"):
            await ask(client, "p/m")
        await register(backend, base_model)
        assert (await ask(client, "p/m")).choices[0].policy_version == 1


async def test_a_step_whose_checkpoint_cannot_be_written_is_not_made(
    open_server: Open, base_model: str, tmp_path: Path
) -> None:
    server, backend = await open_server()
    await register(backend, base_model)
    scored = await group(backend, "m", "t")
    checkpoints = tmp_path / "runs" / "p" / "m" / "checkpoints"
    checkpoints.rename(checkpoints.with_name("away"))
    checkpoints.write_text("in the way")
    with pytest.raises(StorageError, match="could not write the checkpoint"):
        await backend.train("p", "m", [scored], CONFIG)
    async with client_of(server) as client:
        assert (await ask(client, "p/m")).choices[0].policy_version == 0
    checkpoints.unlink()
    checkpoints.with_name("away").rename(checkpoints)
    assert (await backend.train("p", "m", [scored], CONFIG)).step == 1


async def test_a_client_that_hangs_up_during_a_step_leaves_a_model_that_can_be_trained(
    open_server: Open, base_model: str, tmp_path: Path
) -> None:
    server, backend = await open_server(options=SLOW)
    await register(backend, base_model)
    scored = await group(backend, "m", "t", max_tokens=2)
    async with client_of(server) as client:
        long = asyncio.create_task(ask(client, "p/m"))
        await started(FakeEngine.opened[0])
        training = asyncio.create_task(backend.train("p", "m", [scored], CONFIG))
        await until(lambda: not server.host._models["p/m"]._ready.is_set())
        training.cancel()
        await long
        await until(lambda: server.host._models["p/m"].step == 1)  # its weights were changed: the step is made whole
    fresh = await group(backend, "m", "u", max_tokens=2)
    assert (await backend.train("p", "m", [fresh], CONFIG)).step == 2
    assert [report.step for report in Run(tmp_path / "runs" / "p" / "m").steps()] == [1, 2]


async def test_a_step_that_was_committed_and_not_logged_is_logged_at_the_next_start(
    open_server: Open, base_model: str, tmp_path: Path
) -> None:
    server, backend = await open_server()
    await register(backend, base_model)
    await backend.train("p", "m", [await group(backend, "m", "t")], CONFIG)
    await server.__aexit__(None, None, None)
    folder = tmp_path / "runs" / "p" / "m"
    (before,) = Run(folder).steps()
    (folder / "steps.jsonl").unlink()
    _, backend = await open_server()
    await register(backend, base_model)
    (after,) = Run(folder).steps()
    assert after.step == 1
    assert after.metrics["trajectories/trained"] == before.metrics["trajectories/trained"] == 2
    assert after.metrics["reward/mean"] == before.metrics["reward/mean"]


async def test_a_copied_folder_is_not_taken_for_another_model(
    open_server: Open, base_model: str, tmp_path: Path
) -> None:
    server, backend = await open_server()
    await register(backend, base_model)
    await server.__aexit__(None, None, None)
    shutil.copytree(tmp_path / "runs" / "p" / "m", tmp_path / "runs" / "p" / "copy")
    _, backend = await open_server()
    with pytest.raises(StorageError, match="is the record of 'p/m', and this folder is that of 'p/copy'"):
        await register(backend, base_model, name="copy")


async def test_metrics_keep_their_full_names(open_server: Open, base_model: str, tmp_path: Path) -> None:
    _, backend = await open_server()
    await register(backend, base_model)
    given = {"val/tool/accuracy": 0.5, "val/reward": 1.0, "tool/accuracy": 0.25}
    await backend.log("p", "m", [], split="val", step=0, metrics=given)
    (record,) = await backend.logged_metrics("p", "m")
    assert record.metrics == given


async def test_a_run_folder_in_use_is_refused(open_server: Open, base_model: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("art_core.hosting.door._LOCK_WAIT_S", 0.1)
    _, backend = await open_server()
    await register(backend, base_model)
    _, other = await open_server()
    with pytest.raises(RunLockedError, match="in use by process"):
        await register(other, base_model)


async def test_every_route_but_health_wants_the_key(open_server: Open, base_model: str) -> None:
    server, backend = await open_server(api_key="right")
    await register(backend, base_model)
    async with client_of(server, api_key="right") as client:
        await ask(client, "p/m")
    async with client_of(server, api_key="wrong") as client:
        with pytest.raises(AuthenticationError, match="the API key is not this server's") as caught:
            await ask(client, "p/m")
        assert caught.value.code == "invalid_api_key"
    with pytest.raises(ConfigError, match="the API key is not this server's"):
        async with RemoteBackend(server.url, "wrong") as wrong:
            await wrong.state("p", "m")
    async with httpx.AsyncClient(verify=False, base_url=server.url) as raw:
        for path in ("/metrics", "/api/models", "/v1/models", "/t/x/v1/models", "/t/x/healthz", "/nothing"):
            answer = await raw.get(path)
            assert (answer.status_code, set(answer.json()["error"])) == (401, {"message", "type", "param", "code"})
            for header in ("right", "bearer right", "Bearer righ", "Bearer rightly"):
                assert (await raw.get(path, headers={"authorization": header})).status_code == 401
        assert (await raw.get("/healthz")).status_code == 200


def test_an_address_that_others_can_reach_needs_a_key() -> None:
    for address in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
        with pytest.raises(ConfigError, match="--api-key"):
            check_exposure(address, None)
        check_exposure(address, "key")
    for address in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        check_exposure(address, None)
        with pytest.raises(ConfigError, match="empty"):
            check_exposure(address, " ")


async def test_without_a_key_no_web_page_is_answered(open_server: Open, base_model: str) -> None:
    server, backend = await open_server()
    await register(backend, base_model)
    async with httpx.AsyncClient(verify=False, base_url=server.url) as raw:

        async def status(path: str = "/api/models/p/m/log", content: str = '{"split": "val"}', **headers: str) -> Any:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            answer = await raw.post(path, content=content, headers={"content-type": "application/json", **names})
            return answer.status_code, answer.json().get("error", {}).get("code")

        for headers in (
            {"host": "evil.example:8400"},
            {"host": "127.0.0.1.evil.example"},
            {"host": "192.168.0.3"},
            {"origin": "https://evil.example"},
            {"origin": "http://localhost.evil.example"},
            {"origin": "null"},
        ):
            for path in ("/api/models/p/m/log", "/v1/chat/completions", "/t/x/v1/completions", "/healthz"):
                assert await status(path, **headers) == (403, "foreign_request"), (path, headers)
        for headers in (
            {"host": "localhost:8400"},
            {"host": "[::1]:8400"},
            {"host": "127.0.0.1", "origin": "http://localhost:3000"},
        ):
            assert await status(**headers) == (200, None), headers
        assert await status(content_type="Application/JSON; charset=utf-8") == (200, None)
        for kind in ("text/plain", "application/x-www-form-urlencoded", "text/plain; application/json"):
            assert await status(content_type=kind) == (415, "unsupported_media_type")
        told = (await raw.get("/metrics", headers={"origin": "https://evil.example"})).json()["error"]["message"]
        assert "the Origin 'https://evil.example'" in told
        assert "--api-key" in told


async def test_with_a_key_it_is_the_key_that_counts(open_server: Open) -> None:
    server, _ = await open_server(api_key="right")
    async with httpx.AsyncClient(verify=False, base_url=server.url, headers={"authorization": "Bearer right"}) as raw:
        headers = {"host": "models.example", "origin": "https://app.example"}
        assert (await raw.get("/api/models", headers=headers)).status_code == 200


async def test_a_body_beyond_the_bound_is_refused(open_server: Open, base_model: str) -> None:
    server, backend = await open_server(options={"max_body_bytes": 2000})
    await register(backend, base_model)
    async with client_of(server) as client:
        with pytest.raises(APIStatusError, match="more than 2000 bytes") as caught:
            await client.chat.completions.create(model="p/m", messages=[{"role": "user", "content": "x" * 3000}])
        assert (caught.value.status_code, caught.value.code) == (413, "request_too_large")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b" " * 100

    async with httpx.AsyncClient(verify=False, base_url=server.url) as raw:
        for path in ("/v1/chat/completions", "/api/models"):
            assert (await raw.post(path, content=chunks())).status_code == 413
    with pytest.raises(DataError, match="more than 2000 bytes"):
        await backend.log("p", "m", [], split="x" * 3000)


async def test_what_is_counted(open_server: Open, base_model: str) -> None:
    server, backend = await open_server()
    await register(backend, base_model)
    scored = await group(backend, "m", "t")
    await backend.train("p", "m", [scored], CONFIG)
    with pytest.raises(DataError):
        await backend.train("p", "m", [scored], CONFIG)
    prompt = sum(len(e.prompt_ids) for t in scored for e in t.exchanges)
    async with httpx.AsyncClient(verify=False, base_url=server.url) as raw:
        answer = await raw.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    wanted = {
        'art_tokens_total{kind="prompt",model="p/m"}': float(prompt),
        'art_tokens_total{kind="completion",model="p/m"}': 12.0,
        'art_training_steps_total{model="p/m",outcome="made"}': 1.0,
        'art_training_steps_total{model="p/m",outcome="failed"}': 1.0,
        'art_requests_total{code="200",route="/v1/chat/completions"}': 2.0,
        'art_requests_total{code="200",route="/api/train"}': 2.0,
        'art_policy_version{model="p/m"}': 1.0,
        'art_forks_total{model="p/m"}': 0.0,
        'art_queue_wait_seconds_count{model="p/m",queue="call"}': 2.0,
        "art_requests_in_flight": 1.0,
    }
    assert {name: float(lines[name]) for name in wanted} == wanted
    assert float(lines['art_completion_tokens_per_second{model="p/m"}']) == pytest.approx(12 / 30)


async def test_calls_in_flight_at_shutdown_finish_and_new_ones_are_told(open_server: Open, base_model: str) -> None:
    server, backend = await open_server(options=SLOW)
    await register(backend, base_model)
    async with client_of(server) as client:
        call = asyncio.create_task(ask(client, "p/m"))
        await started(FakeEngine.opened[0])
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0)
        with pytest.raises(InternalServerError, match="shutting down") as caught:
            await ask(client, "p/m")
        assert "retry-after" in caught.value.response.headers
        assert (await call).choices[0].finish_reason == "stop"
        await stopping


async def test_calls_that_outlast_the_grace_fail_with_the_reason(open_server: Open, base_model: str) -> None:
    server, backend = await open_server(options=SLOW, grace_s=0.1)
    await register(backend, base_model)
    scored = await group(backend, "m", "t", max_tokens=2)
    async with client_of(server) as client:
        call = asyncio.create_task(ask(client, "p/m"))
        await started(FakeEngine.opened[0])
        training = asyncio.create_task(backend.train("p", "m", [scored], CONFIG))
        await until(lambda: not server.host._models["p/m"]._ready.is_set())
        await server.stop()
        with pytest.raises(InternalServerError, match="the server is shutting down; this call was not finished"):
            await call
        with pytest.raises((EngineClosedError, BackendError), match="shutting down"):
            await training


@pytest.mark.slow
async def test_a_step_in_progress_sends_lines_all_the_time(open_server: Open, base_model: str) -> None:
    server, backend = await open_server(options=SLOW)
    await register(backend, base_model)
    scored = await group(backend, "m", "t", max_tokens=2)
    body: dict[str, Any] = {
        "groups": [{"scenario_id": "s", "trajectories": [t.model_dump(mode="json") for t in scored]}],
        "options": {"learning_rate": 1e-5, "loss": "ppo", "clip_low": 0.2, "clip_high": 0.28, "scale_rewards": True},
    }
    async with client_of(server) as client, httpx.AsyncClient(verify=False, base_url=server.url, timeout=30) as raw:
        long = asyncio.create_task(ask(client, "p/m"))
        await started(FakeEngine.opened[0])
        answer = await raw.post("/api/models/p/m/train", json=body)
        await long
    lines = answer.text.splitlines()
    assert len(lines) > 3  # the step waited most of a second for the call in flight
    assert all('"event":"progress"' in line for line in lines[:-1])
    assert re.search(r'"event":"result".*"step":1', lines[-1])
    async with httpx.AsyncClient(verify=False, base_url=server.url) as raw:
        for bad, status in ({"groups": 1}, 400), ({**body, "options": {**body["options"], "loss": "sft"}}, 400):
            refused = await raw.post("/api/models/p/m/train", json=bad)
            assert (refused.status_code, set(refused.json())) == (status, {"error"})


async def test_a_trajectory_that_nobody_closes_is_given_up(open_server: Open, base_model: str) -> None:
    server, backend = await open_server(options={"trajectory_ttl_s": 0.2})
    await register(backend, base_model)
    url = await backend.open_trajectory("p", "m", "forgotten")
    await until(lambda: not server.host._trajectories)
    async with client_of(server, base_url=url) as client:
        with pytest.raises(NotFoundError, match="is not open"):
            await ask(client, "p/m")


async def test_what_cannot_be_reached_says_what_to_check(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wanted the root of an `art serve`"):
        RemoteBackend("gpu-box:8400")
    async with RemoteBackend("http://127.0.0.1:9") as backend:
        with pytest.raises(BackendError, match=r"no answer from http://127.0.0.1:9.*Check that `art serve` runs"):
            await backend.state("p", "m")


async def test_rollouts_of_a_closed_trajectory_are_not_recorded_twice(open_server: Open, base_model: str) -> None:
    _, backend = await open_server()
    await register(backend, base_model)
    trajectory = await rollout(backend, "m", "one", 1.0)
    assert [exchange.trajectory_id for exchange in trajectory.exchanges] == ["one"]
    with pytest.raises(ConfigError, match="options are"):
        await register(backend, base_model, name="x", engine_args={"delays": 1})
