"""One run: the same bits for the same seed, one mean whatever the pieces, a model that is kept."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from layerlab import UserError
from layerlab.api.training_result import TrainingResult
from layerlab.console.progress import NullProgress
from layerlab.corpus.extent import CorpusSize
from layerlab.experiments.plan.plan import plan
from layerlab.recipes.training import make_recipe
from layerlab.records import events
from layerlab.records.events import FILE, read
from layerlab.records.index.run import read as read_summary
from layerlab.records.result import read_result
from layerlab.report.pages.comparison import save_run
from layerlab.training.flops import flops_per_token
from layerlab.training.run_spec import RunSpec
from layerlab.training.setup import load_corpus
from layerlab.training.trainer import Trainer, train_run
from layerlab.training.validation import evaluate
from tests.support.forked import python
from tests.support.refused import refuses
from tests.training.support import killed

SMALL = {
    "model": {"width": 16, "layers": 2, "heads": 2, "context": 16},
    "data": {"vocab_size": 300},
    "train": {"max_steps": 6, "batch_size": 4, "learning_rate": 0.01},
    "evaluate": {"eval_steps": 3, "max_eval_blocks": 4, "batch_size": 3},
}


COMPILED = """
import sys
from pathlib import Path
import torch
from torch._dynamo.testing import CompileCounter
from tests.training.test_trainer import begun

torch.set_num_threads(1)
counter = CompileCounter()
settings = {"model.layers": 10}
plain, compiled = (begun(Path(sys.argv[1]) / name, **settings) for name in "ab")
for layer in compiled.model.model.layers:
    layer.compile(dynamic=False, backend=counter)
for training in (plain, compiled):
    training.advance()
