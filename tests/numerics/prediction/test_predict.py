"""Whole models: the prediction beside what is observed, and the bound above it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import PreTrainedModel

from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.emulate import emulate
from layerlab.numerics.prediction.attention_correlation import Correlation
from layerlab.numerics.prediction.predict import Prediction, _lay, spreads
from tests.support.refused import refuses

FORMATS = ("bf16", "fp16", "fp8_e4m3", "t16", "fp32")
MEDIUM = {
    "gpt2": {"n_embd": 64, "n_head": 4},
    "llama": {"hidden_size": 64, "intermediate_size": 160},
    "qwen3": {"hidden_size": 64, "intermediate_size": 160, "head_dim": 16},
    "gemma2": {"hidden_size": 64, "intermediate_size": 160, "head_dim": 16},
}
COMMON = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


def built(family: str, seed: int = 0, attention: str = "eager", **changes: Any) -> PreTrainedModel:
    from transformers import AutoConfig, AutoModelForCausalLM

    small = {"n_layer": 2} if family == "gpt2" else COMMON
    options = {"vocab_size": 128, "bos_token_id": 0, "eos_token_id": 0, **small, **MEDIUM[family]}
    config = AutoConfig.for_model(family, **{**options, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, attn_implementation=attention
        )
    return model.eval()


def blocks(model: PreTrainedModel) -> list[nn.Module]:
    inner: Any = model.get_submodule(model.base_model_prefix)
    return list(inner.h if hasattr(inner, "h") else inner.layers)


def tokens(seed: int = 0, count: int = 32) -> Tensor:
    return torch.randint(0, 128, (2, count), generator=torch.Generator().manual_seed(seed))


def observed(
    model: nn.Module, call: Callable[[], Any], modules: list[nn.Module], given: Any
) -> Any:
    """The outputs of modules, and the logits, of an emulated run."""
    seen: list[Tensor] = []

    def take(module: nn.Module, args: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        seen.append(first.held.double())

    handles = [module.register_forward_hook(take) for module in modules]
    with torch.no_grad(), emulate(model, *given[:1], **given[1]):
        output = call()
    for handle in handles:
        handle.remove()
    last = getattr(output, "logits", output)
    return [*seen, last.detach().double()]


def relative(error: Tensor, value: Tensor) -> float:
    """Root mean square over tokens of ||error|| / ||value||."""
    return float((error.norm(dim=-1) / value.norm(dim=-1)).square().mean().sqrt())


@pytest.mark.parametrize(
    ("family", "attention"),
    [
        ("gpt2", "eager"),
        pytest.param("llama", "eager", marks=pytest.mark.full),
        pytest.param("gemma2", "eager", marks=pytest.mark.full),
        ("qwen3", "sdpa"),
    ],
)
def test_prediction_is_within_30_percent_on_random_weights(family, attention):
    model = built(family, attention=attention)
    ids = tokens()
    call = partial(model, ids)
    for format in FORMATS if family == "llama" else ("bf16",):
        values, found = spreads(model, call, make_arithmetic(format), blocks(model), "variance")
        seen = observed(model, call, blocks(model), (format, {}))
        for one, value, spread in zip(seen, values, found, strict=True):
            ratio = relative(one - value, value) / relative(spread, value)
            assert 0.7 < ratio < 1.3, (format, ratio)


@pytest.mark.full
@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("bf16", {"accumulate": 1}),
        ("t11", {"accumulate": 8}),
        ("fp16", {"cache": "int8"}),
        ("int8", {}),
        ("mxfp8_e4m3", {}),
    ],
)
def test_prediction_and_bound_with_options(format, options):
    # Narrow: sums of products that are rounded one by one take a step per feature.
    width = 16 if options.get("accumulate") == 1 else 32
    narrow = {"hidden_size": width, "intermediate_size": 2 * width}
    model = built("llama", num_hidden_layers=1, **narrow)
    ids = tokens(count=12)
    call = partial(model, ids)
    seen = observed(model, call, [], (format, options))[0]
    given = make_arithmetic(format, **options)
    (value,), (spread,) = spreads(model, call, given, [], "variance")
    assert 0.7 < relative(seen - value, value) / relative(spread, value) < 1.3
    (value,), (bound,) = spreads(model, call, given, [], "bound")
    assert ((seen - value).abs() <= bound).all()


def test_only_what_is_chosen_is_predicted():
    model = built("gpt2")
    ids = tokens()
    call = partial(model, ids)
    place = "transformer.h.1.mlp"
    given = {"where": place}
    seen = observed(model, call, blocks(model), ("fp16", given))
    values, found = spreads(model, call, make_arithmetic("fp16"), blocks(model), "variance", place)
    assert found[0].abs().max() == 0.0
    for one, value, spread in zip(seen[1:], values[1:], found[1:], strict=True):
        assert 0.7 < relative(one - value, value) / relative(spread, value) < 1.3


@pytest.mark.full
@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    family=st.sampled_from(["gpt2", "llama", "qwen3"]),
    attention=st.sampled_from(["eager", "sdpa"]),
    format=st.sampled_from([*FORMATS, "t11", "tf32", "fp4_e2m1"]),
    mode=st.sampled_from(["as-run", "flat"]),
    rounding=st.sampled_from(["nearest", "stochastic", "up"]),
    scale=st.sampled_from([1e-3, 0.1, 1.0, 3.0, 20.0]),
)
def test_bound_is_never_exceeded(seed, family, attention, format, mode, rounding, scale):
    """Random models whose matrices are scaled from harmless to saturating."""
    model = built(family, seed, attention, initializer_range=0.05)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale if parameter.dim() > 1 else 1.0)
    ids = tokens(seed, 8)
    call = partial(model, ids)
    given = {"mode": mode, "rounding": rounding}
    seen = observed(model, call, blocks(model), (format, given))
    values, bounds = spreads(model, call, make_arithmetic(format, **given), blocks(model), "bound")
    for one, value, bound in zip(seen, values, bounds, strict=True):
        assert not bound.isnan().any()
        error = (one - value).abs()
        assert (bound[~error.isfinite()] == torch.inf).all()
        assert (error <= bound)[error.isfinite()].all()


class Power(nn.Module):
    """x^n, of numbers that are products."""

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self.exponent = exponent

    def forward(self, x: Tensor) -> Tensor:
        return (x * 1.1) ** self.exponent


@pytest.mark.parametrize("exponent", [2, 3, -2, 2.3, -0.7])
@pytest.mark.parametrize("format", ["bf16", "fp16", "t8", "fp32"])
def test_powers_are_predicted_with_what_their_kernels_round_inside(format, exponent):
    """The cube's square and 1/x^2's are rounded, and an exponent has the digits of the format."""
    model = Power(exponent)
    x = 2.0 ** torch.empty(4096).uniform_(-2, 2, generator=torch.Generator().manual_seed(0))
    call = partial(model, x)
    seen = observed(model, call, [], (format, {}))[0]
    (value,), (spread,) = spreads(model, call, make_arithmetic(format), [], "variance")
    ratio = ((seen - value) / value).norm() / (spread / value).norm()
    assert 0.95 < ratio < 1.05
    (value,), (bound,) = spreads(model, call, make_arithmetic(format), [], "bound")
    assert ((seen - value).abs() <= bound).all()
    # No bound of nothing: some number comes near it.
    assert ((seen - value).abs() / bound).max() > 0.5


@pytest.mark.full
def test_bound_speaks_at_float32():
    """After one block it is a small number still, and above what is predicted."""
    model = built("llama")
    ids = tokens()
    call = partial(model, ids)
    modules = blocks(model)[:1]
    values, bounds = spreads(model, call, make_arithmetic("fp32"), modules, "bound")
    _, found = spreads(model, call, make_arithmetic("fp32"), modules, "variance")
    assert relative(found[0], values[0]) < relative(bounds[0], values[0]) < 1e-3


@pytest.mark.few(2)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("family", "front"), [("gpt2", "drop"), ("llama", "embed_tokens")])
@pytest.mark.parametrize("format", ["fp32", "t40"])
def test_bound_is_below_1_behind_a_block(family, front, attention, format):
    """Masks at the end of the range and the sum of the weights let nothing grow."""
    model = built(family, attention=attention)
    inner: Any = model.get_submodule(model.base_model_prefix)
    modules = [inner.get_submodule(front), blocks(model)[0]]
    values, bounds = spreads(
        model, lambda: model(tokens(count=8)), make_arithmetic(format), modules, "bound"
    )
    for value, bound in zip(values[:2], bounds[:2], strict=True):
        assert relative(bound, value) < 1


def test_scores_that_are_unknown_leave_fused_attention_among_its_values():
    """The bound of the weights' quotient alone is infinite: every score is off by dozens."""
    model = Sharp()
    x = torch.randn(1, 6, 8, generator=torch.Generator().manual_seed(0))
    call = partial(model, x)
    (value,), (bound,) = spreads(model, call, make_arithmetic("bf16"), [], "bound")
    with emulate(model, "bf16"):
        seen = call().double()
    assert ((seen - value).abs() <= bound).all()
    assert bound.max() <= 4 * x.abs().max()


