"""On a GPU the measures read what they read on a processor.

On a processor the same tests compare what is read twice, so that they are known to run.
"""

import math

import pytest
import torch

import layerlab
from layerlab.measures.quantities.spectrum import spectrum
from tests.measures.family import built
from tests.measures.regime import KINDS, attention, record, svd_contraction, svd_norm

pytestmark = pytest.mark.parametrize(
    "device",
    [pytest.param("cpu", marks=pytest.mark.full), pytest.param("cuda", marks=pytest.mark.gpu)],
)
IDS = [[number * 7 % 61 for number in range(48)]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_spectrum_is_that_of_a_decomposition_in_float64(kind, device):
    there = record(kind, 300)
    exact = attention(there)
    moved = record(kind, 300)
    for name in ("query", "key"):
        object.__setattr__(moved, name, getattr(moved, name).to(device))
    found = spectrum(moved)
    assert torch.allclose(found.norm.cpu(), svd_norm(exact), rtol=1e-5)
    assert torch.allclose(found.contraction.cpu(), svd_contraction(exact), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral"])
def test_a_report_has_the_numbers_of_a_processor(family, device):
    processor = layerlab.inspect(built(family), input_ids=IDS, progress=False)
    other = layerlab.inspect(built(family).to(device), input_ids=IDS, progress=False)
    assert processor.frames
    for name, frame in processor.frames.items():
        loose = 0.1 if name == "lipschitz" else 1e-3
        for column in frame.select_dtypes("number"):
            for one, two in zip(frame[column], other.frame(name)[column], strict=True):
                assert (math.isnan(one) and math.isnan(two)) or two == pytest.approx(
                    one, rel=loose, abs=1e-5
                ), (name, column)


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_a_low_precision_is_read_where_the_model_is(family, device):
    model = built(family).to(device)
    report = layerlab.inspect(
        model, input_ids=IDS, measures=["rounding"], formats=["bf16", "fp16"], progress=False
    )
    frame = report.frame("rounding")
    assert set(frame["format"]) == {"bf16", "fp16"}
    assert (frame["mean"] > 0).all()


def test_frequent_tokens_are_shown_where_a_processor_shows_them(tiny, device):
    ids = [[number % 7 for number in range(48)]]
    asked = {"input_ids": ids, "measures": "features", "features": True, "progress": False}
    processor = layerlab.inspect(tiny("llama"), **asked).frame("features")
    other = layerlab.inspect(tiny("llama").to(device), **asked).frame("features")
    for column in processor.select_dtypes("number"):
        assert other[column].tolist() == pytest.approx(
            processor[column].tolist(), rel=1e-3, abs=1e-5, nan_ok=True
        )
