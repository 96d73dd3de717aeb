"""Tokens a judge reads per trajectory: `art-ruler` beside ART's own RULER (`openpipe-art` on PyPI) on the same groups.

    python benchmarks/ruler_prompt_tokens.py [--reference openpipe-art] [--python REFERENCE_PYTHON] [--model gpt-4o]

The reference is installed into a virtual environment of its own, which is removed afterwards, or taken from the one
whose Python `--python` names. Both sides run as they are, each with its own default criteria, and nothing is sent: what
they would send is counted, messages only, with the tokenizer of `--model`. The table has the tokens per trajectory. The
last line is `ratio NAME VALUE`, the reference's tokens over ours on the group where that is smallest: above 1, ours
are fewer on every group.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_ruler import Ruler
from art_ruler.fakes import HeuristicJudge
from art_ruler.types import JudgeReply, JudgeRequest

Message = dict[str, Any]

# Runs in the reference's environment: groups come in as JSON, and the messages it would send for each go out.
CAPTURE = """\
import asyncio, contextlib, importlib, io, json, sys
module = importlib.import_module("art.rewards.ruler")
sent = []
class Sent(Exception):
    pass
async def acompletion(**request):
    sent.append(request["messages"])
    raise Sent
module.acompletion = acompletion
async def main():
    for group in json.load(sys.stdin):
        try:
            await module.ruler(group["trajectories"], "openai/gpt-4o", tools=group["tools"])
        except Sent:
            pass
with contextlib.redirect_stdout(io.StringIO()):
    asyncio.run(main())
print("\\n" + json.dumps(sent))
"""


@dataclass(frozen=True)
class Group:
    name: str
    trajectories: list[list[Message]]
    tools: list[dict[str, Any]] | None = None


def groups() -> list[Group]:
    """Groups of the kinds that agents are trained on; the same each time."""
    return [
        Group("2 short answers", [_asked("What is 2 + 2?", answer) for answer in ("4", "I do not know.")]),
        Group("4 short answers", [_asked("What is the capital of Australia?", f"It is {c}.") for c in _CITIES[:4]]),
        Group("1 trajectory", [_asked("Name a city.", "Oslo")]),
        Group("4 equal answers", [_asked("Name a city.", "Oslo")] * 4),
        Group(
            "4 answers in Japanese",
            [_asked("次の列車は何時ですか。", f"次の列車は{h}時42分、九番線から発車します。") for h in range(4)],
        ),
        Group("6 with a tool call", [_with_call("You look up the weather.", i, 1) for i in range(6)], _TOOLS[:1]),
        Group("8 with a long shared system prompt", [_with_call(_POLICY, i, 2) for i in range(8)], _TOOLS),
        Group("8 with 12 calls each", [_with_call(_POLICY, i, 12) for i in range(8)], _TOOLS),
        Group("4 programs", [_asked("Write quicksort.", _PROGRAM.replace("pivot", f"pivot_{i}")) for i in range(4)]),
        Group("8 long texts", [_asked("Write a long report.", _SENTENCE * (60 + i)) for i in range(8)]),
    ]


_CITIES = ("Canberra", "Sydney", "Melbourne", "Perth")
_SENTENCE = 'The "new" line was opened on time; its cost, however, exceeded the plan by 12 %.\n'
_PROGRAM = """\
def quicksort(items: list[int]) -> list[int]:
    if len(items) < 2:
        return items
    pivot = items[0]
    return [
        *quicksort([item for item in items[1:] if item < pivot]),
        pivot,
        *quicksort([item for item in items[1:] if item >= pivot]),
    ]