class Sharp(nn.Module):
    """Attention whose scores are in the thousands."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(61.7))

    def forward(self, x: Tensor) -> Tensor:
        asked = x * self.factor
        return nn.functional.scaled_dot_product_attention(asked, asked, x, is_causal=True)


def test_float64_is_what_it_is():
    """Nothing is rounded there, and a mask at the end of its range harms no bound."""
    model = built("llama")
    ids = tokens()
    call = partial(model, ids)
    values, bounds = spreads(model, call, make_arithmetic("fp64"), blocks(model), "bound")
    assert relative(bounds[0], values[0]) < 1e-10
    _, found = spreads(model, call, make_arithmetic("fp64"), blocks(model), "variance")
    assert all((one == 0).all() for one in found)


class Attending(nn.Module):
    """Keys and values that are much alike: softmax and its weights' sum take most errors away."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.parts = nn.Parameter(torch.randn(3, 16, 16, generator=generator) / 4)
        self.shift = nn.Parameter(torch.randn(2, 16, generator=generator) * 8)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = x @ self.parts
        key, value = key + self.shift[0], value + self.shift[1]
        weights = torch.softmax((query[None] @ key[None].mT) * 0.3, dim=-1)
        return (weights @ value[None]) - self.shift[1]


def test_what_scores_share_and_weights_exchange_is_known(monkeypatch):
    model = Attending()
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
    call = partial(model, x)
    seen = observed(model, call, [], ("t12", {}))[0]

    def ratio() -> float:
        (value,), (spread,) = spreads(model, call, make_arithmetic("t12"), [], "variance")
        return float((seen[0] - value[0]).norm() / spread[0].norm())

    assert 0.7 < ratio() < 1.3
    monkeypatch.setattr(Correlation, "spread", lambda *given: None)
    assert ratio() < 0.7


