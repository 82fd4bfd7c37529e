"""Content becomes what strict JSON holds, whatever it was made of."""

import json
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from layerlab.records.json_values import json_values


def test_content_is_what_json_reads_back():
    content = MappingProxyType(
        {1: (1, 2.5, None, True), "a": {"b"}, "n": np.arange(2), "p": Path("x"), "\ud800": np.True_}
    )
    found = json_values(content)
    assert found == {"1": [1, 2.5, None, True], "a": ["b"], "n": [0, 1], "p": "x", "\\ud800": True}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert [json_values(one) for one in (True, np.True_)] == [True, True]
    assert type(json_values(True)) is bool
    assert {type(one) for one in json_values([np.float64(1), np.float32(1)])} == {float}


@pytest.mark.parametrize("kind", [float, np.float32, np.float64])
def test_what_is_no_number_is_none_and_infinities_are_told_apart_or_not(kind):
    given = [kind("nan"), kind("inf"), kind("-inf")]
    assert json_values(given) == [None, "Infinity", "-Infinity"]
    assert json_values(given, infinities=False) == [None] * 3
