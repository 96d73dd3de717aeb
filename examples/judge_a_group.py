"""Let a judge compare four attempts at the same task, shown to it in three different orders.

    python examples/judge_a_group.py [openai/gpt-5-mini | any other model that litellm knows]

Without a model a heuristic stands in for the judge, so that this runs without a key and without a network. It only
looks for words of failure in answers and results of tools; that a time is wrong, it would not notice.
"""

from __future__ import annotations

import sys
from typing import Any

from art_ruler import Ruler
from art_ruler.fakes import HeuristicJudge

RUBRIC = """\
- The answer gives the right time and platform, as the timetable says.
- It says so in one sentence.
"""
TASK = {"role": "user", "content": "When does the next train to Lyon leave, and from which platform?"}


def attempt(result: str, answer: str) -> list[dict[str, Any]]:
    """What an agent did: it asked a tool, got `result`, and answered."""
    function = {"name": "timetable", "arguments": '{"to": "Lyon"}'}
    return [
        TASK,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": result},
        {"role": "assistant", "content": answer},
    ]


def main(model: str | None) -> None:
    attempts = [
        attempt("17:42, platform 9", "The next train to Lyon leaves at 17:42 from platform 9."),
        attempt("error: service unavailable", "It leaves at 17:42, as most trains do."),
        attempt("error: service unavailable", "I am sorry, I cannot find that out."),
        attempt("17:42, platform 9", ""),
    ]
    ruler = Ruler(model or HeuristicJudge(), rubric=RUBRIC, passes=3, seed=0)
    result = ruler.score_sync(attempts)
    for verdict, trajectory in zip(result.verdicts, attempts, strict=True):
        score = "none" if verdict.score is None else f"{verdict.score:.2f}"
        print(f"rank {verdict.rank}  score {score}  {trajectory[-1]['content']!r}  {verdict.problem or ''}".rstrip())
    print(f"Kendall tau between passes: {result.agreement.kendall_tau}")
    print(f"{result.usage.calls} calls, {result.usage.total_tokens} tokens, cost in USD: {result.usage.cost_usd}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