class Written(nn.Module):
    """Writes into views, as caches do."""

    def forward(self, x: Tensor) -> Tensor:
        table = torch.zeros(2, 4, dtype=x.dtype)
        row = table[1]
        row.copy_(x.exp())
        row.mul_(3.0)
        table[0].add_(row, alpha=2.0)
        return table


class Returned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        row = x.exp() * 3.0
        return torch.stack([torch.zeros_like(row).add(row, alpha=2.0), row])


@pytest.mark.parametrize("kind", ["variance", "bound"])
def test_what_is_written_in_place_carries_its_spread(kind):
    x = torch.randn(4, generator=torch.Generator().manual_seed(0))
    readings = []
    for model in (Written(), Returned()):
        given = make_arithmetic("t12")
        readings.append(spreads(model, lambda m=model: m(x), given, [], kind)[1][0])  # type: ignore[misc]
    assert (readings[0] > 0).all()
    torch.testing.assert_close(readings[0], readings[1], rtol=1e-12, atol=0.0)


class Choosing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 1.1
        return torch.where(y > 1.1, y, -y)


@pytest.mark.parametrize(("value", "decided"), [(1.0, False), (2.0, True)])
def test_a_choice_within_the_error_has_no_bound(value, decided):
    model = Choosing()
    x = torch.full((3,), value)
    _, (bound,) = spreads(model, lambda: model(x), make_arithmetic("bf16"), [], "bound")
    assert (bound.isfinite() == decided).all()
    run = Prediction(model, make_arithmetic("bf16"), "bound")
    with run.running():
        model(x)
    assert bool(run.undecided) is not decided


class Strange(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x * 1.1)


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = [torch.zeros(3)]

    def forward(self, x: Tensor) -> Tensor:
        return self.memory[0].copy_(x.exp()) * 2.0


class Gated(nn.Linear):
    """Rows that a mask switches off, behind a logarithm that keeps its exponential for later."""

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:  # type: ignore[override]
        return nn.functional.logsigmoid(super().forward(x)) * kept


@pytest.mark.parametrize("kind", ["variance", "bound"])
def test_masks_of_bools_and_what_is_left_for_a_backward_pass_have_no_error(kind):
    torch.manual_seed(0)
    model, x = Gated(16, 16), torch.randn(64, 16)
    kept = (torch.arange(64) % 2 == 0)[:, None]
    call, arithmetic = partial(model, x, kept), make_arithmetic("bf16")
    values, found = spreads(model, call, arithmetic, [model], kind)
    off = observed(model, call, [model], ("bf16", {}))[-1] - values[-1]
    spread = found[-1]
    assert (spread[1::2] < 1e-30).all() and (spread[::2] > 0).all()
    assert (off.abs() <= spread).all() or kind == "variance"
    size = off[::2].norm() / spread[::2].norm()
    assert 0.7 < size < 1.4 or kind == "bound"


@pytest.mark.parametrize(
    ("model", "given", "text"),
    [
        (
            Strange(),
            ([], "variance"),
            r"errors cannot be followed through \S*special_bessel_j0\S*: no rule",
        ),
        (Remembering(), ([], "variance"), "into a tensor made before the run"),
        (Choosing(), ([nn.Linear(2, 2)], "bound"), "gave no tensor: its output cannot be read"),
        (Choosing(), ([], "range"), "is none of 'variance', 'sampled', 'bound'"),
        (Choosing(), ([], "variance", "transformer.h.9"), "matches nothing in this model"),
    ],
)
def test_mistakes_are_named(model, given, text):
    refuses(text, spreads, model, lambda: model(torch.ones(3)), make_arithmetic("bf16"), *given)


def test_an_error_lies_on_the_device_of_its_value():
    like = torch.empty(4, 8, device="meta")
    laid = _lay(torch.empty(8, 4, device="meta").T, like)
    assert (laid.device, laid.stride()) == (like.device, like.stride())
