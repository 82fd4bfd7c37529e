"""The logit lens against its definition, and the tuned one against least squares written out."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from layerlab import UserError, builtin, inspect
from layerlab.measures.quantities.lens import (
    MEASURES,
    RIDGES,
    Judge,
    Translator,
    fit_translator,
)
from layerlab.observe.tracing.readout import Answer

(LENS,) = MEASURES


def judge(true: torch.Tensor, tokens: torch.Tensor) -> Judge:
    places = torch.arange(len(true))
    return Judge(Answer(tokens=tokens, places=places, streams=[], logits=true, outputs=[]))


def logits(seed: int, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(70, 40, generator=torch.Generator().manual_seed(seed))


TOKENS = torch.randint(0, 40, (71,), generator=torch.Generator().manual_seed(9))


def test_the_columns_are_those_of_the_definitions():
    true, found = logits(0), logits(1)
    read = judge(true, TOKENS).compare(found)
    p, q = (torch.distributions.Categorical(logits=one.double()) for one in (true, found))
    expected = {
        "kl": torch.distributions.kl_divergence(p, q),
        "agreement": (true.argmax(-1) == found.argmax(-1)).double(),
        "nats": functional.cross_entropy(found.double(), TOKENS[1:], reduction="none"),
        "rank": 1.0 + found.argsort(descending=True).argsort()[torch.arange(70), true.argmax(-1)],
        "entropy": q.entropy(),
    }
    for name, values in expected.items():
        torch.testing.assert_close(read[name].double(), values.double(), rtol=1e-5, atol=2e-5)


@given(seed=st.integers(0, 2**16), scale=st.sampled_from([1e-6, 1.0, 30.0, 1e4]))
def test_the_divergence_is_never_below_zero_and_zero_from_oneself(seed, scale):
    true, found = logits(seed, scale), logits(seed + 1, scale)
    assert bool((judge(true, TOKENS).compare(found)["kl"] >= 0).all())
    own = judge(true, TOKENS).compare(true)
    # Sums of 40 terms in float32.
    assert float(own["kl"].max()) == 0
    assert own["agreement"].min() == own["rank"].max() == 1


def test_a_token_that_is_ruled_out_is_no_fault():
    true, found = logits(0), logits(1)
    true[:, 7] = found[:, 7] = -torch.inf
    read = judge(true, torch.where(TOKENS == 7, 8, TOKENS)).compare(found)
    assert all(bool(values.isfinite().all()) for values in read.values())


def test_behind_the_last_token_nothing_stands():
    true = logits(0)
    nats = judge(true, TOKENS[:70]).compare(true)["nats"]
    assert nats[:-1].isfinite().all() and nats[-1].isnan()


def literal(x: np.ndarray, y: np.ndarray, ridge: float) -> tuple[np.ndarray, float]:
    """Weighted ridge regression by a stacked system, and its generalized cross-validation."""
    weight = 1 / np.linalg.norm(y, axis=1, keepdims=True)
    means = [(weight**2 * part).sum(0) / (weight**2).sum() for part in (x, y - x)]
    a, b = weight * (x - means[0]), weight * (y - x - means[1])
    penalty = ridge * (a**2).sum() / a.shape[1]
    stacked = np.vstack([a, np.sqrt(penalty) * np.eye(a.shape[1])])
    matrix = np.linalg.lstsq(stacked, np.vstack([b, np.zeros((a.shape[1], b.shape[1]))]))[0]
    hat = a @ np.linalg.solve(a.T @ a + penalty * np.eye(a.shape[1]), a.T)
    score = ((b - a @ matrix) ** 2).sum() / (len(a) - 1 - np.trace(hat)) ** 2
    return matrix, score


@pytest.mark.parametrize("tokens", [12, 50, 300])
def test_the_map_is_the_ridge_regression_of_the_best_penalty(tokens):
    generator = np.random.default_rng(tokens)
    x = generator.normal(size=(tokens, 20)) * np.linspace(0.1, 3, 20) + 1
    y = x + x @ generator.normal(size=(20, 20)) * 0.3 + generator.normal(size=(tokens, 20)) + 2
    found = fit_translator(torch.from_numpy(x), torch.from_numpy(y))
    matrix, _ = min((literal(x, y, ridge) for ridge in RIDGES), key=lambda one: one[1])
    np.testing.assert_allclose(found.matrix.numpy(), matrix, rtol=1e-6, atol=1e-8)
    weight = 1 / (y**2).sum(1, keepdims=True)
    missed = y - found(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose((weight * missed).sum(0), 0, atol=1e-9)


def test_where_nothing_changes_the_map_is_the_identity():
    x = torch.randn(30, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(fit_translator(x, x)(x), x)
    same = torch.ones(5, 8, dtype=torch.float64)
    torch.testing.assert_close(fit_translator(same, 3 * same)(same), 3 * same)


def test_a_map_keeps_the_shape_of_several_streams():
    x = torch.randn(6, 4, 8)
    keep = Translator(matrix=torch.zeros(32, 32).double(), bias=torch.zeros(32).double())
    assert torch.equal(keep(x), x)


def texts(count: int) -> list[str]:
    """Parts of the built-in text, each short enough for one sequence."""
    sample = builtin.SAMPLE.read_text("utf-8")
    return [sample[100 * place : 100 * (place + 1)] for place in range(count)]


def reading(measure: str, count: int) -> pd.DataFrame:
    found = inspect("llama", measures=[measure], texts=texts(count), context=64, progress=False)
    return found.frames["lens"]


@pytest.fixture(scope="module")
def read() -> Any:
    found = inspect(
        ["llama", "pre-norm"],
        measures=["lens(tuned=True)"],
        texts=texts(4),
        context=64,
        progress=False,
    )
    return found.frames["lens"]


@pytest.mark.full
def test_the_tuned_lens_is_nearer_at_every_layer_and_the_last_is_the_model(read):
    means = read.groupby(["model", "layer"]).mean(numeric_only=True)
    inner = means[means.index.get_level_values("layer") < 7]
    assert (inner.tuned_kl < inner.kl).all() and (inner.kl > 0.01).all()
    last = means[means.index.get_level_values("layer") == 7]
    assert (last.agreement == 1).all() and (last.kl == 0).all() and (last.tuned_kl == 0).all()
    assert len(read) == 2 * 4 * 9


@pytest.mark.full
def test_the_last_loss_is_that_of_the_model():
    rows = reading("lens(samples=64)", 2)
    last = rows[rows.layer == rows.layer.max()].nats.tolist()
    model = AutoModelForCausalLM.from_pretrained(builtin.path("llama"))
    words = AutoTokenizer.from_pretrained(builtin.path("llama"))
    for text, nats in zip(texts(2), last, strict=True):
        ids = words(text, return_tensors="pt", add_special_tokens=False).input_ids[:, :64]
        with torch.no_grad():
            assert nats == pytest.approx(float(model(ids, labels=ids).loss), rel=1e-5)


@pytest.mark.full
def test_one_text_has_no_tuned_lens_and_the_page_says_so():
    found = inspect(
        "llama", measures=["lens(tuned=True)"], texts=texts(1), context=32, progress=False
    )
    assert found.frames["lens"].tuned_kl.isna().all() and found.frames["lens"].kl.notna().all()
    assert "fitted to other texts than it is read on" in found.to_json()


@pytest.mark.full
def test_fewer_samples_are_spread_over_the_text():
    few, every = reading("lens(samples=9)", 1), reading("lens", 1)
    assert len(few) == len(every) and few.kl.tolist() != every.kl.tolist()
    with pytest.raises(UserError, match="option samples of measure 'lens' got 0"):
        LENS.given(samples=0)
