"""Emulation beside what it stands for: torch's own low-precision runs, float64, a literal loop."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import layerlab
from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.emulate import Emulation, emulate, reference
from layerlab.numerics.emulation.emulated_tensor import EmulatedTensor
from layerlab.numerics.formats.round import round_to
from tests.measures.family import built

TOKENS = 160
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
OURS = ("pangu-pi", "mhc", "attention-residuals", "canon", "widenet")


def words(model: nn.Module, tokens: int = 64, rows: int = 1) -> Tensor:
    drawn = torch.Generator().manual_seed(3)
    return torch.randint(3, model.config.vocab_size, (rows, tokens), generator=drawn)


def ours(name: str) -> nn.Module:
    model = layerlab.build(name, width=48, layers=2, heads=4, vocab=64, context=TOKENS)
    return model.eval()


def distance(value: Tensor, exact: Tensor) -> float:
    return float((value.double() - exact.double()).norm() / exact.double().norm())


def typical(value: Tensor, exact: Tensor) -> float:
    """The median token's error: where a router takes another expert, a token's error is one."""
    error = (value.double() - exact.double()).norm(dim=-1) / exact.double().norm(dim=-1)
    return float(error.median())


def lowered(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy as transformers would load it: parameters low, tables that it computes in float32."""
    low = copy.deepcopy(model)
    for parameter in low.parameters():
        parameter.data = parameter.data.to(dtype)
    return low


def runs(model, format):
    """Logits in float64, emulated, and as torch itself computes them in a format."""
    ids = words(model, 64, rows=4)
    with reference(model):
        exact = model(ids).logits
    with emulate(model, format):
        emulated = model(ids).logits
    with torch.no_grad():
        real = lowered(model, DTYPES[format])(ids).logits
    return exact, emulated, real


