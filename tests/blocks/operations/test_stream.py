"""Where parallel streams cannot stand."""

import pytest

from layerlab import UserError
from tests.model.small import small


@pytest.mark.parametrize("name", ["hyper-connections", "mhc"])
def test_a_norm_after_the_sum_is_refused(name):
    with pytest.raises(UserError, match="keeps several streams, and a norm after the sum"):
        small(name, placement="post")
    assert small(name, placement="after").config.parse_spec().block.placement == "after"
