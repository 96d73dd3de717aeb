"""What ART's users write and we do not have: each name with what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from art_core.errors import ConfigError, did_you_mean

NAMES: dict[str, str] = {
    "LocalTrainResult": "train returns art_core.TrainResult",
    "Messages": "messages are list[dict[str, Any]] in the OpenAI wire shape",
    "MessagesAndChoices": "the field is a list of message dicts and choices",
    "PipelineTrainer": "loop over art_core.iterate_dataset, gather_trajectory_groups and model.train",
    "ServerlessBackend": "use art_core.RemoteBackend(url, api_key=...) with `art serve` on a machine of yours",
    "ServerlessTrainResult": "train returns art_core.TrainResult",
    "SkyPilotBackend": "run `art serve` on the machine you rented, and use art_core.RemoteBackend(url, api_key=...)",
    "TinkerBackend": "use art_core.LocalBackend() or art_core.RemoteBackend(url, api_key=...)",
    "Tools": "tools are list[dict[str, Any]] in the OpenAI wire shape",
    "TrainSFTConfig": "use art_core.SftConfig, or give its fields to model.train_sft",
    "auto_trajectory": "the trajectory is what `async with art_core.capture(model) as trajectory:` gives",
    "capture_auto_trajectory": "write `async with art_core.capture(model) as trajectory:` around the calls",
    "capture_yielded_trajectory": "return the trajectory from the rollout",
    "dev": "pass options to TrainableModel(config={...}) and to model.train(...)",
    "langgraph": "install art-langgraph",
    "mcp": "install art-mcp and run `art-mcp train`",
    "rewards": "pip install art-ruler, then `from art_ruler import ruler_score_group`",
    "trajectory_group_batches": "loop over art_core.iterate_dataset and await gather_trajectory_groups",
    "utils": "the helpers are at the top: art_core.iterate_dataset, art_core.limit_concurrency, art_core.retry",
    "yield_trajectory": "return the trajectory from the rollout",
}
"""Attributes of the package."""

_METHODS: dict[str, str] = {
    "_experimental_fork_checkpoint": 'new = await model.fork("new", step=7), of a model that is registered',
    "litellm_completion_params": "give litellm model=f'hosted_vllm/{model.get_inference_name()}', "
    "api_base=model.inference_base_url and api_key=model.inference_api_key",
    "merge_state": "keep state of your own in a file of your own; model.get_step() says how far training is",
    "overwrite_state": "keep state of your own in a file of your own; model.get_step() says how far training is",
    "read_state": "keep state of your own in a file of your own; model.get_step() says how far training is",
    "update_wandb_config": "pass config={'sinks': ['wandb']}; base model, seed and lora go there",
    "write_state": "keep state of your own in a file of your own; model.get_step() says how far training is",
}

_OF_TRAINABLE = ("backend", "delete_checkpoints", "fork", "get_step", "log", "register", "train", "train_sft")
_ONLY_TRAINABLE = (
    "only a TrainableModel has a backend, steps and a run folder; log what another model did with that one's "
    "model.log(groups, split='val/<name>')"
)

_OPTIONS: dict[str, dict[str, str]] = {
    "Model": {
        "base_path": "art_core.LocalBackend(path=...) says where runs are kept",
        "entity": "there are no accounts; leave it out",
        "id": "a model is known by project and name; leave it out",
        "report_metrics": "metrics are in the run folder; pass config={'sinks': ['wandb']} to see them there as well",
        "run_id": "a model is known by project and name; leave it out",
        "trainable": "use TrainableModel for a model that is trained",
        "_internal_config": "pass options of engine and trainer as config={...}",
    },
    "train": {
        "advantage_balance": "not supported",
        "allow_training_without_logprobs": "not supported: every token is trained with the logprob it was sampled with",
        "epsilon": "use clip_low",
        "epsilon_high": "use clip_high",
        "importance_sampling_level": "use loss='gspo' for ratios per sequence; the others have them per token",
        "kl_penalty_coef": "use kl_coef, with kl_in='advantage'",
        "kl_penalty_reference_step": "use kl_reference",
        "loss_fn": "use loss",
        "mask_truncated_completions": "use truncated='mask'",
        "max_seq_length": "use max_row_tokens, with overlong='cut', 'drop' or 'mask'",
        "max_sequence_length": "use max_row_tokens, with overlong='cut', 'drop' or 'mask'",
        "normalize_advantages": "use scale_rewards",
        "num_iterations": "use epochs",
        "save_checkpoint": "every step is a checkpoint; delete old ones with model.delete_checkpoints",
        "truncated_importance_sampling": "use correction_max",
    },
    "train_sft": {
        "chunk_size": "leave it out; save_every says how often a checkpoint is made",
        "custom_lr_schedule": "not supported; use learning_rate, schedule and warmup_ratio",
        "file_path": "give the path as first argument",
        "final_step": "leave it out; the schedule spans all updates of all epochs",
        "initial_step": "leave it out; the same call goes on where it was interrupted",
        "max_seq_length": "use max_row_tokens, with overlong='cut' or 'drop'",
        "max_tokens": "use max_row_tokens, with overlong='cut' or 'drop'",
        "num_epochs": "use epochs",
        "peak_lr": "use learning_rate",
        "schedule_type": "use schedule",
        "trajectories": "give the trajectories as first argument",
        "verbose": "leave it out; on_progress gets a line for each update",
    },
    "gather": {
        "max_metrics": "progress shows rollouts and failures only; leave it out",
        "pbar_total_completion_tokens": "leave it out; token counts are in trajectory.num_trained_tokens",
    },
    "config": {
        "init_args": "use engine_args={'max_context_tokens': ...} for the longest sequence, and dtype",
        "max_seq_length": "use engine_args={'max_context_tokens': ...}",
        "peft_args": "use lora={'rank': ..., 'alpha': ..., 'target_modules': ...}",
        "tinker_args": "leave it out; models are trained on machines of your own",
    },
    "engine": {
        "max_model_len": "use max_context_tokens",
        "max_num_seqs": "use max_concurrency",
        "max_seq_length": "use max_context_tokens",
    },
    "lora": {"lora_alpha": "use alpha", "r": "use rank"},
    "trainer": {
        "learning_rate": "give it to model.train",
        "max_grad_norm": "use grad_clip",
        "max_seq_length": "use max_row_tokens in model.train",
    },
    "iterate_dataset": {"use_tqdm": "no progress is shown here; leave it out"},
    "log": {"trajectories": "give the groups as first argument"},
}
_OPTIONS["TrainableModel"] = _OPTIONS["Model"]
_OPTIONS["gather_trajectories"] = _OPTIONS["gather_trajectory_groups"] = _OPTIONS["gather"]


def hint(where: str, name: str) -> str | None:
    """What to write instead of ART's option `name` of `where`."""
    return _OPTIONS.get(where, {}).get(name)


def refuse_unknown(where: str, unknown: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Refuse arguments that `function`, called `where`, does not have.

    Raises:
        ConfigError: there is one; the message names it, and what to write instead where that is known.
    """
    known = [one.name for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_KEYWORD]
    for name in sorted(unknown):
        instead = hint(where, name)
        meant = f": {instead}" if instead else did_you_mean(name, known)
        raise ConfigError(f"{where} has no argument {name!r}{meant}")


def missing_method(kind: str, name: str) -> AttributeError:
    """What reading `model.<name>` raises, where `kind` is the model's class."""
    instead = _METHODS.get(name) or (_ONLY_TRAINABLE if kind == "Model" and name in _OF_TRAINABLE else None)
    return AttributeError(f"{kind} has no {name!r}" + (f": {instead}" if instead else ""))


def missing_name(name: str) -> AttributeError:
    """What reading `art_core.<name>` raises."""
    instead = NAMES.get(name)
    return AttributeError(f"art_core has no {name!r}" + (f": {instead}" if instead else ""))
