from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    ViTConfig,
    ViTModel,
)

import layerlab
from layerlab import UserError, load_report
from layerlab.loading.weights import precision as weights
from layerlab.plugins import resolve
from layerlab.report.results.terminal_summary import lines
from tests.families import recipe
from tests.measures.family import built
from tests.support.refused import refuses

QUICK = ["diversity", "spectrum"]


@pytest.fixture(scope="module")
def report():
    return layerlab.inspect(["pre-norm", "llama"], context=12, measures=QUICK, progress=False)


@pytest.mark.full
def test_every_default_frame_has_the_columns_it_declares():
    report = layerlab.inspect(texts="To be, or not to be.", progress=False)
    for measure in (one for one in resolve() if not one.rare):
        frame = report.frame(measure.name)
        assert list(frame.columns) == ["model", *measure.per, *measure.columns]
        assert len(frame) > 0 and (frame["model"] == "pre-norm").all()


@pytest.mark.full
def test_several_models_stand_side_by_side(report):
    assert [card["name"] for card in report.models] == ["pre-norm", "llama"]
    counts = report.frame("spectrum").groupby("model").size()
    expected = {card["name"]: 4 * card["layers"] * card["heads"] for card in report.models}
    assert counts.to_dict() == expected


def test_a_report_tells_how_to_repeat_it(report):
    content = report.to_dict()
    options = content["options"]
    assert options["models"] == ["pre-norm", "llama"] and options["context"] == 12
    again = layerlab.inspect(
        options["models"], context=options["context"], measures=options["measures"], progress=False
    )
    assert again.frame("diversity").equals(report.frame("diversity"))
    for name in ("text", "models"):
        assert again.to_dict()[name] == content[name]
    assert content["versions"]["torch"] == version("torch")
    assert all(card["weights_hash"].startswith("sha256:files:") for card in report.models)


def test_a_saved_report_is_the_report(report, tmp_path):
    report.save(tmp_path / "out")
    assert load_report(tmp_path / "out") == report


@pytest.mark.full
def test_a_loaded_model_and_ids_are_enough(tiny):
    ids = torch.tensor([[9, 9, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6]])
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    both = layerlab.inspect(
        tiny("gpt2"), input_ids=ids, attention_mask=mask, measures=QUICK, progress=False
    )
    alone = layerlab.inspect(tiny("gpt2"), input_ids=ids[:1, 2:], measures=QUICK, progress=False)
    frame = both.frame("spectrum")
    first = frame[frame["sequence"] == 0].reset_index(drop=True)
    assert first.equals(alone.frame("spectrum"))


@pytest.mark.full
def test_the_same_folder_name_twice_gives_two_labels(tiny, tmp_path):
    for parent in ("a", "b"):
        tiny("gpt2").save_pretrained(tmp_path / parent / "model")
    names = [str(tmp_path / parent / "model") for parent in ("a", "b")]
    report = layerlab.inspect(
        [*names, names[0]], input_ids=[[1, 2, 3]], measures=["stream"], progress=False
    )
    labels = [card["name"] for card in report.models]
    assert len(set(labels)) == 3 and labels[0] == names[0]


@pytest.mark.full
def test_a_loaded_model_beside_a_saved_one_has_its_own_name(tiny, tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "one")
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path / "one")
    models = [str(tmp_path / "one"), loaded, loaded, tiny("llama")]
    report = layerlab.inspect(models, input_ids=[[1, 2, 3]], measures=["stream"], progress=False)
    labels = [card["name"] for card in report.models]
    assert len(set(labels)) == 4 and labels[3] == "LlamaForCausalLM"
    assert report.frame("stream").groupby("model").size().to_dict() == dict.fromkeys(labels, 3)


@pytest.mark.full
def test_each_model_says_how_many_tokens_it_read(tiny):
    report = layerlab.inspect(
        ["llama", "pre-norm"], texts="Word for word.", measures=["stream"], progress=False
    )
    assert all(len(card["tokens"]) == 1 for card in report.models)


@pytest.mark.full
def test_weights_are_read_without_a_tokenizer(tiny, tmp_path):
    tiny("llama").save_pretrained(tmp_path)
    report = layerlab.inspect(str(tmp_path), measures=["querykey"], progress=False)
    assert len(report.frame("querykey")) == 8


@pytest.mark.full
def test_a_float64_model_has_every_reading(tiny):
    model = tiny("llama").to(torch.float64)
    report = layerlab.inspect(model, input_ids=[[1, 2, 3, 4]], progress=False)
    for measure in (one for one in resolve() if not one.rare):
        assert len(report.frame(measure.name)) > 0, measure.name


@pytest.mark.full
def test_a_model_that_lies_on_disk_alone_reads_the_same(tiny, tmp_path, monkeypatch):
    tiny("llama").save_pretrained(tmp_path)
    options = {
        "input_ids": [[1, 2, 3]],
        "measures": ["stream", "spectrum", "logits"],
        "progress": False,
    }
    whole = layerlab.inspect(str(tmp_path), **options)
    # No memory is free for a single block.
    memory = SimpleNamespace(available=10_000, total=10_000)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    disk = layerlab.inspect(str(tmp_path), **options)
    assert disk.models[0]["device"] == "offloaded"
    for name in ("stream", "spectrum", "logits"):
        assert disk.frame(name).equals(whole.frame(name))


