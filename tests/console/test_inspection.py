"""The bar of an inspection: full where all was read, and only there."""

import io
from contextlib import suppress

import pytest
from rich.console import Console

from layerlab.console.inspection import InspectionBar


@pytest.mark.parametrize("broken", [False, True])
def test_a_bar_is_full_at_its_end(broken):
    """What has nothing to read is not stepped through; what is interrupted is not done."""
    bar = InspectionBar(Console(file=io.StringIO()))
    with suppress(KeyboardInterrupt), bar:
        bar.begin("one", 3)
        bar.step("diversity")
        bar.begin("two", 4)
        bar.step("rounding")
        if broken:
            raise KeyboardInterrupt
    one, two = bar.progress.tasks
    assert one.percentage == 100 and two.percentage == (25 if broken else 100)


def test_a_bar_of_nothing_leaves_no_empty_line():
    file = io.StringIO()
    with InspectionBar(Console(file=file)):
        pass
    assert file.getvalue() == ""
