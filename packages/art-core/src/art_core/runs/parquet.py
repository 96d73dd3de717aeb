"""Trajectories as a Parquet file: the one module that imports pyarrow."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from art_core.errors import MissingExtraError
from art_core.runs.records import StoredTrajectory
from art_core.types import Exchange

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    if error.name != "pyarrow":
        raise
    raise MissingExtraError("Parquet needs pyarrow, which is not installed: pip install 'art-core[parquet]'") from error

_ROWS = 512
_TOKENS = 500_000
"""A row group ends at the first of the two, so that memory depends neither on the run nor on how long rollouts are."""

_EXCHANGE = pa.struct(
    [
        ("id", pa.string()),
        ("trajectory_id", pa.string()),
        ("messages_json", pa.string()),
        ("tools_json", pa.string()),
        ("response_json", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("completion_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float64())),
        ("forced", pa.list_(pa.bool_())),
        ("finish_reason", pa.string()),
        ("sampling_json", pa.string()),
        ("policy_version", pa.int64()),
        ("forked", pa.bool_()),
        ("num_malformed_calls", pa.int64()),
        ("metadata_json", pa.string()),
        ("started_at", pa.float64()),
        ("ended_at", pa.float64()),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("split", pa.string(), nullable=False),
        pa.field("step", pa.int64(), nullable=False),
        pa.field("group_id", pa.string(), nullable=False),
        pa.field("group_json", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("scenario_id", pa.string(), nullable=False),
        pa.field("reward", pa.float64()),
        pa.field("error_kind", pa.string()),
        pa.field("error_message", pa.string()),
        pa.field("error_source", pa.string()),
        pa.field("metrics", pa.map_(pa.string(), pa.float64()), nullable=False),
        pa.field("metadata_json", pa.string(), nullable=False),
        pa.field("logs", pa.list_(pa.string()), nullable=False),
        pa.field("messages_json", pa.string(), nullable=False),
        pa.field("tools_json", pa.string()),
        pa.field("role", pa.string(), nullable=False),
        pa.field("additional_histories_json", pa.string(), nullable=False),
        pa.field("prompt_tokens", pa.int64(), nullable=False),
        pa.field("completion_tokens", pa.int64(), nullable=False),
        pa.field("exchanges", pa.list_(_EXCHANGE), nullable=False),
    ]
)
"""What has no fixed shape (messages, tools, metadata) is JSON text, in the columns that end in `_json`."""


def write_parquet(stored: Iterable[StoredTrajectory], file: Path) -> int:
    """Write `stored` to `file`, a row group at a time, and return how many there were."""
    number = 0
    with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for rows in _row_groups(stored):
            writer.write_table(pa.Table.from_pylist(rows, schema=SCHEMA))
            number += len(rows)
    return number


def _row_groups(stored: Iterable[StoredTrajectory]) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    tokens = 0
    for one in stored:
        rows.append(row := _row(one))
        tokens += row["prompt_tokens"] + row["completion_tokens"]
        if len(rows) >= _ROWS or tokens >= _TOKENS:
            yield rows
            rows, tokens = [], 0
    if rows:
        yield rows


def _row(stored: StoredTrajectory) -> dict[str, Any]:
    trajectory = stored.trajectory
    data = trajectory.model_dump(mode="json", exclude={"exchanges"}, warnings=False)
    error = trajectory.error
    return {
        "split": stored.split,
        "step": stored.step,
        "group_id": _text(stored.group.id),
        "group_json": json.dumps(stored.group.model_dump(mode="json")),
        "id": _text(trajectory.id),
        "scenario_id": _text(trajectory.scenario_id),
        "reward": trajectory.reward,
        "error_kind": None if error is None else _text(error.kind),
        "error_message": None if error is None else _text(error.message),
        "error_source": None if error is None else error.source,
        "metrics": [(_text(name), value) for name, value in trajectory.metrics.items()],
        "metadata_json": json.dumps(data["metadata"]),
        "logs": [_text(line) for line in trajectory.logs],
        "messages_json": json.dumps(data["messages_and_choices"]),
        "tools_json": None if data["tools"] is None else json.dumps(data["tools"]),
        "role": _text(trajectory.role),
        "additional_histories_json": json.dumps(data["additional_histories"]),
        "prompt_tokens": sum(len(exchange.prompt_ids) for exchange in trajectory.exchanges),
        "completion_tokens": trajectory.num_trained_tokens,
        "exchanges": [_exchange(exchange) for exchange in trajectory.exchanges],
    }


def _exchange(exchange: Exchange) -> dict[str, Any]:
    data = exchange.model_dump(mode="json", warnings=False)
    for name in ("messages", "tools", "response", "sampling", "metadata"):
        data[f"{name}_json"] = json.dumps(data.pop(name))
    return {name: _text(value) if isinstance(value, str) else value for name, value in data.items()}


def _text(value: str) -> str:
    """`value` with what UTF-8 cannot hold (half a surrogate pair) escaped."""
    return value.encode(errors="backslashreplace").decode()