"""
_POLICY = "You are an agent of a railway. " + " ".join(
    f"Rule {i}: a ticket of class {i} may be changed up to {i} days before it is used, for a fee of {i * 5} euros."
    for i in range(1, 41)
)


def _tool(name: str, description: str, *fields: str) -> dict[str, Any]:
    properties = {field: {"type": "string", "description": f"the {field} wanted"} for field in fields}
    parameters = {"type": "object", "properties": properties, "required": list(fields)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_TOOLS = [
    _tool("look_up", "Look something up.", "city", "day"),
    _tool("book", "Book a ticket.", "train", "class", "name"),
    _tool("cancel", "Cancel a ticket.", "ticket"),
]


def _asked(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _with_call(system: str, number: int, calls: int) -> list[Message]:
    messages: list[Message] = [
        {"role": "system", "content": system},
        {"role": "user", "content": "How warm will it be in Oslo, and when does the last train leave?"},
    ]
    for turn in range(calls):
        call_id = f"call_{number:02d}{turn:02d}Zx81KqPw"
        function = {"name": "look_up", "arguments": json.dumps({"city": "Oslo", "day": f"{turn + number} June"})}
        result = {"temperature": number + turn, "unit": "C", "trains": [f"1{number}:{turn:02d}", f"2{turn % 4}:42"]}
        messages += [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": call_id, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": call_id, "content": json.dumps(result)},
        ]
    return [
        *messages,
        {"role": "assistant", "content": f"It will be {number} degrees; the last train is at 2{number % 4}:42."},
    ]


class Listening:
    """A judge that keeps what it was asked."""

    name = "listening"

    def __init__(self) -> None:
        self.requests: list[JudgeRequest] = []

    async def complete(self, request: JudgeRequest) -> JudgeReply:
        self.requests.append(request)
        return await HeuristicJudge().complete(request)


def ours(group: Group) -> list[Message]:
    """The messages of the one request that art-ruler makes for a group."""
    judge = Listening()
    asyncio.run(Ruler(judge).score(group.trajectories, tools=group.tools))
    (request,) = judge.requests
    return list(request.messages)


def theirs(python: Path, measured: list[Group]) -> list[list[Message]]:
    """The messages of the request that the reference makes for each group."""
    asked = json.dumps([{"trajectories": group.trajectories, "tools": group.tools} for group in measured])
    quiet = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run([python, "-c", CAPTURE], input=asked, env=quiet, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the reference cannot be run: {_last_line(done.stderr)}; name a release with --reference")
    sent: list[list[Message]] = json.loads(done.stdout.splitlines()[-1])
    if len(sent) != len(measured):
        raise SystemExit(f"the reference made {len(sent)} requests for {len(measured)} groups; wanted one for each")
    return sent


@contextmanager
def installed(reference: str) -> Iterator[Path]:
    """The Python of a new environment that holds the reference."""
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.is_file() else shutil.which("uv")
    if uv is None:
        raise SystemExit("uv is not installed; run `make setup`, or name a Python that has the reference with --python")
    with tempfile.TemporaryDirectory(prefix="ruler-reference-") as folder:
        python = Path(folder) / "venv" / "bin" / "python"
        for words in (
            ["venv", "-q", "-p", sys.executable, f"{folder}/venv"],
            ["pip", "install", "-q", "-p", python, reference],
        ):
            done = subprocess.run([uv, *words], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise SystemExit(
                    f"{reference} cannot be installed from PyPI: {_last_line(done.stderr)}; check the network, or name "
                    "a Python that has it with --python"
                )
        yield python


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1].strip()


def counted(messages: list[Message], model: str) -> int:
    from litellm import token_counter

    return int(token_counter(model=model, messages=messages))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reference", default="openpipe-art", help="what to install, as pip takes it")
    parser.add_argument("--python", type=Path, help="a Python that has the reference already")
    parser.add_argument("--model", default="gpt-4o", help="whose tokenizer counts, as litellm knows it")
    options = parser.parse_args()
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    measured = groups()
    if options.python is not None:
        references = theirs(options.python, measured)
    else:
        with installed(options.reference) as python:
            references = theirs(python, measured)
    print(f"{'tokens per trajectory':36}{'reference':>10}{'art-ruler':>10}{'ratio':>8}")
    ratios = []
    for group, messages in zip(measured, references, strict=True):
        reference, own = counted(messages, options.model), counted(ours(group), options.model)
        ratios.append(reference / own)
        per = len(group.trajectories)
        print(f"{group.name:36}{reference / per:10.1f}{own / per:10.1f}{ratios[-1]:8.3f}")
    print(f"ratio ruler_prompt_tokens {min(ratios):.3f}")


if __name__ == "__main__":
    main()
