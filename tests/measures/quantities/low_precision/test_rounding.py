"""What a low precision does to stream and logits, held against real low-precision runs."""

import copy
from math import inf, isnan

import pytest
import torch
from transformers import AutoModelForCausalLM, GraniteConfig

from layerlab import UserError, emulate
from layerlab.console.progress import Progress
from layerlab.measures.quantities.low_precision.rounding import _vacuous, divergence, error
from layerlab.measures.runner import readings
from layerlab.measures.support.emulated_reruns import forward, parse_formats
from layerlab.numerics.emulation.attribution import error as squared_error
from layerlab.plugins import resolve, with_formats
from layerlab.records.layer_names import EMBEDDING
from tests.measures.asked import subject
from tests.support.refused import refuses

TOKENS = torch.arange(2, 26)


def measured(model, *names, formats="bf16", tokens=(TOKENS,)):
    """Readings of the named measures in these formats."""
    chosen = resolve([f"{name}(formats={formats!r})" for name in names])
    return readings(subject(model), list(tokens), chosen)


def seen(model, tokens=TOKENS):
    """The stream in front of and behind each block, and the logits, in plain PyTorch."""
    blocks = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
    found = []
    first = lambda value: value[0] if isinstance(value, tuple) else value  # noqa: E731
    handles = [b.register_forward_hook(lambda m, a, out: found.append(first(out))) for b in blocks]
    handles.append(blocks[0].register_forward_pre_hook(lambda m, args: found.append(args[0])))
    with torch.no_grad():
        logits = forward(model, tokens).logits
    for handle in handles:
        handle.remove()
    return [one[0] for one in (*found, logits)]


@pytest.mark.parametrize("family", ["gpt2", pytest.param("llama", marks=pytest.mark.full)])
def test_the_observed_error_is_that_of_a_real_run_in_bf16(tiny, family):
    model = tiny(family, attn_implementation="eager")
    found = measured(model, "rounding", "logits")
    real = seen(copy.deepcopy(model).to(torch.bfloat16))
    wide = seen(copy.deepcopy(model).double())
    with emulate(model, "bf16", mode="flat"):
        flat = [one.held for one in seen(model)]
    rows = found.rows["rounding"]
    assert [row["layer"] for row in rows] == [EMBEDDING, 0, 1]
    for row in rows:
        every = error(real[row["layer"] + 1], wide[row["layer"] + 1])
        # The reference here has float32 norms on a llama: off by float32 rounding at most.
        assert row["mean"] == pytest.approx(float(every.mean()), rel=1e-3)
        assert row["worst"] == pytest.approx(float(every.max()), rel=1e-3)
        assert row["low"] <= row["median"] <= row["high"] <= row["worst"]
        assert every[row["worst_token"]] == every.max()
        flatly = error(flat[row["layer"] + 1], wide[row["layer"] + 1])
        assert row["flat"] == pytest.approx(float(flatly.mean()), rel=1e-3)
    logits = next(row for row in found.rows["logits"] if row["mode"] == "as-run")
    assert logits["error"] == pytest.approx(float(error(real[-1], wide[-1]).mean()), rel=1e-3)
    changed = real[-1].argmax(-1) != wide[-1].argmax(-1)
    assert logits["changed"] == pytest.approx(float(changed.double().mean()))


def test_a_running_bound_that_says_nothing_is_named_from_its_first_layer_on():
    rows = [{"layer": layer, "running": bound} for layer, bound in enumerate((0.9, 1.0, 7.0, inf))]
    assert _vacuous("fp16", rows[:1]) == ""
    assert _vacuous("fp16", rows[:3]) == "fp16 from layer 1 on"
    assert _vacuous("fp16", rows) == "fp16 from layer 1 on, infinite from layer 3 on"
    assert _vacuous("fp16", rows[3:]) == "fp16 infinite from layer 3 on"


