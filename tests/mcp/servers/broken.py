"""An MCP server in plain stdlib Python that breaks the rules on demand: by switches at start, by tools in a session."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

parser = argparse.ArgumentParser()
parser.add_argument("--exit-at-start", type=int, metavar="CODE")
parser.add_argument("--silent", action="store_true", help="never answer anything")
parser.add_argument("--delay", type=float, default=0.0, help="seconds before the first line is read")
parser.add_argument("--banner", action="store_true", help="print five kinds of noise on stdout before the first answer")
parser.add_argument("--noise", action="store_true", help="print noise before each answer to a call")
parser.add_argument("--stderr-bytes", type=int, default=0)
parser.add_argument("--pages", choices=("one", "many", "loop", "endless", "invalid", "unknown"), default="one")
parser.add_argument("--children", action="store_true", help="start a child, and one that leaves the process group")
parser.add_argument("--stubborn", action="store_true", help="ignore SIGTERM and the end of stdin")
parser.add_argument("--pid-file")
parser.add_argument("--fail-file", help="fail to start while this file exists")
parser.add_argument("--write-file")
options = parser.parse_args()

cancelled: list[Any] = []
unanswered: list[Any] = []
SLEEPER = [sys.executable, "-I", "-S", "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
PIXEL = "aGVsbG8gd29ybGQ="


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    sys.stdout.flush()


def raw(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def tool(name: str, **extra: Any) -> dict[str, Any]:
    return {"name": name, "description": name, "inputSchema": {"type": "object"}} | extra


NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
NAMES = ("echo", "never", "die", "deaf", "counts", "contents", "huge", "refuse", "malformed", "environment")
TOOLS = [tool(name) for name in NAMES]
TOOLS.append(tool("liar", outputSchema=NUMBER))


def list_tools(cursor: str | None) -> dict[str, Any]:
    if options.pages == "many":
        names = [f"t{index}" for index in range(101)]
        pages = [names[:50], [], names[50:100], names[100:]]
        index = int(cursor or "0")
        page: dict[str, Any] = {"tools": [tool(name) for name in pages[index]]}
        return page if index == 3 else page | {"nextCursor": str(index + 1)}
    if options.pages == "loop":
        return {"tools": TOOLS, "nextCursor": "again"}
    if options.pages == "endless":
        return {"tools": [], "nextCursor": f"{cursor}+"[-300:] if cursor else "+"}
    if options.pages == "invalid":
        return {"tools": [{"name": 3}]}
    return {"tools": TOOLS}


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


def call(request_id: Any, name: str, arguments: Any) -> dict[str, Any] | None:
    if name == "echo":
        return text(json.dumps(arguments))
    if name == "never":
        unanswered.append(request_id)
        return None
    if name == "die":
        print("Traceback: out of paper", file=sys.stderr)
        os._exit(7)
    if name == "deaf":
        signal.pause()
    if name == "counts":
        return text(json.dumps({"unanswered": len(unanswered), "cancelled": len(cancelled)}))
    if name == "contents":
        resource = {"uri": "file:///a.txt", "mimeType": "text/plain", "text": "inside"}
        return {
            "content": [
                {"type": "image", "data": PIXEL, "mimeType": "image/png"},
                {"type": "text", "text": "screenshot"},
                {"type": "audio", "data": PIXEL, "mimeType": "audio/wav"},
                {"type": "resource", "resource": resource},
                {"type": "resource_link", "uri": "file:///b", "name": "b"},
            ]
        }
    if name == "huge":
        return text("x" * int(arguments["size"]))
    if name == "malformed":
        return {"content": "not a list"}
    if name == "environment":
        return text("\n".join(sorted(os.environ)))
    if name == "liar":
        return {"content": [], "structuredContent": {"n": "three"}}
    return text(f"unknown tool {name}") | {"isError": True}


def answer(request: dict[str, Any]) -> None:
    method, request_id, params = request.get("method"), request.get("id"), request.get("params") or {}
    if method == "notifications/cancelled":
        cancelled.append(params.get("requestId"))
    if request_id is None:
        return
    if method == "initialize":
        result: dict[str, Any] | None = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "broken", "version": "1.2"},
        }
    elif method == "tools/list" and options.pages != "unknown":
        result = list_tools(params.get("cursor"))
    elif method == "tools/call":
        if options.noise:
            raw("calling…\n\x1b[31mred\x1b[0m")
        if params["name"] == "refuse":
            say({"id": request_id, "error": {"code": -32602, "message": "no such thing"}})
            return
        result = call(request_id, params["name"], params.get("arguments"))
    else:
        say({"id": request_id, "error": {"code": -32601, "message": "Method not found"}})
        return
    if result is not None:
        say({"id": request_id, "result": result})


def main() -> None:
    pids = [os.getpid()]
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.children:
        for new_session in (False, True):
            child = subprocess.Popen(SLEEPER, start_new_session=new_session)
            pids.append(child.pid)
    if options.pid_file:
        with open(options.pid_file, "a") as file:  # noqa: PTH123
            file.write("".join(f"{pid}\n" for pid in pids))
    if options.write_file:
        with open(options.write_file, "x") as file:  # noqa: PTH123
            file.write("mine")
    if options.exit_at_start is not None or (options.fail_file and os.path.exists(options.fail_file)):  # noqa: PTH110
        print("ValueError: no ink\nplease refill", file=sys.stderr)
        sys.exit(options.exit_at_start or 9)
    time.sleep(options.delay)
    sys.stderr.write("e" * options.stderr_bytes)
    sys.stderr.flush()
    if options.banner:
        raw('Server started\n🚀 ready\n\n{"level": "info"}\n[1, 2]\nListening... ')
    for line in sys.stdin:
        if not options.silent:
            answer(json.loads(line))
    while options.stubborn:
        time.sleep(60)


main()