@pytest.mark.full
def test_a_series_of_checkpoints_knows_its_steps(tiny, tmp_path):
    for step in (200, 1000, 30):
        tiny("gpt2").save_pretrained(tmp_path / f"checkpoint-{step}")
    report = layerlab.inspect(
        str(tmp_path), input_ids=[[1, 2, 3]], measures=["stream"], progress=False
    )
    assert [card["step"] for card in report.models] == [30, 200, 1000]


def test_a_broken_weight_is_a_finding_with_its_layer(tiny):
    model = tiny("gpt2")
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[0, 0] = torch.nan
    report = layerlab.inspect(model, input_ids=[[1, 2, 3, 4]], progress=False)
    worst = report.findings[0]
    assert worst.severity == "error" and "transformer.h.1.mlp.c_fc.weight" in worst.sentence


@pytest.mark.parametrize(
    ("model", "said"),
    [
        *((one, r"model is .*; expected a Hub id") for one in ([], 7, {"a": 1})),
        (["llama", 5], "model holds a int; expected Hub ids, folders"),
    ],
)
def test_something_that_is_no_model_is_one_clear_line(model, said):
    refuses(said, layerlab.inspect, model, progress=False)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_what_holds_a_model_is_told_where_it_lies(tiny):
    peft = pytest.importorskip("peft")
    compiled = torch.compile(tiny("llama"), backend="eager")
    adapted = peft.get_peft_model(tiny("llama"), peft.LoraConfig(target_modules=["q_proj"]))
    for holder, way in ((compiled, r"_orig_mod"), (adapted, r"get_base_model\(\)")):
        for given in (holder, ["llama", holder]):
            refuses(rf": give model\.{way}$", layerlab.inspect, given, progress=False)
        for function in (layerlab.gap, layerlab.precision, layerlab.retrofit):
            refuses(rf"or a transformers PreTrainedModel: give model\.{way}$", function, holder)


@pytest.mark.full
def test_weights_of_a_model_larger_than_memory_are_read_from_disk(tiny, tmp_path, monkeypatch):
    tiny("llama").save_pretrained(tmp_path)
    options = {"input_ids": [[1, 2, 3]], "measures": ["querykey"], "progress": False}
    whole = layerlab.inspect(str(tmp_path), **options)
    monkeypatch.setattr(weights, "MEMORY_SHARE", 0.0)
    disk = layerlab.inspect(str(tmp_path), **options)
    assert (whole.models[0]["device"], disk.models[0]["device"]) == ("cpu", "disk")
    assert disk.frame("querykey").equals(whole.frame("querykey"))


@pytest.mark.full
def test_an_excerpt_begins_and_ends_with_whole_characters():
    measured = layerlab.inspect(
        "llama", texts="今天天气很好" * 8, context=16, measures=["stream"], progress=False
    )
    excerpts = [one["excerpt"] for one in measured.text["sequences"]]
    # A character is three tokens here: the sixth is cut after its first, and goes on in the next.
    assert excerpts[:2] == ["今天天气很", "今天天气"]


@pytest.mark.full
def test_saliency_and_features_are_asked_for_as_on_the_command_line():
    quick = {"measures": ["stream"], "progress": False}
    found = layerlab.inspect("llama", saliency="I am", target=" is", **quick)
    assert {"stream", "saliency"} == set(found.frames)
    found = layerlab.inspect("llama", texts="a a a b b b", features=True, **quick)
    assert {"stream", "features"} == set(found.frames)
    refuses("asks about the next token of a text", layerlab.inspect, "llama", foil=" is", **quick)


def test_the_loss_is_that_of_all_predicted_tokens():
    model = built("llama").eval()
    ids = torch.randint(
        3, model.config.vocab_size, (2, 24), generator=torch.Generator().manual_seed(0)
    )
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    found = layerlab.inspect(
        model, input_ids=ids, attention_mask=mask, measures=["diversity"], progress=False
    )
    with torch.no_grad():
        losses = [float(model(row[None], labels=row[None]).loss) for row in (ids[0], ids[1, :3])]
    wanted = (23 * losses[0] + 2 * losses[1]) / 25
    assert found.models[0]["loss_nats"] == pytest.approx(wanted, rel=1e-5)
    # Where nobody reads the text, its loss is that of no token.
    read = layerlab.inspect(model, input_ids=ids, measures=["querykey"], progress=False)
    assert read.models[0]["loss_nats"] is None