@pytest.mark.full
def test_shares_of_a_format_that_overflows_are_left_out_with_the_place_where_it_does(tiny):
    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(1e9)
    found = measured(model, "attribution", formats="fp16,bf16")
    shares = {row["format"]: [] for row in found.rows["attribution"]}
    for row in found.rows["attribution"]:
        shares[row["format"]].append(row["share"])
    assert all(map(isnan, shares["fp16"])) and not any(map(isnan, shares["bf16"]))
    overflow, closure, *_ = found.notes["attribution"]
    assert overflow.startswith("fp16 overflows, first in model.layers.0.mlp.down_proj: no error")
    assert "bf16" in closure and "fp16" not in closure


@pytest.mark.full
def test_fewer_digits_are_further_off_and_the_model_stays_as_it_was(tiny):
    model = tiny("gpt2").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rows = measured(model, "rounding", formats="fp16,bf16,fp8_e4m3").rows["rounding"]
    last = {row["format"]: row["mean"] for row in rows if row["layer"] == 1}
    assert last["fp16"] < last["bf16"] / 4 < last["fp8_e4m3"] / 16
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.full
def test_the_runs_are_shared_and_announced(tiny):
    class Watcher(Progress):
        total, steps = 0, 0

        def begin(self, name, steps=0):
            self.total += steps

        def step(self, now="", steps=1):
            self.steps += steps

    watcher = Watcher()
    chosen = resolve(["rounding(formats='bf16,fp16')", "logits(formats='bf16,fp16')"])
    readings(subject(tiny("gpt2")), [TOKENS, TOKENS + 8], chosen, watcher)
    # For each sequence the reference and Theorem 4.30, and each format as-run, flat, under
    # autocast, predicted twice and bounded: once for both measures.
    assert watcher.steps == watcher.total == 2 * (2 + 6 * 2)


@pytest.mark.full
def test_under_autocast_logits_err_as_torch_s_own_do_and_only_in_its_formats(tiny):
    model = tiny("llama", attn_implementation="eager")
    rows = measured(model, "logits", formats="bf16,fp8_e4m3").rows["logits"]
    assert [(row["format"], row["mode"]) for row in rows] == [
        *(("bf16", mode) for mode in ("as-run", "flat", "autocast")),
        *(("fp8_e4m3", mode) for mode in ("as-run", "flat")),
    ]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        real = seen(model)[-1]
    every = error(real, seen(copy.deepcopy(model).double())[-1])
    assert rows[2]["error"] == pytest.approx(float(every.mean()), rel=0.05)
    assert rows[2]["error"] < rows[0]["error"]


@pytest.mark.full
def test_what_overflows_is_said_and_is_no_error_of_the_program(tiny):
    model = tiny("gpt2")
    with torch.no_grad():
        model.transformer.wte.weight.mul_(1e7)
    found = measured(model, "rounding", formats="fp8_e5m2:inf,bf16")
    assert any("fp8_e5m2:inf overflows" in note for note in found.notes["rounding"])
    assert not any("bf16 overflows" in note for note in found.notes["rounding"])


@pytest.mark.full
def test_a_stream_that_no_module_gives_is_neither_predicted_nor_bounded_and_says_so(tiny):
    plain = tiny("llama")
    options = {**plain.config.to_dict(), "embedding_multiplier": 2.0}
    granite = AutoModelForCausalLM.from_config(GraniteConfig(**options)).eval()
    scaled = measured(granite, "rounding", formats="bf16")
    assert any("no module gives the stream there" in one for one in scaled.notes["rounding"])
    front = [row for row in scaled.rows["rounding"] if row["layer"] == EMBEDDING]
    assert front and all(isnan(row["running"]) and row["mean"] > 0 for row in front)
    notes = measured(plain, "rounding", formats="bf16").notes.get("rounding", ())
    assert not any("no module" in one for one in notes)


def test_a_divergence_is_that_of_the_definition():
    generator = torch.Generator().manual_seed(0)
    true, off = torch.randn(2, 5, 7, generator=generator, dtype=torch.float64)
    p, q = torch.softmax(true, -1), torch.softmax(off, -1)
    torch.testing.assert_close(divergence(off, true), (p * (p / q).log()).sum(-1))
    assert divergence(true, true).abs().max() == 0
    # What the reference rules out costs nothing.
    true[:, 0] = -torch.inf
    assert divergence(off, true).isfinite().all()
    # A mask that both formats write otherwise, as Chameleon does: the least number of each.
    true[:, 0], off[:, 0] = torch.finfo(torch.float32).min, -torch.inf
    assert divergence(off, true).isfinite().all()


