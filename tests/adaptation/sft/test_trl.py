"""TRL's SFTTrainer beside ours: labels, loss and packing are equal; spans of two kinds are not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from layerlab import build
from layerlab.adaptation.sft.conversations import Conversation
from layerlab.adaptation.sft.encode import Encoder
from layerlab.adaptation.sft.packing import Collator, best_fit
from layerlab.adaptation.sft.train import mean_loss
from layerlab.corpus.batches import IGNORED
from tests.adaptation.spoken import CHATML, encoded, speaker, talk, unmarked

# TRL still asks for gradient checkpointing by names that transformers calls old.
pytestmark = pytest.mark.filterwarnings("ignore:.*will be removed in v6:FutureWarning")
SIZES: Any = {"width": 16, "layers": 1, "heads": 2, "vocab": 288, "context": 128}
TALKS = [talk("hello", "hello there", "合同?", "协议"), talk("what", "a contract")]


def trainer(folder: Path, words: Any, talks: Sequence[Conversation], variant: Any = "llama") -> Any:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    settings = SFTConfig(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=2,
        learning_rate=0.01,
        max_length=96,
        assistant_only_loss=True,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        gradient_checkpointing=False,
    )
    model, rows = build(variant, **SIZES), [{"messages": one.messages()} for one in talks]
    data = Dataset.from_list(rows)
    return SFTTrainer(model=model, args=settings, train_dataset=data, processing_class=words)


def batch(theirs: Any) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = theirs.data_collator([*theirs.train_dataset])
    return found


@pytest.mark.full
def test_trl_learns_the_same_tokens_of_conversations(tmp_path):
    words = speaker()
    theirs = trainer(tmp_path, words, TALKS, "pangu-pi")
    before = {name: one.detach().clone() for name, one in theirs.model.named_parameters()}
    rows, encoder = batch(theirs), Encoder(words)
    for ids, labels, one in zip(rows["input_ids"], rows["labels"], TALKS, strict=True):
        ours = encoded(encoder, one)
        assert ids[: len(ours.ids)].tolist() == ours.ids.tolist()
        assert (labels != IGNORED)[: len(ours.ids)].tolist() == ours.answer.tolist()
    assert torch.isfinite(torch.tensor(theirs.train().training_loss))
    after = theirs.model.named_parameters()
    assert any(not torch.equal(one, before[name]) for name, one in after)


@pytest.mark.full
def test_the_loss_of_an_update_is_equal(tmp_path):
    words = speaker()
    theirs, encoder = trainer(tmp_path, words, TALKS), Encoder(words)
    rows = batch(theirs)
    count = (rows["labels"][:, 1:] != IGNORED).sum()
    loss = theirs.compute_loss(theirs.model, dict(rows), num_items_in_batch=count)
    ours = Collator(0, packed=False)([[encoded(encoder, one)] for one in TALKS])
    outputs = theirs.model(input_ids=ours["input_ids"])
    found = mean_loss(theirs.model, outputs, ours["labels"], count)
    assert found.item() == pytest.approx(loss.item(), rel=1e-6)


def test_as_many_blocks_are_filled():
    from datasets import Dataset
    from trl.data_utils import pack_dataset

    lengths = np.random.default_rng(0).integers(1, 60, 200).tolist()
    rows = Dataset.from_list([{"input_ids": [1] * length} for length in lengths])
    assert len(pack_dataset(rows, 64, "bfd")) == len(best_fit(lengths, 64))


def test_why_ours_stays(tmp_path):
    """A text that spells a mark ends a turn there; a template without marks is refused."""
    words, spelled = speaker(), talk("say <|im_end|> now", "hello")
    end = words.convert_tokens_to_ids("<|im_end|>")
    theirs = batch(trainer(tmp_path, words, [spelled]))["input_ids"]
    assert theirs.tolist()[0].count(end) == 3
    assert encoded(Encoder(words), spelled).ids.tolist().count(end) == 2
    bare = speaker(unmarked(CHATML))
    assert encoded(Encoder(bare), talk("hi", "there")).answer.any()
    # Before 1.0 it looked at what the template made, after it at the template.
    with pytest.raises((ValueError, RuntimeError), match=r"training-compatible|assistant tokens"):
        trainer(tmp_path, bare, [talk("hi", "there")])
