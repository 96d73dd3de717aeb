"""Judges that need no model: for tests, for trying things out, and for measuring what consensus gains."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterable, Mapping

from art_ruler.errors import JudgeUnavailableError
from art_ruler.messages import EMPTY_ANSWER
from art_ruler.types import JudgeModel, JudgeReply, JudgeRequest

Attempt = list[tuple[str, str]]
"""The blocks of one attempt as the judge sees it: what each is (`user`, `assistant`, `tool`, ...) and its text."""
Scripted = str | JudgeReply | Exception | Callable[[JudgeRequest], "str | JudgeReply"]
"""What a `ScriptedJudge` answers: a text, a whole reply, an exception to raise, or a function of the request."""


def attempts_in(prompt: str) -> dict[str, Attempt]:
    """The attempts shown in a judge prompt by their blind ids, in the order shown.

    Only lines that carry the delimiter of this very prompt count; what the attempts themselves contain does not.
    """
    fence = re.search(r"^<(\w+) (?:shared|attempt \w+)>$", prompt, re.MULTILINE)
    if fence is None:
        return {}
    mark = re.escape(fence[1])
    attempts: dict[str, Attempt] = {}
    for found in re.finditer(rf"^<{mark} attempt (\w+)>\n(.*?)^</{mark}>$", prompt, re.MULTILINE | re.DOTALL):
        parts = re.split(rf"^<{mark} ([\w ]+)>\n", found[2], flags=re.MULTILINE)
        attempts[found[1]] = [
            (kind, text.removesuffix("\n")) for kind, text in zip(parts[1::2], parts[2::2], strict=True)
        ]
    return attempts


def verdict_json(scores: Mapping[str, float], explanation: str = "as scripted") -> str:
    """A well-formed answer that gives each id its score."""
    return json.dumps({"scores": [{"id": i, "explanation": explanation, "score": s} for i, s in scores.items()]})


class ScriptedJudge:
    """Gives the answers it was given, in order, and the last one again for ever.

    `requests` keeps everything it was asked.
    """

    def __init__(self, answers: Iterable[Scripted], *, name: str = "scripted", latency_s: float = 0.0) -> None:
        self.name = name
        self.requests: list[JudgeRequest] = []
        self.running = 0
        self.most_running = 0
        self._answers = list(answers)
        self._latency_s = latency_s
        if not self._answers:
            raise ValueError("no answers given; a scripted judge needs at least one")

    async def complete(self, request: JudgeRequest) -> JudgeReply:
        answer = self._answers[min(len(self.requests), len(self._answers) - 1)]
        self.requests.append(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self._latency_s)
        finally:
            self.running -= 1
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, JudgeReply) else _reply(request, answer)


class NoisyJudge:
    """Scores by `quality`, plus Gaussian noise, plus a bonus that falls from the first attempt shown to the last.

    `quality` maps an attempt to [0, 1]; the default is that of `HeuristicJudge`. `noise` is the standard deviation in
    score units. `position_bias` is added to the attempt shown first, taken from the one shown last, and in
    proportion between. Scores are clamped to [0, 1]. Equal requests get equal answers.
    """

    def __init__(
        self,
        quality: Callable[[Attempt], float] | None = None,
        *,
        noise: float = 0.0,
        position_bias: float = 0.0,
        seed: int = 0,
        name: str | None = None,
        latency_s: float = 0.0,
    ) -> None:
        self.name = name or f"noisy(noise={noise},position_bias={position_bias},seed={seed})"
        self._quality = quality or plain_quality
        self._noise, self._bias, self._seed, self._latency_s = noise, position_bias, seed, latency_s

    async def complete(self, request: JudgeRequest) -> JudgeReply:
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        attempts = shown_to(request)
        draw = random.Random(f"{self._seed}/{request.seed}/{'/'.join(attempts)}")
        last = max(1, len(attempts) - 1)
        scores = {
            blind_id: min(
                1.0,
                max(
                    0.0,
                    self._quality(attempt) + self._bias * (1 - 2 * position / last) + draw.gauss(0.0, self._noise),
                ),
            )
            for position, (blind_id, attempt) in enumerate(attempts.items())
        }
        return _reply(request, verdict_json(scores, "scored by a fake"))


class HeuristicJudge(NoisyJudge):
    """Scores by simple signs of failure, always the same way: no noise, no bias, no network.

    By default (`plain_quality`) it looks at words. It cannot tell a right answer from a wrong one.
    """

    def __init__(self, quality: Callable[[Attempt], float] | None = None, *, name: str = "heuristic") -> None:
        super().__init__(quality, name=name)


_FAILURE = re.compile(r"\b(error|exception|traceback|failed|cannot|can't|unable|sorry|don't know)\b", re.IGNORECASE)


def plain_quality(attempt: Attempt) -> float:
    """0.0 for an attempt that ends without a word. Else 1.0, less 0.5 if its last answer speaks of failure (`error`,
    `sorry`, `cannot` and the like), less 0.3 times the share of its tool results that do."""
    answers = [text for kind, text in attempt if kind == "assistant"]
    if not answers or answers[-1].strip() in ("", EMPTY_ANSWER):
        return 0.0
    results = [text for kind, text in attempt if kind == "tool"]
    failed = sum(bool(_FAILURE.search(text)) for text in results) / len(results) if results else 0.0
    gave_up = bool(_FAILURE.search(answers[-1]))
    return round(1.0 - 0.5 * gave_up - 0.3 * failed, 6)


_BUILT_IN: dict[str, Callable[[], JudgeModel]] = {
    "heuristic": HeuristicJudge,
    "noisy": lambda: NoisyJudge(noise=0.2, position_bias=0.1, name="noisy"),
}


def built_in(name: str) -> JudgeModel | None:
    """The fake that is meant where a judge is given as `name`, or None where a model is."""
    made = _BUILT_IN.get(name)
    return made() if made else None


def shown_to(request: JudgeRequest) -> dict[str, Attempt]:
    """The attempts of a request by blind id, in the order shown."""
    prompt = next(message["content"] for message in request.messages if message["role"] == "user")
    attempts = attempts_in(prompt)
    if tuple(attempts) != request.ids:
        raise JudgeUnavailableError(f"the prompt shows {list(attempts)}, but the request names {list(request.ids)}")
    return attempts


def _reply(request: JudgeRequest, text: str) -> JudgeReply:
    asked = sum(len(str(message["content"])) for message in request.messages)
    return JudgeReply(text, prompt_tokens=asked // 4, completion_tokens=len(text) // 4, cost_usd=0.0)


__all__ = [
    "HeuristicJudge",
    "NoisyJudge",
    "ScriptedJudge",
    "attempts_in",
    "built_in",
    "plain_quality",
    "shown_to",
    "verdict_json",
]
