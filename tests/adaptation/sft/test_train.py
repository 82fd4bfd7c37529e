"""A stage of tuning: it learns answers alone, goes on bit for bit, and says what it did."""

import json
import os
import shutil
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, BloomConfig, BloomForCausalLM, TrainerCallback

from layerlab import UserError, build
from layerlab.adaptation.sft import train
from layerlab.adaptation.sft.train import SftResult, tune
from layerlab.adaptation.trainer import resume
from layerlab.adaptation.trainer.own_folder import BEGUN
from layerlab.experiments.executors.process import ranks
from layerlab.recipes.adaptation_sections import LoraSection, SftSection
from tests.adaptation.spoken import CHATML, FORGETFUL, speaker, talk
from tests.support.forked import Forked
from tests.support.refused import refusal, refuses

pytestmark = pytest.mark.filterwarnings("ignore:.*will be removed in v6:FutureWarning")
WORDS = speaker()
ROWS = {
    "law": [
        *(talk(f"what is a contract {number}?", "an agreement") for number in range(20)),
        talk("q" * 200, "too long to learn from"),
        talk("q", "a", "q" * 200, "its first answer fits"),
    ],
    "general": [talk(f"say {number}", "hello", "again", "hello there") for number in range(10)],
}
SIZES = {"width": 16, "layers": 1, "heads": 2, "vocab": 288, "context": 128}
BASE = {
    "batch_size": 4,
    "micro_batch_size": 4,
    "learning_rate": 0.01,
    "weight_decay": 0.0,
    "warmup_ratio": 0.0,
}
BLOCKS = SftSection(**BASE, block_size=96, validation_fraction=0.1)
SECTION = BLOCKS.model_copy(update={"num_train_epochs": 3.0, "eval_steps": 2})
HERE = {"use_cpu": True, "adam_beta2": 0.999}


def fresh(variant: str = "llama") -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build(variant, **SIZES)


def tuned(out: Path, model: Any = None, **settings: Any) -> SftResult:
    section = settings.pop("section", SECTION)
    model = fresh() if model is None else model
    rows = settings.pop("rows", ROWS)
    return tune(model, WORDS, rows, out=out, section=section, **{**HERE, **settings})


def short(folder: Path) -> Any:
    """A model in few digits, as a stage loads it."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in model.named_parameters()}


def same(left: Any, right: Any, tolerance: float = 0.0) -> bool:
    mine, theirs = weights(left), weights(right)
    return mine.keys() == theirs.keys() and all(
        float((mine[name] - theirs[name]).norm()) <= tolerance * float(mine[name].norm())
        for name in mine
    )


class Stop(TrainerCallback):
    """Falls over after an update, as a machine does."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == self.update:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> SftResult:
    return tuned(tmp_path_factory.mktemp("done") / "run", save_steps=2)


@pytest.mark.full
def test_answers_are_learned_and_counted(done):
    assert set(done.after) == {"law", "general"}
    assert all(done.after[name] < done.before[name] - 0.5 for name in done.after)
    law = done.sources["law"]
    assert (law.rows, law.held, law.turns, law.passes) == (19, 2, 19, 3.0)
    assert law.cut == 1 and sum(law.dropped.values()) == 1
    assert 0 < law.answers < law.tokens
    assert done.curve[0][0] == 0 and done.curve[-1][0] == done.updates
    told = json.loads((done.folder / "result.json").read_text())
    assert told["after"] == done.after and told["sources"]["law"]["rows"] == 19
    assert told["sources"]["law"]["dropped"] == law.dropped
    assert "1 rows left out: longer than a block" in done.summary()
    assert (
        "1 rows lost turns that a block has no room for" in done.summary()
        and "19 rows, 19 turns" in done.summary()
        and "nats per held-out token" in done.summary()
    )
    again = AutoModelForCausalLM.from_pretrained(done.folder / "model")
    assert same(again, done.model) and not done.model.training
    assert again.generation_config.eos_token_id == WORDS.convert_tokens_to_ids("<|im_end|>")
    assert "an answer ends with <|im_end|>, which did not end what the model" in done.notes[0]


