"""Training goes on with what the blocks say, stops and goes on again, and says what it forgot."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import layerlab
from layerlab import UserError
from layerlab.adaptation.pretraining.replay import BlockDataset, ReplayData, mix_texts, stack_rows
from layerlab.adaptation.pretraining.result import PretrainingResult
from layerlab.adaptation.pretraining.train import count_updates, pretrain
from layerlab.corpus.batches import BatchOrder
from layerlab.recipes.adaptation_sections import PretrainSection
from layerlab.recipes.load import validate_table
from layerlab.recipes.training_sections import Source
from layerlab.records.events import read
from tests.adaptation.small import LAW, NATURE, llama, words, written
from tests.support.forked import Forked
from tests.support.refused import refuses

ROUNDING = 64 * 2.0**-23
BLOCK = 16
ROOT = Path(__file__).resolve().parents[3]
# What a process of its own does: with a number, it ends at that update as if it had been killed.
PROGRAM = """
import os, sys
from pathlib import Path
from tests.adaptation.pretraining.test_train import run

folder, out, end = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

def progress(said, share):
    if said.startswith(f"update {end} of"):
        os._exit(3)

run(folder, out, progress=progress, save_steps=2)
"""


def reading(folder: Path, general: bool = True) -> ReplayData:
    return ReplayData(
        domain=folder / "law.jsonl",
        general=folder / "nature.jsonl" if general else None,
        validation=0.2,
        cache=folder / "cache",
    )


def stage(**own: Any) -> PretrainSection:
    usual = {"tokens": 8 * 4 * BLOCK, "batch_size": 4, "eval_steps": 4, "block_size": BLOCK}
    # As transformers' own arguments are.
    plain = {"lr_scheduler_type": "linear", "warmup_ratio": 0, "weight_decay": 0}
    return validate_table(PretrainSection, {**usual, **plain, **own}, "a test")


def run(folder: Path, out: Path, **options: Any) -> PretrainingResult:
    ratio = options.pop("ratio", (1, 1))
    return pretrain(
        options.pop("model", None) or llama(),
        words(),
        reading(folder),
        section=stage(ratio=ratio, adam_beta2=0.999, **options.pop("section", {})),
        out=out,
        **{"learning_rate": 1e-2, "use_cpu": True, **options},
    )


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    written(folder / "law.jsonl", LAW, 60, 1)
    written(folder / "nature.jsonl", NATURE, 90, 2)
    return folder


@pytest.fixture(scope="module")
def whole(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> PretrainingResult:
    """A run that was never stopped."""
    return run(texts, tmp_path_factory.mktemp("whole") / "out", save_steps=2)


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model" / "model.safetensors")


def near(ours: Path, theirs: Path) -> None:
    first, second = weights(ours), weights(theirs)
    assert first.keys() == second.keys()
    for name, value in first.items():
        gap = float((second[name] - value).norm())
        assert gap <= ROUNDING * float(value.norm()), name


def test_tokens_are_rounded_to_whole_updates():
    sections = [PretrainSection(tokens=tokens, batch_size=4) for tokens in (1, 95, 97)]
    assert [count_updates(one, 16) for one in sections] == [1, 1, 2]


def test_it_says_what_it_read_and_what_came_of_it(whole):
    assert (whole.updates, whole.tokens) == (8, 8 * 4 * BLOCK)
    assert [one.blocks for one in whole.sources] == [16, 16]
    assert [one.kind for one in whole.sources] == ["domain", "general"]
    assert all(one.tokens == 16 * BLOCK for one in whole.sources)
    assert whole.after["domain"] < whole.before["domain"]
    moved = whole.change["general"]
    assert whole.forgetting is moved and moved.per == "document" and moved.low is not None
    assert moved.value == pytest.approx(whole.after["general"] - whole.before["general"])
    content = json.loads((whole.folder / "result.json").read_text())
    assert content == json.loads(json.dumps(whole.to_dict()))
    assert "general (forgetting)" in whole.summary() and "512 tokens" in whole.summary()
    assert {kind: one["whole"] for kind, one in whole.held.items()} == dict.fromkeys(
        ("domain", "general"), True
    )
    assert len({one["digest"] for one in whole.held.values()}) == 2


def test_its_events_are_both_curves_and_the_counters(whole):
    events = list(read(whole.folder))
    curve = [event for event in events if event["kind"] == "evaluate"]
    assert [event["update"] for event in curve] == [0, 4, 8]
    assert [event["tokens"] for event in curve] == [0, 4 * 4 * BLOCK, 8 * 4 * BLOCK]
    assert curve[0]["change"]["general"]["value"] == 0
    assert curve[-1]["bits_per_byte"] == dict(whole.after)
    assert curve[-1]["forgetting"]["value"] == pytest.approx(whole.forgetting.value)
    assert [one["blocks"] for one in curve[1]["sources"]] == [8, 8]
    losses = [event["loss"] for event in events if event["kind"] == "train"]
    assert len(losses) == 8 and losses[-1] < losses[0]


def test_the_model_and_its_tokenizer_are_whole(whole):
    folder = whole.folder / "model"
    assert AutoModelForCausalLM.from_pretrained(folder).config.vocab_size == 300
    assert AutoTokenizer.from_pretrained(folder)("the court")["input_ids"]
    assert not list(folder.glob("*.bin")) and not list(whole.folder.glob(".*"))


def test_an_update_is_the_mean_over_its_tokens(texts, tmp_path):
    """A literal step of gradient descent on the blocks that the order names."""
    found = run(
        texts,
        tmp_path / "out",
        section={"tokens": 4 * BLOCK},
        optim="sgd",
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        learning_rate=0.5,
    )
    text = mix_texts(words(), reading(texts))
    rows = stack_rows(BlockDataset(BatchOrder(text.corpus, BLOCK, 0), 4).__getitems__(range(4)))
    model = llama().train()
    logits = model(input_ids=rows["input_ids"]).logits
    cross_entropy(logits.flatten(0, 1), rows["labels"].flatten()).backward()
    for name, value in weights(found.folder).items():
        weight = model.get_parameter(name)
        assert weight.grad is not None
        assert torch.allclose(value, weight - 0.5 * weight.grad, atol=1e-6), name


@pytest.mark.full
def test_a_batch_may_be_split(whole, texts, tmp_path):
    run(texts, tmp_path / "out", per_device_train_batch_size=1, activation_checkpointing=True)
    near(whole.folder, tmp_path / "out")


@pytest.mark.full
def test_a_killed_run_goes_on_to_the_same_weights(whole, texts, tmp_path):
    out = tmp_path / "out"
    assert Forked("-c", PROGRAM, texts, out, "5").wait().returncode == 3
    assert not (out / "model").exists() and (out / "checkpoint-4").is_dir()
    # One that was being written when the end came: its state, written last, is missing.
    (out / "checkpoint-6").mkdir()
    resumed = run(texts, out, save_steps=2)
    assert all(torch.equal(one, weights(out)[name]) for name, one in weights(whole.folder).items())
    ours, theirs = (
        [event for event in read(folder) if event["kind"] == "evaluate"]
        for folder in (whole.folder, out)
    )
    assert ours == theirs and resumed.change == whole.change


def test_a_finished_run_is_told_again(whole, texts):
    before = (whole.folder / "events.jsonl").read_text()
    model = llama()
    again = run(texts, whole.folder, model=model, save_steps=2)
    assert model.config.use_cache
    assert again == whole and (whole.folder / "events.jsonl").read_text() == before
    trained = weights(whole.folder)["model.norm.weight"]
    assert torch.equal(model.model.norm.weight, trained)


@pytest.mark.full
def test_two_processes_train_like_one(whole, texts, tmp_path):
    """As a user starts them: accelerate launch, copies of the model (DDP), gloo."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM)
    alone = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", *alone]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = Forked(*launch, script, texts, tmp_path / "out", "-1", env=settings).wait()
    assert done.returncode == 0, done.stderr[-4000:]
    near(whole.folder, tmp_path / "out")
    ours, theirs = (
        [event for event in read(folder) if event["kind"] == "evaluate"]
        for folder in (whole.folder, tmp_path / "out")
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["sources"] == other["sources"]
        assert mine["bits_per_byte"] == pytest.approx(other["bits_per_byte"], rel=1e-4)


@pytest.mark.full
def test_without_replay_more_is_forgotten(tmp_path):
    """The experiment of domain.md, section 4, at a size for a test."""
    written(tmp_path / "law.jsonl", LAW, 30, 1)
    written(tmp_path / "nature.jsonl", NATURE, 90, 2)
    model = llama(width=32)
    base = pretrain(
        model,
        words(),
        replace(reading(tmp_path, general=False), domain=tmp_path / "nature.jsonl"),
        section=stage(tokens=40 * 8 * BLOCK, batch_size=8, eval_steps=None, adam_beta2=0.999),
        out=tmp_path / "base",
        learning_rate=1e-2,
        use_cpu=True,
    )
    assert base.forgetting is None and set(base.after) == {"domain"}
    found = {}
    for name, ratio in {"off": (1, 0), "on": (1, 1)}.items():
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "base" / "model")
        found[name] = run(
            tmp_path,
            tmp_path / name,
            model=model,
            ratio=ratio,
            section={"tokens": 30 * 8 * BLOCK, "batch_size": 8, "eval_steps": 30},
        )
    off, on = found["off"], found["on"]
    assert off.before == on.before, "both start from one model and are measured on one text"
    assert off.forgetting.low > 0, str(off.forgetting)
    assert on.forgetting.high < off.forgetting.low, str(on.forgetting)
    assert all(arm.change["domain"].high < 0 for arm in found.values())
    assert [one.kind for one in off.sources] == ["domain"]
    assert off.sources[0].passes > 1 and any("was read" in note for note in off.notes)
    assert "seen more than once" in off.summary()


