"""A forecast adds up what its stages take, and says what is not known of them."""

from dataclasses import replace
from typing import Any

import psutil
import pytest
import torch

from layerlab.adaptation.pipeline.dry_update import DryUpdate
from layerlab.adaptation.pipeline.estimate import (
    CONTEXT,
    JOINED,
    PEAKS,
    POOLS,
    Forecast,
    StageForecast,
    StageParts,
    _room,
    _Teller,
    forecast,
    share_rows,
)
from layerlab.adaptation.pipeline.plan import plan_stages
from layerlab.adaptation.pipeline.stage import StageStore
from layerlab.experiments.estimate import startup
from layerlab.experiments.estimate.step_time import ASSUMED
from layerlab.recipes.adaptation import make_recipe
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
    assert StageParts(beside=20.0).total == 20.0
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
    columns = [[str(cell) for cell in column.cells] for column in found.table().columns]
    assert columns[0] == ["tune"] * 4 and columns[-1] == ["tune-1"] * 4
    assert columns[-2] == ["finished", "", "", ""]
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


MEBI = 1 << 20
WHOLE = DryUpdate(
    parameters=25 * MEBI,
    weights=100 * MEBI,
    learned=100 * MEBI,
    layer=10 * MEBI,
    edge=20 * MEBI,
    learned_edge=20 * MEBI,
    shared=0,
    peak=400 * MEBI,
    inside=30 * MEBI,
    flops=1,
    forward=1,
    tokens=1,
    build=0.0,
)


@pytest.mark.parametrize(
    ("run", "pools", "dry", "beside"),
    [
        # Of 430 MiB that are never alive together, 30 stay with the process.
        ({}, POOLS, WHOLE, 430),
        ({}, POOLS, replace(WHOLE, peak=500 * MEBI), 500),
        ({"num_processes": 2}, 0, WHOLE, 430 + 100),
        # A half of weights and moments, embedding and head, activations and two layers; then the
        # gradients of embedding and head twice more.
        ({"num_processes": 2, "sharding": "fsdp"}, JOINED, WHOLE, 150 + 20 + 90 + 40),
        # With little beside them, it is to hold all weights while each takes its share of them.
        (
            {"num_processes": 2, "sharding": "fsdp"},
            JOINED,
            replace(WHOLE, layer=0, edge=0, learned_edge=0, inside=0),
            100 + 150,
        ),
    ],
)
def test_a_process_on_a_cpu_has_its_libraries_beside_its_tensors(run, pools, dry, beside):
    teller = _Teller(StageRunSection.model_validate(run), libraries=700 * MEBI)
    assert teller._memory(dry) == (700 + beside) * MEBI + pools
    away = _Teller(StageRunSection.model_validate({**run, "device": "cuda"}), libraries=0)
    tensors = dry.memory(away.run.num_processes, away.run.sharding)
    assert away._memory(dry) == tensors + CONTEXT


def test_the_room_is_what_is_said_or_the_share_of_each_process():
    whole = psutil.virtual_memory().total
    assert _room(StageRunSection()) == whole
    assert _room(StageRunSection(num_processes=4)) == whole // 4
    assert _room(StageRunSection(memory_gb=0.5, num_processes=4)) == 500_000_000
    assert _room(StageRunSection(device="mps")) is None


@pytest.mark.full
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here, and its time is measured")
def test_without_the_device_the_time_is_that_of_the_flops_at_a_share_of_its_peak(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the court held that the contract was void\n" * 1000)
    pretrain = {"tokens": 10**8, "batch_size": 8, "micro_batch_size": 2, "ratio": [1, 0]}
    content = {
        "base": {"model": "llama"},
        "data": {"domain": [{"text": str(text)}], "validation_fraction": 0.1},
        "pretrain": pretrain,
        "run": {"device": "cuda"},
    }

    def read(**changes: Any) -> tuple[StageForecast, StageParts]:
        recipe = make_recipe(content).change(changes)
        row = forecast(recipe, plan_stages(recipe), StageStore(tmp_path / "out")).rows[-1]
        assert row.parts is not None and row.flops is not None and not row.measured
        return row, row.parts

    one, parts = read()
    low, _ = read(**{"pretrain.mixed_precision": "bf16"})
    frozen, _ = read(**{"base.dtype": "bfloat16", "pretrain.lora": {"r": 2}})
    for row, peak in ((one, "fp32"), (low, "bf16"), (frozen, "bf16")):
        assert row.parts is not None and row.flops is not None
        assert row.parts.updates == pytest.approx(row.flops / (ASSUMED * PEAKS[peak]))
    # Each of two processes has half of the work, and a start of its own.
    two, shared = read(**{"run.num_processes": 2})
    assert two.flops == pytest.approx(one.flops) and shared.updates > parts.updates / 2
    assert shared.beside - parts.beside > startup.ASSUMED / 2
