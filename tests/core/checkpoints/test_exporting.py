from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from art_core.checkpoints import exporting
from art_core.checkpoints.exporting import export_checkpoint
from art_core.checkpoints.forking import fork_run
from art_core.errors import AdapterMismatchError, ArtError, ConfigError, DataError, ModelNotFoundError, StorageError
from art_core.render import load_renderer
from art_core.runs import Run, run
from art_core.saved import is_held
from art_core.storage import RunStore
from art_core.types import Checkpoint
from tests.core.checkpoints.building import logprobs_of
from tests.core.checkpoints.conftest import Trained


def clerk(trained: Trained) -> Run:
    return run(trained.path, "shop/clerk")


def test_transformers_loads_the_merged_folder_and_gives_our_logprobs(trained: Trained, tmp_path: Path) -> None:
    for step in (1, 3):
        out = tmp_path / f"merged-{step}"
        done = export_checkpoint(clerk(trained), step, out)
        model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
        assert logprobs_of(model) == pytest.approx(trained.logprobs[step - 1], abs=1e-5)
        assert (done.model, done.step, done.merged) == ("shop/clerk", step, True)
    assert trained.logprobs[0] != pytest.approx(trained.logprobs[2], abs=1e-3)


def test_peft_loads_the_adapter_and_gives_our_logprobs(trained: Trained, tmp_path: Path) -> None:
    export_checkpoint(clerk(trained), 2, tmp_path / "adapter", merged=False)
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        *("adapter_config.json", "adapter_model.safetensors", "exported_from.json")
    ]
    for folder in (tmp_path / "adapter", clerk(trained).folder / "checkpoints" / "step-0002"):
        base = AutoModelForCausalLM.from_pretrained(trained.base_model, dtype=torch.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of transformers, about what PEFT asks it
            model = PeftModel.from_pretrained(base, folder)
        assert logprobs_of(model) == pytest.approx(trained.logprobs[1], abs=1e-5)


def test_tokenizer_and_chat_template_go_along(trained: Trained, tmp_path: Path) -> None:
    export_checkpoint(clerk(trained), None, tmp_path / "out")
    messages: list[Any] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": " u\n"},
        {"role": "assistant", "content": "v"},
        {"role": "user", "content": "w"},
    ]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert list(theirs) == list(load_renderer(trained.base_model).render_ids(messages, add_generation_prompt=True))
    assert list(theirs) == list(load_renderer(tmp_path / "out").render_ids(messages, add_generation_prompt=True))


def test_a_template_of_the_base_model_is_kept(trained: Trained, tmp_path: Path) -> None:
    base = shutil.copytree(trained.base_model, tmp_path / "base")
    (base / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    (tmp_path / "out").mkdir()
    exporting._write_tokenizer(base, tmp_path / "out")
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ messages[0]['content'] }}"


@pytest.mark.parametrize(("dtype", "stored"), [("auto", torch.float32), ("bfloat16", torch.bfloat16)])
def test_weights_are_rounded_once_to_the_type_asked_for(
    trained: Trained, tmp_path: Path, dtype: Any, stored: torch.dtype
) -> None:
    export_checkpoint(clerk(trained), 3, tmp_path / "out", dtype=dtype)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert model.dtype == stored


def test_an_existing_folder_is_left_alone(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"out exists; give another folder, or --force"):
        export_checkpoint(clerk(trained), 3, out, merged=False)
    with pytest.raises(ConfigError, match="is not an earlier export, so it is not replaced"):
        export_checkpoint(clerk(trained), 3, out, merged=False, force=True)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    (out / "mine.txt").unlink()
    for step in (1, 3):  # an empty folder, then an earlier export
        export_checkpoint(clerk(trained), step, out, merged=False, force=True)
        assert json.loads((out / "exported_from.json").read_text())["step"] == step
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "runs"]
    with pytest.raises(ConfigError, match="none is no folder; make it"):
        export_checkpoint(clerk(trained), 3, tmp_path / "none" / "out")


