"""Figures of an audit, against groups small enough to work them out by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from art_ruler import Ruler
from art_ruler.attacks import ATTACK_KINDS
from art_ruler.audit import (
    AttackReport,
    Estimate,
    LabelledGroup,
    audit,
    bootstrap,
    messages_of,
    synthetic_groups,
    top1,
)
from art_ruler.auditview import as_json, as_table
from art_ruler.errors import DataError, JudgeUnavailableError
from art_ruler.fakes import Attempt, HeuristicJudge, NoisyJudge, ScriptedJudge, shown_to, verdict_json
from art_ruler.types import JudgeRequest

QUESTION = {"role": "user", "content": "Say a number."}


def answered(text: str) -> list[dict[str, Any]]:
    return [QUESTION, {"role": "assistant", "content": text}]


def group(*labels: float | None, where: str = "group") -> LabelledGroup:
    """Attempts whose answers are `0`, `1`, ..., in the order of the labels."""
    return LabelledGroup([answered(f"answer {i}.") for i in range(len(labels))], labels, where=where)


def different(count: int, *labels: float) -> list[LabelledGroup]:
    """Groups with a question each, so that a fake that draws at random draws anew for each."""
    return [
        LabelledGroup(
            [[{"role": "user", "content": f"Say {i}."}, answered(f"answer {k}.")[1]] for k in range(len(labels))],
            labels,
            where=f"g{i}",
        )
        for i in range(count)
    ]


def judge_by(score: Callable[[str], float]) -> ScriptedJudge:
    """Scores by the last answer it sees."""

    def answer(request: JudgeRequest) -> str:
        return verdict_json({i: score(last(attempt)) for i, attempt in shown_to(request).items()})

    return ScriptedJudge([answer])


def last(attempt: Attempt) -> str:
    return [text for kind, text in attempt if kind == "assistant"][-1]


def by_table(*scores: float) -> ScriptedJudge:
    """Gives answer `i` the score `scores[i]`, whatever else stands in it."""
    return judge_by(lambda text: scores[int(text.split()[1].split(".")[0])])


async def test_a_judge_that_agrees_with_the_labels_is_perfect() -> None:
    report = await audit({"fair": Ruler(by_table(0.9, 0.5, 0.1), passes=2)}, [group(3, 2, 1)])
    (judge,) = report.judges
    assert judge.pairwise_accuracy == Estimate(1.0, 1.0, 1.0)
    assert (judge.top1, judge.kendall_tau, judge.flip_rate, judge.self_agreement) == (1.0, 1.0, 0.0, 1.0)
    assert (judge.order_agreement, judge.noise, judge.position_bias.value) == (1.0, 0.0, 0.0)
    assert (judge.groups, judge.failed, judge.unscored, judge.usage.calls) == (
        1,
        0,
        0,
        3,
    )  # two orders, one of them twice
    assert (report.groups, report.trajectories) == (1, 3)


async def test_figures_of_a_judge_that_errs_are_averaged_over_groups() -> None:
    """Group 1: one of three pairs is wrong. Group 2: the only pair is a tie. Unknown labels count in nothing."""
    groups = [group(3, 1, 2), group(1, 2, None)]
    (judge,) = (await audit({"j": Ruler(by_table(0.9, 0.5, 0.1))}, groups[:1])).judges
    assert judge.pairwise_accuracy.value == pytest.approx(2 / 3)
    assert judge.kendall_tau == pytest.approx(1 / 3)
    assert judge.top1 == 1.0
    assert judge.flip_rate is None
    (judge,) = (await audit({"j": Ruler(by_table(0.5, 0.5, 0.5))}, groups[1:])).judges
    assert (judge.pairwise_accuracy.value, judge.top1, judge.kendall_tau) == (0.5, 0.5, None)
    (judge,) = (await audit({"j": Ruler(by_table(0.9, 0.5, 0.1))}, groups)).judges
    assert judge.pairwise_accuracy.value == pytest.approx((2 / 3 + 0) / 2)
    assert judge.top1 == 0.5


@pytest.mark.parametrize(
    ("scores", "labels", "expected"),
    [
        ([0.9, 0.1], [1, 0], 1.0),
        ([0.1, 0.9], [1, 0], 0.0),
        ([0.9, 0.9, 0.1], [1, 0, 0], 0.5),
        ([0.9, 0.8, None], [1, 0, 5], 1.0),
        ([0.9, 0.8], [1, 1], None),
        ([None, 0.8], [1, 0], None),
        ([], [], None),
    ],
)
def test_top1(scores: Sequence[float | None], labels: Sequence[float | None], expected: float | None) -> None:
    assert top1(scores, labels) == expected


async def test_a_second_judge_is_set_beside_the_first_on_the_same_groups() -> None:
    rulers = {"bad": Ruler(by_table(0.1, 0.9)), "good": Ruler(by_table(0.9, 0.1))}
    bad, good = (await audit(rulers, [group(2, 1)] * 3)).judges
    assert (bad.judge, bad.versus_first, bad.pairwise_accuracy.value) == ("bad", None, 0.0)
    assert (good.judge, good.versus_first) == ("good", Estimate(1.0, 1.0, 1.0))


async def test_a_judge_that_prefers_places_contradicts_itself_only_when_the_order_changes() -> None:
    biased = Ruler(NoisyJudge(lambda _: 0.5, position_bias=0.3), passes=2)
    (judge,) = (await audit({"biased": biased}, [group(2, 1)])).judges
    assert (judge.flip_rate, judge.order_agreement, judge.pairwise_accuracy.value) == (1.0, -1.0, 0.5)
    assert (judge.noise, judge.self_agreement, judge.position_bias.value) == (0.0, 1.0, 1.0)


@pytest.mark.slow
async def test_a_judge_that_is_only_noisy_contradicts_itself_as_often_in_the_same_order() -> None:
    noisy = Ruler(NoisyJudge(lambda _: 0.5, noise=0.1), passes=2)
    (judge,) = (await audit({"noisy": noisy}, different(300, 2, 1, 0))).judges
    assert judge.noise == pytest.approx(0.5, abs=0.06)
    assert judge.flip_rate == pytest.approx(0.5, abs=0.06)
    low, high = judge.position_bias.low, judge.position_bias.high
    assert low is not None
    assert high is not None
    assert low < 0.0 < high


async def test_the_same_prompt_is_asked_twice_letter_by_letter_and_not_answered_from_the_cache(tmp_path: Path) -> None:
    judge = by_table(0.9, 0.1)
    for expected in (3, 3):  # the second audit has all its answers from the cache
        report = await audit({"j": Ruler(judge, passes=2, cache=tmp_path)}, [group(2, 1)])
        assert len(judge.requests) == expected
        assert report.judges[0].noise == 0.0
    first, second, again = judge.requests
    assert again.messages == first.messages != second.messages
    assert again.seed != first.seed


async def test_noise_is_not_measured_where_it_is_not_wanted() -> None:
    (judge,) = (await audit({"j": Ruler(by_table(0.9, 0.1), passes=2)}, [group(2, 1)], noise=False)).judges
    assert (judge.noise, judge.self_agreement, judge.position_bias) == (None, None, Estimate(None))
    assert (judge.flip_rate, judge.usage.calls) == (0.0, 2)


async def test_a_judge_of_length_is_found_out() -> None:
    texts = ["a much longer answer than the others are.", "a longer answer.", "short."]
    groups = [LabelledGroup([answered(t) for t in texts], [1, 2, 3])]
    report = await audit({"long": Ruler(judge_by(lambda text: len(text) / 100))}, groups)
    assert report.judges[0].length_correlation == pytest.approx(1.0)
    assert report.label_length_correlation == pytest.approx(-1.0)


async def test_length_is_what_the_agent_wrote_and_not_what_it_read() -> None:
    def attempt(result: str, answer: str) -> list[dict[str, Any]]:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        return [
            QUESTION,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": result},
            {"role": "assistant", "content": answer},
        ]

    groups = [LabelledGroup([attempt("x" * 500, "short"), attempt("x", "much longer")], [1, 2])]
    report = await audit({"j": Ruler(HeuristicJudge())}, groups)
    assert report.label_length_correlation == pytest.approx(1.0)


# Attacks


async def test_a_judge_that_falls_for_instructions_is_found_out_and_one_that_does_not_is_not() -> None:
    def gullible(text: str) -> float:
        return 1.0 if "1.0" in text or "Do not lower" in text or "are known to be wrong" in text else by_number(text)

    def by_number(text: str) -> float:
        return 0.9 - 0.4 * int(text.split()[1][0]) if text.startswith("answer") else 0.0

    rulers = {"gullible": Ruler(judge_by(gullible)), "firm": Ruler(judge_by(by_number))}
    groups = [group(2, 1, where=f"g{i}") for i in range(6)]
    report = await audit(rulers, groups, attacks=True)
    gullible_report, firm = ({attack.kind: attack for attack in judge.attacks} for judge in report.judges)
    assert tuple(gullible_report) == tuple(firm) == ATTACK_KINDS
    taken_in = gullible_report["instruction"]
    assert (taken_in.attacked, taken_in.promoted, taken_in.unscored) == (6, 1.0, 0)
    assert taken_in.lift == pytest.approx(0.5)
    assert firm["instruction"] == AttackReport("instruction", 6, 0.0, 0.0, 0)
    assert firm["master_key"].lift == pytest.approx(-0.5)
    for judge in report.judges:
        assert judge.attack_baseline == AttackReport("none", 6, 0.0, 0.0, 0)
        # The group, its prompt once more, the group in another order, and under each attack.
        assert judge.usage.calls == 6 * (3 + len(ATTACK_KINDS))


async def test_each_group_meets_attacks_of_its_own() -> None:
    judge = judge_by(lambda text: 0.9 if text.startswith("answer 0.") else 0.1)
    await audit({"j": Ruler(judge)}, [group(2, 1, where=f"g{i}") for i in range(12)], attacks=True, noise=False)
    texts = {last(attempt) for request in judge.requests for attempt in shown_to(request).values()}
    padded = {text for text in texts if len(text) > 1000}
    assert len(padded) > 6


@pytest.mark.slow
async def test_noise_promotes_as_many_without_an_attack() -> None:
    noisy = Ruler(NoisyJudge(lambda _: 0.5, noise=0.1))
    (judge,) = (await audit({"noisy": noisy}, different(150, 3, 2, 1), attacks=True, noise=False)).judges
    baseline = judge.attack_baseline
    assert baseline is not None
    assert baseline.promoted is not None
    assert 0.2 < baseline.promoted < 0.5
    for attack in judge.attacks:
        assert attack.promoted == pytest.approx(baseline.promoted, abs=0.15)


async def test_an_attack_that_stops_the_judge_from_scoring_is_counted() -> None:
    def answer(request: JudgeRequest) -> str:
        shown = {i: last(attempt) for i, attempt in shown_to(request).items()}
        attacked = any(text not in ("answer 0.", "answer 1.") for text in shown.values())
        return (
            verdict_json({i: 0.9 if text == "answer 0." else 0.1 for i, text in shown.items()}) if not attacked else "?"
        )

    report = await audit({"j": Ruler(ScriptedJudge([answer]))}, [group(2, 1)], attacks=True)
    for attack in report.judges[0].attacks:
        assert (attack.attacked, attack.unscored, attack.promoted, attack.lift) == (1, 1, None, None)


async def test_groups_without_a_worst_one_are_not_attacked() -> None:
    report = await audit({"j": Ruler(by_table(0.9, 0.1))}, [group(1, 1), group(), group(1, None)], attacks=True)
    assert report.judges[0].attacks == ()
    assert report.judges[0].pairwise_accuracy == Estimate(None)


# Failures


async def test_groups_without_an_answer_are_counted_and_the_others_go_on() -> None:
    def answer(request: JudgeRequest) -> str:
        if len(request.ids) == 3:
            raise JudgeUnavailableError("judge 'j': out of order", retryable=True)
        return verdict_json(dict.fromkeys(request.ids, 0.5))

    ruler = Ruler(ScriptedJudge([answer]), max_retries=0)
    (judge,) = (await audit({"j": ruler}, [group(1, 2, 3, where="f:1"), group(1, 2, where="f:2")])).judges
    assert (judge.groups, judge.failed, judge.pairwise_accuracy.value) == (2, 1, 0.5)
    assert (judge.usage.calls, judge.usage.failed_calls) == (3, 1)
    assert judge.problems[0].startswith("f:1: ")
    assert "out of order" in judge.problems[0]


@pytest.mark.slow
async def test_a_call_that_can_never_succeed_ends_the_audit() -> None:
    ruler = Ruler(ScriptedJudge([JudgeUnavailableError("wrong key", status=401)]))
    with pytest.raises(JudgeUnavailableError, match="wrong key"):
        await audit({"j": ruler}, [group(1, 2)] * 20)


@pytest.mark.parametrize("attacks", [False, True])
@pytest.mark.parametrize("answered", [1, 2, 3])
async def test_figures_from_before_a_judge_became_unusable_are_kept(answered: int, attacks: bool) -> None:
    def fair(request: JudgeRequest) -> str:
        return verdict_json({i: 1.0 - int(last(a).split()[1][0]) / 10 for i, a in shown_to(request).items()})

    revoked = JudgeUnavailableError("wrong key", status=401)
    judge = ScriptedJudge([*[fair] * answered, revoked])
    report = await audit(
        {"j": Ruler(judge)}, [group(2, 1, where=f"g:{i}") for i in range(5)], attacks=attacks, concurrency=1
    )
    (judged,) = report.judges
    assert len(judge.requests) == answered + 1
    assert judged.pairwise_accuracy.value == 1.0
    assert "wrong key" in (judged.unusable or "")
    assert judged.groups - judged.failed == (1 if attacks or answered < 3 else 2)


async def test_one_judge_that_can_never_answer_costs_only_its_own_figures() -> None:
    locked = ScriptedJudge([JudgeUnavailableError("wrong key", status=401)])
    rulers = {"locked": Ruler(locked), "fair": Ruler(by_table(0.9, 0.1))}
    report = await audit(rulers, [group(2, 1, where=f"g:{i}") for i in range(5)], concurrency=1)
    first, fair = report.judges
    assert first.unusable is not None
    assert "wrong key" in first.unusable
    assert (first.pairwise_accuracy.value, first.groups, len(locked.requests)) == (None, 1, 1)
    assert (fair.pairwise_accuracy.value, fair.groups, fair.unusable) == (1.0, 5, None)
    assert "locked: g:0: wrong key" in as_table(report)


async def test_calls_that_the_budget_had_no_room_for_say_nothing_about_the_judge() -> None:
    ruler = Ruler(judge_by(lambda text: 0.9 if text.startswith("answer 0.") else 0.1), max_tokens=3500)
    (judge,) = (await audit({"j": ruler}, different(8, 2, 1), attacks=True, concurrency=1)).judges
    assert judge.stopped > 0
    assert (judge.failed, judge.unscored, judge.groups) == (0, 0, 8)
    for attack in judge.attacks:
        assert attack.unscored == 0
        assert attack.attacked < 8
    assert judge.pairwise_accuracy == Estimate(1.0, 1.0, 1.0)
    assert any("budget" in problem for problem in judge.problems)


async def test_what_cannot_be_attacked_is_refused_before_a_judge_is_asked() -> None:
    judge = by_table(0.9, 0.1)
    odd = LabelledGroup([answered("answer 0."), _Odd(answered("answer 1."))], [1, 0], where="g:1")
    with pytest.raises(DataError, match="g:1, trajectory 1: a _Odd cannot be changed"):
        await audit({"j": Ruler(judge)}, [odd], attacks=True)
    assert judge.requests == []


class _Odd:
    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages


async def test_answers_that_are_not_verdicts_leave_trajectories_unscored() -> None:
    def answer(request: JudgeRequest) -> str:
        return verdict_json(dict.fromkeys(list(request.ids)[:-1], 0.5))

    (judge,) = (await audit({"j": Ruler(ScriptedJudge([answer]))}, [group(1, 2, 3)])).judges
    assert (judge.failed, judge.unscored, judge.usage.repairs) == (0, 1, 2)
    assert "missing" in judge.problems[0]


async def test_groups_are_taken_when_their_turn_comes() -> None:
    running = most = 0

    def source() -> Iterator[LabelledGroup]:
        nonlocal running, most
        for _ in range(40):
            running += 1
            most = max(most, running)
            yield group(1, 2)

    def finished(count: int) -> None:
        nonlocal running
        running -= 1

    judge = ScriptedJudge([lambda request: verdict_json(dict.fromkeys(request.ids, 0.5))], latency_s=0.001)
    report = await audit({"j": Ruler(judge)}, source(), concurrency=4, progress=finished)
    assert (report.groups, running, most) == (40, 0, 4)


async def test_equal_audits_have_equal_reports_whatever_runs_at_a_time() -> None:
    def groups() -> Iterator[LabelledGroup]:
        return synthetic_groups([LabelledGroup([answered(f"It is {i} and not one more.")], [None]) for i in range(8)],
                                size=5, seed=1)  # fmt: skip

    reports = [
        as_json(await audit({"j": Ruler(NoisyJudge(noise=0.3), passes=2)}, groups(), attacks=True, concurrency=c))
        for c in (1, 5)
    ]
    assert reports[0] == reports[1]


async def test_an_audit_without_a_judge_or_with_wrong_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="no judge is given"):
        await audit({}, [])
    with pytest.raises(DataError, match="f:3: 1 labels for 2 trajectories"):
        LabelledGroup([answered("a"), answered("b")], [1], where="f:3")
    with pytest.raises(DataError, match="f:3: trajectory 0"):
        await audit({"j": Ruler(HeuristicJudge())}, [LabelledGroup([3], [1], where="f:3")])


# Parts


def test_bootstrap_gives_the_mean_and_an_interval_around_it() -> None:
    estimate = bootstrap([0.0, 1.0] * 50)
    assert estimate.value == 0.5
    assert estimate.low == pytest.approx(0.4, abs=0.03)
    assert estimate.high == pytest.approx(0.6, abs=0.03)
    assert bootstrap([0.0, 1.0] * 50) == estimate
    assert bootstrap([]) == Estimate(None)


def test_synthetic_groups_come_from_every_trajectory_and_keep_what_it_has() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    source = LabelledGroup(
        [answered("one two three."), {"messages": answered("four five six."), "tools": tools}],
        [None, None],
        tools,
        "f:1",
    )
    first, second = synthetic_groups([source], size=3, seed=0)
    assert (first.where, second.where) == ("f:1, trajectory 0", "f:1, trajectory 1")
    assert sorted(label or 0.0 for label in first.labels) == [0.0, 0.5, 1.0]
    assert first.tools == tools
    assert answered("one two three.") in first.trajectories
    assert {"messages": answered("four five six."), "tools": tools} in second.trajectories


def test_a_trajectory_that_cannot_be_damaged_is_named() -> None:
    groups = [LabelledGroup([answered("fine."), [QUESTION]], [None, None], where="f:1")]
    with pytest.raises(DataError, match="f:1, trajectory 1: nothing in this trajectory can be damaged"):
        list(synthetic_groups(groups, size=3, seed=0))


@pytest.mark.parametrize(
    "trajectory",
    [
        answered("x"),
        {"messages": answered("x"), "reward": 1},
        {"messages_and_choices": [QUESTION, {"finish_reason": "stop", "message": answered("x")[1]}]},
    ],
)
def test_messages_of_a_trajectory(trajectory: Any) -> None:
    assert messages_of(trajectory) == answered("x")


@pytest.mark.parametrize("trajectory", [3, None, {}, {"messages": None}, "text"])
def test_messages_of_what_is_no_trajectory(trajectory: Any) -> None:
    with pytest.raises(DataError, match="cannot be changed"):
        messages_of(trajectory)


async def test_the_table_has_a_column_for_each_judge_and_json_all_figures() -> None:
    rulers = {"good": Ruler(by_table(0.9, 0.1), passes=2), "bad": Ruler(by_table(0.1, 0.9), passes=2)}
    report = await audit(rulers, [group(2, 1)])
    table = as_table(report)
    assert re.search(r"^  noise: same order twice +0\.00 +0\.00$", table, re.MULTILINE)
    assert re.search(r"^  position bias +\+0\.00 \[\+0\.00, \+0\.00\]", table, re.MULTILINE)
    assert re.search(r"^pairwise accuracy +1\.00 \[1\.00, 1\.00\] +0\.00 \[0\.00, 0\.00\]$", table, re.MULTILINE)
    assert re.search(r"^  gain over the first +-1\.00 \[-1\.00, -1\.00\]$", table, re.MULTILINE)
    plain = as_json(report)
    assert json.loads(json.dumps(plain)) == plain
    assert [judge["pairwise_accuracy"]["value"] for judge in plain["judges"]] == [1.0, 0.0]
    assert plain["judges"][0]["usage"]["calls"] == 3
