"""Which renderer a model folder gets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from art_core.errors import DataError, MissingExtraError
from art_core.render.base import ChatRenderer
from art_core.render.chatml import END, START, ChatMLHermesRenderer
from art_core.render.library import LibraryRenderer
from art_core.render.tokenizer import TextTokenizer
from art_core.types import ChatMessage

_PROBES: tuple[list[ChatMessage], ...] = (
    [{"role": "user", "content": "a b"}],
    [
        {"role": "system", "content": "s"},
        {"role": "user", "content": " u "},
        {"role": "assistant", "content": "v\n"},
        {"role": "user", "content": "w"},
    ],
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
)


def load_renderer(model_folder: Path | str, *, model_id: str | None = None) -> ChatRenderer:
    """The renderer for the model in `model_folder`.

    ChatML models whose own template knows no tools (or that have none) get `ChatMLHermesRenderer`, after its text has
    been compared with their template. Other models get the one that the `renderers` library has for them: a
    hand-written one where the hub name is known (`model_id`, or a folder of the hub's cache) or where it writes the
    same ids as the model's template, else the generic one. docs/models.md says what each can do.

    Raises:
        DataError: the folder has no readable tokenizer, or a template that cannot be used.
        MissingExtraError: `tokenizers` or `transformers` is not installed.
    """
    folder = Path(model_folder)
    template = _chat_template(folder)
    model_id = model_id or _hub_id(folder)
    if template is None or (START in template and "tools" not in template):
        tokenizer = TextTokenizer.from_file(folder / "tokenizer.json")
        if START in tokenizer.special_tokens and END in tokenizer.special_tokens:
            renderer = ChatMLHermesRenderer(tokenizer)
            if template is None:
                return renderer
            if (fitted := _fitted(tokenizer, template)) is not None:
                return fitted
        elif template is None and model_id is None:
            raise DataError(
                f"the model in {folder} has no chat template and its tokenizer is not made for ChatML; "
                "wanted an instruct model, not a base model"
            )
    return LibraryRenderer.load(folder, model_id=model_id, template=template)


def has_chat_template(model_folder: Path) -> bool:
    """Whether the model in `model_folder` says itself how conversations are written."""
    return _chat_template(model_folder) is not None


def _chat_template(folder: Path) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    config_path = folder / "tokenizer_config.json"
    if not config_path.is_file():
        return None
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
        template = config.get("chat_template")
    except (ValueError, AttributeError) as error:
        raise DataError(f"{config_path} is not a JSON object: {error}; download the model again") from error
    if isinstance(template, list):  # several named templates
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("tool_use") or named.get("default")
    return template if isinstance(template, str) else None


def _fitted(tokenizer: TextTokenizer, template: str) -> ChatMLHermesRenderer | None:
    """A ChatML renderer with the default system message of `template`; None if it writes anything else."""
    first = _apply(template, _PROBES[0])
    turn = f"{START}user\na b{END}\n"
    if first is None or not first.endswith(turn):
        return None
    preamble = re.fullmatch(rf"(?:{re.escape(START)}system\n(.*){re.escape(END)}\n)?", first[: -len(turn)], re.DOTALL)
    if preamble is None:
        return None
    renderer = ChatMLHermesRenderer(tokenizer, default_system=preamble[1])
    for messages in _PROBES:
        for generate in (False, True):
            if renderer.render_text(messages, add_generation_prompt=generate) != _apply(template, messages, generate):
                return None
    return renderer


def _apply(template: str, messages: list[ChatMessage], add_generation_prompt: bool = False) -> str | None:
    """What `template` makes of `messages`; None if it refuses them."""
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "reading a chat template needs 'jinja2', which is not installed; run: pip install 'art-core[train]'"
        ) from error
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    # No ChatML text has a token before its first turn: a template that writes one must not pass for ChatML.
    variables: dict[str, Any] = {"bos_token": "\0", "eos_token": END, "add_generation_prompt": add_generation_prompt}
    try:
        return environment.from_string(template).render(messages=messages, **variables)
    except (TemplateError, TypeError, ValueError):
        return None


def _hub_id(folder: Path) -> str | None:
    """The hub name of a model whose folder lies in the hub's cache."""
    cached = re.search(r"models--(.+?)--(.+?)/snapshots/[^/]+/?$", folder.as_posix())
    return f"{cached[1]}/{cached[2]}" if cached else None