def test_while_it_is_exported_a_checkpoint_is_not_deleted(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    write = exporting._write_adapter

    def watched(checkpoint: Checkpoint, folder: Path) -> None:
        seen.append(is_held(checkpoint))
        write(checkpoint, folder)

    monkeypatch.setattr(exporting, "_write_adapter", watched)
    export_checkpoint(clerk(trained), 1, tmp_path / "out", merged=False)
    assert seen == [True]


def _no_base(trained: Trained, tmp_path: Path) -> None:
    _identity(trained, base_model=str(tmp_path / "gone" / "tiny"))


def _other_base(trained: Trained, tmp_path: Path) -> None:
    _identity(trained, sha256="0" * 64)


def _other_lora(trained: Trained, tmp_path: Path) -> None:
    file = trained.path / "shop" / "clerk" / "checkpoints" / "step-0003" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "use_dora": True}))
    _say_it_is_whole(file.parent)


def _truncated(trained: Trained, tmp_path: Path) -> None:
    file = trained.path / "shop" / "clerk" / "checkpoints" / "step-0003" / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])


def _identity(trained: Trained, **changed: Any) -> None:
    file = trained.path / "shop" / "clerk" / "model.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))


def _say_it_is_whole(folder: Path) -> None:
    from art_core.saved import digest, state_text

    state = json.loads((folder / "state.json").read_text())
    files = {name: digest(folder / name) for name in state["files"]}
    (folder / "state.json").write_text(state_text(state["step"], state["cursor"], files))


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (_no_base, ModelNotFoundError, r"gone/tiny' is unknown: there is no such folder"),
        (_other_base, ConfigError, r"are not those that the run was begun with .* or export the adapter alone"),
        (_other_lora, AdapterMismatchError, r"the adapter uses use_dora"),
        (_truncated, DataError, r"adapter_model.safetensors is not the file that was saved; choose another step"),
    ],
)
def test_what_cannot_be_exported_says_why_and_leaves_nothing(
    trained: Trained,
    tmp_path: Path,
    damage: Callable[[Trained, Path], None],
    kind: type[ArtError],
    message: str,
) -> None:
    damage(trained, tmp_path)
    with pytest.raises(kind, match=message):
        export_checkpoint(clerk(trained), 3, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.parametrize("merged", [True, False])
def test_a_full_disk_leaves_nothing(trained: Trained, tmp_path: Path, merged: bool) -> None:
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, limits[1]))  # as if the disk were full after 900 bytes
    try:
        with pytest.raises(StorageError, match=r"could not write .*out"):
            export_checkpoint(clerk(trained), 3, tmp_path / "out", merged=merged)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a second file system")
def test_b039_the_systems_folder_for_temporary_files_may_be_on_another_disk(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        assert Path(elsewhere).stat().st_dev != tmp_path.stat().st_dev
        monkeypatch.setenv("TMPDIR", elsewhere)
        monkeypatch.setattr(tempfile, "tempdir", None)
        with RunStore(clerk(trained).folder) as store:
            store.write(4, lambda folder: _copy_files(trained, folder), {})
        fork_run(clerk(trained), 4, trained.path, "shop", "branch")
        export_checkpoint(clerk(trained), 3, tmp_path / "out")
        assert list(Path(elsewhere).iterdir()) == []
    assert clerk(trained).checkpoint_steps == [1, 2, 3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "runs"]


def _copy_files(trained: Trained, folder: Path) -> None:
    for path in (clerk(trained).folder / "checkpoints" / "step-0003").iterdir():
        if path.name != "state.json":
            shutil.copy(path, folder)


def test_a_folder_takes_its_place_also_through_a_link_and_after_kills(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    left = tmp_path / f".link.{os.getpid()}.tmp"  # of a killed process of the same number
    left.mkdir()
    (left / "half").touch()
    with exporting._appearing(link, force=True) as folder:
        (folder / "whole").touch()
    assert sorted(path.name for path in link.iterdir()) == ["whole"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
