"""Bits per byte by document, and how far they have moved."""

import math
import sys
from statistics import stdev

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from layerlab.adaptation.pretraining.forgetting import BitsPerByteEvaluator, UnitLosses, change
from layerlab.adaptation.pretraining.replay import ReplayData, mix_texts
from layerlab.corpus.batches import EvalBlocks
from layerlab.corpus.corpus import Corpus
from layerlab.training.validation import evaluate
from tests.adaptation.small import LAW, NATURE, llama, words, written

ROUNDING = 64 * 2.0**-23


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("held")
    files = [written(folder / "a.jsonl", LAW, 80, 1), written(folder / "b.jsonl", NATURE, 50, 2)]
    reading = ReplayData(domain=files, validation=0.3, cache=folder)
    return mix_texts(words(), reading).held["domain"]


@pytest.mark.full
def test_a_gauge_reads_what_an_evaluation_reads(held):
    model = llama().train()
    blocks = EvalBlocks(held, 16)
    found = BitsPerByteEvaluator(blocks).read(model, batch=3)
    score = evaluate(model, blocks, batch=5)
    assert found.per == "document" and model.training
    assert found.bits_per_byte == pytest.approx(score.bits_per_byte, rel=ROUNDING)
    assert found.bytes.sum() == held.validation_bytes


@pytest.mark.full
def test_each_document_has_the_cost_of_its_own_tokens(held):
    """Literally: block by block, token by token, by the separators."""
    model, block = llama().eval(), 16
    nats: list[float] = []
    with torch.no_grad():
        for stream in held.validation:
            tokens, own = stream.tokens.astype(np.int64), len(nats)
            nats += [0.0] * stream.documents
            for first in range(0, len(tokens) - 1, block):
                row = torch.tensor(tokens[first : first + block + 1])
                logits = model(input_ids=row[None, :-1]).logits[0]
                losses = cross_entropy(logits, row[1:], reduction="none")
                for place, loss in enumerate(losses.tolist(), first + 1):
                    document = sum(start <= place for start in stream.starts) - 1
                    nats[own + document] += loss
    found = BitsPerByteEvaluator(EvalBlocks(held, block)).read(model)
    assert found.nats == pytest.approx(nats, rel=ROUNDING)


def test_two_processes_together_read_it_once(held):
    model = llama()
    gauge = BitsPerByteEvaluator(EvalBlocks(held, 16))
    whole = gauge.read(model, batch=4)
    parts = [gauge.read(model, batch=4, part=(rank, 2)).nats for rank in range(2)]
    assert sum(parts) == pytest.approx(whole.nats, rel=ROUNDING)


def test_few_documents_are_counted_by_blocks(tmp_path):
    file = tmp_path / "one.txt"
    file.write_text(" ".join(NATURE * 20))
    reading = ReplayData(domain=file, validation=0.3, cache=tmp_path)
    corpus = mix_texts(words(), reading).held["domain"]
    gauge = BitsPerByteEvaluator(EvalBlocks(corpus, 8))
    assert gauge.per == "block" and len(gauge.read(llama()).nats) == len(EvalBlocks(corpus, 8))
    limited = BitsPerByteEvaluator(EvalBlocks(corpus, 8, limit=2)).read(llama())
    assert len(limited.nats) == 2 and limited.bytes.sum() < corpus.validation_bytes


@pytest.mark.parametrize(("count", "per"), [(7, "block"), (8, "document")])
def test_eight_documents_are_enough(tmp_path, count, per):
    lines = (f'{{"text": "{letter * 30}"}}\n' for letter in "abcdefghijklmnop"[: 2 * count])
    (tmp_path / "a.jsonl").write_text("".join(lines))
    reading = ReplayData(domain=tmp_path / "a.jsonl", validation=0.5, cache=tmp_path)
    corpus = mix_texts(words(), reading).held["domain"]
    assert sum(stream.documents for stream in corpus.validation) == count
    assert BitsPerByteEvaluator(EvalBlocks(corpus, 8)).per == per


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=9))
def test_of_documents_of_one_size_its_error_is_that_of_a_mean(moved):
    sizes = np.full(len(moved), 8)
    then = UnitLosses(sizes * 1.0, sizes, "document")
    found = change(then, UnitLosses(sizes * (1.0 + np.array(moved)), sizes, "document"))
    expected = stdev(one / math.log(2) for one in moved) / math.sqrt(len(moved))
    assert found.error == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_a_change_says_what_it_is_over():
    sizes = np.array([10, 20, 30])
    then, now = (
        UnitLosses(sizes * 1.0, sizes, "document"),
        UnitLosses(sizes * 1.5, sizes, "document"),
    )
    found = change(then, now)
    assert found.value == pytest.approx(0.5 / math.log(2)) and found.error == pytest.approx(0)
    assert "over 3 documents" in str(found) and str(found).startswith("+0.7213 bits per byte")
    alone = change(
        UnitLosses(sizes[:1], sizes[:1], "block"), UnitLosses(sizes[:1], sizes[:1], "block")
    )
    assert alone.low is None and "one block alone: no interval" in str(alone)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 40))
def test_a_change_is_that_of_the_bits_per_byte(seed, count):
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 1000, count)
    then, now = (UnitLosses(draw.random(count) * sizes, sizes, "document") for _ in range(2))
    found = change(then, now)
    assert found.value == pytest.approx(now.bits_per_byte - then.bits_per_byte, abs=1e-12)
    assert found.low <= found.value <= found.high
    back = change(now, then)
    assert back.value == pytest.approx(-found.value, abs=1e-12)
    assert back.error == pytest.approx(found.error)


def test_its_interval_is_students_without_half_a_second_of_imports(monkeypatch):
    """Its first reading stands within a stage, and a short one took an eighth longer by it."""
    from scipy.stats import t

    sizes = np.array([10, 20, 30])
    then, now = (UnitLosses(one * sizes, sizes, "block") for one in (1.0, np.array([1, 2, 4])))
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    found = change(then, now, 0.9)
    assert found.error is not None and found.high is not None
    assert (found.high - found.value) / found.error == pytest.approx(t.ppf(0.95, 2), rel=1e-12)


def test_its_interval_holds_what_it_promises():
    draw, misses, runs = np.random.default_rng(7), 0, 2000
    for _ in range(runs):
        sizes = draw.integers(200, 400, 30)
        moved = draw.normal(0.1, 0.3, 30)
        then = UnitLosses(sizes * 1.0, sizes, "document")
        found = change(then, UnitLosses(sizes * (1.0 + moved), sizes, "document"))
        misses += not found.low <= 0.1 / math.log(2) <= found.high
    # Binomial at 5 %: four standard deviations.
    assert abs(misses / runs - 0.05) < 4 * math.sqrt(0.05 * 0.95 / runs)