assert counter.frame_count == 1, counter.frame_count
for one, other in zip(plain.model.parameters(), compiled.model.parameters(), strict=True):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
"""


pytestmark = pytest.mark.usefixtures("cached")


def run_of(**settings: Any) -> RunSpec:
    from layerlab.corpus.corpus import extent, prepare

    recipe = make_recipe(SMALL).change(settings)
    corpus = prepare(recipe.data)
    return plan(recipe, extent(corpus, 16))[0]


def begun(folder: Path, **settings: Any) -> Trainer:
    return killed.begun(run_of(**settings), folder)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tmp_path):
    first, second = (train_run(run_of(), tmp_path / name)["weights"] for name in "ab")
    assert first == second
    assert train_run(run_of(**{"train.seed": 1}), tmp_path / "c")["weights"] != first


def test_the_journal_tells_every_update_and_every_evaluation(tmp_path):
    result = train_run(run_of(), tmp_path)
    events = list(read(tmp_path))
    assert [one["update"] for one in events if one["kind"] == "train"] == [1, 2, 3, 4, 5, 6]
    scores = [one for one in events if one["kind"] == "evaluation"]
    assert [one["update"] for one in scores] == [0, 3, 6]
    assert scores[0]["nats"] == result["step0_nats"] > result["nats"] == scores[-1]["nats"]
    assert result["tokens"] == 6 * 4 * 16 == events[-1]["tokens"]
    flops = flops_per_token(run_of().recipe).full
    assert result["flops"] == flops * result["tokens"] == events[-1]["flops"]
    assert not (tmp_path / "checkpoints").exists()


def test_a_tenth_of_the_updates_is_between_two_checkpoints(tmp_path):
    training = begun(tmp_path, **{"train.max_steps": 20})
    kept = []
    for _ in range(5):
        training.advance()
        kept.append(sorted(path.name[-1] for path in (tmp_path / "checkpoints").glob("step-*")))
    assert kept == [[], ["2"], ["2"], ["2", "4"], ["2", "4"]]


@pytest.mark.full
def test_a_run_shows_that_it_goes_on_where_it_has_nothing_to_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "BEAT", 0.0)
    training = begun(tmp_path, **{"run.log_points": 1, "evaluate.eval_steps": 6})
    journal = tmp_path / FILE
    before = journal.read_bytes()
    for act in (training.advance, lambda: training.reader.score(training.model, training.note)):
        os.utime(journal, (0, 0))
        act()
        assert journal.stat().st_mtime > 0
    assert journal.read_bytes() == before


def test_what_is_counted_over_all_updates_outlives_an_interruption(tmp_path):
    """Heads that were clipped, and losses: of updates without an event, and before a checkpoint."""
    settings = {"control.qk_clip": 0.005, "run.log_points": 2}
    whole, counts = begun(tmp_path / "a", **settings), []
    while not whole.done:
        whole.advance()
        counts.append(whole.control.clipped)
    # The mean loss is that of all six updates, too, though two are written down.
    every = train_run(run_of(**{**settings, "run.log_points": 6}), tmp_path / "every")
    losses = [one["loss"] for one in read(tmp_path / "every") if one["kind"] == "train"]
    assert len(losses) == 6 and every["train_loss"] == sum(losses) / 6
    told = [one["clipped"] for one in read(tmp_path / "a") if one["kind"] == "train"]
    assert told == [sum(counts[:3]), sum(counts[3:])] and min(counts[0], counts[3]) > 0
    cut = begun(tmp_path / "b", **settings)
    for _ in range(4):
        cut.advance()
    cut.checkpoint()
    resumed = begun(tmp_path / "b", **settings)
    while not resumed.done:
        resumed.advance()
    assert resumed.finish()["train_loss"] == every["train_loss"]
    assert [one["clipped"] for one in read(tmp_path / "b") if one["kind"] == "train"] == told
    begun(tmp_path / "c").advance()
    assert all("clipped" not in one for one in read(tmp_path / "c"))


def test_the_model_that_is_kept_is_the_model_that_was_measured(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    training = begun(tmp_path)
    while not training.done:
        training.advance()
    result = training.finish()
    kept = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert evaluate(kept, training.eval_blocks, batch=2).nats == pytest.approx(
        result["nats"], rel=1e-6
    )
    assert AutoTokenizer.from_pretrained(tmp_path / "model").vocab_size == 300


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_a_batch_in_pieces_gives_the_gradient_of_the_batch(tmp_path, micro):
    whole, pieces = (
        begun(tmp_path / "a"),
        begun(tmp_path / "b", **{"train.micro_batch_size": micro}),
    )
    losses = [float(training._gradient()) for training in (whole, pieces)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    pairs = zip(whole.model.parameters(), pieces.model.parameters(), strict=True)
    for one, other in pairs:
        # Sums of float32 in another order: some tens of roundings of the largest entry.
        size = 64 * torch.finfo(torch.float32).eps * float(one.grad.abs().max())
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=size)


def test_the_manifest_says_what_has_to_be_equal(tmp_path):
    training = begun(tmp_path)
    found = json.loads((tmp_path / "manifest.json").read_text())
    assert found["batch_tokens"] == 64
    assert found["model"]["parameters"] == training.model.num_parameters()
    assert found["data"]["order"] == training.order.digest
    assert found["recipe"]["train"]["learning_rate"] == 0.01


def test_bf16_trains_and_keeps_its_weights_in_float32(tmp_path):
    training = begun(tmp_path, **{"train.mixed_precision": "bf16"})
    training.advance()
    assert {one.dtype for one in training.model.parameters()} == {torch.float32}
    with training.place.precision():
        assert training.model(training._rows().inputs).logits.dtype == torch.bfloat16


def test_prompts_are_continued_in_the_precision_of_the_run(tmp_path):
    training = begun(tmp_path, **{"train.mixed_precision": "bf16", "evaluate.prompts": ["the"]})
    dtypes = []
    training.model.register_forward_hook(lambda *given: dtypes.append(given[-1].logits.dtype))
    training._evaluate()
    # Of held-out blocks, three and one, and of a token each time.
    assert len(dtypes) > 3 and set(dtypes) == {torch.bfloat16}


@pytest.mark.full
def test_compiled_layers_are_one_graph_and_learn_the_same(tmp_path):
    """In a process of its own, since type checks break graphs."""
    done = python("-c", COMPILED, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train.mixed_precision": "fp16"}, 'is "fp16", which PyTorch trains in on GPUs alone'),
        ({"train.attn_implementation": "flex_attention"}, "it has no backward pass on a CPU"),
        ({"emulate.format": "bf16", "train.mixed_precision": "bf16"}, "on top of the emulated one"),
        ({"emulate.format": "bf16", "train.torch_compile": True}, "cannot be emulated"),
        ({"run.device": "potato"}, "run.device is 'potato', which is no device"),
    ],
)
def test_what_is_not_permitted_is_not_begun(tmp_path, changes, said):
    run = run_of()
    bad = replace(run, recipe=run.recipe.change(changes))
    refuses(said, Trainer, bad, tmp_path, NullProgress())
    assert not list(tmp_path.iterdir())


def test_the_loop_rounds_as_it_is_told(tmp_path):
    plain, rounded = (
        begun(tmp_path / str(format), **({"emulate.format": format} if format else {}))
        for format in (None, "fp8_e4m3")
    )
    weights = [one.model.lm_head.weight for one in (plain, rounded)]
    assert torch.equal(*weights)
    for one in (plain, rounded):
        one.advance()
    assert not torch.equal(*weights)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("device", ["cuda", "npu"])
def test_a_device_that_is_not_there_is_refused(tmp_path, device):
    with pytest.raises(UserError, match=f"run.device is '{device}', and there is none here"):
        begun(tmp_path, **{"run.device": device})


def test_a_text_that_has_changed_since_the_plan_is_refused():
    run = run_of()
    other = RunSpec(arm=run.arm, recipe=run.recipe, digest="0" * 32)
    refuses("is no longer what it was planned on", load_corpus, other)
    assert CorpusSize(vocab=1, tokens=1, digest="a").digest != run.digest


def test_documents_do_not_see_each_other_where_that_is_asked(tmp_path):
    apart = begun(tmp_path, **{"data.document_masking": True})
    rows = apart._rows()
    assert rows.positions is not None
    apart.advance()
    assert apart.update == 1


@pytest.mark.full
def test_a_tokenizer_that_loses_text_leaves_nats_and_no_bits_per_byte(tmp_path):
    machine = Tokenizer(
        models.WordLevel({"<unk>": 0, "the": 1, "of": 2, "</s>": 3}, unk_token="<unk>")
    )
    machine.pre_tokenizer = pre_tokenizers.Whitespace()
    few = PreTrainedTokenizerFast(tokenizer_object=machine, eos_token="</s>", unk_token="<unk>")
    few.save_pretrained(tmp_path / "words")
    settings = {"data.tokenizer": str(tmp_path / "words"), "train.max_steps": 2}
    result = train_run(run_of(**settings), tmp_path / "run")
    assert result["bits_per_byte"] is None and result["nats"] > 0
    assert read_result(tmp_path / "run") == result
    events = list(read(tmp_path / "run"))
    assert all(one["bits_per_byte"] is None for one in events if one["kind"] == "evaluation")
    said = [one["text"] for one in events if one["kind"] == "note"]
    assert len(said) == 1 and "the tokenizer does not give its held-out text back" in said[0]
    trained = TrainingResult(tmp_path / "run", result, tmp_path / "report.html", tuple(said))
    assert " nats per token, 128 tokens at" in trained.summary() and said[0] in trained.summary()
    assert read_summary(tmp_path / "run").headline == f"{result['nats']:.4f} nats per token"
    assert "nats per token" in save_run(tmp_path / "run").read_text()
