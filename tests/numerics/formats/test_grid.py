"""The numbers that rounding needs, by what comes of them."""

import pytest
import torch

from layerlab.numerics.formats.formats import find
from layerlab.numerics.formats.round import round_to, sparing
from tests.numerics.formats.test_round import CARRIERS, DETERMINISTIC


@pytest.mark.few(30)
@pytest.mark.parametrize("switch", ["1", "0"])
@pytest.mark.parametrize("dtype", CARRIERS.values(), ids=CARRIERS)
@pytest.mark.parametrize("mode", DETERMINISTIC)
@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2:nan", "fp4_e2m1", "t11", "mxfp4"])
def test_what_code_writes_as_a_mask_is_spared(name, mode, dtype, switch, monkeypatch):
    monkeypatch.setenv("LAYERLAB_KERNEL", switch)
    masks = torch.tensor([1e30, torch.finfo(dtype).max, torch.inf, torch.nan], dtype=dtype)
    below = torch.nextafter(masks[:1], torch.zeros(1, dtype=dtype))
    values = torch.cat([masks, -masks, below, torch.randn(40_000, dtype=dtype)])
    wanted = torch.where(values.abs() < 1e30, round_to(values, name, mode), values)
    round = sparing(find(name), mode, None)
    torch.testing.assert_close(round(values), wanted, rtol=0, atol=0, equal_nan=True)
    assert round(values, values) is values
    torch.testing.assert_close(values, wanted, rtol=0, atol=0, equal_nan=True)
