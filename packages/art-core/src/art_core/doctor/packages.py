"""Checks of the Python and of the packages in it: which there are, and whether they fit together."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from art_core.doctor.checks import Check

OURS = ("art-core", "art-langgraph", "art-mcp", "art-ruler")
_STACK = ("torch", "transformers", "tokenizers", "huggingface-hub", "peft", "trl", "vllm", "accelerate", "openai")
"""Packages of others whose own requirements are looked at as well."""
PYTHON = (3, 11), (3, 15)
_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;()]*)\)?\s*(?:;\s*(.*))?$")
_EXTRA = re.compile(r"""^extra\s*==\s*['"]([\w-]+)['"]$""")
_TORCH_LIMIT_S = 90.0
_ASK_TORCH = """
import json, torch
available = torch.cuda.is_available()
devices = []
for index in range(torch.cuda.device_count() if available else 0):
    free, total = torch.cuda.mem_get_info(index)
    devices.append([torch.cuda.get_device_name(index), free, total])
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "available": available,
                  "devices": devices, "threads": torch.get_num_threads()}))
"""


def check_python() -> list[Check]:
    """The interpreter's version."""
    version = f"Python {platform.python_version()} at {sys.executable}"
    if PYTHON[0] <= sys.version_info[:2] < PYTHON[1]:
        return [Check("python", "ok", version)]
    return [Check("python", "problem", version, "art-core is made for Python 3.11 to 3.14: use one of these")]


def check_packages() -> list[Check]:
    """Our packages, their extras, and all requirements among what is installed."""
    checks: list[Check] = []
    for package in OURS:
        if (version := _version(package)) is None:
            continue
        extras = _extras(package)
        whole = sorted(extra for extra, needed in extras.items() if all(_version(name) for name in needed))
        named = f", extras: {', '.join(whole)}" if whole else ""
        checks.append(Check(package, "ok", f"{version}{named}"))
        if package == "art-core" and "train" in extras and "train" not in whole:
            missing = sorted(name for name in extras["train"] if _version(name) is None)
            checks.append(
                Check(
                    "extra train",
                    "warning",
                    f"not whole: {', '.join(missing)} missing, so nothing can be served or trained here",
                    "pip install 'art-core[train]'",
                )
            )
    clashes = list(_clashes())
    checks += [
        Check(
            f"{owner} and {name}",
            "problem" if owner in OURS else "warning",
            f"{owner} {_version(owner)} wants {name}{wanted}, installed is {installed}",
            f"pip install '{name}{wanted}'",
        )
        for owner, name, wanted, installed in clashes
    ]
    if not clashes:
        checks.append(Check("versions", "ok", "all requirements of ours and of the training stack fit together"))
    return checks


def check_torch() -> list[Check]:
    """Which torch there is, and whether it sees the GPU. Asked in a process of its own: a broken build may crash it."""
    if _version("torch") is None:
        return []
    gpu = _gpu_of_the_system()
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK_TORCH],
            capture_output=True,
            text=True,
            timeout=_TORCH_LIMIT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        told = json.loads(asked.stdout.strip().splitlines()[-1]) if asked.returncode == 0 else None
    except subprocess.TimeoutExpired:
        return [Check("torch", "warning", f"importing it took more than {_TORCH_LIMIT_S:g} s", "Look at the disk")]
    except (ValueError, IndexError):
        told = None
    if told is None:
        last = (asked.stderr.strip().splitlines() or [f"it ended with code {asked.returncode}"])[-1]
        return [Check("torch", "problem", f"cannot be imported: {last[:300]}", "pip install --force-reinstall torch")]
    build = f"torch {told['version']}, built for {'CUDA ' + told['cuda'] if told['cuda'] else 'the CPU'}"
    if told["devices"]:
        return [
            Check("torch", "ok", build),
            *(_gpu_check(name, free, total) for name, free, total in told["devices"]),
        ]
    if gpu and not told["cuda"]:
        remedy = "Install a CUDA build: pip install torch --index-url https://download.pytorch.org/whl/cu128"
        return [Check("torch", "problem", f"{build}, but there is a GPU ({gpu})", remedy)]
    if gpu:
        remedy = "Compare the driver with the CUDA version (nvidia-smi), and look at CUDA_VISIBLE_DEVICES"
        return [Check("torch", "problem", f"{build}; it cannot see the GPU ({gpu})", remedy)]
    if told["cuda"]:
        remedy = "It works, on the CPU; a CPU build takes 5 GB less disk"
        return [Check("torch", "warning", f"{build}, and there is no GPU", remedy)]
    return [Check("torch", "ok", f"{build}, {told['threads']} threads; no GPU")]


def satisfies(version: str, wanted: str) -> bool:
    """Whether `version` fulfils `wanted`, such as `>=2.11,<3`. What is no comparison counts as fulfilled."""
    for part in filter(None, (part.strip() for part in wanted.split(","))):
        match = re.fullmatch(r"(>=|<=|==|!=|~=|<|>)\s*([\w.*+!-]+)", part)
        if match is None:
            continue
        operator, bound = match[1], match[2]
        if bound.endswith(".*"):
            prefix = _release(bound[:-2])
            inside = _release(version)[: len(prefix)] == prefix
            if (operator == "==" and not inside) or (operator == "!=" and inside):
                return False
            continue
        have, want = _padded(_release(version), _release(bound))
        fulfilled = {
            ">=": have >= want,
            "<=": have <= want,
            "==": have == want,
            "!=": have != want,
            "<": have < want,
            ">": have > want,
            "~=": have >= want and have[: max(1, len(_release(bound)) - 1)] == want[: max(1, len(_release(bound)) - 1)],
        }
        if not fulfilled[operator]:
            return False
    return True


def requirements(package: str) -> Iterator[tuple[str, str, str | None]]:
    """What `package` requires, as name, versions, and the extra it is for. Other conditions leave a line out."""
    try:
        lines = metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match is None:
            continue
        name, wanted, condition = match[1], match[2].strip(), (match[3] or "").strip()
        if not condition:
            yield name, wanted, None
        elif extra := _EXTRA.match(condition):
            yield name, wanted, extra[1]


def _clashes() -> Iterator[tuple[str, str, str, str]]:
    for owner in (*OURS, *_STACK):
        if _version(owner) is None:
            continue
        for name, wanted, extra in requirements(owner):
            installed = _version(name)
            if extra is not None and owner not in OURS:
                continue  # an extra of others that nobody asked for
            if installed is not None and not satisfies(installed, wanted):
                yield owner, name, wanted, installed
            elif installed is None and extra is None:
                yield owner, name, wanted, "none"


def _extras(package: str) -> dict[str, list[str]]:
    extras: dict[str, list[str]] = {}
    for name, _, extra in requirements(package):
        if extra is not None:
            extras.setdefault(extra, []).append(name)
    return extras


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version, without epoch, local part and suffixes."""
    match = re.match(r"(?:\d+!)?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _padded(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    length = max(len(left), len(right))
    return left + (0,) * (length - len(left)), right + (0,) * (length - len(right))


def _gpu_of_the_system() -> str:
    """The name of a GPU that the driver knows, whatever torch says; empty for none."""
    for information in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in information.read_text(errors="replace").splitlines():
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    return "NVIDIA" if Path("/dev/nvidia0").exists() else ""


def _gpu_check(name: str, free: int, total: int) -> Check:
    evidence = f"{name}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free"
    if free < 0.5 * total:
        return Check("gpu", "warning", evidence, "Another process holds most of its memory: see nvidia-smi")
    return Check("gpu", "ok", evidence)
