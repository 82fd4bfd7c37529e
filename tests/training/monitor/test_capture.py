"""Whatever surrounds a model or stands in for its parts, a monitor reads it."""

import copy
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from layerlab import Monitor
from layerlab.recipes.training_sections import EmulateSection
from layerlab.training.step.emulated_rounding import emulation
from tests.training.support.watched import (
    batch,
    expected,
    loss_of,
    ours,
    read_once,
    trained,
    values,
    weights,
)

PARTS = ("layers", "attention_heads", "ffn_dim")
QUIET = pytest.mark.filterwarnings(
    "ignore:.*grad attribute of a Tensor that is not a leaf:UserWarning"
)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("given", ["wrapped", "plain"])
def test_a_model_in_ddp_is_read(alone, given):
    model = ours()
    wrapped = nn.parallel.DistributedDataParallel(model)
    monitor = read_once(wrapped, batch(0), Monitor(wrapped if given == "wrapped" else model))
    assert not monitor.notes
    reference = expected(model, batch(0)[0])
    assert values(monitor, "score") == pytest.approx(reference["score"], rel=1e-5)


def compiled(model: Any, form: str, backend: Any = "eager") -> tuple[Any, Any]:
    """What the monitor is given, and what is called."""
    if form == "layers in place":
        for layer in model.model.layers:
            layer.compile(backend=backend)
    elif form == "layers wrapped":
        for index, layer in enumerate(model.model.layers):
            model.model.layers[index] = torch.compile(layer, backend=backend)
    elif form == "whole, in place":
        model.compile(backend=backend)
    else:
        called = torch.compile(model, backend=backend)
        return (called if form == "whole, given" else model), called
    return model, model