def test_a_model_that_has_seen_the_next_token_has_no_loss():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "vocab_size": 40}
    model = BertForMaskedLM(BertConfig(num_hidden_layers=2, num_attention_heads=2, **sizes))
    found = layerlab.inspect(
        model, input_ids=torch.arange(3, 23), measures=["stream", "lens"], progress=False
    )
    assert found.models[0]["loss_nats"] is None
    said = {one["name"]: one["notes"] for one in found.to_dict()["measures"]}
    assert "hang on later tokens" in said["lens"][0] and not said["stream"]
    assert said["lens"][0].count("BertForMaskedLM: ") == 1
    (head, *_) = lines(found.to_dict(), found.findings)
    assert head.endswith("float32 on cpu, no loss: its logits hang on later tokens")


@pytest.mark.full
def test_scores_of_labels_are_no_logits():
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=280, num_attention_heads=2, pad_token_id=0, **sizes)
    names = ["stream", "lens", "ablation", "rounding", "gradients", "saliency(text=None)"]
    for kind in (LlamaForTokenClassification, LlamaForSequenceClassification):
        found = layerlab.inspect(
            kind(config), input_ids=torch.arange(3, 23), measures=names, progress=False
        )
        assert found.models[0]["loss_nats"] is None and not found.models[0]["reads_ahead"]
        declared = {one["name"]: one["not_applicable"] for one in found.to_dict()["measures"]}
        assert not declared.pop("stream")
        assert all("gives no logits" in reasons[0]["reason"] for reasons in declared.values())


def test_a_model_of_images_is_one_clear_line():
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    model = ViTModel(ViTConfig(num_attention_heads=2, image_size=8, patch_size=4, **sizes))
    with pytest.raises(UserError, match=r"^ViTModel is no model of tokens: its main input is not"):
        layerlab.inspect(model, input_ids=[[0, 1]], progress=False)


@pytest.mark.full
def test_threads_that_read_one_model_read_the_same_and_leave_it_as_it_was():
    model = built("llama").train()
    state = [(one.training, len(one._forward_hooks)) for one in model.modules()]
    asked = [one.requires_grad for one in model.parameters()]

    def read(_: int) -> list[list[float]]:
        found = layerlab.inspect(
            model, input_ids=torch.arange(3, 35), measures=["stream", "attention"], progress=False
        )
        frames = [found.frame(name).select_dtypes("number") for name in ("stream", "attention")]
        return [frame.fillna(0.0).to_numpy().tolist() for frame in frames]

    alone = read(0)
    with ThreadPoolExecutor(4) as pool:
        assert all(one == alone for one in pool.map(read, range(8)))
    assert [(one.training, len(one._forward_hooks)) for one in model.modules()] == state
    assert [one.requires_grad for one in model.parameters()] == asked


@pytest.mark.full
def test_a_model_whose_saved_policy_is_not_applied_is_said_to_lack_it(tiny, tmp_path):
    low = layerlab.apply_precision(tiny("llama"), layerlab.Policy(format="bf16", keep=["lm_head"]))
    low.save_pretrained(tmp_path / "low")

    def notes(model: Any, **options: Any) -> list[str]:
        found = layerlab.inspect(model, progress=False, **options)
        return [note for one in found.to_dict()["measures"] for note in one["notes"]]

    ids = {"input_ids": torch.arange(3, 23), "measures": ["stream", "querykey"]}
    for options in (ids, {"weights": True}):
        said = notes(tmp_path / "low", **options)
        assert all("low: it was saved with a precision policy, which is not" in one for one in said)
        assert said
    assert notes(low, **ids) == []


def test_a_head_smaller_than_the_vocabulary_is_one_clear_line(tiny):
    model = tiny("llama")
    model.lm_head = torch.nn.Linear(model.lm_head.in_features, 9, bias=False)
    with pytest.raises(UserError, match=r"holds token 12, the vocabulary of .* has 9 entries"):
        layerlab.inspect(model, input_ids=[[3, 12]], measures=["stream"], progress=False)


@pytest.mark.full
@pytest.mark.parametrize("family", ["gemma4_text", "cpmant", "musicgen"])
def test_sizes_that_differ_by_layer_and_attention_over_other_positions_are_read(family):
    model = recipe.build(family)
    found = layerlab.inspect(model, input_ids=torch.arange(3, 43), progress=False)
    assert len(found.frame("attention")) == 8
    if family == "gemma4_text":
        assert found.models[0]["head_width"] is None and found.models[0]["kv_heads"] == 2


@pytest.mark.full
def test_heads_of_two_attentions_in_a_block_are_told_apart():
    ids = torch.arange(3, 43)
    found = layerlab.inspect(recipe.build("longcat_flash"), input_ids=ids, progress=False)
    for name in ("attention", "spectrum"):
        heads = found.frame(name).groupby("layer")["head"].apply(sorted)
        assert heads.tolist() == [[*range(8)]] * 2


@pytest.mark.parametrize(("family", "severity"), [("gemma2", "info"), ("gemma", "warning")])
def test_a_large_score_is_a_remark_only_where_the_model_caps_it(family, severity):
    model = built(family)
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data.mul_(2500)
    found = layerlab.inspect(
        model, input_ids=torch.arange(3, 15)[None], measures=["attention"], progress=False
    )
    scores = [one for one in found.findings if one.id.startswith("score")]
    assert [one.severity for one in scores] == [severity]