def test_hard_batches_are_drawn_again(texts, tmp_path):
    section = {"resample_fraction": 0.48, "max_eval_blocks": 2}
    found = run(texts, tmp_path / "out", section=section)
    assert found.updates == 4 and found.tokens == 4 * 4 * BLOCK
    assert not found.held["domain"]["whole"]
    kept = json.loads((tmp_path / "out" / "batches.json").read_text())
    assert len(kept["losses"]) == 8 and len(kept["batches"]) == 4
    assert sum(one.blocks for one in found.sources) == 16


# PEFT asks transformers by a name that is on its way out.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_our_own_models_and_adapters_are_trained_too(texts, tmp_path):
    from peft import LoraConfig, get_peft_model

    ours = layerlab.build("pangu-pi", width=16, layers=1, vocab=300, heads=2)
    found = run(texts, tmp_path / "ours", model=ours, section={"tokens": 4 * 4 * BLOCK})
    assert found.after["domain"] < found.before["domain"]
    adapted = get_peft_model(llama(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    run(texts, tmp_path / "lora", model=adapted, section={"tokens": 4 * 4 * BLOCK})
    assert (tmp_path / "lora" / "model" / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"section": {"tokens": 0}}, "tokens is 0; expected a whole number from 1"),
        ({"section": {"eval_steps": 0}}, "eval_steps is 0; expected a whole number from 1"),
        ({"section": {"max_eval_blocks": -1}}, "max_eval_blocks is -1; expected a whole number"),
        ({"section": {"resample_fraction": 1.5}}, "resample_fraction is 1.5; expected a number"),
        ({"max_steps": 3}, "max_steps is no argument of yours here: the stage decides it"),
        ({"learning_rat": 1.0}, "learning_rat'.*; expected arguments of transformers.Training"),
        ({"model": llama().bfloat16()}, r"embed_tokens.weight in bfloat16, .*dtype=torch.float32"),
        ({"model": llama().half(), "bf16": True}, r"weight in float16, .* for mixed precision"),
        ({"model": llama(vocab=200)}, "has 300 entries and the model embeds 200 tokens; type"),
    ],
)
def test_what_cannot_be_is_one_line(texts, tmp_path, options, said):
    refuses(said, run, texts, tmp_path / "out", **options)