class Counting:
    """A backend that counts how often what it compiled runs."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        def run(*values: Any) -> Any:
            self.calls += torch.is_grad_enabled()
            return graph.forward(*values)

        return run


@pytest.mark.full
@QUIET
@pytest.mark.parametrize(
    "form", ["layers in place", "layers wrapped", "whole, in place", "whole, given", "whole"]
)
def test_compiled_models_are_read(tiny, form):
    torch.compiler.reset()
    given, called = compiled(tiny("llama").train(), form)
    monitor = Monitor(given, every=2)
    trained(called, monitor, updates=5)
    late = form == "whole"  # the first reading finds that its hooks were compiled away
    assert ("forward" in monitor.notes) == late
    assert [len(values(monitor, "score", update)) for update in (0, 2, 4)] == [8 * (not late), 8, 8]
    assert len(values(monitor, "querykey_norm", 0)) == 8
    assert torch.compiler.is_compiling() is False
    torch.compiler.reset()


@pytest.mark.full
@QUIET
@pytest.mark.parametrize("form", ["layers in place", "whole, in place", "whole, given"])
def test_a_reading_leaves_compiled_code_and_random_numbers_alone(tiny, form):
    torch.compiler.reset()
    found, counts = [], []
    for watched in (True, False):
        torch.manual_seed(0)
        model, counting = tiny("gpt2").train(), Counting()
        called = model if "in place" in form else torch.compile(model, backend=counting)
        for part in {"layers in place": model.transformer.h, "whole, in place": [model]}.get(
            form, []
        ):
            part.compile(backend=counting)
        monitor = Monitor(called, every=1)
        for number in range(2):
            loss_of(called, batch(number)).backward()
            if watched:
                monitor.step()
        monitor.close()
        assert bool(values(monitor, "score")) == watched and not monitor.notes
        found.append(torch.cat([one.grad.flatten() for one in model.parameters()]))
        counts.append(counting.calls)
    assert torch.equal(*found)
    assert counts[0] == counts[1] > 0
    torch.compiler.reset()


@pytest.mark.full
@QUIET
@pytest.mark.parametrize("end", ["closed", "gone"])
def test_what_is_compiled_as_one_graph_around_the_model_goes_on(tiny, end):
    torch.compiler.reset()
    model = tiny("llama").train()
    monitor = Monitor(model, every=1)
    whole = torch.compile(lambda tokens: loss_of(model, tokens), backend="eager", fullgraph=True)
    for update in range(3):
        whole(batch(update)).backward()
        monitor.step()
    assert [len(values(monitor, "score", update)) for update in range(3)] == [0, 8, 8]
    assert not compiles()
    if end == "closed":
        monitor.close()
    else:
        del monitor, model, whole
        gc.collect()
    assert compiles()
    torch.compiler.reset()


def compiles() -> bool:
    """Whether anything is compiled in this process."""
    graphs = []
    torch.compile(torch.sin, backend=lambda graph, _: graphs.append(1) or graph)(torch.ones(2))
    return bool(graphs)


@pytest.mark.full
@QUIET
@pytest.mark.parametrize("form", ["layers in place", "whole, given"])
def test_a_compiled_model_is_read_as_it_is_read_uncompiled(tiny, form):
    torch.compiler.reset()
    model = tiny("llama").train()
    reference = expected(model, batch(0)[0])
    given, called = compiled(model, form)
    monitor = read_once(called, batch(0), Monitor(given))
    for measure, found in reference.items():
        assert values(monitor, measure) == pytest.approx(found, rel=1e-5), measure
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed in v6:FutureWarning")
def test_an_adapted_model_is_read(tiny):
    peft = pytest.importorskip("peft")
    model = tiny("llama")
    reference = expected(model, batch(0)[0])
    config = peft.LoraConfig(target_modules=["o_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, config).train()
    monitor = read_once(adapted, batch(0))
    assert values(monitor, "score") == pytest.approx(reference["score"], rel=1e-5)
    assert values(monitor, "querykey_norm") == pytest.approx(reference["querykey_norm"], rel=2e-6)


def test_what_has_no_reading_is_noted_and_the_rest_is_read():
    model = ours("qk-norm")
    monitor = read_once(model, batch(0))
    assert "QK-norm" in monitor.notes["querykey_norm"]
    assert not values(monitor, "querykey_norm")
    assert len(values(monitor, "score")) == 4


def tripled(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
    output, weights = ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, mask, **options)
    return 3 * output + 1, weights


def test_what_is_not_plain_attention_is_noted_and_never_read(tiny):
    model = tiny("llama").train()
    ALL_ATTENTION_FUNCTIONS["tripled"] = tripled
    try:
        model.set_attn_implementation("tripled")
        monitor = Monitor(model, every=2)
        trained(model, monitor)
    finally:
        del ALL_ATTENTION_FUNCTIONS["tripled"]
    assert "it is not plain attention" in monitor.notes["model.layers.0.self_attn"]
    assert not values(monitor, "score", 0) and not values(monitor, "score", 2)
    assert len(values(monitor, "querykey_norm", 2)) == 8


@pytest.mark.parametrize("mode", [pytest.param("nearest", marks=pytest.mark.full), "stochastic"])
def test_emulated_rounding_is_watched_and_left_alone(mode):
    section = EmulateSection(format="bf16", mode=mode)
    models = [ours() for _ in range(2)]
    monitor = Monitor(models[1], every=2)
    for model, watch in zip(models, (None, monitor), strict=True):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for update in range(3):
            with emulation(model, section, 0, update):
                loss = loss_of(model, batch(update))
                optimizer.zero_grad()
                loss.backward()
            if watch is not None:
                watch.step(loss)
            optimizer.step()
    torch.testing.assert_close(weights(models[1]), weights(models[0]), rtol=0, atol=0)
    assert not monitor.notes
    assert len(values(monitor, "score", 2)) == 4


@pytest.mark.parametrize("padded", ["left", "right", "all"])
def test_a_row_of_one_token_is_passed_over(tiny, padded):
    model = trained(tiny("llama").train())
    mask = torch.ones(4, 16, dtype=torch.long)
    mask[0] = torch.tensor(
        {"left": [0] * 15 + [1], "right": [1] + [0] * 15, "all": [0] * 16}[padded]
    )
    reference = expected(model, batch(9)[1])
    monitor = read_once(model, batch(9), Monitor(model, on_alarm="raise"), attention_mask=mask)
    assert not monitor.notes
    assert values(monitor, "score") == pytest.approx(reference["score"], rel=1e-5)


def test_a_batch_of_single_tokens_is_noted(tiny):
    model = tiny("llama").train()
    monitor = Monitor(model, on_alarm="raise")
    model(input_ids=batch(9)[:, :1], use_cache=False).logits.sum().backward()
    monitor.step()
    assert monitor.notes == {"sequences": "none in this batch has two tokens beside padding"}


def test_of_a_loop_that_calls_another_object_one_note_says_so():
    model = ours()
    monitor = Monitor(model)
    model.model(input_ids=batch(0))[0].sum().backward()
    monitor.step()
    (note,) = monitor.notes.values()
    assert "give Monitor the very object that the loop calls" in note
    assert len(values(monitor, "querykey_norm")) == 4 and values(monitor, "gradient")


def test_gradients_that_were_set_to_none_are_noted():
    model = ours()
    monitor = Monitor(model)
    loss_of(model, batch(0)).backward()
    model.zero_grad()
    monitor.step()
    assert monitor.notes == {
        "gradient": "no parameter has one; call step after backward and before zero_grad"
    }
    assert not values(monitor, "gradient")


def test_a_model_that_is_saved_whole_leaves_its_monitor_behind(tiny, tmp_path):
    model = tiny("llama").train()
    monitor = Monitor(model, on_alarm=lambda alarm: None)
    torch.save(model, tmp_path / "whole")
    kept = torch.load(tmp_path / "whole", weights_only=False)
    loss_of(kept, batch(0)).backward()
    read_once(model, batch(1), monitor)
    assert values(monitor, "score") == pytest.approx(expected(model, batch(1)[0])["score"])


def test_a_forward_pass_that_ctrl_c_broke_off_is_read_when_it_is_tried_again(tiny):
    model = tiny("llama").train()
    monitor = Monitor(model)
    breaking = model.model.layers[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        loss_of(model, batch(0))
    breaking.remove()
    read_once(model, batch(9), monitor)
    assert not monitor.notes
    reference = expected(model, batch(9)[0])
    assert values(monitor, "score") == pytest.approx(reference["score"], rel=2e-6)


def interrupt(*given: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("change", ["replaced", "added", "removed"])
def test_blocks_that_change_between_updates_are_read_as_they_are_then(tiny, change):
    model = tiny("llama").train()
    monitor = read_once(model, batch(0), Monitor(model, every=1))
    layers = model.model.layers
    other = copy.deepcopy(layers[0])
    other.self_attn.q_proj.weight.data *= 3
    if change == "replaced":
        layers[0] = other
    elif change == "added":
        layers.append(other)
    else:
        del layers[0]
    model.config.num_hidden_layers = len(layers)
    model.zero_grad()
    read_once(model, batch(1), monitor)
    assert not monitor.notes
    for measure, found in expected(model, batch(1)[0]).items():
        assert values(monitor, measure, 1) == pytest.approx(found, rel=2e-6), measure


def test_a_model_that_lost_its_blocks_is_noted_and_trains_on(tiny):
    model = tiny("llama").train()
    monitor = Monitor(model)
    model.model.layers = nn.ModuleList()
    read_once(model, batch(0), monitor)
    assert "has no list of blocks" in monitor.notes["blocks"]


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_of_an_encoder_and_a_decoder_the_decoders_own_attention_is_read(family):
    options: dict[str, Any] = {
        "t5": {"d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0},
        "bart": {f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in PARTS},
    }
    config = AutoConfig.for_model(
        family, vocab_size=64, d_model=16, decoder_start_token_id=0, dropout=0.0, **options[family]
    )
    model = AutoModelForSeq2SeqLM.from_config(config).train()
    monitor = Monitor(model)
    tokens = batch(0)
    model(input_ids=batch(1, tokens=24), labels=tokens).loss.backward()
    monitor.step()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(input_ids=batch(1, tokens=24), labels=tokens, output_attentions=True)
    sinks = {
        (layer, head): float(one)
        for layer, each in enumerate(output.decoder_attentions)
        for head, one in enumerate(each[0, :, :, 0].mean(-1))
    }
    assert values(monitor, "sink_mass") == pytest.approx(sinks, rel=1e-5)
    frame = monitor.frame()
    assert not frame.duplicated(["layer", "head", "measure"]).any()
