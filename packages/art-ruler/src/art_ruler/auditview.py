"""An audit for people and for programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from art_ruler.audit import AttackReport, AuditReport, Estimate, JudgeReport

_DIGITS = 4


def as_json(report: AuditReport) -> dict[str, Any]:
    """The report as plain JSON values; figures with four digits, null where there is none."""
    return {
        "groups": report.groups,
        "trajectories": report.trajectories,
        "label_length_correlation": _round(report.label_length_correlation),
        "judges": [_judge_json(judge) for judge in report.judges],
    }


def as_table(report: AuditReport) -> str:
    """The report as a table with a column for each judge, and below it what went wrong."""
    judges = report.judges
    rows: list[list[str]] = [
        [f"{report.groups} groups, {report.trajectories} trajectories", *(judge.judge for judge in judges)],
        ["pairwise accuracy", *(_interval(judge.pairwise_accuracy) for judge in judges)],
    ]
    if len(judges) > 1:
        rows.append(["  gain over the first", *(_interval(judge.versus_first, sign="+") for judge in judges)])
    for label, name in (
        ("top-1", "top1"),
        ("Kendall tau with labels", "kendall_tau"),
        ("self-agreement (tau)", "self_agreement"),
        ("agreement of orders (tau)", "order_agreement"),
        ("flip rate between orders", "flip_rate"),
        ("  noise: same order twice", "noise"),
        ("  position bias", "position_bias"),
        ("correlation with length", "length_correlation"),
    ):
        rows.append([label, *(_shown(getattr(judge, name)) for judge in judges)])
    if report.label_length_correlation is not None:
        rows.append([f"  (labels: {report.label_length_correlation:.2f})", *("" for _ in judges)])
    rows += _attack_rows(judges)
    rows += [
        ["groups without an answer", *(str(judge.failed) for judge in judges)],
        *([["groups beyond the budget", *(str(j.stopped) for j in judges)]] if any(j.stopped for j in judges) else []),
        ["trajectories without a score", *(str(judge.unscored) for judge in judges)],
        ["calls", *(str(judge.usage.calls) for judge in judges)],
        ["tokens in + out", *(f"{j.usage.prompt_tokens} + {j.usage.completion_tokens}" for j in judges)],
        ["cost in USD", *(_cost(judge) for judge in judges)],
    ]
    lines = _aligned(rows)
    lines.insert(1, "-" * max(map(len, lines)))
    problems = [f"{judge.judge}: {problem}" for judge in judges for problem in judge.problems]
    return "\n".join([*lines, *(["", *problems] if problems else [])])


def _attack_rows(judges: Sequence[JudgeReport]) -> list[list[str]]:
    found = [
        {attack.kind: attack for attack in (judge.attack_baseline, *judge.attacks) if attack is not None}
        for judge in judges
    ]
    kinds = list(dict.fromkeys(kind for attacks in found for kind in attacks))
    rows: list[list[str]] = [["attacks: promoted, lift", *("" for _ in judges)]] if kinds else []
    for kind in kinds:
        name = "no attack, judged again" if kind == "none" else kind.replace("_", " ")
        rows.append([f"  {name}", *(_attack_cell(attacks.get(kind)) for attacks in found)])
    return rows


def _attack_cell(attack: AttackReport | None) -> str:
    if attack is None or attack.promoted is None or attack.lift is None:
        return "none scored"
    lost = f" ({attack.unscored} unscored)" if attack.unscored else ""
    return f"{attack.promoted:.0%}, {attack.lift:+.2f}{lost}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _interval(estimate: Estimate | None, *, sign: str = "") -> str:
    if estimate is None:
        return ""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return "-"
    return f"{estimate.value:{sign}.2f} [{estimate.low:{sign}.2f}, {estimate.high:{sign}.2f}]"


def _shown(value: float | Estimate | None) -> str:
    if isinstance(value, Estimate):
        return _interval(value, sign="+")
    return "-" if value is None else f"{value:.2f}"


def _cost(judge: JudgeReport) -> str:
    usage = judge.usage
    if usage.cost_usd is None:
        return "unknown"
    return f"{usage.cost_usd:.4f}" + (f" + {usage.unpriced_calls} unpriced" if usage.unpriced_calls else "")


def _judge_json(judge: JudgeReport) -> dict[str, Any]:
    plain = asdict(judge)
    usage = plain.pop("usage")
    rounded: dict[str, Any] = _rounded(plain)
    return {**rounded, "usage": usage}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return _round(value) if isinstance(value, float) else value


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)
