"""What was read of each source, by an account of its own."""

import pytest

from layerlab.adaptation.pretraining.callbacks import shares
from layerlab.adaptation.pretraining.replay import BlockDataset, ReplayData, mix_texts
from layerlab.corpus.batches import BatchOrder
from tests.adaptation.small import LAW, NATURE, words, written


def test_passes_are_over_the_training_text_of_a_source(tmp_path):
    law = written(tmp_path / "law.jsonl", LAW, 40, 1)
    nature = written(tmp_path / "nature.jsonl", NATURE, 90, 2)
    corpus = mix_texts(words(), ReplayData(domain=law, general=nature, cache=tmp_path)).corpus
    found = shares(BlockDataset(BatchOrder(corpus, 8, seed=1), 600), ("domain", "general"), 500)
    assert [one.blocks for one in found] == [250, 250]
    for one, stream in zip(found, corpus.train, strict=True):
        assert one.tokens == 250 * 8
        assert one.passes == pytest.approx(one.tokens / len(stream.tokens), rel=0.02)
    assert found[0].passes > found[1].passes
