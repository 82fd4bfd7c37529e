"""Settings that stand in the rows of a table: what a run keeps to, and no measurement."""

import pyarrow as pa
import pytest

from layerlab.logs.column_settings import is_setting, read_settings
from tests.logs.written import ROWS, read, write_csv


@pytest.mark.parametrize(
    "name",
    """
    lr Learning_Rate per_device_train_batch_size config/seq_len params.anything optimizer n_layers
    num_parameters train/batch_size warmup_ratio max_steps
    """.split(),
)
def test_usual_names_are_of_settings(name):
    assert is_setting(name)


@pytest.mark.parametrize(
    "name", ["loss", "val_loss", "accuracy", "grad_norm", "runtime", "epoch", "step", "tokens"]
)
def test_measurements_and_counters_are_none(name):
    assert not is_setting(name)


def test_a_run_has_the_settings_that_all_its_rows_share(tmp_path):
    """A rate that follows a schedule is none, and a cell may be empty."""
    rows = [
        {**row, "arm": arm, "seed": 1, "batch_size": "" if n else size, "lr": 0.1 / (n + 1)}
        for arm, size in (("a", 8), ("b", 16))
        for n, row in enumerate(ROWS)
    ]
    one, other = read(write_csv(tmp_path / "runs.csv", rows))
    assert (one.settings, other.settings) == ({"batch_size": 8}, {"batch_size": 16})


def test_a_column_that_says_something_else_is_none(tmp_path):
    rows = [{**row, "optimizer": "lion", "lr": 0.5} for row in ROWS]
    (run,) = read(write_csv(tmp_path / "runs.csv", rows), arm="optimizer")
    assert run.arm == "lion" and run.settings == {"lr": 0.5}


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([[1], [1]], {}),
        ([{"a": 1}, {"a": 1}], {}),
        ([b"x", b"x"], {"lr": b"x"}),
        ([True, True], {"lr": True}),
        ([None, None], {}),
        ([1.0, 2.0], {}),
    ],
)
def test_cells_of_any_kind_are_looked_at(cells, expected):
    assert read_settings(pa.table({"lr": cells}), []) == expected