@pytest.mark.full
def test_answers_that_are_examples_of_their_own_are_learned_and_gone_on_with(tmp_path):
    words, rows = speaker(FORGETFUL), {"general": ROWS["general"]}
    section = BLOCKS.model_copy(update={"batch_size": 2, "micro_batch_size": 2, "tokens": 1500})
    options = {"section": section, "save_steps": 2, **HERE}
    found = tune(fresh(), words, rows, out=tmp_path / "run", **options)
    assert found.after["general"] < found.before["general"]
    assert (found.sources["general"].rows, found.sources["general"].held) == (18, 2)
    assert "general: 10 conversations become 20 examples" in found.summary()
    last = max((tmp_path / "run").glob("checkpoint-*"), key=lambda one: int(one.name[11:]))
    shutil.rmtree(last)
    again = tune(fresh(), words, rows, out=tmp_path / "run", **options)
    assert same(again.model, found.model) and again.curve == found.curve


def test_a_stopped_run_goes_on_bit_for_bit(done, tmp_path, monkeypatch):
    made = train.AnswerLossCallback
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):

        def watch(found: Any, batching: Any, trainer: Any, progress: Any) -> Any:
            trainer.add_callback(Stop(4))
            return made(found, batching, trainer, progress)

        patch.setattr(train, "AnswerLossCallback", watch)
        tuned(tmp_path / "run", save_steps=2)
    half = tmp_path / "run" / "checkpoint-6"
    half.mkdir()
    (half / "trainer_state.json").write_text('{"global_step": 6')
    (tmp_path / "run" / BEGUN).write_text("checkpoint-6")
    lines: list[tuple[str, float]] = []
    again = tuned(tmp_path / "run", save_steps=2, progress=lambda *line: lines.append(line))
    assert lines[0][0].startswith("update 5 of") and lines[-1][1] == 1.0
    assert same(again.model, done.model)
    assert again.curve == done.curve
    with pytest.raises(UserError, match="holds a run with another epochs"):
        tuned(tmp_path / "run", section=BLOCKS.model_copy(update={"eval_steps": 2}))
    renamed = {f"{name} 2": rows for name, rows in ROWS.items()}
    with pytest.raises(
        UserError, match=r"another mixture \(\['law: .* held out'\], not \['law 2: "
    ):
        tuned(tmp_path / "run", save_steps=2, rows=renamed)
    other = {**ROWS, "general": [*ROWS["general"][:-1], talk("say 9", "hi", "again", "hi there")]}
    with pytest.raises(UserError, match="holds a run with another order of rows"):
        tuned(tmp_path / "run", save_steps=2, rows=other)


@pytest.mark.full
def test_answers_of_all_lengths_share_a_pass_in_bf16_too(tmp_path):
    """What rounding does to a batch is not taken for padding that is read."""

    def count_passes(precision: str) -> int:
        model, seen = fresh(), list[bool]()
        model.register_forward_hook(lambda module, given, found: seen.append(module.training))
        section = BLOCKS.model_copy(update={"mixed_precision": precision, "eval_steps": 2})
        section = section.model_copy(update={"validation_fraction": 0.4})
        tuned(tmp_path / precision, model, section=section)
        return seen.count(False)

    assert count_passes("bf16") == count_passes("fp32")


@pytest.mark.full
def test_a_run_that_has_ended_is_read_again(done):
    again = tuned(done.folder, save_steps=2)
    assert same(again.model, done.model) and again.curve == done.curve
    assert again.model.config.use_cache


@pytest.mark.full
def test_an_update_does_not_depend_on_how_it_is_split(done, tmp_path):
    split = tuned(tmp_path / "run", per_device_train_batch_size=1)
    assert same(split.model, done.model, tolerance=1e-3)
    assert split.after == pytest.approx(done.after, rel=1e-3)


PROGRAM = """
import os, sys
from pathlib import Path
sys.path.insert(0, os.environ["ROOT"])
import torch
from tests.adaptation.sft.test_train import tuned
done = tuned(Path(sys.argv[1]) / "run", ddp_backend="gloo")
assert torch.distributed.get_world_size() == 2
torch.distributed.destroy_process_group()
"""


