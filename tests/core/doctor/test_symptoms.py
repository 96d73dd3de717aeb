"""Each sickness is named, and nothing else; a healthy run has none."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_core.doctor import SYMPTOMS, RunHistory, Step, diagnose
from tests.core.doctor.building import HEALTHY, history, names, only, run, step

SKIPPED = {"step__skipped": 1.0}
ALL_EQUAL = {"groups__without_signal": 8.0, "groups__all_best": 0.0, "groups__all_worst": 0.0, "reward__mean": 0.0}


@pytest.mark.parametrize("count", [0, 1, 3, 30])
def test_a_healthy_run_has_nothing_wrong(count: int) -> None:
    assert names(run(count)) == []


def test_what_was_not_measured_is_no_evidence() -> None:
    assert names(history(*(Step(number, {}) for number in range(1, 30)))) == []
    assert names(RunHistory()) == []


def constant(name: str, severity: str, evidence: str, count: int = 3, /, **changes: float) -> Any:
    return pytest.param(name, severity, evidence, count, changes, id=name + "-" + "-".join(changes))


@pytest.mark.parametrize(
    ("name", "severity", "evidence", "count", "changes"),
    [
        constant("learning-rate-too-small", "problem", "1e-12", train__learning_rate=1e-12, train__weight_change=0.0),
        constant("steps-change-nothing", "problem", "by 0", train__weight_change=0.0),
        constant("canary-proves-nothing", "warning", "moved by 1e-07 nats", canary__movement=1e-7),
        constant("gradient-zero", "problem", "0 at most", train__grad_norm=0.0),
        constant("gradient-zero", "problem", "0 at most", train__grad_norm=0.0, train__weight_change=0.0),
        constant("gradient-exploding", "problem", "5e+03", train__grad_norm=5e3),
        constant("gradient-always-clipped", "note", "10 steps", 12, train__grad_clipped=1.0),
        constant("advantages-zero", "problem", "1e-09", train__advantage_abs_mean=1e-9),
        constant("advantages-exploding", "warning", "up to 50", train__advantage_abs_mean=50.0),
        constant("clip-share", "warning", "40%", train__clip_share=0.4),
        constant("clip-share", "problem", "90%", train__clip_share=0.9),
        constant("clip-share", "warning", "85%", train__clip_share=0.85, train__row_ratio=1.0),
        constant("clip-share", "problem", "97%", train__clip_share=0.97, train__row_ratio=1.0),
        constant("sampler-mismatch", "warning", "0.05 nats", mismatch__kl=0.05),
        constant("sampler-mismatch", "problem", "0.5 nats", mismatch__kl=0.5),
        constant("sampler-mismatch", "warning", "worst token 3.5", mismatch__logprob_diff_max=3.5),
        constant("repeated-text", "problem", "192 of 384", completions__repetitive=64.0),
        constant("same-answers", "warning", "18 of 24", groups__identical=7.0, groups__identical_not_best=6.0),
        constant("tools-unused", "warning", "192 trajectories", tools__calls=0.0, tools__malformed=0.0),
        constant("malformed-calls", "warning", "180 of 360", tools__malformed=60.0),
        constant("truncation", "warning", "150 of 384", completions__truncated=50.0),
        constant("truncation", "problem", "384 of 384", completions__truncated=128.0),
        constant("rows-dropped", "warning", "rows/cut 10 of", rows__cut=10.0),
        constant("rows-dropped", "warning", "trajectories/dropped_overlong 16 of 64",
                 trajectories__dropped_overlong=16.0),
        constant("rows-dropped", "warning", "trajectories/masked_truncated 16 of 64",
                 trajectories__masked_truncated=16.0),
        constant("forks", "warning", "240 forks in 141", trajectories__forks=80.0),
        constant("empty-masks", "warning", "60 of 201", trajectories__without_tokens=20.0),
        constant("judge-failures", "warning", "48 of 192", trajectories__unscored=16.0),
        constant("judge-failures", "problem", "180 of 192", trajectories__unscored=60.0),
        constant("failed-rollouts", "warning", "36 of 192 rollouts failed: TimeoutError 36",
                 trajectories__failed=12.0, errors__TimeoutError=12.0),
        constant("failed-rollouts", "problem", "150 of 192", trajectories__failed=50.0),
        constant("groups-too-small", "warning", "15 of 24", groups__too_small=5.0, groups__without_signal=0.0),
        constant("groups-mixed", "note", "15 of 24 groups", groups__mixed=5.0),
        constant("reward-constant", "problem", "every reward of 3 steps is 0.5",
                 reward__min=0.5, reward__max=0.5, groups__without_signal=8.0, groups__all_tied=8.0),
        constant("reward-out-of-range", "warning", "from 0 to 5000", reward__max=5000.0),
        constant("rows-dropped", "warning", "trajectories/dropped_truncated 32 of 64",
                 trajectories__dropped_truncated=32.0, groups__too_small=5.0, groups__without_signal=0.0),
        constant("malformed-calls", "warning", "192 of 192", tools__malformed=64.0, tools__calls=0.0),
        constant("no-signal", "problem", "24 all at the best", reward__min=1.0, groups__without_signal=8.0,
                 groups__all_best=8.0, groups__all_worst=0.0),
        constant("no-signal", "problem", "24 all at the best", groups__without_signal=8.0, groups__all_best=8.0,
                 groups__all_worst=0.0),
    ],
)  # fmt: skip
def test_a_sickness_of_every_step_is_named(
    name: str, severity: str, evidence: str, count: int, changes: dict[str, float]
) -> None:
    found = only(run(count, **changes), name)
    assert found.severity == severity
    assert evidence in found.evidence
    assert found.current
    assert found.steps[-1] == count
    assert found.remedy


@pytest.mark.parametrize(
    ("where", "remedy"),
    [("all_best", "harder"), ("all_worst", "easier"), ("all_tied", "judge or the reward does not tell")],
)
def test_the_remedy_of_no_signal_follows_its_reason(where: str, remedy: str) -> None:
    changes = {**ALL_EQUAL, f"groups__{where}": 8.0, **SKIPPED}
    found = only(history(step(1, **changes)), "no-signal")
    assert remedy in found.remedy
    assert found.severity == "warning", "a single step may be chance"


def test_rewards_too_close_to_tell_apart_are_to_be_scaled() -> None:
    close = {"groups__without_signal": 8.0, "groups__all_worst": 8.0, "groups__all_best": 0.0}
    found = only(run(3, **close, reward__min=0.0, reward__max=1e-9), "no-signal")
    assert found.remedy == "Scale the rewards up: they differ, by 1e-09, but up to 1e-06 is taken for rounding"


def test_a_step_of_few_groups_without_signal_is_chance_three_in_a_row_are_none() -> None:
    few = {"groups__total": 1.0, "groups__without_signal": 1.0, "groups__all_worst": 1.0, "groups__all_best": 0.0}
    assert names(run(2, **few)) == []
    assert only(run(3, **few), "no-signal").severity == "problem"


def test_a_large_clip_share_is_usual_where_the_ratio_is_one_of_rows() -> None:
    assert names(run(3, train__clip_share=0.75, train__row_ratio=1.0)) == []


def test_tasks_that_are_solved_in_one_way_are_no_collapse() -> None:
    solved = {"groups__identical": 8.0, "groups__all_best": 5.0, "groups__without_signal": 5.0}
    assert names(run(3, **solved)) == []


@pytest.mark.parametrize("steps", [10, 1000])
@pytest.mark.parametrize("share", [lambda x: x, lambda x: (1 - math.cos(math.pi * x)) / 2], ids=["linear", "cosine"])
def test_a_schedule_that_ends_near_zero_is_no_sickness(share: Any, steps: int) -> None:
    rates = [1e-5 * share((steps - number) / steps) for number in range(steps)]
    assert names(history(*(step(n, train__learning_rate=rate) for n, rate in enumerate(rates, 1)))) == []


def test_a_learning_rate_that_jumps_down_or_was_never_enough_is_too_small() -> None:
    def seen(*rates: float) -> tuple[int, ...]:
        given = history(*(step(n, train__learning_rate=rate) for n, rate in enumerate(rates, 1)))
        return only(given, "learning-rate-too-small").steps

    assert seen(1e-5, 1e-5, 1e-12, 1e-12) == (3, 4)
    assert seen(5e-9, 2e-9) == (1, 2)
    assert seen(1e-12, 1e-5, 1e-12) == (1, 3)


def test_a_skipped_step_whose_rewards_differ_has_empty_masks() -> None:
    found = only(history(step(1), step(1, **SKIPPED, trajectories__trained=0.0)), "empty-masks")
    assert found.severity == "problem"
    assert "skipped for that although their rewards differed" in found.evidence


@pytest.mark.parametrize(
    ("changes", "evidence", "remedy", "other"),
    [
        ({"trajectories__masked_truncated": 8.0}, "trajectories/masked_truncated 8", "Raise max_tokens", "Shorten"),
        ({"trajectories__masked_overlong": 8.0}, "trajectories/masked_overlong 8", "raise max_row_tokens", "roles"),
        (
            {"rows__cut": 8.0, "rows__cut_untrained": 8.0, "trajectories__without_tokens": 8.0},
            "rows/cut 8",
            "raise max_row_tokens",
            "max_tokens,",
        ),
        (
            {"rows__cut": 4.0, "rows__cut_untrained": 4.0, "trajectories__without_tokens": 4.0,
             "trajectories__masked_truncated": 4.0},
            "rows/cut 4",
            "Raise max_tokens",
            "roles",
        ),
        (
            {"trajectories__dropped_truncated": 8.0, "groups__too_small": 8.0, "groups__without_signal": 0.0},
            "trajectories/dropped_truncated 8",
            "Raise max_tokens",
            "Shorten",
        ),
    ],
)  # fmt: skip
def test_a_step_lost_to_what_options_leave_out_is_told_as_that_and_not_as_empty_masks(
    changes: dict[str, float], evidence: str, remedy: str, other: str
) -> None:
    lost = step(1, **SKIPPED, trajectories__trained=0.0, **changes)
    # A step that is skipped has reported nothing of the trainer.
    lost = Step(1, {name: value for name, value in lost.metrics.items() if not name.startswith("train/")})
    found = {finding.name: finding for finding in diagnose(history(lost))}
    assert "empty-masks" not in found
    assert found["rows-dropped"].severity == "problem"
    assert evidence in found["rows-dropped"].evidence
    assert "1 steps were skipped" in found["rows-dropped"].evidence
    assert remedy in found["rows-dropped"].remedy
    assert other not in found["rows-dropped"].remedy


def test_rewards_are_compared_with_the_range_that_was_stated() -> None:
    given = run(3)
    assert names(RunHistory(steps=given.steps, rollouts=given.rollouts, reward_range=(0.0, 1.0))) == []
    found = only(
        RunHistory(steps=given.steps, rollouts=given.rollouts, reward_range=(-1.0, 0.5)), "reward-out-of-range"
    )
    assert found.severity == "problem"
    assert "stated are -1 to 0.5" in found.evidence


def test_a_jump_of_the_rewards_scale_is_named_where_it_begins() -> None:
    found = only(history(*run(4).steps, step(5, reward__max=30.0)), "reward-scale-jump")
    assert found.steps == (5,)
    assert "up to 30 after at most 1" in found.evidence


def test_rewards_that_appear_at_last_are_no_jump() -> None:
    early = {"reward__max": 0.1}
    assert names(history(*run(4, **early).steps, step(5))) == []


def test_tool_use_that_dies_out_is_named_from_its_second_silent_step() -> None:
    dead = {"tools__calls": 2.0, "tools__malformed": 0.0}
    assert names(history(*run(3).steps, step(4, **dead))) == []
    found = only(history(*run(3).steps, step(4, **dead), step(5, **dead)), "tool-use-dies-out")
    assert found.severity == "problem"
    assert found.steps == (5,)
    assert "fell from 0.94 to 0.031" in found.evidence


def test_an_agent_without_tools_has_none_to_miss() -> None:
    assert names(run(5, tools__offered=0.0, tools__calls=0.0, tools__malformed=0.0)) == []


@pytest.mark.parametrize(
    ("name", "entropy"), [("entropy-collapse", 0.05), ("entropy-collapse", 0.0), ("entropy-explosion", 4.0)]
)
def test_entropy_is_compared_with_the_beginning(name: str, entropy: float) -> None:
    later = [step(4, train__entropy=entropy), step(5, train__entropy=entropy)]
    assert names(history(*run(3).steps, later[0])) == []
    assert only(history(*run(3).steps, *later), name).severity == "problem"


def test_a_model_that_was_sure_from_the_beginning_has_not_collapsed() -> None:
    assert names(run(9, train__entropy=0.002)) == []


def test_one_gradient_of_another_size_is_a_warning() -> None:
    found = only(history(*run(4).steps, step(5, train__grad_norm=40.0), step(6)), "gradient-exploding")
    assert (found.severity, found.steps, found.current) == ("warning", (5,), False)


def test_an_unmoved_canary_is_named_after_three_steps_and_only_for_a_real_trainer() -> None:
    assert names(run(2, canary__movement=0.0)) == []
    metrics = {name: value for name, value in HEALTHY.items() if not name.startswith("train/")}
    assert names(history(*(Step(n, {**metrics, "canary/movement": 0.0}) for n in range(1, 9)))) == []


def test_throughput_is_compared_with_the_steps_before_once_it_lasts() -> None:
    slow = [step(number, train__tokens_per_s=90.0) for number in (7, 8, 9)]
    assert names(history(*run(6).steps, *slow[:2])) == []
    found = only(history(*run(6).steps, *slow), "throughput-collapse")
    assert "90 tokens/s in training, usual are 900" in found.evidence


def test_gaps_and_repeats_of_steps_are_named() -> None:
    assert "no report of step 3" in only(history(step(1), step(2), step(4)), "steps-missing").evidence
    assert only(history(step(1), step(2), step(2)), "steps-twice").steps == (2,)


def test_a_skipped_call_repeats_its_number_rightly() -> None:
    assert names(history(step(1), step(1, **SKIPPED, **ALL_EQUAL), step(2))) == []


def test_what_was_logged_is_looked_at() -> None:
    logged = {"val": {"calls_not_found": 3.0, "unscored": 5.0, "trajectories": 10.0}}
    found = {finding.name: finding for finding in diagnose(RunHistory(logged=logged))}
    assert set(found) == {"calls-not-found", "logged-unscored"}
    assert "val 3" in found["calls-not-found"].evidence
    assert "5 of 10 logged trajectories of split val" in found["logged-unscored"].evidence


def test_damaged_checkpoints_are_named() -> None:
    found = only(RunHistory(checkpoint_faults={3: "a file is missing"}), "checkpoint-damaged")
    assert "step 3 cannot be used: a file is missing" in found.evidence
    assert (found.severity, found.current) == ("problem", True)


def test_findings_come_worst_first_and_those_that_hold_now_before_those_that_did() -> None:
    given = history(step(1, train__clip_share=0.4), step(2, mismatch__kl=0.05), step(3, train__grad_norm=0.0),
                    step(4, mismatch__kl=0.05))  # fmt: skip
    found = diagnose(given)
    assert [(f.name, f.current) for f in found] == [
        ("gradient-zero", False),
        ("sampler-mismatch", True),
        ("clip-share", False),
    ]


@given(
    st.lists(
        st.dictionaries(st.sampled_from(sorted(HEALTHY)), st.floats(allow_nan=False, allow_infinity=False, width=32)),
        max_size=8,
    )
)
def test_no_numbers_break_the_diagnosis(steps: list[dict[str, float]]) -> None:
    given_history = history(*(Step(number, {**HEALTHY, **metrics}) for number, metrics in enumerate(steps)))
    for symptom in SYMPTOMS:
        found = symptom(given_history)
        assert found is None or (found.evidence and found.remedy)


def test_a_supervised_warm_up_is_no_sickness_of_the_reinforcement_that_follows() -> None:
    """300 updates whose learning rate and entropy fall to nothing, and then steps as healthy as others."""
    warm_up = tuple(
        Step(number, {"sft/update": 1.0, "train/learning_rate": 2e-4 * (301 - number) / 300, "train/entropy": 0.01})
        for number in range(1, 301)
    )
    healthy = tuple(Step(300 + step.number, step.metrics) for step in run(3).steps)
    assert diagnose(RunHistory(steps=healthy, supervised=warm_up, rollouts=healthy)) == []
    gap = (*warm_up[:100], *warm_up[150:])
    (found,) = diagnose(RunHistory(steps=healthy, supervised=gap, rollouts=healthy))
    assert (found.name, "101-150" in found.evidence) == ("steps-missing", True)
