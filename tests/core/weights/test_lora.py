from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from art_core.errors import AdapterMismatchError, ConfigError
from art_core.testing import write_tiny_model
from art_core.weights.lora import (
    LoraConfig,
    LoraLinear,
    check_fits,
    inject,
    merged_weight,
    read_adapter,
    target_linears,
    write_adapter,
)

CONFIG = LoraConfig(rank=4, alpha=8.0)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small gain nothing from threads, and waiting for a busy core makes them a hundred times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def linear(*, bias: bool = False, dtype: torch.dtype = torch.float32) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(5, 3, bias=bias, dtype=dtype)


def layer(base: nn.Linear) -> LoraLinear:
    result = LoraLinear(base, LoraConfig(rank=2, alpha=3.0), torch.Generator().manual_seed(1))
    result.lora_B.data.normal_(generator=torch.Generator().manual_seed(2))
    result.refresh()
    return result


def randomise(layers: dict[str, LoraLinear]) -> None:
    generator = torch.Generator().manual_seed(7)
    for each in layers.values():
        each.lora_B.data.normal_(0.0, 0.1, generator=generator)
        each.refresh()


def test_merged_weight_by_hand() -> None:
    merged = merged_weight(torch.ones(2, 2), torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [-1.0]]), scale=0.5)
    assert merged.tolist() == [[2.5, 4.0], [0.5, 0.0]]


def test_merged_weight_is_rounded_once() -> None:
    """1 + 2^-9 + 2^-9 needs float32 on the way to the bfloat16 that holds 1 + 2^-7 but not 1 + 2^-9."""
    base = torch.tensor([[1.0]], dtype=torch.bfloat16)
    small = torch.tensor([[2.0**-4], [2.0**-4], [2.0**-4], [2.0**-4]])
    assert merged_weight(base, small, small.T, scale=0.5).item() == 1.0 + 2.0**-7
    assert merged_weight(base, small, small.T, scale=0.5).dtype == torch.bfloat16


@pytest.mark.parametrize("bias", [False, True])
def test_a_fresh_layer_is_its_base(bias: bool) -> None:
    base = linear(bias=bias)
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(3))
    assert torch.equal(LoraLinear(base, CONFIG, torch.Generator())(x), base(x))


@pytest.mark.parametrize("bias", [False, True])
def test_output_and_gradients_are_those_of_the_formula(bias: bool) -> None:
    base = linear(bias=bias).requires_grad_(False)
    adapted = layer(base)
    x = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(3), requires_grad=True)
    upstream = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(4))
    y = adapted(x)
    y.backward(upstream)
    a = adapted.lora_A.detach().clone().requires_grad_()
    b = adapted.lora_B.detach().clone().requires_grad_()
    plain_x = x.detach().clone().requires_grad_()
    expected = base(plain_x) + 1.5 * nn.functional.linear(nn.functional.linear(plain_x, a), b)
    expected.backward(upstream)
    torch.testing.assert_close(y, expected)
    for found, wanted in ((x.grad, plain_x.grad), (adapted.lora_A.grad, a.grad), (adapted.lora_B.grad, b.grad)):
        torch.testing.assert_close(found, wanted)


def test_factors_are_float32_beside_a_bfloat16_base() -> None:
    adapted = layer(linear(dtype=torch.bfloat16))
    adapted(torch.ones(1, 5, dtype=torch.bfloat16)).sum().backward()
    assert adapted.merged.dtype == torch.bfloat16
    assert adapted.lora_A.grad is not None
    assert adapted.lora_A.grad.dtype == torch.float32


def test_a_base_that_bfloat16_holds_exactly_takes_half_the_memory() -> None:
    exact = linear()
    exact.weight.data = exact.weight.data.bfloat16().float()
    assert layer(exact).base.dtype == torch.bfloat16
    assert layer(linear()).base.dtype == torch.float32
    reference = merged_weight(exact.weight.detach(), layer(exact).lora_A, layer(exact).lora_B, 1.5)
    assert torch.equal(layer(exact).merged, reference)


def test_without_refresh_the_old_weights_are_used() -> None:
    adapted = layer(linear())
    x = torch.ones(1, 5)
    before = adapted(x)
    adapted.lora_B.data.add_(1.0)
    assert torch.equal(adapted(x), before)
    adapted.refresh()
    assert not torch.equal(adapted(x), before)


def test_inject_replaces_every_target_and_freezes_the_rest(tiny: Path) -> None:
    model = load(tiny)
    layers = inject(model, CONFIG, seed=0)
    assert len(layers) == 2 * 7
    assert all(model.get_submodule(name) is each for name, each in layers.items())
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trainable == {f"{name}.lora_{kind}" for name in layers for kind in "AB"}


def test_the_seed_decides_the_start(tiny: Path) -> None:
    first, same, other = (inject(load(tiny), CONFIG, seed=seed) for seed in (0, 0, 1))
    name = next(iter(first))
    assert torch.equal(first[name].lora_A, same[name].lora_A)
    assert not torch.equal(first[name].lora_A, other[name].lora_A)