@pytest.mark.full
def test_two_processes_learn_what_one_does(done, tmp_path):
    root = str(Path(__file__).resolve().parents[3])
    running = [
        Forked("-c", PROGRAM, tmp_path, env={**os.environ, "ROOT": root, **rank})
        for rank in ranks(2)
    ]
    for one in running:
        ended = one.wait()
        assert ended.returncode == 0, ended.stderr[-3000:]
    two = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    assert same(two, done.model, tolerance=1e-3)


@pytest.mark.few(1)
@pytest.mark.parametrize("variant", ["llama", "pangu-pi"])
def test_adapters_learn_and_are_merged_on_request(variant, tmp_path):
    model = fresh(variant)
    before = weights(model)
    section = BLOCKS.model_copy(update={"lora": LoraSection(r=4, lora_alpha=8)})
    found = tuned(tmp_path / "run", model, section=section, merge=True)
    after = weights(found.model)
    assert after.keys() == before.keys()
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert moved and not any("embed" in name or "norm" in name or "head" in name for name in moved)
    assert found.after["law"] < found.before["law"]


@pytest.mark.full
def test_adapters_that_stay_apart_are_saved_alone(tiny, tmp_path):
    model = tiny("gpt2", vocab_size=288, n_positions=128)

    def adapting(module: str) -> SftSection:
        lora = LoraSection(r=2, target_modules=(module,))
        return BLOCKS.model_copy(update={"lora": lora})

    tuned(tmp_path / "run", model, section=adapting("c_attn"))
    saved = {path.name for path in (tmp_path / "run" / "model").iterdir()}
    assert "adapter_model.safetensors" in saved and "model.safetensors" not in saved
    with pytest.raises(UserError, match=r"the model has no module 'q_proj' for LoRA; expected"):
        tuned(tmp_path / "other", tiny("gpt2", vocab_size=288), section=adapting("q_proj"))
    assert not (tmp_path / "other").exists()  # a plan there would refuse the right name


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_16_bits_are_not_trained_but_stand_below_adapters(tmp_path, dtype):
    kind = str(dtype).removeprefix("torch.")
    for lora in (None, LoraSection(r=2, modules_to_save=("embed_tokens",))):
        section = BLOCKS.model_copy(update={"lora": lora})
        with pytest.raises(UserError, match=rf"embed_tokens.weight in {kind}, .*dtype=torch.floa"):
            tuned(tmp_path / "run", fresh().to(dtype), section=section)
        assert not (tmp_path / "run").exists()
    section = BLOCKS.model_copy(update={"lora": LoraSection(r=4, lora_alpha=8)})
    found = tuned(tmp_path / "run", fresh().to(dtype), section=section)
    assert found.after["law"] < found.before["law"]


@pytest.mark.full
def test_a_merged_model_of_few_digits_is_measured_as_it_is_saved(tmp_path):
    """Its weights round what the adapters add to them; in float32 they do not."""
    section = BLOCKS.model_copy(update={"lora": LoraSection(r=4, lora_alpha=8)})
    fresh().save_pretrained(tmp_path / "base")
    found = tuned(tmp_path / "run", short(tmp_path / "base"), section=section, merge=True)
    again = tuned(tmp_path / "again", short(tmp_path / "run" / "model"), section=section)
    (step, apart), (last, merged) = found.curve[-2:]
    assert again.before == found.after == merged != apart and step == last == found.updates
    (note,) = (one for one in found.notes if "merged into weights in bfloat16, which rounds" in one)
    assert f"law {apart['law']:.5g} -> {merged['law']:.5g}" in note and "nats per token" in note
    whole = tuned(tmp_path / "whole", fresh(), section=section, merge=True)
    assert not any("merged" in one for one in whole.notes)
    assert whole.curve[-2][0] < whole.curve[-1][0] == whole.updates


