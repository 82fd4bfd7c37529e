import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import layerlab
from layerlab import UserError
from layerlab.loading.model import check_named, load_model
from layerlab.loading.weights.by_layer import read_layers
from layerlab.loading.weights.saved import load_saved
from tests.families.recipe import build
from tests.support.refused import refuses


@pytest.fixture
def saved(tiny, tmp_path):
    folder = tmp_path / "model"
    tiny("llama").save_pretrained(folder)
    return folder


def test_a_folder_is_loaded_and_described(saved):
    found = load_model(str(saved))
    facts = found.facts()
    assert found.tokenizer is None and found.context == 64
    assert (facts["family"], facts["class"]) == ("llama", "LlamaForCausalLM")
    assert (facts["layers"], facts["heads"], facts["kv_heads"], facts["head_width"]) == (2, 4, 2, 4)
    assert facts["parameters"] == sum(p.numel() for p in found.model.parameters())


def test_a_head_is_its_part_of_the_width_where_nothing_else_is_said(tiny):
    facts = load_model(tiny("gpt2")).facts()
    assert (facts["width"], facts["heads"], facts["kv_heads"], facts["head_width"]) == (16, 2, 2, 8)


def test_weights_that_fit_stay_on_the_disk_only_if_they_are_to(saved):
    assert not load_model(str(saved), weights_only=True).stored
    assert load_model(str(saved), unloaded=True).stored


@pytest.mark.parametrize(
    ("name", "commit"),
    [("0" * 40, "0" * 40), ("0" * 40 + "-0123456789ab", "0" * 40), ("0" * 40 + "-mine", None)],
    ids=["of the Hub", "unpacked", "other"],
)
def test_a_folder_that_is_called_as_a_commit_is_of_one(saved, tmp_path, name, commit):
    saved.rename(tmp_path / name)
    assert load_model(str(tmp_path / name)).revision == commit


def test_a_dtype_is_what_was_asked_for(saved):
    assert load_model(str(saved)).model.dtype == torch.float32
    assert load_model(str(saved), dtype="bfloat16").model.dtype == torch.bfloat16


def test_a_mixture_of_experts_runs_in_float64(tmp_path):
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 9}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 2}
    MixtralForCausalLM(MixtralConfig(**shape, **heads)).save_pretrained(tmp_path)
    model = load_model(str(tmp_path), dtype="float64").model
    assert model(torch.tensor([[1, 2, 3]])).logits.dtype == torch.float64


