"""Batches by their losses: the law of the draw, and what it is drawn from."""

from collections import Counter
from itertools import permutations
from math import exp, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from layerlab.adaptation.pretraining.callbacks import ProcessGroup
from layerlab.adaptation.pretraining.loss_resampling import batch_losses, draw_hard_batches
from layerlab.adaptation.pretraining.replay import ReplayData, mix_texts
from layerlab.corpus.batches import BatchOrder
from tests.adaptation.small import LAW, llama, words, written


def test_the_draw_has_the_law_of_one_after_another_without_replacement():
    losses, count, runs = np.array([0.0, 1.0, 2.0, 0.5]), 2, 4000
    weights = [exp(loss) for loss in losses]
    wanted: Counter[tuple[int, ...]] = Counter()
    for pair in permutations(range(4), count):
        left, chance = sum(weights), 1.0
        for one in pair:
            chance *= weights[one] / left
            left -= weights[one]
        wanted[tuple(sorted(pair))] += chance
    found = Counter(tuple(draw_hard_batches(losses, count, seed).tolist()) for seed in range(runs))
    for pair, chance in wanted.items():
        assert abs(found[pair] / runs - chance) < 5 * sqrt(chance * (1 - chance) / runs), pair


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=50),
    st.integers(0, 100),
    st.integers(0, 1000),
    st.integers(-1000, 10**6),
)
def test_it_is_sorted_unique_deterministic_and_blind_to_a_shift(losses, count, seed, shift):
    found = draw_hard_batches(np.array(losses), count, seed).tolist()
    assert len(found) == min(count, len(losses)) == len(set(found))
    assert found == sorted(found) == draw_hard_batches(np.array(losses), count, seed).tolist()
    assert found == draw_hard_batches(np.array(losses) + shift, count, seed).tolist()


def test_losses_are_those_of_the_frozen_model(tmp_path):
    file = written(tmp_path / "law.jsonl", LAW, 40, 1)
    corpus = mix_texts(words(), ReplayData(domain=file, cache=tmp_path)).corpus
    order, model = BatchOrder(corpus, 8, seed=1), llama()
    found = batch_losses(model, order, 5, 4, micro=3)
    for number, loss in enumerate(found):
        rows = order.batch(number, 4)
        with torch.no_grad():
            logits = model(input_ids=rows.inputs).logits
        wanted = cross_entropy(logits.flatten(0, 1), rows.targets.flatten())
        assert loss == pytest.approx(float(wanted), rel=64 * 2.0**-23)
    parts = [
        batch_losses(model, order, 5, 4, group=ProcessGroup(part=(rank, 2))) for rank in range(2)
    ]
    assert sum(parts) == pytest.approx(found, rel=64 * 2.0**-23) and model.training