@pytest.mark.few(2)
@pytest.mark.parametrize("format", ["bf16", pytest.param("fp16", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "family", ["gpt2", "llama", "qwen3", "gemma2", "mixtral", "gpt_neox", "phi", "ours"]
)
def test_as_run_errs_as_much_as_torch_itself(family, format):
    model = ours("pangu-pi") if family == "ours" else built(family)
    exact, emulated, real = runs(model, format)
    assert typical(emulated, exact) == pytest.approx(typical(real, exact), rel=0.1)
    # The same roundings, not only as many: the two are nearer to one another than to the truth.
    assert typical(emulated, real) < typical(real, exact)


def test_a_model_with_cubes_is_torch_s_own_run_but_for_the_order_of_sums():
    model = built("gptj")
    model.set_attn_implementation("eager")
    exact, emulated, real = runs(model, "bf16")
    # With the cube rounded once the two are apart by a third of the error.
    assert typical(emulated, real) < 0.1 * typical(real, exact)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", OURS)
def test_every_kind_of_block_can_be_emulated(name):
    model = ours(name)
    ids = words(model)
    with reference(model):
        exact = model(ids).logits
    with emulate(model, "bf16") as run:
        error = typical(model(ids).logits, exact)
    with torch.no_grad():
        real = typical(lowered(model, torch.bfloat16)(ids).logits, exact)
    assert run.roundings
    assert error == pytest.approx(real, rel=0.15)


def gradient_errors(
    model: nn.Module, ids: Tensor, mode: str, real: dict[str, Tensor]
) -> tuple[float, float]:
    """How far the emulated gradients in bf16 are from float64, and how far torch's own are."""
    found = []
    for block in (reference(model, backward=True), emulate(model, "bf16", mode, backward=True)):
        with block as run:
            model(ids, labels=ids).loss.backward()
        found.append(run.gradients)
    assert set(found[1]) == set(real)
    assert all(parameter.grad is None for parameter in model.parameters())
    exact, emulated, own = (
        torch.cat([table[name].double().flatten() for name in real]) for table in (*found, real)
    )
    return distance(emulated, exact), distance(own, exact)


def own_gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_gradients_err_as_much_as_torch_s_own(family):
    model = built(family)
    model.set_attn_implementation("eager")
    ids = words(model)
    low = lowered(model, torch.bfloat16)
    low(ids, labels=ids).loss.backward()
    emulated, real = gradient_errors(model, ids, "as-run", own_gradients(low))
    assert emulated == pytest.approx(real, rel=0.1)


def test_float32_of_a_float64_model_is_the_float32_run():
    model = built("llama")
    ids = words(model)
    with torch.no_grad():
        single = model(ids).logits
    with emulate(model.double(), "fp32") as run:
        emulated = model(ids).logits
    with reference(model):
        exact = model(ids).logits
    assert run.wide == torch.float64
    # Both sum n terms in some order, so they differ by no more than either errs.
    assert 0 < distance(emulated, exact) <= 2 * distance(single, exact)
    assert distance(emulated, single) <= 2 * distance(single, exact)


def test_the_reference_is_float64_also_where_the_code_asks_for_float32():
    """Llama's norms, rotary tables and softmax go to float32; GPT-1's code never does."""
    gpt = built("openai-gpt")
    with reference(gpt):
        exact = gpt(words(gpt)).logits
    with torch.no_grad():
        doubled = copy.deepcopy(gpt).double()(words(gpt)).logits
    assert exact.dtype == torch.float64
    assert distance(exact, doubled) < 1e-13
    llama = built("llama")
    with reference(llama):
        exact = llama(words(llama)).logits
    with torch.no_grad():
        islands = copy.deepcopy(llama).double()(words(llama)).logits
    assert distance(islands, exact) > 1e-9


@pytest.mark.full
@settings(max_examples=25, deadline=None)
@given(
    width=st.integers(1, 9),
    tokens=st.integers(1, 4),
    seed=st.integers(0, 2**20),
    format=st.sampled_from(["bf16", "t11", "fp8_e5m2", "t8"]),
    terms=st.sampled_from([1, 3]),
)
def test_a_linear_layer_is_a_hand_written_loop(width, tokens, seed, format, terms):
    torch.manual_seed(seed)
    layer = nn.Linear(width, 5).double()
    x = torch.randn(tokens, width, dtype=torch.float64)
    x = round_to(x, format)
    with emulate(layer, format, "flat", accumulate=terms) as run:
        found = layer(EmulatedTensor(x.to(run.wide), torch.float32))
    weight, bias = round_to(layer.weight.data, format), round_to(layer.bias.data, format)
    for token in range(tokens):
        for out in range(5):
            total = torch.zeros(1, dtype=torch.float64)
            for start in range(0, width, terms):
                part = x[token, start : start + terms] * weight[out, start : start + terms]
                part = round_to(part, format) if terms == 1 else part
                total = round_to(total + part.sum(), format)
            assert found[token, out].double() == round_to(total + bias[out], format)


@pytest.mark.full
def test_only_chosen_places_are_rounded():
    model = built("llama")
    ids = words(model)
    with reference(model):
        exact = model(ids).logits
    errors = {}
    for where in ("model.layers.0.mlp", "*.self_attn:scores", "lm_head", "*norm*", "*:weight"):
        with emulate(model, "t16", where=where) as run:
            errors[where] = distance(model(ids).logits, exact)
        assert {str(place) for place in run.roundings}
        assert errors[where] > 0, where
    with emulate(model, "t16") as run:
        whole = distance(model(ids).logits, exact)
    assert all(error < whole for error in errors.values())
    assert {place.layer for place in run.roundings} == {0, 1, None}


def test_one_emulation_runs_again_with_other_places():
    model = built("gpt2")
    ids = words(model)
    run = Emulation(model, make_arithmetic("bf16"))
    outputs = {}
    for where in ("*.mlp", None, "*.mlp"):
        run.select(where)
        with run.running():
            outputs.setdefault(where, []).append(model(ids).logits)
    with emulate(model, "bf16"):
        fresh = model(ids).logits
    assert torch.equal(*outputs["*.mlp"])
    assert torch.equal(outputs[None][0], fresh)


def test_flat_rounds_what_the_code_keeps_in_float32():
    model = built("llama")
    ids = words(model)
    found = {}
    for mode in ("as-run", "flat"):
        with emulate(model, "bf16", mode) as run:
            model(ids)
        found[mode] = run.roundings
    norm = "model.layers.0.input_layernorm"
    counted = {
        mode: sum(n for p, n in table.items() if str(p) == norm) for mode, table in found.items()
    }
    assert counted["flat"] > counted["as-run"] > 0


@pytest.mark.parametrize("family", ["llama", "ctrl", "openai-gpt"])
def test_nothing_is_left_behind_even_by_an_exception(family):
    model = built(family)
    ids = words(model)
    before = {
        name: (id(value), value.clone()) for name, value in model.state_dict(keep_vars=True).items()
    }
    hooks = [
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    ]
    with torch.no_grad():
        logits = model(ids).logits

    class Stop(Exception):
        pass

    def stop(*call: object) -> None:
        raise Stop

    handle = list(model.modules())[-1].register_forward_hook(stop)
    with pytest.raises(Stop), emulate(model, "fp8_e4m3", "flat"):
        model(ids)
    handle.remove()
    after = model.state_dict(keep_vars=True)
    assert {name: id(value) for name, value in after.items()} == {
        n: v[0] for n, v in before.items()
    }
    assert all(torch.equal(after[name], value) for name, (_, value) in before.items())
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    tensors = (v for m in model.modules() for v in (*vars(m).values(), *m._buffers.values()))
    assert not any(isinstance(value, EmulatedTensor) for value in tensors)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, logits)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("format", "mode"),
    # Flat, four bits round a norm's variance to 0, and 0/0 is right.
    [("bf16", "flat"), ("fp8_e4m3", "flat"), ("fp8_e4m3", "as-run"), ("fp4_e2m1", "as-run")],
)
def test_masks_survive(format, mode):
    model = built("llama")
    model.set_attn_implementation("eager")
    ids = words(model, 12, rows=2)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    with emulate(model, format, mode):
        padded = model(ids, attention_mask=mask).logits
        alone = model(ids[:1, 4:]).logits
    assert padded.isfinite().all()
    # What is hidden has no weight: one row's future changes nothing of its past.
    with emulate(model, format, mode):
        changed = ids.clone()
        changed[:, -1] = 5
        again = model(changed, attention_mask=mask).logits
    assert torch.equal(again[1, :-1], padded[1, :-1])
    assert alone.shape == padded[:1, 4:].shape


