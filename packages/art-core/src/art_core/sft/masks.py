"""Conversations and recorded calls -> rows in which exactly what the model has to say is trained. Pure.

The mask of an answer does not come from the text of a template but from two renderings: of the messages before it with
the generation prompt, which is what the model will be shown, and of the messages up to it. What the second adds to the
first is what the model would have to emit, its end of turn included. So it is exact for every template, also for one
that drops earlier reasoning or otherwise rewrites history: such an answer stands in a row of its own, behind the
prompt that it would have been sampled after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from art_core.control import SftExample
from art_core.errors import DataError
from art_core.samples import Turn, joined
from art_core.sft.checking import trained_turns
from art_core.types import ChatMessage, TokenSample, ToolSpec

if TYPE_CHECKING:
    from art_core.render import ChatRenderer

_REASONING = ("reasoning_content", "reasoning")


@dataclass(frozen=True)
class Answer:
    """One answer: what the model is shown, and what it is to say.

    `trained[i]` tells whether `completion_ids[i]` is the model's own; all are, unless `in_history_form`: the template
    then writes the answer otherwise than behind its own generation prompt, and the renderer says what is sampled.
    `has_end` tells that the end of the turn is there, `says_reasoning` that no reasoning of the message was left out.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    trained: tuple[bool, ...]
    in_history_form: bool = False
    has_end: bool = True
    says_reasoning: bool = True


def answers_of(example: SftExample, renderer: ChatRenderer, train_on: str) -> list[Answer]:
    """The answers of `example` that are trained, in order. Recorded calls keep the ids that were sampled.

    Raises:
        DataError: the template refuses the conversation, or does not show what the answer says.
    """
    if example.exchanges:
        chosen = example.exchanges[-1:] if train_on == "last" else example.exchanges
        return [
            Answer(e.prompt_ids, e.completion_ids, (True,) * len(e.completion_ids), has_end=e.finish_reason == "stop")
            for e in chosen
            if e.completion_ids
        ]
    if example.tools and not renderer.supports_tools:
        raise DataError("it has tools, and the chat template of this model knows none; leave them out")
    turns = trained_turns(example.messages, train_on)
    return [written(renderer, example.messages, index, example.tools) for index in turns]


def written(renderer: ChatRenderer, messages: Sequence[ChatMessage], index: int, tools: Sequence[ToolSpec]) -> Answer:
    """The answer `messages[index]`, had the model sampled it."""
    prompt = renderer.render_ids(messages[:index], tools=tools, add_generation_prompt=True)
    rendered = renderer.render(messages[: index + 1], tools=tools)
    whole = list(rendered.token_ids)
    completion = _behind(renderer, prompt, whole)
    says_reasoning = True
    if any(messages[index].get(key) for key in _REASONING):
        silent = {key: value for key, value in messages[index].items() if key not in _REASONING}
        without = renderer.render_ids([*messages[:index], silent], tools=tools)
        says_reasoning = without != whole
        if completion is None:  # a prompt that closes the reasoning, for example: what follows it has none
            completion = _behind(renderer, prompt, without)
            says_reasoning = says_reasoning and completion is None
    if completion is not None:
        stops = set(renderer.get_stop_token_ids())
        ends = [place for place, token in enumerate(completion) if token in stops]
        completion = completion[: ends[-1] + 1] if ends else completion + _closing(renderer, messages, index, tools)
        answer = Answer(
            prompt_ids=tuple(prompt),
            completion_ids=tuple(completion),
            trained=(True,) * len(completion),
            has_end=bool(completion) and completion[-1] in stops,
            says_reasoning=says_reasoning,
        )
    else:
        answer = _as_in_history(renderer, messages, index, tools, rendered, len(_common(prompt, whole)))
        answer = replace(answer, says_reasoning=says_reasoning)
    if not any(answer.trained) or len(answer.completion_ids) <= answer.has_end:
        raise DataError(f"the chat template writes nothing for messages[{index}]")
    return answer


