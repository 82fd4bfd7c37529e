"""Latency: the passes are those of `generate`, the memory is what is allocated, turns are fair."""

import io
import json
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch
import typer
from rich.console import Console

from layerlab import UserError, build
from layerlab.cli.bench import bench
from layerlab.latency import measure, memory
from layerlab.latency.candidates import Candidate, build_candidate, load_candidate
from layerlab.latency.config import LatencyConfig, latency_config, threads_asked_for
from layerlab.latency.measure import generate, measure_latency
from layerlab.latency.memory import cache_bytes, cache_numbers, growth, weight_bytes
from layerlab.latency.parameter_matching import pair
from layerlab.latency.table import timetable
from layerlab.model.cost.cost import account
from layerlab.system.model_cache import cache_name
from tests.families import recipe
from tests.support.refused import refusal, refuses

SMALL = LatencyConfig(context=5, new=4, repetitions=6, batch=2)
SIZES = "width=32,layers=2,heads=2,vocab=64,inner=48,context=16"
KINDS = ("pangu-pi", "llama", "gpt2", "canon", "history-3", "mhc")
Tiny = Callable[..., Any]


def model_of(kind: str, tiny: Tiny) -> Any:
    if kind.startswith("hf "):
        return tiny(kind[3:], initializer_range=0.5)
    return load_candidate(build_candidate(f"{kind}:{SIZES}"), SMALL)


@pytest.mark.parametrize("kind", ["hf llama", "hf gpt2", *KINDS])
def test_prompt_and_steps_are_those_of_generate(kind, tiny):
    model = model_of(kind, tiny)
    prompt = torch.randint(1, 64, (2, 5), generator=torch.Generator().manual_seed(3))
    found = generate(model, prompt, 6, lambda: 0.0)
    model.generation_config.eos_token_id = None
    mask = torch.ones_like(prompt)
    with torch.no_grad():
        whole = model.generate(prompt, attention_mask=mask, max_new_tokens=6, do_sample=False)
    assert torch.equal(found.tokens, whole[:, 5:])
    assert found.cache.get_seq_length() == 10


