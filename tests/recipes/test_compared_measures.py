"""Names of measures: what is known is read, what is not is told with what to write."""

import pytest

from layerlab import UserError
from layerlab.recipes.compared_measures import PEAKS, check_measure, is_watched, parse_measure
from layerlab.training.monitor.readings import WORST
from tests.training.drawn import recipe


def test_every_form_is_read() -> None:
    assert parse_measure("steps:2.5").loss == 2.5 and not is_watched("steps:2.5")
    assert parse_measure("peak:score").reading == "score" and is_watched("peak:score")
    assert parse_measure("spikes").kind == "spikes" and check_measure("gradient") == "gradient"
    assert set(WORST) < set(PEAKS)  # what a monitor keeps the largest of


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stps:2", 'write "steps:2.5"'),
        ("steps:", 'write the loss to reach, as "steps:2.5"'),
        ("steps:-1", "write the loss to reach"),
        ("steps:nan", "write the loss to reach"),
        ("steps:inf", "write the loss to reach"),
        ("peak:scor", 'write "peak:score"'),
        ("peak:", "the readings are score"),
        ("spike", 'write "spikes"'),
        ("spikes:3", 'write "spikes"'),
        ("loss", 'write "steps:2.5"'),
        ("", 'write "steps:2.5"'),
    ],
)
def test_what_is_no_measure_is_one_line(name: str, said: str) -> None:
    with pytest.raises(UserError, match="is no measure of a comparison") as told:
        recipe(measures=[name])
    assert said in str(told.value) and "\n" not in str(told.value)


def test_what_a_monitor_reads_needs_one() -> None:
    with pytest.raises(UserError, match=r"write \[monitor\] interval = 10"):
        recipe(measures=["steps:2", "spikes"])
    assert recipe(measures=["steps:2"]).compare.measures == ("steps:2",)
