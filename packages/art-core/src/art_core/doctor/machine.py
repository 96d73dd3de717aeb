"""`art doctor`: whether this machine can serve and train."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from art_core.doctor.checks import Check, run_checks
from art_core.doctor.packages import check_packages, check_python, check_torch
from art_core.doctor.weights import check_model
from art_core.weights.source import default_cache

LIMIT_S = 100.0
"""Longest time of all checks together."""
LEAST_RAM_GIB, ENOUGH_RAM_GIB = 2.0, 4.0
LEAST_DISK_GIB, ENOUGH_DISK_GIB = 1.0, 5.0
CLOCK_SKEW_S = 60.0
_OLDEST_NOW_S = 1_735_689_600.0  # 2025-01-01


def check_machine(path: Path, *, model: str, port: int) -> list[Check]:
    """All checks. `path` is the folder of the runs, `model` what is to be trained, `port` where it is to be served."""
    return run_checks(
        {
            "python": check_python,
            "packages": check_packages,
            "torch": check_torch,
            "cpu": check_cpu,
            "memory": check_memory,
            "runs": lambda: check_folder("runs", path),
            "cache": lambda: check_folder("model cache", default_cache()),
            "port": lambda: check_port(port),
            "model": lambda: check_model(model),
            "environment": lambda: check_environment(os.environ, os.cpu_count() or 1),
            "clock": check_clock,
        },
        limit_s=LIMIT_S,
    )


def check_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[Check]:
    """Cores, and the units that multiply bfloat16."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not cpuinfo.exists():
        return [Check("cpu", "ok", f"{cores} cores")]
    flags: set[str] = set()
    for line in cpuinfo.read_text(errors="replace").splitlines():
        if line.startswith(("flags", "Features")):
            flags = set(line.partition(":")[2].split())
            break
    fast = [name for name in ("amx_bf16", "avx512_bf16", "bf16") if name in flags]
    if fast:
        return [Check("cpu", "ok", f"{cores} cores with {', '.join(fast)}: bfloat16 is fast")]
    wide = "avx512f" if "avx512f" in flags else "avx2" if "avx2" in flags else "no wide vectors"
    return [Check("cpu", "ok", f"{cores} cores with {wide}: float32 is used, a few times slower than bfloat16 on AMX")]


def check_memory() -> list[Check]:
    """Memory that is left, of the machine or of the container."""
    available = _available_bytes()
    if available is None:
        return [Check("memory", "warning", "how much is free is not known on this system")]
    gib = available / 2**30
    evidence = f"{gib:.1f} GiB free"
    if gib < LEAST_RAM_GIB:
        return [Check("memory", "problem", evidence, f"SmolLM2-135M needs about {LEAST_RAM_GIB:g} GiB: end something")]
    if gib < ENOUGH_RAM_GIB:
        return [Check("memory", "warning", evidence, "Keep rows short, and trainer_args micro_batch_tokens small")]
    return [Check("memory", "ok", evidence)]


def check_folder(name: str, folder: Path) -> list[Check]:
    """Whether `folder`, or where it will be made, can be written, locked, and has space."""
    there = folder.expanduser().absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    place = str(folder) if there == folder.absolute() else f"{folder} (not there yet, in {there})"
    if not there.is_dir():
        return [Check(name, "problem", f"{there} is a file, and no folder can be made below it", "Name another folder")]
    try:
        descriptor, probe = tempfile.mkstemp(prefix=".art-doctor-", dir=there)
    except OSError as error:
        remedy = "Make it writable, or name another: --path, or ART_CACHE for the models"
        return [Check(name, "problem", f"{place} cannot be written: {error.strerror}", remedy)]
    try:
        checks = [_space_check(name, place, there)]
        if (problem := _lock_problem(descriptor, probe)) is not None:
            remedy = "Use a local disk: without locks two processes could write one run"
            checks.append(Check(f"{name}: locks", "problem", problem, remedy))
        skew = abs(Path(probe).stat().st_mtime - time.time())
        if skew > CLOCK_SKEW_S:
            remedy = "Set the clocks (NTP): ages of files and runs are wrong"
            checks.append(Check(f"{name}: clock", "warning", f"its clock is {skew:.0f} s off this machine's", remedy))
        return checks
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            Path(probe).unlink()