@pytest.mark.parametrize("kept", [True, False])
def test_of_a_prompt_only_the_last_logits_are_made_where_a_model_can_leave_out_others(kept, tiny):
    model, places = tiny("llama", initializer_range=0.5), []
    prompt = torch.randint(1, 64, (2, 5), generator=torch.Generator().manual_seed(3))
    expected = generate(model, prompt, 4, lambda: 0.0).tokens
    forward, own = model.forward, cache_name(model)

    def whole(input_ids: Any, use_cache: bool, past_key_values: Any = None) -> Any:
        return forward(input_ids=input_ids, use_cache=use_cache, **{own: past_key_values})

    if not kept:
        model.forward = whole
    model.register_forward_hook(lambda _, __, out: places.append(out.logits.shape[1]))
    assert torch.equal(generate(model, prompt, 4, lambda: 0.0).tokens, expected)
    assert places == [1 if kept else 5, 1, 1, 1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_is_the_formula(kind, dtype):
    chosen = latency_config(dtype=dtype, device="cpu", context=5, new=4, batch=2)
    one = build_candidate(f"{kind}:{SIZES},kv_heads=1" if kind != "gpt2" else f"{kind}:{SIZES}")
    model = load_candidate(one, chosen)
    size = chosen.dtype.itemsize
    cost = one.account()
    assert cost is not None and model.dtype == chosen.dtype
    rows = {weight.data_ptr(): weight.nbytes for weight in model.state_dict().values()}
    context = model.config.max_position_embeddings
    assert one.design is not None and context == one.design.shape.context == 16
    assert torch.get_default_dtype() == torch.float32
    assert weight_bytes(model) == size * cost.parameters
    # The state dict holds what is tied or lent once more, at the same address.
    assert weight_bytes(model) == sum(rows.values())
    found = generate(model, torch.zeros(2, 5, dtype=torch.long), 4, lambda: 0.0)
    assert cache_bytes(found.cache) == size * cache_numbers(one, 2, chosen.cached)


def test_parts_of_a_pass_are_timed_apart(tiny):
    times = iter([1.0, 3.0, 10.0])
    found = generate(tiny("llama"), torch.zeros(1, 4, dtype=torch.long), 3, lambda: next(times))
    assert (found.prefill, found.decode) == (2.0, 7.0)


@pytest.mark.full
def test_contestants_take_turns_and_units_are_per_token(monkeypatch):
    order: list[str] = []
    names: dict[int, str] = {}
    plain_load, plain_pass = measure.load_candidate, measure.generate

    def load(one: Candidate, given: LatencyConfig) -> Any:
        model = plain_load(one, given)
        names[id(model)] = one.name.partition(":")[0]
        return model

    def one_pass(model: Any, prompt: torch.Tensor, new: int, clock: Any) -> Any:
        found = plain_pass(model, prompt, new, clock)
        order.append(f"{names[id(model)]} {new}")
        return measure.Generation(found.tokens, 0.010, 0.006, found.cache)

    monkeypatch.setattr(measure, "load_candidate", load)
    monkeypatch.setattr(measure, "generate", one_pass)
    peaks = iter([7, None])

    def weigh(run: Callable[[], object], device: str) -> int | None:
        run()
        return next(peaks)

    monkeypatch.setattr(measure, "growth", weigh)
    named = [build_candidate(f"{kind}:{SIZES}") for kind in ("pangu-pi", "llama")]
    told: list[str] = []
    found = measure_latency(named, SMALL, note=told.append)
    # Each is warmed up and weighed, then both repeat, the other first each time.
    played = [one.split()[0] for one in order[4:] if one.endswith("4")]
    assert played[:4] == ["pangu-pi", "llama", "llama", "pangu-pi"]
    assert len(played) == 12 and told[-1] == "repetition 6 of 6"
    assert order[4::2] == [f"{name} 2" for name in played]  # steps that nobody times
    first, second = found.timed
    assert (first.peak, second.peak) == (first.weights + 7, None)
    assert found.prefill is not None and found.prefill.median == 1
    assert first.prefill.median == pytest.approx(10 / 5)
    assert first.decode.median == pytest.approx(6 / 3)
    assert found.decode is not None and found.decode.low == found.decode.high == 1


@pytest.mark.full
def test_real_times_make_a_table_and_json():
    matched = pair("fewer-layers", shape="1b", width=128)
    found = measure_latency(
        _both(matched), LatencyConfig(context=2, new=2, repetitions=1), pair=matched
    )
    assert all(value > 0 for one in found.timed for value in one.decode.values)
    kept = json.loads(json.dumps(found.to_dict()))
    assert kept["verdict"]["word"] == "not decided"
    assert kept["accounting"]["published"] == {
        "pangu_ms": 13.8,
        "llama_ms": 15.4,
        "ratio": 13.8 / 15.4,
        "shape": "1b",
    }
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(timetable(found, 400))
    text = console.export_text()
    narrow = Console(width=80, record=True, file=io.StringIO())
    narrow.print(timetable(found, 80))
    lines = narrow.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    begins = [
        line.split()[0] for line in lines[: lines.index(next(filter(_is_legend, lines)))] if line
    ]
    assert begins == ["model", "1", "2", "pangu", "llama"] * (len(begins) // 5)
    for said in ("published", "weights at random", "predicted by the weights", "15.4", "processor"):
        assert said in text


def _is_legend(line: str) -> bool:
    return line.startswith("ms per token")


@pytest.mark.parametrize(
    ("given", "count"), [("1", 1), ("3,1", 3), ("0", None), ("", None), ("many", None)]
)
def test_threads_are_those_that_the_environment_asks_for(given, count, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert threads_asked_for() == count
    found = latency_config(device="cpu")
    assert found.threads == (count or psutil.cpu_count(logical=False) or 1)
    assert latency_config(device="cpu", threads=2).threads == 2


def test_weights_move_and_stay_what_they_are():
    model = build("gpt2", head="tied", width=32, layers=1, heads=2, vocab=64, context=16)
    before = {
        name: (weight.data_ptr(), weight.clone()) for name, weight in model.named_parameters()
    }
    measure._move(model)
    for name, weight in model.named_parameters():
        assert weight.data_ptr() != before[name][0]
        assert torch.equal(weight, before[name][1])
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.full
def test_the_peak_of_a_pass_is_seen():
    """A quarter of a gigabyte cannot hide in what the allocator has."""
    found = growth(lambda: torch.ones(1 << 26), "cpu")
    assert found is None or 0.9 * 2**28 < found < 1.5 * 2**28


def test_the_peak_of_a_device_that_does_not_tell_it_is_unknown():
    ran: list[int] = []
    assert growth(lambda: ran.append(1), "meta") is None and ran == [1]


def test_names_are_variants_with_sizes_or_models(tmp_path, tiny):
    assert build_candidate("llama").design is None  # the built-in model
    found = build_candidate("pangu-pi:width=64,heads=2,shortcut.r=16,head=tied").design
    assert found is not None and found.shape.width == 64
    assert found.spec.stack.head == "tied"
    series = build_candidate("pangu-pi:ffn.activations=silu,gelu-tanh,ffn.n=2,width=64").design
    assert series is not None and series.shape.width == 64
    assert series.spec.block.ffn.given()["activations"] == ("silu", "gelu-tanh")
    preset = build_candidate("pangu-pi-7b").design
    assert preset is not None and preset.shape.layers == 29
    assert build_candidate("some/model").design is None
    tiny("llama").save_pretrained(tmp_path)
    saved = build_candidate(str(tmp_path))
    memory.check_room([saved], SMALL)  # of which nothing is known before it is loaded
    model = load_candidate(saved, SMALL)
    assert model.config.vocab_size == 64
    assert load_candidate(saved, LatencyConfig(context=60, new=4, kind="bfloat16")).dtype == (
        torch.bfloat16
    )
    with pytest.raises(UserError, match="knows 64 positions, and a context of 60 with"):
        load_candidate(saved, LatencyConfig(context=60, new=5))


@pytest.mark.full
def test_a_model_that_knows_positions_of_any_number_is_timed_at_any_context(tmp_path):
    recipe.build("bloom").save_pretrained(tmp_path)
    assert load_candidate(Candidate(name=str(tmp_path)), LatencyConfig(context=10**6))


@pytest.mark.parametrize("name", ["pangu-pi", "llama:2"])
def test_a_folder_that_is_called_as_a_variant_is_the_model_in_it(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert name == "llama:2" or build_candidate(name).design is not None
    (tmp_path / name).mkdir()
    assert build_candidate(name) == Candidate(name=name)


def test_a_variant_is_given_the_positions_that_a_timing_takes():
    one = build_candidate(f"gpt2:{SIZES}")
    model = load_candidate(one, LatencyConfig(context=20, new=4))
    assert model.config.max_position_embeddings == 24


@pytest.mark.parametrize(
    ("there", "device", "kind"), [(True, "cuda", "bfloat16"), (False, "cpu", "float32")]
)
def test_a_gpu_is_taken_where_there_is_one_and_then_bfloat16(there, device, kind, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    found = latency_config()
    assert (found.device, found.kind) == (device, kind)


def test_a_size_that_is_misspelt_is_named_before_the_options():
    said = refusal(build_candidate, "pangu-pi:widht=64")
    assert "no option or size is called 'widht' here; did you mean 'width'? known: " in said
    known = said.partition("known: ")[2].split(", ")
    assert {"width", "layers", "heads", "vocab", "context", "inner"} <= set(known[:8])
    assert known.index("activations") > 7


@pytest.mark.parametrize("name", ["equal-total", "fewer-layers"])
def test_what_does_not_fit_is_refused_before_it_is_built(name, monkeypatch):
    matched = pair(name)
    sums = [account(one.design.spec, one.design.shape).parameters for one in _both(matched)]
    needed = 2 * (sum(sums) + max(cache_numbers(one, 1, 159) for one in _both(matched)))
    chosen = latency_config(dtype="bfloat16", device="cpu")
    monkeypatch.setattr(memory, "free_memory", lambda device: 20e9)
    found = refusal(measure_latency, _both(matched), chosen, pair=matched)
    assert f"take {needed / 1e9:.1f} GB in bfloat16" in found
    assert "and 16.0 GB may be used here; type a smaller --width" in found
    monkeypatch.setattr(memory, "free_memory", lambda device: needed / 0.8 + 1)
    memory.check_room(_both(matched), chosen)


def _both(matched: Any) -> list[Any]:
    return [matched.pangu, matched.llama]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"new": 1}, "new is 1; expected a whole number from 2 to 1,048,576: type --new 32"),
        ({"new": 2**30}, "new is 1073741824; expected a whole number from 2 to 1,048,576"),
        ({"threads": 0}, "threads is 0; expected a whole number from 1 to 1,048,576: type --th"),
        ({"batch": 0}, "batch is 0; expected a whole number from 1 to 1,048,576: type --batch 1"),
        (
            {"dtype": "int4"},
            "dtype is 'int4'; expected float32, float64, bfloat16, float16: type --dtype float32",
        ),
        ({"device": "abacus"}, "there is no device 'abacus' to time on; expected cpu, cuda"),
    ],
)
def test_settings_that_cannot_be_are_refused(given, said):
    assert said in refusal(latency_config, **given)


def test_the_least_of_each_size_is_taken():
    least = {"batch": 1, "context": 1, "new": 2, "repetitions": 1, "threads": 1, "seed": 3}
    found = latency_config(device="cpu", **least)
    assert {name: getattr(found, name) for name in least} == least


def command(*words: str) -> None:
    app = typer.Typer()
    app.add_typer(bench, name="bench")
    app(["bench", "latency", *words], standalone_mode=False)


@pytest.mark.full
def test_the_command_prints_writes_and_refuses(tmp_path, capsys):
    small = ["--context", "2", "--new", "2", "--repetitions", "1", "--threads", "1"]
    names = [f"{kind}:{SIZES}" for kind in ("pangu-pi", "llama")]
    command(*names, *small, "--device", "cpu", "--json", "--out", str(tmp_path / "a.json"))
    said = capsys.readouterr()
    kept = json.loads(said.out)
    assert kept == json.loads((tmp_path / "a.json").read_text())
    assert kept["verdict"] is None and kept["ratio"]["decode"]["pairs"] == 1
    assert "repetition 1 of 1" in said.err
    command(names[0], *small, "--device", "cpu", "--quiet", "--out", str(tmp_path / "a.json"))
    said = capsys.readouterr()
    assert "ms per token, median and quartiles" in said.out and said.err == ""
    refuses("0 models and no accounting; expected either", command)
    with pytest.raises(UserError, match="--width is a size of an accounting; sizes of a variant"):
        command(names[0], "--width", "64")


@pytest.mark.parametrize("content", ['[compare]\narms = ["llama"]\n', '{"timed": []}', "[1]", ""])
def test_a_file_that_is_no_result_is_not_written_over(tmp_path, content):
    (tmp_path / "arms.toml").write_text(content)
    with pytest.raises(UserError, match="is there and is no result of layerlab bench latency"):
        command("llama", "--out", str(tmp_path / "arms.toml"))
    assert (tmp_path / "arms.toml").read_text() == content


def test_a_model_without_a_cache_is_refused(tiny):
    class Bare(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny("llama")

        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
            return type("Out", (), {"logits": self.inner(input_ids).logits})

    with pytest.raises(UserError, match="keeps no cache of keys and values, without which"):
        generate(Bare(), torch.zeros(1, 4, dtype=torch.long), 3, lambda: 0.0)


def test_states_of_linear_attention_are_memory_of_the_cache():
    model = recipe.build("minimax").eval()
    config: Any = model.config
    found = generate(model, torch.ones(2, 4, dtype=torch.long), 3, lambda: 0.0)
    linear = config.layer_types.count("linear_attention")
    full, width = len(config.layer_types) - linear, config.head_dim
    state = config.num_attention_heads * width**2
    kept = 2 * config.num_key_value_heads * width * 6  # keys and values of six tokens
    assert linear and full
    assert cache_bytes(found.cache) == 4 * 2 * (linear * state + full * kept)
