"""On the page of a comparison numbers stand beside those of their own unit."""

import re

import pytest

from layerlab.report.pages.comparison import render
from tests.report.pages.test_comparison import body, few


@pytest.mark.parametrize(
    ("metric", "first", "last"),
    [("nats", "Nats", "Bits per byte"), ("bits_per_byte", "Bits per byte", "Nats")],
)
def test_the_spread_stands_beside_the_losses_that_it_is_of(
    metric: str, first: str, last: str
) -> None:
    content = few() | {"metric": metric}
    content["rows"][1] |= {"nats": 4.5321, "bits_per_byte": 1.2347, "sd": 0.0123}
    shown = body(render(content))
    numbers = shown[shown.index('id="numbers"') : shown.index('id="cost-title"')]
    head = re.findall(r'<th scope="col" class="number">([^<]+)<', numbers)
    assert head[1:3] == [first, "± sd"] and head[8] == last
    row = numbers[numbers.index("4.532") - 900 :]
    places = [row.index(one) for one in ("4.532", "0.0123", "1.235")]
    assert places == sorted(places, reverse=metric != "nats")