@pytest.mark.parametrize(
    ("family", "options"),
    [("bloom", {"n_layer": 1, "n_head": 2}), ("mamba", {"num_hidden_layers": 1, "state_size": 4})],
)
def test_a_model_that_sees_past_documents_does_not_begin(texts, tmp_path, family, options):
    config = AutoConfig.for_model(family, vocab_size=300, hidden_size=16, **options)
    model = AutoModelForCausalLM.from_config(config)
    apart = {"section": stage(tokens=4 * BLOCK), "out": tmp_path / "out", "use_cpu": True}
    with pytest.raises(
        UserError, match=r"does not keep documents apart: .*; set documents to false"
    ):
        pretrain(model, words(), replace(reading(texts), documents=True), **apart)
    assert not (tmp_path / "out").exists()
    assert pretrain(model, words(), reading(texts), **apart).updates == 1
    apart["out"] = tmp_path / "separates"
    assert pretrain(llama(), words(), replace(reading(texts), documents=True), **apart).updates == 1


def test_a_loss_that_is_no_number_ends_it_with_what_was_kept(texts, tmp_path):
    options = {"learning_rate": 1e30, "max_grad_norm": 0.0, "save_steps": 1}
    with pytest.raises(UserError, match=r"continued pretraining: .* not finite at update 2 of 8"):
        run(texts, tmp_path / "out", **options)
    assert (tmp_path / "out" / "checkpoint-1" / "trainer_state.json").is_file()
    assert not (tmp_path / "out" / "model").exists()