@pytest.mark.parametrize("mask", [-torch.inf, torch.finfo(torch.float32).min])
def test_logits_that_a_model_masks_have_no_part_in_the_error(mask):
    generator = torch.Generator().manual_seed(0)
    true, off = torch.randn(2, 5, 7, generator=generator, dtype=torch.float64)
    expected = (error(off, true), squared_error(off, true))
    column = torch.full((5, 1), mask, dtype=torch.float64)
    for rounded in (mask, -torch.inf, -65504.0):
        seen = torch.cat([off, torch.full_like(column, rounded)], -1)
        exact = torch.cat([true, column], -1)
        torch.testing.assert_close(error(seen, exact), expected[0])
        assert squared_error(seen, exact) == pytest.approx(expected[1])


def test_formats_are_checked_before_anything_runs():
    assert parse_formats(" bf16 ,fp16,bf16") == ["bf16", "fp16"]
    assert parse_formats("bf16,BF16,bfloat16") == ["bf16"]
    refuses("did you mean 'bf16'", with_formats, [], "bf17")
    refuses("no number format is named", with_formats, [], ",")
    refuses("gradient errors need a number format", with_formats, [], None, backward=True)


def test_formats_add_their_measures_to_what_was_chosen():
    chosen = with_formats(resolve(["stream", "rounding"]), ["fp16", "bf16"])
    names = [measure.name for measure in chosen]
    assert names[:3] == ["stream", "rounding", "logits"]
    assert chosen[1].options["formats"] == "fp16,bf16"
    assert with_formats(resolve(["stream"]), None) == resolve(["stream"])


@pytest.mark.parametrize("family", [pytest.param("gpt2", marks=pytest.mark.full), "llama"])
def test_gradient_errors_are_those_of_a_real_run_in_bf16(tiny, family):
    model = tiny(family, attn_implementation="eager")
    found = measured(model, "gradients")
    real, wide = copy.deepcopy(model).to(torch.bfloat16), copy.deepcopy(model).double()
    for one in (real, wide):
        one(input_ids=TOKENS[None], labels=TOKENS[None], use_cache=False).loss.backward()
    blocks = "transformer.h." if family == "gpt2" else "model.layers."
    rows = found.rows["gradients"]
    assert [row["layer"] for row in rows][:3] == [EMBEDDING, 0, 1]
    for row in rows[1:3]:
        mine = f"{blocks}{row['layer']}."
        pairs = [
            (low.grad.double(), high.grad)
            for (name, low), high in zip(real.named_parameters(), wide.parameters(), strict=True)
            if name.startswith(mine)
        ]
        size = sum(float(high.square().sum()) for _, high in pairs) ** 0.5
        off = sum(float((low - high).square().sum()) for low, high in pairs) ** 0.5
        assert row["norm"] == pytest.approx(size, rel=1e-4)
        # Real backward kernels keep more or less inside than their one name says: sizes agree.
        assert 0.7 < row["error"] / (off / size) < 1.4
        assert 0.9 < row["cosine"] <= 1
        # The stream and its gradient stay in float32.
        assert 0 < row["autocast"] < row["error"] < row["flat"] * 1.1
    assert all(parameter.grad is None for parameter in model.parameters())
    rows = measured(model, "gradients", formats="fp8_e4m3").rows["gradients"]
    assert all(isnan(row["autocast"]) for row in rows)


def test_a_model_that_cannot_be_emulated_keeps_its_other_readings(tiny, monkeypatch):
    def refuse(*given):
        raise UserError("a kernel of its own; load the model without it")

    monkeypatch.setattr("layerlab.measures.support.emulated_reruns.outputs", refuse)
    found = measured(tiny("gpt2"), "rounding")
    assert "a kernel of its own" in found.refused["rounding"]
