"""On the page of a comparison numbers stand beside those of their own unit."""

import json
import re

import pytest

from layerlab.report.pages.comparison import render, view
from tests.report.pages.test_comparison import body, few
from tests.report.support.race import race


@pytest.mark.parametrize(
    ("metric", "first", "last"),
    [("nats", "Nats", "Bits per byte"), ("bits_per_byte", "Bits per byte", "Nats")],
)
def test_the_spread_stands_beside_the_losses_that_it_is_of(metric, first, last):
    content = few() | {"metric": metric}
    content["rows"][1] |= {"nats": 4.5321, "bits_per_byte": 1.2347, "sd": 0.0123}
    shown = body(render(content))
    numbers = shown[shown.index('id="numbers"') : shown.index('id="cost-title"')]
    head = re.findall(r'<th scope="col" class="number">([^<]+)<', numbers)
    assert head[1:3] == [first, "± sd"] and head[8] == last
    row = numbers[numbers.index("4.532") - 900 :]
    places = [row.index(one) for one in ("4.532", "0.0123", "1.235")]
    assert places == sorted(places, reverse=metric != "nats")


@pytest.mark.full
def test_a_difference_to_another_arm_than_the_baseline_says_to_which():
    content = race(("llama", "history-1", "pangu-pi"), updates=40)
    general = body(render(content))
    assert "Difference to llama in nats" in general and "(to " not in general
    next(row for row in content["rows"] if row["arm"] == "pangu-pi")["against"] = "history-1"
    next(one for one in content["paired"] if one["arm"] == "pangu-pi")["against"] = "history-1"
    page = body(render(content))
    assert "<b>pangu-pi</b> (to history-1)" in page and "<b>history-1</b> (to" not in page
    assert re.search(r'<th scope="row">[^\n]* pangu-pi \(to history-1\)</th>', page)
    for said in ("Difference to", "Differences are to", "Held-out loss less that of"):
        assert f"{said} the arm that each is judged against" in page
        assert f"{said} llama" not in page
    drawn = view(json.loads(json.dumps(content)))["paired"]
    assert {(one["arm"], one["against"]) for one in drawn} == {(1, 0), (2, 1)}


@pytest.mark.full
def test_time_is_an_axis_where_a_run_has_one():
    content, option = few(), '<option value="seconds">'
    assert view(content)["timed"] and option in render(content)
    for one in content["curves"]:
        for kind in ("train", "evaluation"):
            one[kind]["seconds"] = [None] * len(one[kind]["update"])
    assert not view(content)["timed"] and option not in render(content)


@pytest.mark.parametrize(
    ("needed", "shown"),
    [([5, 40], "5 to 40"), ([5, None], "≥ 5"), ([None, None], "∞")],
)
def test_more_seeds_than_are_counted_are_told_from_none(needed, shown):
    content = few()
    content["rows"][1]["seeds_needed"] = needed
    assert f'<td class="number range">{shown}</td>' in body(render(content))


def test_a_long_verdict_stands_on_the_page_to_its_end():
    content = race()
    content["rows"][1]["said"] = "as it is said, " * 60 + "so this is no comparison"
    content["rows"][2]["detectable"] = [0.1, 90.0]
    shown = render(content)
    assert "said, so this is no comparison</p>" in shown
    assert "A pale bar that fades at its ends goes on beyond the scale." in shown
    assert "A pale bar that fades" not in render(race())