def test_a_target_that_is_nowhere_is_refused_with_the_names_there_are(tiny: Path) -> None:
    with pytest.raises(ConfigError, match=r"\['c_attn'\] match no layer of LlamaForCausalLM.*'q_proj'"):
        inject(load(tiny), LoraConfig(target_modules=("q_proj", "c_attn")), seed=0)


def test_a_target_that_is_not_linear_is_refused(tiny: Path) -> None:
    with pytest.raises(ConfigError, match=r"'embed_tokens' is 'model\.embed_tokens', a Embedding"):
        inject(load(tiny), LoraConfig(target_modules=("embed_tokens",)), seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rank": 0}, "rank is 0"), ({"alpha": 0.0}, "alpha is 0"), ({"target_modules": ()}, r"target_modules is \(\)")],
)
def test_impossible_configurations_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoraConfig(**options)


def test_what_is_written_is_read_back_exactly(tiny: Path, tmp_path: Path) -> None:
    layers = inject(load(tiny), CONFIG, seed=0)
    randomise(layers)
    write_adapter(tmp_path, CONFIG, layers, base_model="tiny")
    adapter = read_adapter(tmp_path)
    assert adapter.config == CONFIG
    assert set(adapter.factors) == set(layers)
    for name, (a, b) in adapter.factors.items():
        assert torch.equal(a, layers[name].lora_A)
        assert torch.equal(b, layers[name].lora_B)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == "tiny"


def test_peft_loads_it_and_gives_the_same_logits(tiny: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    ours = load(tiny)
    layers = inject(ours, CONFIG, seed=0)
    randomise(layers)
    write_adapter(tmp_path, CONFIG, layers, base_model="tiny")
    base = load(tiny)
    token_ids = torch.tensor([[1, 10, 20, 30, 40]])
    with torch.no_grad():
        plain: Tensor = base(token_ids).logits
        with warnings.catch_warnings():
            # PEFT asks for it under the name that transformers 5.24 has deprecated.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            theirs: Tensor = PeftModel.from_pretrained(base, tmp_path).eval()(token_ids).logits
        found: Tensor = ours(token_ids).logits
    torch.testing.assert_close(found, theirs, atol=1e-4, rtol=1e-5)
    assert float((found - plain).abs().max()) > 0.1


def _change(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


def _without(key: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "adapter_config.json"
        description = json.loads(path.read_text())
        del description[key]
        path.write_text(json.dumps(description))

    return damage


def _write(name: str, content: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_text(content)

    return damage


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _truncate(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])


def _orphan(folder: Path) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    del tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"]
    save_file(tensors, folder / "adapter_model.safetensors")


def _orphan_b(folder: Path) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    del tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"]
    save_file(tensors, folder / "adapter_model.safetensors")


@pytest.mark.parametrize(
    "damage",
    [
        _remove("adapter_config.json"),
        _remove("adapter_model.safetensors"),
        _write("adapter_config.json", "{"),
        _write("adapter_config.json", "[]"),
        _write("adapter_model.safetensors", "x"),
        _truncate,
        _orphan,
        _orphan_b,
        _without("r"),
        _without("target_modules"),
        _change(r="four"),
        _change(r=0),
        _change(target_modules="all-linear"),
        _change(bias="all"),
        _change(use_dora=True),
        _change(modules_to_save=["lm_head"]),
        _change(rank_pattern={"q_proj": 8}),
        _change(alpha_pattern={"q_proj": 1}),
    ],
)
def test_an_adapter_that_cannot_be_used_as_it_is_is_refused_by_its_folder(
    tiny: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    write_adapter(tmp_path, CONFIG, inject(load(tiny), CONFIG, seed=0), base_model="tiny")
    damage(tmp_path)
    with pytest.raises(AdapterMismatchError, match=str(tmp_path)):
        read_adapter(tmp_path)


def test_rank_stabilised_scaling_is_turned_into_its_alpha(tiny: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path, CONFIG, inject(load(tiny), CONFIG, seed=0), base_model="tiny")
    _change(use_rslora=True)(tmp_path)
    assert read_adapter(tmp_path).config.scale == pytest.approx(8.0 / 4**0.5)


def test_an_adapter_of_another_shape_or_model_is_refused(tiny: Path, tmp_path: Path) -> None:
    model = load(tiny)
    linears = dict(target_linears(model, CONFIG))
    write_adapter(tmp_path, CONFIG, inject(model, CONFIG, seed=0), base_model="tiny")
    adapter = read_adapter(tmp_path)
    check_fits(adapter, linears, source="here")
    name = "model.layers.1.mlp.down_proj"
    with pytest.raises(AdapterMismatchError, match=rf"here: .*'{name}', which this model does not have"):
        check_fits(adapter, {key: value for key, value in linears.items() if key != name}, source="here")
    with pytest.raises(AdapterMismatchError, match=rf"here: .*'{name}' fits a weight of shape \(32, 64\).*\(32, 65\)"):
        check_fits(adapter, {**linears, name: nn.Linear(65, 32)}, source="here")
