"""Attention over a forest against softmax attention written out for each token's own history."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from art_core.errors import ConfigError
from art_core.trainers import attention, attention_block
from art_core.trainers.attention import SegmentLayout, segment_attention
from art_core.trainers.batch import Segment

# A prompt with two forks, of which the first forks again, and a row of its own.
FOREST = (
    Segment(0, 7, (), 0),
    Segment(7, 12, (0,), 7),
    Segment(12, 15, (0, 1), 12),
    Segment(15, 16, (0, 1), 12),
    Segment(16, 22, (0,), 7),
    Segment(22, 27, (), 0),
)
TOKENS, HEADS, KV_HEADS, SIZE, SCALE = 27, 6, 2, 8, 0.3


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, HEADS, TOKENS, SIZE), (1, KV_HEADS, TOKENS, SIZE), (1, KV_HEADS, TOKENS, SIZE))
    q, k, v = (torch.randn(shape, generator=generator).requires_grad_() for shape in shapes)
    return q, k, v


def written_out(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    outputs = []
    for segment in FOREST:
        before = [at for index in segment.ancestors for at in range(FOREST[index].start, FOREST[index].stop)]
        for at in range(segment.start, segment.stop):
            seen = [*before, *range(segment.start, at + 1)][-(window or TOKENS) :]
            of_head = []
            for head in range(HEADS):
                shared = head // (HEADS // KV_HEADS)
                weights = (SCALE * k[0, shared, seen] @ q[0, head, at]).softmax(-1)
                of_head.append(weights @ v[0, shared, seen])
            outputs.append(torch.stack(of_head))
    return torch.stack(outputs)[None]


def packed(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    layout = SegmentLayout(FOREST, device=torch.device("cpu"))
    output, _ = segment_attention(nn.Identity(), q, k, v, None, scaling=SCALE, sliding_window=window, segments=layout)
    return output


@pytest.mark.parametrize("kernel", ["fused", "plain"])
@pytest.mark.parametrize("window", [None, 1, 4, 9, 1000])
@pytest.mark.parametrize("chunk", [2, 512])
def test_output_and_gradients_are_those_of_the_formula(
    monkeypatch: pytest.MonkeyPatch, kernel: str, window: int | None, chunk: int
) -> None:
    monkeypatch.setattr(attention, "_WINDOW_CHUNK", chunk)
    if kernel == "plain":  # what is used where torch has no fused kernel that returns normalisers
        monkeypatch.setattr(attention_block, "_has_fused", lambda _q, _v: False)
        monkeypatch.setattr(attention_block, "_LARGEST_SCORES", 100 * chunk)
    weight = torch.randn(1, TOKENS, HEADS, SIZE, generator=torch.Generator().manual_seed(1))
    ours, reference = inputs(), inputs()
    found, expected = packed(*ours, window), written_out(*reference, window)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    (found * weight).sum().backward()  # type: ignore[no-untyped-call]
    (expected * weight).sum().backward()  # type: ignore[no-untyped-call]
    for mine, theirs in zip(ours, reference, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=1e-5)


def test_bfloat16_is_rounded_once() -> None:
    q, k, v = (each.detach().bfloat16() for each in inputs())
    found, exact = packed(q, k, v, None), written_out(q.float(), k.float(), v.float(), None)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, rtol=2**-6, atol=2**-6)


def test_what_is_kept_grows_with_the_tokens_only() -> None:
    """Queries, keys, values, output and normalisers: no scores, no masks, no copies of an ancestor's keys."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        packed(*inputs(), 4)
    numbers_per_token = 2 * HEADS * SIZE + 2 * KV_HEADS * SIZE + HEADS
    assert sum(kept.values()) == 4 * TOKENS * numbers_per_token


def test_a_model_that_does_not_hand_on_the_layout_is_refused() -> None:
    with pytest.raises(ConfigError, match="Identity does not hand keyword arguments on"):
        segment_attention(nn.Identity(), *inputs(), None)