def rows_of_answers(answers: Sequence[Answer], source: str) -> list[TokenSample]:
    """Rows with each answer once, see `art_core.samples.joined`."""
    turns = (
        Turn(answer.prompt_ids, answer.completion_ids, answer.trained, (0.0,) * len(answer.trained))
        for answer in answers
    )
    return joined(turns, advantage=1.0, trajectory_id=source)


def _behind(renderer: ChatRenderer, prompt: list[int], whole: list[int]) -> list[int] | None:
    """What `whole` adds to `prompt`; None where it does not begin with its text.

    Where the text of the prompt ends inside a token of `whole` (a prompt that ends with one line break, an answer whose
    text has two), the rest of that token is encoded by itself, as it would be sampled.
    """
    common = len(_common(prompt, whole))
    text = "".join(map(renderer.token_text, prompt[common:]))
    written = ""
    for place in range(common, len(whole) + 1):
        if len(written) >= len(text):
            rest = written[len(text) :]
            return [*renderer.encode(rest), *whole[place:]] if written.startswith(text) else None
        written += renderer.token_text(whole[place]) if place < len(whole) else ""
    return None


def _closing(
    renderer: ChatRenderer, messages: Sequence[ChatMessage], index: int, tools: Sequence[ToolSpec]
) -> list[int]:
    """The token that ends the turn where the template writes it only when a message follows; none where it never does.

    Such models end a turn with the token that opens the next one: of the user, or of the tool.
    """
    following = [messages[index + 1]] if index + 1 < len(messages) else _follow_up(messages[index])
    if following[0].get("role") == "assistant":
        following = _follow_up(messages[index])
    try:
        rendered = renderer.render([*messages[: index + 1], *following], tools=tools)
    except DataError:
        return []
    stops = set(renderer.get_stop_token_ids())
    places = [place for place, owner in enumerate(rendered.message_indices) if owner in (index, index + 1)]
    return next(([rendered.token_ids[place]] for place in places if rendered.token_ids[place] in stops), [])


def _follow_up(message: ChatMessage) -> list[ChatMessage]:
    calls = message.get("tool_calls") or []
    if not calls:
        return [{"role": "user", "content": "u"}]
    name = calls[0]["function"]["name"]
    return [{"role": "tool", "content": "r", "name": name, "tool_call_id": calls[0].get("id") or "c"}]


def _as_in_history(
    renderer: ChatRenderer,
    messages: Sequence[ChatMessage],
    index: int,
    tools: Sequence[ToolSpec],
    rendered: Any,
    num_common: int,
) -> Answer:
    """The answer as the template writes it into a history, where it cannot follow the generation prompt."""
    whole = list(rendered.token_ids)
    marked = list(rendered.sampled_mask) if len(rendered.sampled_mask) == len(whole) else [True] * len(whole)
    owners = rendered.message_indices if len(rendered.message_indices) == len(whole) else [index] * len(whole)
    own = [place for place in range(num_common, len(whole)) if marked[place] and owners[place] == index]
    if not own:
        raise DataError(f"it cannot be told which tokens of messages[{index}] the model would have sampled")
    stops = set(renderer.get_stop_token_ids())
    first, last = own[0], own[-1]
    completion, trained = whole[first : last + 1], [place in set(own) for place in range(first, last + 1)]
    if completion[-1] not in stops:
        closing = _closing(renderer, messages, index, tools)
        completion, trained = completion + closing, trained + [True] * len(closing)
    return Answer(
        prompt_ids=tuple(whole[:first]),
        completion_ids=tuple(completion),
        trained=tuple(trained),
        in_history_form=True,
        has_end=completion[-1] in stops,
    )


def _common(left: Sequence[int], right: Sequence[int]) -> Sequence[int]:
    shorter = min(len(left), len(right))
    end = next((place for place in range(shorter) if left[place] != right[place]), shorter)
    return left[:end]