def test_adapters_need_peft(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    section = BLOCKS.model_copy(update={"lora": LoraSection()})
    refuses("LoRA needs PEFT; in a copy of the", tuned, tmp_path / "run", section=section)


@pytest.mark.full
def test_unpacked_rows_are_learned_too(tmp_path):
    section = SftSection(**BASE, validation_fraction=0.1, packing=False, tokens=600)
    found = tuned(tmp_path / "run", section=section, weights={"law": 1, "general": 1})
    assert found.after["law"] < found.before["law"]
    assert found.sources["law"].passes != found.sources["general"].passes


@pytest.mark.full
def test_a_tokenizer_without_a_template_is_given_one_and_that_is_said(tmp_path):
    words = speaker(None)
    words.pad_token = None
    found = tune(fresh(), words, ROWS, out=tmp_path / "run", section=SECTION, **HERE)
    assert "was given the plain one" in found.notes[0] and words.pad_token is None
    assert "### Assistant" in (tmp_path / "run" / "model" / "chat_template.jinja").read_text()


class Later(date):
    @classmethod
    def today(cls) -> "Later":
        return cls(2099, 1, 1)


@pytest.mark.full
def test_a_run_goes_on_another_day_with_the_date_that_it_began_on(tmp_path, monkeypatch):
    words = speaker("{{ strftime_now('%Y-%m-%d %f') }}" + CHATML)
    section = BLOCKS.model_copy(update={"num_train_epochs": 1.0})

    def again() -> SftResult:
        return tune(fresh(), words, ROWS, out=tmp_path / "run", section=section, **HERE)

    done = again()
    monkeypatch.setattr(resume, "date", Later)
    assert same(again().model, done.model)
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["day"] == str(date.today())
    (tmp_path / "run" / "plan.json").write_text('{"day": "soon"}')
    assert "cannot read" in refusal(again)


def test_what_cannot_be_is_said_in_one_line(tmp_path):
    cases: list[tuple[dict[str, Any], str]] = [
        ({"seed": 1}, "seed is no argument of yours here: the stage decides it"),
        ({"optimizer": 1}, "optimizer'; expected arguments of transformers.TrainingArguments"),
        ({"model": build("llama", **{**SIZES, "vocab": 100})}, "and the model embeds 100 tokens"),
    ]
    for settings, said in cases:
        assert said in refusal(tuned, tmp_path / "run", **settings)


def test_a_model_whose_packed_conversations_see_each_other_does_not_begin(tmp_path):
    blind = BloomConfig(vocab_size=288, hidden_size=16, n_layer=1, n_head=2)
    error = r"does not keep packed conversations apart: .*packing to false"
    refuses(error, tuned, tmp_path / "run", BloomForCausalLM(blind))
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_a_loss_that_is_no_number_ends_it_with_what_was_kept(tmp_path):
    out, options = tmp_path / "run", {"learning_rate": 1e30, "max_grad_norm": 0.0}
    said = refuses("not finite at update 2 of", tuned, out, save_steps=1, **options)
    assert said.startswith("instruction tuning: the loss or its gradient")
    assert "lower the learning rate (now 1e+30); the checkpoint before it is kept" in said
    assert said.endswith("checkpoint-1") and not (out / "model").exists()
    kept = AutoModelForCausalLM.from_pretrained(out / "checkpoint-1")
    assert all(bool(one.isfinite().all()) for one in kept.parameters())
    broken = fresh()
    with torch.no_grad():
        broken.lm_head.weight.fill_(torch.nan)
    with pytest.raises(UserError, match=r"at update 1 of .*; no checkpoint was due yet$"):
        tuned(tmp_path / "other", broken, section=SftSection(**BASE, packing=False))


def test_a_batch_that_processes_cannot_share_is_refused(tmp_path, monkeypatch):
    from transformers import TrainingArguments

    monkeypatch.setattr(TrainingArguments, "world_size", property(lambda self: 3))
    refuses("a batch of 4 rows cannot be shared by 3 processes", tuned, tmp_path / "run")
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: 2))
    refuses("this one process sees 2 GPUs; type: accelerate launch", tuned, tmp_path / "run")