@pytest.mark.full
def test_it_generates():
    model = built("llama")
    ids = words(model, 6)
    with emulate(model, "fp32"):
        emulated = model.generate(ids, max_new_tokens=5, do_sample=False)
    assert torch.equal(emulated, model.generate(ids, max_new_tokens=5, do_sample=False))


@pytest.mark.full
def test_weights_activations_and_cache_have_formats_of_their_own():
    model = built("llama")
    ids = words(model)
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in rounded.parameters():
            if parameter.dim() > 1:  # gains are no factors of products
                parameter.copy_(round_to(parameter, "fp8_e4m3"))
        expected = rounded(ids).logits
    with emulate(model, "fp32", weights="fp8_e4m3"):
        stored = model(ids).logits
    assert distance(stored, expected) < 1e-5
    with reference(model):
        exact = model(ids).logits
    errors = {}
    for option in ("weights", "activations", "cache"):
        with emulate(model, "fp32", **{option: "int8"}) as run:
            errors[option] = distance(model(ids).logits, exact)
        assert errors[option] > 1e-4
    assert any(place.operation == "cache" for place in run.roundings)


def test_tied_weights_stay_one():
    model = built("gpt2")
    with emulate(model, "bf16", backward=True) as run:
        assert model.lm_head.weight is model.transformer.wte.weight
        model(words(model), labels=words(model)).loss.backward()
    assert model.lm_head.weight is model.transformer.wte.weight
    assert "transformer.wte.weight" in run.gradients
    assert "lm_head.weight" not in run.gradients


def test_stochastic_rounding_repeats_with_its_seed():
    model = built("gpt2")
    ids = words(model)
    found = []
    for seed in (1, 1, 2):
        with emulate(model, "bf16", rounding="stochastic", seed=seed):
            found.append(model(ids).logits)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Conv1d(3, 4, 3), (2, 3, 8)),
        (nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.LayerNorm(5)), (7, 6)),
        (nn.TransformerEncoderLayer(16, 2, batch_first=True).eval(), (1, 5, 16)),
    ],
)
def test_any_module_takes_features(model, shape):
    torch.manual_seed(0)
    x = torch.randn(shape)
    with reference(model):
        exact = model(x)
    with emulate(model, "bf16") as run:
        emulated = model(x)
    with torch.no_grad():
        real = copy.deepcopy(model).to(torch.bfloat16)(x.to(torch.bfloat16))
    assert type(emulated) is Tensor
    assert any(place.operation == "input" for place in run.roundings)
    # A few numbers, so a third more or less is chance; both are far from none and from all.
    assert distance(emulated, exact) == pytest.approx(distance(real, exact), rel=0.5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_run_step_by_step(kind):
    torch.manual_seed(0)
    model = kind(4, 5, batch_first=True)
    x = torch.randn(2, 6, 4)
    with torch.no_grad():
        single = model(x)[0]
    enabled = torch._C._get_mkldnn_enabled()
    with reference(model):
        exact = model(x)[0]
    assert distance(single, exact) < 1e-5
    with emulate(model, "t8") as run:
        narrow = distance(model(x)[0], exact)
    assert {"sigmoid", "tanh", "mul"} <= {place.operation for place in run.roundings}
    with emulate(model, "t16"):
        assert distance(model(x)[0], exact) < narrow / 50
    assert torch._C._get_mkldnn_enabled() == enabled


def test_hidden_states_and_embeddings_are_plain():
    model = built("llama")
    embedded = torch.randn(1, 6, model.config.hidden_size)
    with emulate(model, "bf16"):
        output = model(inputs_embeds=embedded, output_hidden_states=True)
    assert all(type(value) is Tensor for value in (output.logits, *output.hidden_states))
