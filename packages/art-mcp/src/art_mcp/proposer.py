"""Propose scenarios for a tool server with no data and no language model.

Arguments are drawn from the schemas, from examples in descriptions, from a vocabulary of well-known kinds, and from
what the server's own answers contain. Every reference call is executed; what fails is not proposed.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from art_core.errors import InfrastructureError
from art_mcp.draw import Drawn, NoValueError, draw
from art_mcp.facts import Fact, FactValue, fact_value
from art_mcp.harvest import value_key
from art_mcp.informative import Sample, is_admissible, rank_facts
from art_mcp.phrasing import phrase
from art_mcp.scenarios import WORKDIR_PLACEHOLDER, Scenario, Split, call_key, replace_text
from art_mcp.schema import argument_schema, tool_properties
from art_mcp.types import AttemptedCall, McpTool, ToolCaller, ToolResult
from art_mcp.values import SPLITS, ValueSource
from art_mcp.verify import demonstration, verify

_MAX_PROBES = 6
_MAX_TIERS = 5
_TIER_FAILURES = 4
_MAX_MISSES = 25
_MAX_REDRAWS = 40
_MAX_DEATHS = 2
_MAX_DEATHS_IN_A_ROW = 3
_MAX_SAME_ANSWER = 3
_MAX_RESULT_CHARS = 4000
_MAX_REFERENCE_CHARS = 1000
_REFUSAL = re.compile(
    r"^\W*(\w+ ){0,2}error\W*:|^\W*(error|invalid|unknown|failed|failure|exception|traceback)\b"
    r"|^\W*(not found|no such|cannot|could not|unable to)\b"
    r"|^no \w+( \w+)? (found|available|matching|results?)\b|^(none|null|\(empty result\)|\[\]|\{\})$",
    re.IGNORECASE,
)
_REMEDY = "give examples in its schema or description, or write scenarios for it by hand and use --scenarios FILE"


@dataclass(frozen=True)
class Proposal:
    """Scenarios, the tools that got none with the reason and the remedy, and what was counted on the way.

    `counters`: `calls`, `calls_failed`, `calls_without_fact`, `closed_values_shared` (values of enums, booleans and the
    like that both splits use), `train_missing` and `held_out_missing` (how many fewer than asked for),
    `tools_without_held_out`, and `budget_exhausted` (1 if the limit on calls ended the search).
    """

    scenarios: tuple[Scenario, ...]
    uncovered: dict[str, str]
    counters: dict[str, int]


async def propose(
    caller: ToolCaller,
    tools: Sequence[McpTool],
    *,
    seed: int,
    num_train: int,
    num_held_out: int,
    workdir: Path | None = None,
    hints: Sequence[str] = (),
    max_calls: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Proposal:
    """Scenarios for `tools`, spread evenly over them, each with its executed reference call.

    No two have the same call, and no open argument value of a training scenario occurs in a held-out one. The same
    seed and the same answers of the server give the same scenarios. Fewer than asked for come back where the values
    known do not give more; `counters` says how many are missing. `workdir` is the folder of the caller's session, whose
    files become candidates for paths; so do the folders among `hints`, the words of the server's command line. At most
    `max_calls` calls are made (by default 6 for each scenario asked for and 20 for each tool).
    `progress(found, wanted)` is called after every scenario.

    Raises:
        InfrastructureError: the server is gone.
    """
    limit = 6 * (num_train + num_held_out) + 20 * len(tools) if max_calls is None else max_calls
    wanted: dict[Split, int] = {"train": num_train, "held_out": num_held_out}
    source = ValueSource(seed, num_train + num_held_out, workdir, hints)
    search = _Search(caller, tools, seed, wanted, source, workdir, limit, progress)
    return await search.run()


@dataclass
class _Trial:
    """A reference call that worked."""

    split: Split
    drawn: Drawn
    result: ToolResult


@dataclass
class _Work:
    """What is known about one tool."""

    tool: McpTool
    rngs: dict[Split, random.Random]
    tier: int = 0
    failures_in_tier: int = 0
    misses: Counter[Split] = field(default_factory=Counter)
    deaths: int = 0
    problem: str = ""
    trials: list[_Trial] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    has_common_fact: bool = False
    exhausted: set[Split] = field(default_factory=set)
    num_stated: Counter[tuple[Fact, FactValue]] = field(default_factory=Counter)
    num_kept: Counter[Split] = field(default_factory=Counter)


class _OutOfBudgetError(Exception):
    pass


class _Search:
    def __init__(
        self,
        caller: ToolCaller,
        tools: Sequence[McpTool],
        seed: int,
        wanted: dict[Split, int],
        source: ValueSource,
        workdir: Path | None,
        max_calls: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._caller, self._workdir, self._max_calls, self._progress = caller, workdir, max_calls, progress
        self._wanted = wanted
        self._source = source
        self._works = [
            _Work(tool, {split: random.Random(f"{seed}/{tool.name}/{split}") for split in SPLITS}) for tool in tools
        ]
        self._rng = random.Random(f"{seed}/phrasing")
        self._offset = random.Random(f"{seed}/templates").randrange(100)
        self._seen: set[str] = set()
        self._kept: dict[Split, list[tuple[Scenario, Drawn]]] = {split: [] for split in SPLITS}
        self._counters: Counter[str] = Counter()
        self._deaths_in_a_row = 0

    async def run(self) -> Proposal:
        try:
            await self._probe()
            await self._fill()
        except _OutOfBudgetError:
            self._counters["budget_exhausted"] = 1
        return self._proposal()

    async def _probe(self) -> None:
        """A few calls of every tool: tools that need no arguments first, since their answers feed the others."""
        each = max(2, min(_MAX_PROBES, self._max_calls // (3 * max(1, len(self._works)))))
        by_need = sorted(self._works, key=lambda work: sum(p.required for p in tool_properties(work.tool)))
        for attempts in (2, each, 2 * each):
            for work in by_need:
                for index in range(attempts):
                    split = SPLITS[(len(work.trials) + index) % 2]
                    if len(work.trials) < each and not self._is_given_up(work):
                        await self._try(work, split)
        for work in self._works:
            if work.trials:
                last = work.trials[-1]
                again = await self._call(work, last.drawn)
                samples = [Sample(trial.drawn.arguments, trial.result) for trial in work.trials]
                repeated = None if again is None else Sample(last.drawn.arguments, again)
                work.facts = rank_facts(samples, repeated)
                fits = [is_admissible(fact, each.arguments, each.result) for fact in work.facts[:1] for each in samples]
                work.has_common_fact = sum(fits) * 2 >= len(samples)
                if not work.facts:
                    work.problem = (
                        "its answers hold nothing short that differs from call to call and is not in the question"
                    )
                    work.exhausted.update(SPLITS)
        for split in SPLITS:
            for index in range(_MAX_PROBES):
                for work in self._works:
                    trials = [trial for trial in work.trials if trial.split == split]
                    if index < len(trials):
                        self._keep(work, trials[index])

    async def _fill(self) -> None:
        """Add to whichever split is further from its goal, for the tool that has the fewest there."""
        while True:
            open_places = [
                (len(self._kept[split]) / self._wanted[split], work.num_kept[split], place, split)
                for split in SPLITS
                if len(self._kept[split]) < self._wanted[split]
                for place, work in enumerate(self._works)
                if split not in work.exhausted and work.facts and not self._is_given_up(work)
            ]
            if not open_places:
                return
            _, _, place, split = min(open_places)
            work = self._works[place]
            trial = await self._try(work, split)
            if trial is not None and self._keep(work, trial):
                work.misses[split] = 0
            else:
                work.misses[split] += 1
                if work.misses[split] >= _MAX_MISSES:
                    work.exhausted.add(split)

    async def _try(self, work: _Work, split: Split) -> _Trial | None:
        """Draw a call that was not made before and make it."""
        drawn = self._draw(work, split)
        if drawn is None:
            return None
        self._seen.add(call_key(work.tool.name, drawn.arguments))
        result = await self._call(work, drawn)
        worked = result is not None and self._is_useful(work, result)
        for slot, value in drawn.uses:
            slot.note(value, worked=worked)
        if result is None or not worked:
            self._counters["calls_failed"] += 1
            work.failures_in_tier += 1
            if work.failures_in_tier >= _TIER_FAILURES and not work.trials and work.tier < _MAX_TIERS:
                work.tier, work.failures_in_tier = work.tier + 1, 0
            return None
        self._source.learn(work.tool, drawn.arguments, result)
        trial = _Trial(split, drawn, result)
        work.trials.append(trial)
        return trial

    def _draw(self, work: _Work, split: Split) -> Drawn | None:
        for _ in range(_MAX_REDRAWS):
            try:
                drawn = draw(work.tool, self._source, split, work.rngs[split], tier=work.tier)
            except NoValueError as error:
                work.problem = str(error)
                if work.trials or work.tier >= _MAX_TIERS:
                    break
                work.tier, work.failures_in_tier = work.tier + 1, 0
                continue
            problem = argument_schema(work.tool).problem(drawn.arguments)
            if problem is not None:
                work.problem = f"arguments drawn for it do not fit its schema: {problem}"
            elif call_key(work.tool.name, drawn.arguments) not in self._seen:
                return drawn
        if work.facts:
            work.exhausted.add(split)
        return None

    async def _call(self, work: _Work, drawn: Drawn) -> ToolResult | None:
        if self._counters["calls"] >= self._max_calls:
            raise _OutOfBudgetError
        self._counters["calls"] += 1
        arguments: JsonValue = drawn.arguments
        if self._workdir is not None:
            arguments = replace_text(arguments, WORKDIR_PLACEHOLDER, str(self._workdir))
        try:
            result = await self._caller.call(work.tool.name, arguments if isinstance(arguments, dict) else {})
        except InfrastructureError as error:
            work.deaths += 1
            self._deaths_in_a_row += 1
            work.problem = f"its calls break the server or time out ({str(error)[:120]})"
            if self._deaths_in_a_row >= _MAX_DEATHS_IN_A_ROW:
                raise
            return None
        self._deaths_in_a_row = 0
        return result

    def _is_useful(self, work: _Work, result: ToolResult) -> bool:
        text = result.text.strip()
        if result.is_error:
            work.problem = f"every call tried was refused, last with: {' '.join(text.split())[:120]!r}"
        elif not text or result.structured in ([], {}, ""):
            work.problem = "every call tried gave an empty answer"
        elif _REFUSAL.search(text) or (isinstance(result.structured, dict) and result.structured.get("error")):
            work.problem = f"every call tried found nothing, last: {' '.join(text.split())[:120]!r}"
        elif len(text) > _MAX_RESULT_CHARS:
            work.problem = f"its answers are too long to learn from ({len(text)} characters)"
        else:
            return True
        return False

    def _keep(self, work: _Work, trial: _Trial) -> bool:
        """Make a scenario of a call, if its result has a fact worth asking for."""
        split, arguments = trial.split, trial.drawn.arguments
        kept = self._kept[split]
        if len(kept) >= self._wanted[split]:
            return False
        template = self._offset + work.num_kept[split]
        for fact in self._facts_worth_asking(work, trial):
            task = phrase(work.tool, arguments, [fact], template=template, rng=self._rng)
            value = fact_value(fact, trial.result)
            if value is None or not is_admissible(fact, arguments, trial.result, task):
                continue
            if _MAX_SAME_ANSWER <= work.num_stated[fact, value] > work.num_kept.total() / 2:
                continue
            scenario = Scenario(
                id=f"{split}-{len(kept):03d}",
                split=split,
                tool=work.tool.name,
                arguments=arguments,
                task=task,
                facts=(fact,),
                reference=self._portable(trial.result.text)[:_MAX_REFERENCE_CHARS],
            )
            call = AttemptedCall(work.tool.name, arguments, "", trial.result)
            if verify(scenario, work.tool, [call], demonstration(scenario, trial.result)).success:
                kept.append((scenario, trial.drawn))
                work.num_kept[split] += 1
                work.num_stated[fact, value] += 1
                if self._progress is not None:
                    self._progress(sum(map(len, self._kept.values())), sum(self._wanted.values()))
                return True
        self._counters["calls_without_fact"] += 1
        return False

    def _facts_worth_asking(self, work: _Work, trial: _Trial) -> list[Fact]:
        """The tool's best fact. Others only if the best one is rarely there to be asked for."""
        if work.has_common_fact:
            return work.facts[:1]
        return [fact for fact in work.facts if is_admissible(fact, trial.drawn.arguments, trial.result)][:3]

    def _portable(self, text: str) -> str:
        return text if self._workdir is None else text.replace(str(self._workdir), WORKDIR_PLACEHOLDER)

    @staticmethod
    def _is_given_up(work: _Work) -> bool:
        return work.deaths >= _MAX_DEATHS

    def _proposal(self) -> Proposal:
        uncovered = {
            work.tool.name: f"{work.problem or 'the limit on calls was reached before it was tried'}; {_REMEDY}"
            for work in self._works
            if not work.num_kept.total() and (work.problem or not all(self._full(split) for split in SPLITS))
        }
        counters = {
            "calls": self._counters["calls"],
            "calls_failed": self._counters["calls_failed"],
            "calls_without_fact": self._counters["calls_without_fact"],
            "closed_values_shared": self._num_closed_shared(),
            "train_missing": self._wanted["train"] - len(self._kept["train"]),
            "held_out_missing": self._wanted["held_out"] - len(self._kept["held_out"]),
            "tools_without_held_out": sum(
                work.num_kept["train"] > 0 and work.num_kept["held_out"] == 0 for work in self._works
            ),
            "budget_exhausted": self._counters["budget_exhausted"],
        }
        scenarios = tuple(scenario for split in SPLITS for scenario, _ in self._kept[split])
        return Proposal(scenarios, uncovered, counters)

    def _full(self, split: Split) -> bool:
        return len(self._kept[split]) >= self._wanted[split]

    def _num_closed_shared(self) -> int:
        used: dict[Split, set[tuple[str, str, str]]] = {
            split: {
                (scenario.tool, slot.name, value_key(value))
                for scenario, drawn in self._kept[split]
                for slot, value in drawn.uses
                if slot.closed
            }
            for split in SPLITS
        }
        return len(used["train"] & used["held_out"])