def test_a_model_of_a_folders_own_that_is_not_run_is_remarked_on(tiny, tmp_path, caplog):
    tiny("gpt2").save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    own = {"auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}
    file.write_text(json.dumps({**json.loads(file.read_text()), **own}))
    (tmp_path / "modeling_own.py").write_text("raise SystemExit('run')")
    load_model(str(tmp_path))
    assert (
        caplog.text.count("a model of its own, modeling_own.Own, which is not run: the gpt2") == 1
    )


def test_a_model_of_which_a_part_has_no_numbers_is_refused(tiny):
    model = tiny("gpt2")
    model.transformer.h[1].mlp.to("meta")
    refuses(
        r"transformer\.h\.1\.mlp\..* of GPT2LMHeadModel is on the meta device", load_model, model
    )


def test_a_model_whose_layers_do_not_all_run_is_refused(tiny):
    model = tiny("llama")
    count = model.config.num_hidden_layers
    model.config.num_hidden_layers = count + 1  # all that there are run
    assert load_model(model).model is model
    model.config.num_hidden_layers = count - 1
    refuses(f"holds {count} layers and runs {count - 1}", load_model, model)
    assert not any(block._forward_pre_hooks for block in model.model.layers)


def test_a_model_whose_dtypes_do_not_go_together_is_refused(tiny):
    model = tiny("llama")
    model.model.norm.to(torch.float64)  # the last of the stack: what comes of it meets the head
    refuses("its weights are of float32 and float64", load_model, model)
    model.lm_head.to(torch.float64)
    assert load_model(model).model is model


@pytest.mark.filterwarnings("ignore")  # torch gives its quantized tensors up
def test_a_model_whose_weights_are_packed_is_refused(tiny):
    packed = torch.ao.quantization.quantize_dynamic(tiny("llama"), {torch.nn.Linear})
    refuses("is no tensor but a dtype, as quantize_dynamic packs", load_model, packed)


def test_a_loaded_model_is_taken_as_it_is(tiny):
    model = tiny("gpt2")
    found = load_model(model)
    assert found.model is model and found.source == "memory"
    refuses(r"this one is loaded: call model.to\(...\) before", load_model, model, dtype="float64")


def test_a_falcon_whose_alibi_would_count_twice_is_one_clear_line():
    """As soon as both ways of attention give the same, there is nothing left to refuse."""
    changes, ids = {"alibi": True}, torch.arange(2, 22)[None]
    eager, fused = (build("falcon", name, changes) for name in ("eager", "sdpa"))
    with torch.no_grad():
        apart = (eager(ids).logits - fused(ids).logits).abs().max()
        assert apart > 0.01 * fused(ids).logits.abs().max()
    refuses("where transformers adds its ALiBi twice", load_model, eager)
    assert load_model(fused).model is fused
    assert load_model(build("falcon", "eager")).stack


def test_an_encoder_decoder_is_one_clear_line():
    shape = {"d_model": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8}
    with pytest.raises(UserError, match="T5ForConditionalGeneration is an encoder-decoder"):
        load_model(T5ForConditionalGeneration(T5Config(vocab_size=9, **shape)))


def test_weights_that_cannot_be_fetched_are_one_clear_line(saved, monkeypatch):
    def gone(*args, **options):
        raise OSError("no such object")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", gone)
    refuses(r"no safetensors weights for .* could be read: no such", load_model, str(saved))


def broken(folder, kind, tiny):
    """A folder with one thing wrong."""
    weights = folder / "model.safetensors"
    if kind == "empty":
        shutil.rmtree(folder)
        folder.mkdir()
    elif kind == "no weights":
        weights.unlink()
    elif kind == "pickle":
        weights.rename(folder / "pytorch_model.bin")
    elif kind == "broken config":
        (folder / "config.json").write_text("{")
    elif kind == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif kind == "other shape":
        config = tiny("llama", hidden_size=32).config
        config.save_pretrained(folder)
    elif kind == "more layers":
        config = tiny("llama", num_hidden_layers=3).config
        config.save_pretrained(folder)
    elif kind == "fewer layers":
        config = tiny("llama", num_hidden_layers=1).config
        config.save_pretrained(folder)
    elif kind == "tied, but two":
        config = tiny("llama").config
        config.tie_word_embeddings = True
        config.save_pretrained(folder)
    elif kind == "encoder":
        shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        BertForMaskedLM(BertConfig(**shape, intermediate_size=16, vocab_size=9)).save_pretrained(
            folder
        )
    return str(folder)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("empty", "has no config.json; expected a saved transformers model"),
        ("no weights", r"has a config.json but no weights; expected \*.safetensors beside it"),
        ("pickle", r"only pickled weights \(pytorch_model.bin\).*save_pretrained\(FOLDER\)"),
        ("broken config", "config.json in .* cannot be read"),
        ("truncated", "the weights of .* are damaged .*; copy them anew"),
        ("other shape", "the weights of .* do not fit its config.json"),
        ("more layers", "lack 9 tensors of LlamaForCausalLM .*they would be random"),
        ("tied, but two", "lm_head.weight and model.embed_tokens.weight are one weight in config"),
        ("encoder", "is a BertForMaskedLM, not a causal language model"),
    ],
)
def test_a_folder_that_cannot_be_read_is_one_clear_line(saved, tiny, kind, message):
    refuses(message, load_model, broken(saved, kind, tiny))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("truncated", "the weights of .* are damaged"),
        ("other shape", "the weights of .* do not fit its config.json"),
        ("more layers", "lack 9 tensors of LlamaForCausalLM"),
        ("fewer layers", "hold 9 tensors that its config.json has no place for"),
        ("tied, but two", "lm_head.weight and model.embed_tokens.weight are one weight in config"),
    ],
)
def test_a_model_that_was_trained_is_checked_as_any_other(saved, tiny, kind, message):
    refuses(message, load_saved, Path(broken(saved, kind, tiny)))


@pytest.mark.parametrize("reader", [read_layers, load_model])
def test_a_head_that_differs_from_the_tied_embedding_is_refused_on_the_disk(saved, tiny, reader):
    folder = broken(saved, "tied, but two", tiny)
    options = {} if reader is read_layers else {"unloaded": True}
    with pytest.raises(UserError, match=r"lm_head.weight and .* are one weight in config.json"):
        list(reader(folder, **options))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_head_that_says_the_same_as_the_tied_embedding_is_read_from_the_disk(saved, tiny, kind):
    folder = Path(broken(saved, "tied, but two", tiny))
    weights = load_file(folder / "model.safetensors")
    table = weights["model.embed_tokens.weight"].bfloat16()
    weights |= {"model.embed_tokens.weight": table.float(), "lm_head.weight": table.to(kind)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert load_model(str(folder), unloaded=True).stored
    assert load_saved(folder).lm_head.weight.equal(table.float())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "nobody/nothing"}, "'nobody/nothing' is neither a folder, nor a built-in model"),
        ({"model": 7}, "model is a int; expected a Hub id"),
        ({"model": "llama", "dtype": "int9"}, "dtype is 'int9'; expected float32"),
        ({"model": "llama", "device": "moon"}, "device 'moon' is not here; expected cpu, cuda"),
        ({"model": " "}, "the model's name is empty"),
        (
            {"model": "llama", "device": "meta"},
            "no device 'meta' here that PyTorch can use; type --dev",
        ),
        ({"model": __file__}, "is a file; expected the folder that holds config.json"),
    ],
)
def test_a_model_that_is_not_there_is_one_clear_line(given, message):
    refuses(message, load_model, **given)


def test_the_folder_above_a_model_names_it(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run 1" / "model")
    refuses(
        r"expected a saved .* model: type '.*run 1/model'$", load_model, str(tmp_path / "run 1")
    )


def test_names_are_checked_before_any_model_is_loaded(tiny, tmp_path):
    check_named(["pre-norm", tiny("gpt2")])
    for wrong, said in (("prenorm", "neither a folder"), (tmp_path, "has no config.json")):
        refuses(said, layerlab.inspect, ["pre-norm", wrong], dtype="none such", progress=False)
