"""`art serve` as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ART = [sys.executable, "-m", "art_core"]


def art(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**{key: value for key, value in os.environ.items() if key != "ART_API_KEY"}, **environment}
    return subprocess.run([*ART, *arguments], capture_output=True, text=True, timeout=120, env=env)


def test_help_shows_the_commands_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, contextlib; from art_core.cli import main; sys.argv = ['art', '--help']\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "assert not {'torch', 'transformers', 'openai', 'starlette', 'httpx2'} & set(sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "serve" in ended.stdout


def test_version_and_whole_help_lines() -> None:
    assert art("--version").stdout == "art-core 0.1.0\n"
    text = art("--help").stdout
    assert "..." not in text.replace("[ARGS]...", "")
    assert "Example: art serve" in text


def test_help_of_serve_has_its_options_and_an_example() -> None:
    text = art("serve", "--help").stdout
    for option in ("--model", "--engine", "--trainer", "--host", "--port", "--path", "--api-key", "--json"):
        assert option in text
    assert "Example: art serve --model" in text
    assert "announce" not in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["smollm2-135m"], "'smollm2-135m' belongs to no option; a model is served with --model smollm2-135m"),
        (["--host", "0.0.0.0"], "host '0.0.0.0' can be reached from other machines, and there is no API key"),
        (["--host", "0.0.0.0", "--api-key", ""], "the API key is empty"),
        (["--options", "{"], "--options is not JSON"),
        (["--sink", "mlflow"], "sink 'mlflow' is unknown; wanted one of ['tensorboard', 'wandb']"),
        (["--sink", "wandb", "--options", '{"sinks": []}'], "sinks are given both as --sink and in --options"),
        (["--options", "[]"], "wanted a JSON object"),
        (["--options", '{"seeds": 1}'], "the server has no option 'seeds'"),
        (["--port", "0", "--model", "no-such-model"], "model 'no-such-model' is unknown"),
        (["--port", "0", "--model", "a b=smollm2-135m"], "name 'a b' cannot be used"),
        (["--port", "0", "--engine", "warp"], "engine 'warp' is unknown"),
        (["--port", "0", "--trainer", "warp"], "trainer 'warp' is unknown"),
        (["--port", "0", "--path", "/dev/null/runs"], "path /dev/null/runs cannot be used: Not a directory"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(arguments: list[str], message: str, tmp_path: Path) -> None:
    ended = art("serve", "--path", str(tmp_path), *arguments)
    lines = ended.stderr.splitlines()
    assert (ended.returncode, len(lines)) == (1, 1), ended.stderr
    assert lines[0].startswith("art: ")
    assert message in lines[0]


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    from art_core.testing import write_tiny_model

    return str(write_tiny_model(tmp_path_factory.mktemp("tiny")))


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [*ART, "serve", "--port", "0", "--json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())["url"]
    finally:
        process.kill()
        process.communicate()


def get(url: str, key: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, headers={} if key is None else {"authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.slow
def test_models_are_served_from_the_start_and_sigterm_ends_it(tmp_path: Path, tiny_model: str) -> None:
    models = ["--model", f"clerk={tiny_model}", "--model", f"shop/cook={tiny_model}", "--model", tiny_model]
    with serving("--path", str(tmp_path), *models, ART_API_KEY="k") as (process, url):
        status, text = get(f"{url}/v1/models", "k")
        assert status == 200
        names = [model["id"] for model in json.loads(text)["data"]]
        assert names == ["default/clerk", "shop/cook", f"default/{Path(tiny_model).name}"]
        assert get(f"{url}/v1/models")[0] == 401
        assert json.loads(get(f"{url}/healthz")[1])["status"] == "ok"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.slow
def test_b160_ctrl_c_ends_it_with_130_and_no_traceback(tmp_path: Path) -> None:
    with serving("--path", str(tmp_path)) as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.slow
def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with serving("--path", str(tmp_path)) as (_, url):
        port = url.rsplit(":", 1)[1]
        ended = art("serve", "--path", str(tmp_path / "other"), "--port", port)
        assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
        assert f"cannot listen on 127.0.0.1, port {port}" in ended.stderr
