"""TRL tunes our models on conversations, and takes the assistant's part for what it is."""

from pathlib import Path

import pytest
import torch

from layerlab import build
from layerlab.adaptation.sft.encode import Encoder
from layerlab.corpus.batches import IGNORED
from tests.adaptation.spoken import speaker, talk

# TRL still asks for gradient checkpointing by names that transformers calls old.
pytestmark = pytest.mark.filterwarnings("ignore:.*will be removed in v6:FutureWarning")
SIZES = {"width": 16, "layers": 1, "heads": 2, "vocab": 288, "context": 128}


@pytest.mark.parametrize("variant", ["pangu-pi"])
def test_trl_learns_the_same_tokens_of_conversations(variant: str, tmp_path: Path) -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    words = speaker()
    talks = [talk("hello", "hello there", "合同?", "协议"), talk("what", "a contract")]
    settings = SFTConfig(
        output_dir=str(tmp_path),
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
    model = build(variant, **SIZES)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    rows = Dataset.from_list([{"messages": one.messages()} for one in talks])
    trainer = SFTTrainer(model=model, args=settings, train_dataset=rows, processing_class=words)
    batch = trainer.data_collator([trainer.train_dataset[place] for place in range(2)])
    encoder = Encoder(words)
    for ids, labels, one in zip(batch["input_ids"], batch["labels"], talks, strict=True):
        ours = encoder.example(one)
        assert ids[: len(ours.ids)].tolist() == ours.ids.tolist()
        assert (labels != IGNORED)[: len(ours.ids)].tolist() == ours.answer.tolist()
    assert torch.isfinite(torch.tensor(trainer.train().training_loss))
    assert any(not torch.equal(one, before[name]) for name, one in model.named_parameters())
