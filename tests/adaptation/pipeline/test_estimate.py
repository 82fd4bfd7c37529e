"""A forecast adds up what its stages take, and says what is not known of them."""

from dataclasses import replace

import pytest

from layerlab.adaptation.pipeline.estimate import Forecast, StageForecast, StageParts, share_rows
from layerlab.recipes.adaptation_sections import StageRunSection, StepSection

PARTS = StageParts(updates=30.0, held_out=10.0, beside=20.0)
TRAINED = StageForecast(
    key="tune-1",
    title="tune",
    trains=True,
    tokens=1_234_567,
    flops=2_000_000,
    memory=1_500_000_000,
    seconds=PARTS.total,
    parts=PARTS,
    finished=False,
)
UNKNOWN = replace(TRAINED, tokens=None, flops=None, memory=None, seconds=None, parts=None)


def test_a_cell_is_a_dash_only_where_what_trains_is_not_known_yet():
    tokens, _, memory, time, share = TRAINED.cells()
    assert (tokens, memory, time, share) == ("1,234,567", "1.5 GB", "1:00", "50%")
    assert UNKNOWN.cells() == ("-",) * 5
    assert replace(UNKNOWN, finished=True).cells() == ("",) * 5
    assert replace(UNKNOWN, trains=False).cells() == ("",) * 5


def test_what_is_left_is_what_is_not_finished():
    done, words = replace(TRAINED, finished=True), replace(UNKNOWN, trains=False)
    found = Forecast(rows=(done, TRAINED, replace(TRAINED, seconds=5.0), words), parameters=7)
    assert found.left == 65.0 and "1:05 of training left: of updates" in found.remarks()[0]
    assert found.remarks()[0].startswith("A base of 7 parameters;")
    assert replace(found, parameters=None).remarks()[0].startswith("A base of ? parameters;")
    without = replace(found, rows=(TRAINED, replace(UNKNOWN, title="pretrain")))
    assert without.left is None
    assert "1:00 of training left, without pretrain, whose texts" in without.remarks()[0]
    # The device is here, unless it is said that it is not.
    assert "A100" not in found.remarks()[0]
    assert "an A100, since the device is not here" in replace(found, here=False).remarks()[0]


@pytest.mark.parametrize(
    ("room", "fits", "told"),
    [
        (1_499_999_999, False, "It does not fit into the 1.5 GB"),
        (1_500_000_000, True, "It fits into the 1.5 GB"),
        (None, None, None),
    ],
)
def test_the_largest_stage_has_to_fit(room, fits, told):
    rows = (replace(TRAINED, memory=1), TRAINED, UNKNOWN)
    found = Forecast(rows=rows, parameters=7, room=room)
    assert found.fits is fits and found.to_dict()["fits"] is fits
    assert len(found.remarks()) == 1 + (told is not None)
    assert told is None or found.remarks()[1].startswith(told)
    assert replace(found, rows=(UNKNOWN,)).fits is None


def test_a_note_of_two_stages_is_told_once():
    rows = [replace(TRAINED, notes=("a", one)) for one in ("b", "c")]
    found = Forecast(rows=tuple(rows), parameters=7, absent=("d",))
    assert found.remarks()[1:] == ["a.", "b.", "c.", "d"]


@pytest.mark.parametrize(
    ("batch", "micro", "processes", "rows", "each"), [(16, None, 2, 8, 8), (16, 4, 2, 8, 4)]
)
def test_each_process_has_its_share_of_a_batch(batch, micro, processes, rows, each):
    section = StepSection(batch_size=batch, micro_batch_size=micro)
    found = share_rows(section, StageRunSection(num_processes=processes), 32)
    assert (found.rows, found.micro, found.tokens) == (rows, each, each * 32)
