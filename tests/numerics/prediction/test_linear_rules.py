from functools import partial

import pytest
import torch

from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.prediction import linear_rules
from layerlab.numerics.prediction.predict import spreads


@pytest.mark.parametrize("kind", ["variance", "bound"])
def test_sizes_of_a_large_matrix_are_taken_a_part_at_a_time(tiny, kind, monkeypatch):
    model, joined, cat = tiny("llama"), [], torch.cat
    call = partial(model, input_ids=torch.arange(24).reshape(2, 12))
    given = (model, call, make_arithmetic("bf16"), list(model.model.layers), kind)
    _, whole = spreads(*given)
    monkeypatch.setattr(linear_rules, "COPIED", 100)
    monkeypatch.setattr(torch, "cat", lambda *one, **more: joined.append(1) or cat(*one, **more))
    _, parts = spreads(*given)
    assert len(joined) > 20
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