def check_port(port: int) -> list[Check]:
    """Whether `art serve` could listen."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            remedy = "An `art serve` may run already; else give it another --port"
            return [Check("port", "warning", f"127.0.0.1:{port} is taken ({error.strerror})", remedy)]
    return [Check("port", "ok", f"127.0.0.1:{port} is free")]


def check_environment(environment: Mapping[str, str], cores: int) -> list[Check]:
    """Variables that slow down, or break, what would work without them."""
    found: list[Check] = []
    threads = environment.get("OMP_NUM_THREADS", "")
    if threads and not (threads.isdecimal() and 0 < int(threads) <= cores):
        evidence = f"OMP_NUM_THREADS={threads} with {cores} cores"
        found.append(Check("environment", "warning", evidence, f"Set a number from 1 to {cores}, or unset it"))
    elif threads == "1" and cores >= 4:
        evidence = f"OMP_NUM_THREADS=1 with {cores} cores: torch uses one of them"
        found.append(Check("environment", "warning", evidence, "Unset it, or give num_threads"))
    if environment.get("PYTHONDONTWRITEBYTECODE"):
        evidence = "PYTHONDONTWRITEBYTECODE is set: each start compiles torch and transformers anew"
        found.append(Check("environment", "warning", evidence, "Unset it"))
    if environment.get("CUDA_VISIBLE_DEVICES") == "":
        found.append(Check("environment", "warning", "CUDA_VISIBLE_DEVICES is empty: GPUs are hidden", "Unset it"))
    proxies = [name for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy") if environment.get(name)]
    direct = environment.get("NO_PROXY", environment.get("no_proxy", ""))
    hosts = {host.strip() for host in direct.split(",")}
    if proxies and not {"*", "127.0.0.1"} & hosts:
        evidence = f"{proxies[0]} is set, and NO_PROXY does not name 127.0.0.1: clients ask the proxy for this machine"
        found.append(Check("environment", "warning", evidence, "export NO_PROXY=127.0.0.1,localhost"))
    return found or [Check("environment", "ok", "no variable that hurts")]


def check_clock() -> list[Check]:
    """Whether the time can be right."""
    now = time.time()
    text = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(now))
    if now < _OLDEST_NOW_S:
        return [Check("clock", "problem", f"it is said to be {text}", "Set it (NTP): certificates are refused else")]
    return [Check("clock", "ok", text)]


def _space_check(name: str, place: str, folder: Path) -> Check:
    gib = shutil.disk_usage(folder).free / 2**30
    evidence = f"{place} is writable, {gib:.1f} GiB free"
    if gib < LEAST_DISK_GIB:
        return Check(name, "problem", evidence, "Free some: a step that cannot be saved is lost")
    if gib < ENOUGH_DISK_GIB:
        return Check(name, "warning", evidence, "Delete old checkpoints: model.delete_checkpoints()")
    return Check(name, "ok", evidence)


def _lock_problem(descriptor: int, probe: str) -> str | None:
    """Why files on this disk cannot be locked against others; None where they can."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return f"files cannot be locked: {error.strerror}"
    second = os.open(probe, os.O_RDWR)
    try:
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError as error:
        return f"files cannot be locked: {error.strerror}"
    finally:
        os.close(second)
    return "a lock does not keep out a second process"


def _available_bytes() -> int | None:
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        inactive = [line.split() for line in (group / "memory.stat").read_text().splitlines()]
        cache = sum(int(value) for key, value in inactive if key == "inactive_file")
        found.append(limit - used + cache)
    if not found:
        with contextlib.suppress(OSError, ValueError):
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found) if found else None
