"""Rows whose logits are no numbers are noted, and no others."""

import pytest
import torch

from layerlab.evaluation.harness.soundness import record_unsound_logits
from tests.evaluation.candidate import candidate


@pytest.mark.parametrize(
    ("value", "noted"), [(float("nan"), True), (float("inf"), True), (-float("inf"), False)]
)
def test_a_row_is_noted_once_one_of_its_next_logits_is_no_number(value: float, noted: bool) -> None:
    model = candidate().model
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])

    def spoil(module: object, given: object, found: torch.Tensor) -> torch.Tensor:
        spoilt = found.clone()
        spoilt[1, -1, 0] = value
        return spoilt

    handle = model.lm_head.register_forward_hook(spoil)
    with record_unsound_logits(model) as broken:
        model(ids)
        handle.remove()
        model(ids)  # what was noted once stays
    assert broken[0].tolist() == [False, noted]
    model(ids)
    assert len(broken) == 1
