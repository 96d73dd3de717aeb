"""Every metric that the packages emit: its name, unit and meaning. docs/metrics.md is written from this table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower", ""]


@dataclass(frozen=True)
class Metric:
    """A metric, or with `<...>` in its name a family of them.

    `better` says in which direction it is good, where one is. `emitted_by` says where it is found: `train` is the
    report of `model.train` (a line of steps.jsonl), `log` what `model.log` keeps (a line of metrics.jsonl).
    """

    name: str
    unit: str
    meaning: str
    emitted_by: str
    better: Better = ""

    def matches(self, name: str) -> bool:
        """Whether `name` is this metric, or one of the family."""
        pattern = "".join(
            "[^/]+" if part.startswith("<") else re.escape(part) for part in re.split(r"(<\w+>)", self.name)
        )
        return re.fullmatch(pattern, name) is not None


def _of(emitted_by: str, *rows: tuple[str, str, str] | tuple[str, str, str, Better]) -> tuple[Metric, ...]:
    return tuple(Metric(name, unit, meaning, emitted_by, *better) for name, unit, meaning, *better in rows)


_SPLIT = _of(
    "log",
    ("<split>/reward", "reward", "mean over the trajectories that did not fail", "higher"),
    ("<split>/reward_std_dev", "reward", "mean over groups of the standard deviation of their rewards"),
    ("<split>/exception_rate", "share", "trajectories that failed", "lower"),
    (
        "<split>/<metric>",
        "as given",
        "mean over trajectories of their metric of that name, such as `success` or `turns`",
    ),
    ("<split>/group_<metric>", "as given", "mean over groups of their own metric of that name"),
    ("<split>/calls_not_found", "calls", "answers that were kept without token ids: the server does not know the call"),
)
_REWARD = (
    *_of(
        "train, art-mcp",
        ("reward/mean", "reward", "mean over the trajectories that did not fail", "higher"),
        ("reward/min", "reward", "lowest of them"),
        ("reward/max", "reward", "highest of them"),
        ("reward/std", "reward", "their standard deviation"),
    ),
    *_of("art-mcp", ("reward/<part>", "share", "mean of one part of the verified reward", "higher")),
)
_LOSS = _of(
    "train",
    ("train/loss", "nats", "what was minimised: over the step's trained tokens, in the aggregation chosen"),
    ("train/kl_loss", "nats", "the part of the loss that is the penalty on the KL to the reference"),
    ("train/kl_reference", "nats per token", "KL of the policy to the reference: its starting weights or a checkpoint"),
    ("train/entropy", "nats per token", "of the policy at the trained positions; near 0, nothing is explored any more"),
    (
        "train/ratio_mean",
        "ratio",
        "mean probability ratio of the policy to itself as the step began; 1 in the first update",
    ),
    ("train/clip_share", "share", "trained tokens whose gradient the clip removes or limits"),
    ("train/row_ratio", "0 or 1", "1: the clip is of one ratio for each row, as in `gspo`, and not for each token"),
    ("train/advantage_abs_mean", "advantage", "mean size of the advantages; 0 where nothing is learned"),
    ("train/grad_norm", "norm", "global norm of the gradient before it is bounded; with several updates their mean"),
    ("train/grad_clipped", "share", "updates whose gradient was above the bound"),
    ("train/learning_rate", "rate", "of the optimiser in this step"),
    (
        "train/weight_change",
        "norm",
        "norm of what the step changed in the adapter's factors; 0 means that it changed nothing",
    ),
    ("train/updates", "updates", "of the optimiser in this step"),
    ("train/policy_lag_max", "steps", "age of the oldest policy that rows of this step were sampled from"),
)
_MISMATCH = _of(
    "train",
    ("mismatch/kl", "nats per token", "KL of sampler and trainer before the step, estimated as r - 1 - log r", "lower"),
    (
        "mismatch/logprob_diff_max",
        "nats",
        "largest difference of a token's logprob between sampler and trainer",
        "lower",
    ),
    ("mismatch/ratio_max", "ratio", "largest probability ratio of trainer to sampler", "lower"),
    ("mismatch/corrected_share", "share", "trained tokens whose weight was cut off or masked because of the mismatch"),
)
_COUNTS = _of(
    "train",
    ("groups/total", "groups", "given to the step"),
    ("groups/too_small", "groups", "left out: fewer than two trajectories with a reward", "lower"),
    ("groups/without_signal", "groups", "left out: all rewards are equal", "lower"),
    ("trajectories/trained", "trajectories", "that gave rows"),
    ("trajectories/excluded", "trajectories", "left out: failed, or without a reward", "lower"),
    ("trajectories/without_tokens", "trajectories", "left out: no sampled token in them can be trained", "lower"),
    (
        "trajectories/forks",
        "forks",
        "turns that opened a row of their own: their prompt does not extend the record",
        "lower",
    ),
    ("trajectories/truncated", "trajectories", "with a completion that was cut at its token limit", "lower"),
    ("trajectories/total", "trajectories", "given to the step, failed ones too"),
    ("trajectories/failed", "trajectories", "that ended with an error other than a judge's", "lower"),
    (
        "trajectories/unscored",
        "trajectories",
        "without a reward although they did not fail, or whose judge did",
        "lower",
    ),
    ("trajectories/masked_truncated", "trajectories", "not trained, though compared: `truncated='mask'`", "lower"),
    ("trajectories/masked_overlong", "trajectories", "not trained, though compared: `overlong='mask'`", "lower"),
    ("trajectories/dropped_truncated", "trajectories", "left out of their group: `truncated='drop'`", "lower"),
    ("trajectories/dropped_overlong", "trajectories", "left out of their group: `overlong='drop'`", "lower"),
    ("rows/cut", "rows", "that keep their first `max_row_tokens` tokens only", "lower"),
    ("rows/cut_untrained", "rows", "of them without a trained token left", "lower"),
    ("tokens/cut", "tokens", "that rows lost so", "lower"),
    ("groups/all_best", "groups", "without signal: every reward is the best there is"),
    ("groups/all_worst", "groups", "without signal: every reward is the worst there is", "lower"),
    ("groups/all_tied", "groups", "without signal: every reward is the same between them", "lower"),
    ("groups/identical", "groups", "whose members all said the same"),
    ("groups/identical_not_best", "groups", "of them whose rewards are not all the best there is", "lower"),
    ("groups/mixed", "groups", "without a prompt that all members were given", "lower"),
    ("completions/total", "calls", "of the model in the step's rollouts"),
    ("completions/truncated", "calls", "whose answer ended at its token limit", "lower"),
    ("completions/repetitive", "calls", "whose answer goes in circles", "lower"),
    ("tools/offered", "trajectories", "whose calls offered tools"),
    ("tools/calls", "tool calls", "in the step's rollouts"),
    ("tools/malformed", "tool calls", "that could not be read", "lower"),
    ("errors/<kind>", "trajectories", "that failed with an exception of this class; `other` for rare ones", "lower"),
    ("exchanges/other_roles", "calls", "kept as context: made in a role that is not trained"),
    ("roles/absent", "roles", "to be trained, in which no call was made", "lower"),
    ("step/skipped", "0 or 1", "1: there was nothing to learn from, and no step was made", "lower"),
)
_SIZE = _of(
    "train",
    ("train/rows", "rows", "of the step"),
    ("train/rows_untrained", "rows", "without a trained token"),
    ("train/trained_tokens", "tokens", "that the loss was taken over"),
    ("train/row_tokens", "tokens", "of all rows, shared prefixes counted for each"),
    ("train/computed_tokens", "tokens", "that were computed, shared prefixes once"),
    ("train/micro_batches", "batches", "that the rows were computed in"),
    ("train/recomputed_share", "share", "of the forward pass that was computed again to save memory"),
    ("tokens/sampled", "tokens", "of the completions of the step's rollouts"),
    ("tokens/prompt", "tokens", "of their prompts, each call's counted whole"),
)
_TIME = _of(
    "train",
    (
        "time/rollout_s",
        "s",
        "in which at least one rollout was between the start of its first call and the end of its last",
    ),
    ("time/train_s", "s", "of the trainer's step"),
    ("time/sync_s", "s", "to commit the checkpoint, load it into the engine and check it there"),
    ("time/step_s", "s", "of the whole training step, on the server"),
    ("tokens/sampled_per_s", "tokens/s", "sampled, over `time/rollout_s`", "higher"),
    ("train/step_s", "s", "of the trainer's computation alone"),
    ("train/tokens_per_s", "tokens/s", "computed, over `train/step_s`", "higher"),
)
_COST = _of(
    "train",
    ("cost/judge_usd", "US dollars", "what judging the step's groups cost, as far as prices are known", "lower"),
    ("cost/judge_tokens", "tokens", "that judges read and wrote", "lower"),
    ("cost/judge_calls", "calls", "to judges", "lower"),
)
_SFT = _of(
    "train_sft",
    ("sft/update", "updates", "number of this one, in the lines of steps.jsonl"),
    ("sft/updates", "updates", "of the whole training"),
    ("sft/epoch", "epochs", "number of the one this update is of"),
    ("sft/epochs", "epochs", "of the whole training"),
    ("sft/loss_first", "nats per token", "of the first update"),
    ("sft/loss_last", "nats per token", "of the last update", "lower"),
    ("sft/loss_mean", "nats per token", "over all updates"),
    ("sft/validation_loss_before", "nats per token", "of the held-out examples, before the training", "lower"),
    ("sft/validation_loss_after", "nats per token", "of the held-out examples, after it", "lower"),
    ("sft/validation_examples", "examples", "held out"),
    ("sft/validation_failed", "trajectories", "held out and left out: they failed", "lower"),
    ("sft/validation_dropped_overlong", "examples", "held out and left out: longer than the limit", "lower"),
    ("sft/validation_without_answer", "examples", "held out and left out: they have no answer", "lower"),
    ("sft/validation_rows_cut", "rows", "held out that were cut at the limit", "lower"),
    ("sft/validation_in_training", "examples", "held out that are among those trained on as well", "lower"),
    ("sft/examples", "examples", "trained on"),
    ("sft/duplicates", "examples", "of them that are there more than once"),
    ("sft/trajectories_failed", "trajectories", "left out: they failed", "lower"),
    ("sft/examples_without_answer", "examples", "left out: they have no answer to train", "lower"),
    ("sft/dropped_overlong", "examples", "left out: longer than the limit", "lower"),
    ("sft/rows", "rows", "trained on in each epoch"),
    ("sft/rows_cut", "rows", "of them that were cut at the limit", "lower"),
    ("sft/forks", "rows", "of them beyond one for each example: templates that rewrite earlier turns"),
    ("sft/row_tokens", "tokens", "of the rows"),
    ("sft/trained_tokens", "tokens", "of them that are trained"),
    ("sft/turns_in_history_form", "answers", "that the template cannot write behind its own prompt", "lower"),
    ("sft/turns_without_end", "answers", "after which the template writes no end of turn", "lower"),
    ("sft/turns_without_reasoning", "answers", "whose reasoning the template leaves out", "lower"),
    ("sft/resumed_after", "updates", "that were made before this process went on"),
    ("sft/already_finished", "0 or 1", "1: the same training was finished before, and was not made again"),
)
_CHECKS = (
    *_of(
        "train",
        ("canary/error", "nats", "largest difference between engine and trainer on the probe after loading", "lower"),
        ("canary/movement", "nats", "how far the probe's logprobs moved in the step; 0 means that it changed nothing"),
        (
            "sinks/failures",
            "failures",
            "of sinks since the model was opened; metrics are in the run folder all the same",
            "lower",
        ),
    ),
)
_CAPTURE = (
    *_of(
        "log",
        (
            "capture/policy_versions",
            "versions",
            "of the weights that one trajectory was sampled from, where more than one",
        ),
        ("capture/calls_outside", "calls", "that a capture saw and could not record", "lower"),
    ),
    *_of(
        "art-langgraph",
        ("capture/streams_broken_off", "streams", "that a graph did not read to their end", "lower"),
        ("other_models/calls", "calls", "to models that are not trained"),
        ("history/answers_from_elsewhere", "answers", "in a history that the trained model did not give"),
    ),
)
_PLANS = (
    *_of(
        "art-langgraph",
        ("langgraph/batches_before", "batches", "made before `train` was first called"),
        ("langgraph/plan_<part>", "number", "fingerprint of the plan, by which a training that goes on is recognised"),
        ("before/<task>", "reward", "of the untrained model at a validation task"),
    ),
    *_of(
        "art-mcp",
        ("tool_groups/<tool>", "groups", "of the step, by tool"),
        ("tool_scored/<tool>", "groups", "of them with two rewards or more"),
        ("tool_spread/<tool>", "reward", "sum over them of the standard deviation of their rewards"),
    ),
)

SECTIONS: dict[str, tuple[Metric, ...]] = {
    "Rewards and success": (*_REWARD, *_SPLIT),
    "Loss and policy": _LOSS,
    "Sampler against trainer": _MISMATCH,
    "What was dropped, cut and skipped": _COUNTS,
    "Tokens": _SIZE,
    "Supervised training": _SFT,
    "Time and throughput": _TIME,
    "Costs": _COST,
    "Checks": _CHECKS,
    "Captures": _CAPTURE,
    "Plans of the training loops": _PLANS,
}
METRICS: tuple[Metric, ...] = tuple(metric for section in SECTIONS.values() for metric in section)


_OF_TRAINING = {m.name for m in METRICS if "<" not in m.name and {"train", "train_sft"} & set(m.emitted_by.split(", "))}


def is_of_training(name: str) -> bool:
    """Whether `name` is that of a metric which training reports by itself: whatever else has it would shadow that."""
    return name in _OF_TRAINING


def as_markdown() -> str:
    """The table for docs/metrics.md, a section for each area."""
    lines: list[str] = []
    for title, metrics in SECTIONS.items():
        lines += [f"### {title}", "", "| metric | unit | meaning | better | emitted by |", "|---|---|---|---|---|"]
        lines += [f"| `{m.name}` | {m.unit} | {m.meaning} | {m.better} | {m.emitted_by} |" for m in metrics]
        lines.append("")
    return "\n".join(lines)
