"""What the norms of a stream read, whatever their class is called."""

import pytest
import torch

from layerlab.studies.budzinskiy25.layernorm_rmsnorm import inputs
from tests.families.examination import subject
from tests.families.recipe import build

TEXT = torch.arange(3, 11)


@pytest.mark.parametrize(
    ("family", "norms"), [("cohere", 3), ("gpt2", 5), ("qwen3", 5), ("olmo", 5)]
)
def test_norms_of_the_stream_are_found_by_what_they_do(family, norms):
    whole = subject(build(family))
    found = inputs(whole, TEXT)
    assert len(found) == norms
    assert all(rows.shape == (8, 32) for rows in found.values())
