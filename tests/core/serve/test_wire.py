"""What a request may say, and how a refusal is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from art_core.errors import ContextLengthError, DataError, EngineClosedError, UnknownTrajectoryError
from art_core.serve.chat_request import Calling, ChatRequest
from art_core.serve.requests import CompletionRequest, choice_seed
from art_core.serve.wire import (
    ERROR_CODES,
    ApiError,
    as_api_error,
    logprobs_content,
    sse,
    text_logprobs,
    usage,
    wire_finish_reason,
)
from art_core.types import Sampling

USER = {"role": "user", "content": "u"}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def parse(**fields: Any) -> ChatRequest:
    return ChatRequest.parse(json.dumps({"model": "m", "messages": [USER], **fields}).encode())


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert caught.value.status == 400
    assert caught.value.body()["error"]["type"] == "invalid_request_error"
    return caught.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("logit_bias", {"5": 1.0}),
        ("modalities", ["text", "audio"]),
    ],
)
def test_what_is_not_supported_is_refused_by_name(field: str, value: Any) -> None:
    error = refused(**{field: value})
    assert error.code == "unsupported_parameter"
    assert str(error).startswith(f"'{field}' is ")
    assert "supports only" in str(error)


def test_b026_an_unknown_field_is_refused_by_name() -> None:
    error = refused(max_new_tokens=5)
    assert (error.code, error.param) == ("unsupported_parameter", "max_new_tokens")
    with pytest.raises(ApiError) as caught:
        CompletionRequest.parse(b'{"model": "m", "prompt": "p", "messages": []}')
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "messages")


def test_fields_of_openais_own_service_and_neutral_values_are_accepted() -> None:
    request = parse(
        user="u", store=True, metadata={"a": "b"}, service_tier="auto", safety_identifier="s", prompt_cache_key="k",
        n=1, stop=[], return_token_ids=True, modalities=["text"],
        presence_penalty=0.0, frequency_penalty=0, logit_bias={}, response_format={"type": "text"},
        parallel_tool_calls=True, top_logprobs=0, tool_choice="auto", tools=None, seed=None, stream_options=None,
    )  # fmt: skip
    plain = parse()
    assert (request.user, request.store) == ("u", True)
    assert (request.messages, request.seed, request.temperature) == (plain.messages, plain.seed, plain.temperature)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"x": 1}}, "stream_options.x"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages.0"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "user", "content": {"a": 1}}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call"),
        ({"messages": [{"role": "assistant", "reasoning": {"x": 1}}]}, "messages[0]"),
        ({"messages": [{"role": "tool", "tool_call_id": 5}]}, "messages[0].tool_call_id"),
        ({"tools": [{"type": "custom"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]}, "tools[0].function.parameters"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_the_path_to_it(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"\xff", b'{"model": "m"} x', b'{"model": NaN}', b'{"temperature": 1e999}',
        b'{"messages": "\\ud800"}', b"[" * 100_000, b'{"a":' * 80 + b"1" + b"}" * 80,
    ],
)  # fmt: skip
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError, match="the body is") as caught:
        ChatRequest.parse(body)
    assert caught.value.status == 400


def sampling(*, prompt: int, context: int = 64, **fields: Any) -> Any:
    return parse(**fields).sampling(num_prompt_tokens=prompt, max_context_tokens=context, stop_token_ids=[2])


def test_the_default_limit_is_what_the_prompt_leaves() -> None:
    assert sampling(prompt=60).max_tokens == 4


@pytest.mark.parametrize(("prompt", "fields"), [(70, {}), (64, {}), (60, {"max_tokens": 32})])
def test_b049_what_does_not_fit_has_a_code_of_its_own(prompt: int, fields: dict[str, Any]) -> None:
    with pytest.raises(ContextLengthError) as caught:
        sampling(prompt=prompt, **fields)
    assert as_api_error(caught.value).code == "context_length_exceeded"
    assert as_api_error(caught.value).status == 400


def test_b050_nothing_but_the_request_decides_the_distribution() -> None:
    drawn = sampling(prompt=4)
    assert (drawn.temperature, drawn.top_p, drawn.top_k, drawn.seed) == (1.0, 1.0, 0, None)
    asked = sampling(prompt=4, temperature=0, top_p=0.5, top_k=3, seed=7, max_completion_tokens=5)
    assert (asked.temperature, asked.top_p, asked.top_k, asked.seed, asked.max_tokens) == (0.0, 0.5, 3, 7, 5)
    assert asked.stop_token_ids == (2,)


OTHER = {"type": "function", "function": {"name": "g"}}
NAMED = {"type": "function", "function": {"name": "g"}}


@pytest.mark.parametrize(
    ("fields", "offered", "callable_", "only_one"),
    [
        ({}, "fg", "", False),
        ({"tool_choice": "auto"}, "fg", "", False),
        ({"tool_choice": "none"}, "", "", False),
        ({"tool_choice": "none", "parallel_tool_calls": False}, "", "", False),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, "fg", "", True),
        ({"tool_choice": "required"}, "fg", "fg", False),
        ({"tool_choice": "required", "parallel_tool_calls": False}, "fg", "fg", True),
        ({"tool_choice": NAMED}, "fg", "g", True),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}},
            "fg",
            "g",
            False,
        ),
    ],
)
def test_which_tools_are_shown_and_which_must_be_called(
    fields: dict[str, Any], offered: str, callable_: str, only_one: bool
) -> None:
    tools = {"f": TOOL, "g": OTHER}
    calling = parse(tools=[TOOL, OTHER], **fields).calling
    assert calling == Calling(tuple(tools[x] for x in offered), tuple(tools[x] for x in callable_), only_one)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": "any", "tools": [TOOL]}, "tool_choice", "invalid_value"),
        ({"tool_choice": 5, "tools": [TOOL]}, "tool_choice", "invalid_value"),
        ({"tool_choice": NAMED, "tools": [TOOL]}, "tool_choice", "invalid_value"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, "tools": [TOOL]},
            "tool_choice",
            "unsupported_parameter",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [3]}}},
            "tool_choice",
            "invalid_value",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "invalid_value"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": 5}}},
            "response_format.json_schema",
            "invalid_value",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters",
            "invalid_function_parameters",
        ),
        ({"messages": [USER], "top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages", "invalid_value"),
        (
            {"messages": [USER, {"role": "assistant", "content": "x"}], "response_format": {"type": "json_object"}},
            "response_format",
            "unsupported_parameter",
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": "x"}], "tools": [TOOL], "tool_choice": "required"},
            "tool_choice",
            "unsupported_parameter",
        ),
    ],
)
def test_what_restricts_an_answer_is_checked(fields: dict[str, Any], param: str, code: str) -> None:
    error = refused(**fields)
    assert (error.param, error.code) == (param, code)


def test_each_choice_has_a_seed_that_follows_from_the_request() -> None:
    drawn = [choice_seed(7, index) for index in range(128)]
    assert drawn[0] == 7
    assert len(set(drawn)) == 128
    assert drawn == [choice_seed(7, index) for index in range(128)]
    assert all(Sampling(max_tokens=1, seed=seed).seed == seed and -(2**63) <= seed < 2**63 for seed in drawn)
    assert choice_seed(8, 1) != drawn[1]


def text_refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        CompletionRequest.parse(json.dumps({"model": "m", **fields}).encode())
    return caught.value


@pytest.mark.parametrize(
    "prompt", ["", [], [""], [[]], [1, "a"], ["a", [1], True], [[-1]], 5, {"a": 1}, [[[1]]], None, [True]]
)
def test_a_prompt_is_text_or_ids(prompt: Any) -> None:
    assert text_refused(prompt=prompt).param == "prompt"


def test_prompts_and_their_number() -> None:
    def prompts(value: Any) -> Any:
        return CompletionRequest.parse(json.dumps({"model": "m", "prompt": value}).encode()).prompts

    assert prompts("a") == ["a"]
    assert prompts(["a", [5]]) == ["a", [5]]
    assert prompts([1, 2]) == [[1, 2]]
    assert prompts([[1, 2], [3]]) == [[1, 2], [3]]
    assert text_refused(prompt=["a"] * 65, n=2).param == "n"
    for field, value in (("echo", True), ("best_of", 2), ("suffix", "x")):
        assert text_refused(prompt="a", **{field: value}).code == "unsupported_parameter"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (DataError("x"), 400, "invalid_value"),
        (UnknownTrajectoryError("x"), 404, "unknown_trajectory"),
        (EngineClosedError("x"), 503, "engine_closed"),
        (RecursionError("x"), 400, "invalid_value"),
        (KeyError("x"), 500, "internal_error"),
    ],
)
def test_errors_have_a_status_and_a_code(error: Exception, status: int, code: str) -> None:
    told = as_api_error(error)
    assert (told.status, told.code) == (status, code)
    assert code in ERROR_CODES
    assert set(told.body()["error"]) == {"message", "type", "param", "code"}


TEXTS = {7: "é", 8: "\ufffd", 9: "a"}


def test_b051_logprobs_are_finite_and_bytes_null_for_a_part_of_a_character() -> None:
    content = logprobs_content([7, 8], [float("-inf"), -0.5], [], TEXTS.__getitem__)["content"]
    assert content == [
        {"token": "é", "logprob": -9999.0, "bytes": [195, 169], "top_logprobs": []},
        {"token": "\ufffd", "logprob": -0.5, "bytes": None, "top_logprobs": []},
    ]


def test_b051_alternatives_come_in_order_with_finite_logprobs() -> None:
    content = logprobs_content([9], [-1.0], [((7, -0.5), (9, float("-inf")))], TEXTS.__getitem__)["content"]
    assert content[0]["top_logprobs"] == [
        {"token": "é", "logprob": -0.5, "bytes": [195, 169]},
        {"token": "a", "logprob": -9999.0, "bytes": [97]},
    ]


def test_logprobs_of_a_text() -> None:
    top = [((9, -0.5), (8, -1.0)), ((7, float("-inf")),)]
    assert text_logprobs([9, 7], [-0.5, -2.0], top, TEXTS.__getitem__, offset=3) == {
        "tokens": ["a", "é"],
        "token_logprobs": [-0.5, -2.0],
        "top_logprobs": [{"a": -0.5, "\ufffd": -1.0}, {"é": -9999.0}],
        "text_offset": [3, 4],
    }
    assert text_logprobs([], [], [], TEXTS.__getitem__, offset=3)["text_offset"] == []
    assert text_logprobs([9], [-0.5], [], TEXTS.__getitem__, offset=0)["top_logprobs"] is None


def test_b051_no_event_can_hold_nan() -> None:
    assert sse({"a": "é\n"}) == 'data: {"a":"é\\n"}\n\n'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        sse({"a": float("nan")})


def test_usage_adds_up() -> None:
    assert usage(3, 4) == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def test_the_finish_reason_tells_calls_only_of_a_whole_answer() -> None:
    calls: dict[str, Any] = {"tool_calls": [{}]}
    assert [wire_finish_reason("stop", calls), wire_finish_reason("length", calls), wire_finish_reason("stop", {})] == [
        "tool_calls",
        "length",
        "stop",
    ]
