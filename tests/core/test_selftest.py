"""`art selftest`, and that it, and each training step, finds a weight sync that is broken."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from art_core.cli import app
from art_core.doctor import Watch
from art_core.engines import served as served_module
from art_core.engines.batcher import Batcher
from art_core.engines.served import ServedModel
from art_core.errors import AdapterMismatchError, ConfigError, WeightSyncError
from art_core.objective import Objective
from art_core.selftest import open_bench, selftest
from art_core.testing import MemoryStore, write_tiny_model
from art_core.trainers.native import NativeTrainer
from art_core.types import Finding
from art_core.weights.lora import Adapter, read_adapter

Break = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny")))


def load_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ServedModel, "apply", lambda self, checkpoint: None)


def load_half_of_the_layers(patch: pytest.MonkeyPatch) -> None:
    def half(folder: Path) -> Adapter:
        adapter = read_adapter(folder)
        kept = {name: pair for name, pair in adapter.factors.items() if ".layers.1." not in name}
        assert 0 < len(kept) < len(adapter.factors)
        return dataclasses.replace(adapter, factors=kept)

    patch.setattr(served_module, "read_adapter", half)


def load_the_previous_adapter(patch: pytest.MonkeyPatch) -> None:
    loaded: list[Path] = []

    def previous(folder: Path) -> Adapter:
        loaded.append(folder)
        return read_adapter(loaded[max(0, len(loaded) - 2)])

    patch.setattr(served_module, "read_adapter", previous)


def keep_the_prefix_cache(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Batcher, "clear", lambda self: None)


def load_twice_the_scale(patch: pytest.MonkeyPatch) -> None:
    def doubled(folder: Path) -> Adapter:
        adapter = read_adapter(folder)
        return dataclasses.replace(adapter, config=dataclasses.replace(adapter.config, alpha=2 * adapter.config.alpha))

    patch.setattr(served_module, "read_adapter", doubled)


def _renamed(adapter: Adapter) -> Adapter:
    return dataclasses.replace(adapter, factors={f"base.{name}": pair for name, pair in adapter.factors.items()})


def load_under_other_names(patch: pytest.MonkeyPatch) -> None:
    """As in an engine that passes over the names it does not know: no tensor matches, so it serves the base weights."""

    def known_ones(folder: Path) -> Adapter:
        adapter = read_adapter(folder)
        kept = {name: pair for name, pair in _renamed(adapter).factors.items() if name in adapter.factors}
        assert adapter.factors
        assert not kept
        return dataclasses.replace(adapter, factors=kept)

    patch.setattr(served_module, "read_adapter", known_ones)


BREAKS: list[Break] = [
    load_nothing,
    load_half_of_the_layers,
    load_the_previous_adapter,
    keep_the_prefix_cache,
    load_twice_the_scale,
    load_under_other_names,
]


@pytest.mark.slow
@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.__name__)
async def test_a_broken_weight_sync_of_the_embedded_engine_stops_the_run(
    broken: Break, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    async with open_bench(tiny) as bench:
        await bench.learn(0.0)  # a step that the load cannot get wrong
        with pytest.raises(WeightSyncError, match=r"serves other weights than were trained|still serves the old"):
            await bench.learn(bench.learning_rate)


@pytest.mark.slow
async def test_an_adapter_under_other_names_is_refused_before_it_is_served(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_module, "read_adapter", lambda folder: _renamed(read_adapter(folder)))
    async with open_bench(tiny) as bench:
        with pytest.raises(AdapterMismatchError, match=r"changes 'base\..*', which this model does not have"):
            await bench.learn(bench.learning_rate)


@pytest.mark.slow
async def test_a_canary_that_a_tiny_learning_rate_cannot_move_is_no_silent_proof(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_nothing(monkeypatch)
    watch = Watch(MemoryStore())
    found: list[Finding] = []
    async with open_bench(tiny) as bench:
        await bench.canary.check(bench.engine, bench.trainer)
        for _ in range(3):
            found += watch.observed(await bench.learn(1e-12)).findings
    assert [finding.name for finding in found] == ["learning-rate-too-small", "canary-proves-nothing"]


@pytest.mark.slow
def test_it_passes_on_a_model_that_learns_and_prints_its_numbers(tiny: str) -> None:
    result = CliRunner().invoke(app, ["selftest", "--model", tiny, "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["passed"]
    assert told["faults"] == []
    assert 3 <= len(told["rewards"]) < 12, "it ends when the reward has risen enough"
    assert told["gain"] >= told["wanted_gain"] == 0.15
    assert told["sync"]["worst_difference"] < 1e-4
    assert (told["zero"]["trainer_drift"], told["zero"]["same_tokens"]) == (0.0, True)
    assert f"toy task, step {len(told['rewards'])} of 12" in result.stderr


@pytest.mark.slow
async def test_a_trainer_that_goes_the_wrong_way_fails(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = NativeTrainer.step

    async def away(self: NativeTrainer, rows: Any, objective: Objective) -> Any:
        return await step(self, [dataclasses.replace(row, advantage=-row.advantage) for row in rows], objective)

    monkeypatch.setattr(NativeTrainer, "step", away)
    result = await selftest(tiny)
    assert [fault.partition(":")[0] for fault in result.faults] == ["toy task"]


@pytest.mark.slow
async def test_a_trainer_that_moves_at_learning_rate_zero_fails(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = NativeTrainer.step

    async def moving(self: NativeTrainer, rows: Any, objective: Objective) -> Any:
        rate = objective.learning_rate or 1e-3
        return await step(self, rows, dataclasses.replace(objective, learning_rate=rate))

    monkeypatch.setattr(NativeTrainer, "step", moving)
    result = await selftest(tiny, steps=3)
    assert any(fault.startswith("learning rate 0: the trainer") for fault in result.faults)


@pytest.mark.slow
async def test_a_broken_sync_is_a_fault_of_the_selftest(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load_nothing(monkeypatch)
    result = await selftest(tiny, steps=3)
    assert not result.passed
    assert result.faults[0].startswith("weight sync: ")


async def test_impossible_options_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="steps is 2; wanted 3 or more"):
        await selftest("any", steps=2)
    with pytest.raises(ConfigError, match="engine 'none' is unknown"):
        await selftest("any", engine="none")