def mixed(texts: Path, out: Path, *weights: float) -> PretrainingResult:
    """Both texts by their weights; where there is one weight, the other text is general."""
    sources = [Source(text=str(texts / name)) for name in ("law.jsonl", "nature.jsonl")]
    domain = [
        one.model_copy(update={"weight": of}) for one, of in zip(sources, weights, strict=False)
    ]
    reading = ReplayData(
        domain=domain, general=sources[len(domain) :] or None, cache=texts / "cache"
    )
    section = stage(ratio=(1, 0), tokens=4 * 4 * BLOCK)
    return pretrain(llama(), words(), reading, section=section, out=out, use_cpu=True)


def test_the_weights_and_kinds_of_texts_are_part_of_a_plan(texts, tmp_path):
    out = tmp_path / "out"
    found = mixed(texts, out, 1, 1)
    assert [one.blocks for one in found.sources] == [8, 8]
    before = weights(out)
    said = r"another mixture \(\['domain 1', 'domain 1'\], not \['domain 3', 'domain 1'\]\); name"
    refuses(said, mixed, texts, out, 3, 1)
    refuses(r"'domain 1'\], not \['domain 1'\]\); name another folder", mixed, texts, out, 1)
    assert mixed(texts, out, 2, 2) == found  # the same shares
    plan = json.loads((out / "plan.json").read_text())
    del plan["mixture"]  # as of an earlier version
    (out / "plan.json").write_text(json.dumps(plan))
    for one in out.glob("checkpoint-*"):
        shutil.rmtree(one)  # their seals know the whole plan
    mixed(texts, out, 1, 1)
    assert all(torch.equal(one, before[name]) for name, one in weights(out).items())


def test_a_folder_of_another_run_is_kept(whole, texts):
    with pytest.raises(UserError, match=r"holds a run with another seed \(0, not 1\); name"):
        run(texts, whole.folder, seed=1, save_steps=2)


def test_text_that_does_not_come_back_has_no_curve_and_a_reason(texts, tmp_path):
    """It is learned from all the same; a run that is stopped goes on without a curve, too."""
    machine = Tokenizer(models.WordLevel({"w": 0, "the": 1, "court": 2, "</s>": 3}, unk_token="w"))
    machine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    few = PreTrainedTokenizerFast(tokenizer_object=machine, eos_token="</s>", unk_token="w")
    asked = {"section": stage(), "out": tmp_path / "out", "use_cpu": True, "save_steps": 2}
    found = pretrain(llama(), few, reading(texts), **asked)
    assert (found.before, found.after, found.change, found.forgetting) == ({}, {}, {}, None)
    assert sum("are not given: the tokenizer does not give" in one for one in found.notes) == 2
    curve = [one for one in read(found.folder) if one["kind"] == "evaluate"]
    assert [one["update"] for one in curve] == [0, 4, 8]
    assert all(one["bits_per_byte"] == {} and one["forgetting"] is None for one in curve)
    assert "bits per byte of" in found.summary() and "->" not in found.summary()
    again = pretrain(llama(), few, reading(texts), **asked)
    assert [one for one in read(again.folder) if one["kind"] == "evaluate"] == curve


def test_no_copy_of_a_held_out_document_is_learned(texts, tmp_path):
    """Neither of its own kind of text nor of the other."""
    rows = [
        *(texts / "law.jsonl").read_text().splitlines()[:50],
        *(f'{{"text": "law {n}"}}' for n in range(30)),
    ]
    (tmp_path / "law.jsonl").write_text("\n".join(rows * 2))
    (tmp_path / "nature.jsonl").write_text(
        "\n".join([*rows[:20], *rows[60:], *(f'{{"text": "sea {n}"}}' for n in range(90))])
    )
    found = mix_texts(words(), reading(tmp_path))
    held = {
        number
        for corpus in found.held.values()
        for one in corpus.validation
        for number in one.hashes.tolist()
    }
    learned = {number for one in found.corpus.train for number in one.hashes.tolist()}
    assert held and learned and not held & learned
    said = [one for one in found.corpus.notes if "are copies of held-out ones, and are not" in one]
    assert len(said) == 2 and "law.jsonl" in said[0] and "nature.jsonl" in said[1]
