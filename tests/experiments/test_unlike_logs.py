"""Readings that do not compare: of several texts, or in several units."""

from dataclasses import replace
from typing import Any

import pytest

from layerlab.experiments.unlike_logs import refuse_unlike_readings
from layerlab.logs.training_log import TrainingLog
from tests.experiments.test_judge_logs import log, pair
from tests.logs.written import read, write_csv
from tests.support.refused import refuses


def told(plain: dict[str, Any], wide: dict[str, Any], **more: Any) -> list[TrainingLog]:
    return [replace(one, settings=plain if one.arm == "plain" else wide, **more) for one in pair()]


@pytest.mark.parametrize(
    ("plain", "wide"),
    [
        ({"split": "val"}, {"split": "train"}),
        ({"phase": " Validation"}, {"phase": "Training"}),
        ({"split": "val"}, {"split": "test"}),
        ({"is_eval": 1.0}, {"is_eval": 0.0}),
        ({"eval": True}, {"eval": False}),
    ],
)
def test_columns_that_name_other_texts_are_refused(plain, wide):
    refuses("which are not comparable; name logs", refuse_unlike_readings, told(plain, wide))
    refuse_unlike_readings(told(plain, plain))
    refuse_unlike_readings(told(plain, {}))  # nothing says that it is another
    refuse_unlike_readings(told(plain, wide, loss_name="val_loss"))  # which says it itself


def test_words_of_one_text_are_no_others():
    refuse_unlike_readings(told({"split": "val"}, {"split": "validation"}))
    refuse_unlike_readings(told({"mode": "a"}, {"mode": "b"}))
    refuse_unlike_readings(told({"split": "val"}, {"is_train": 0.0}))
    refuse_unlike_readings(told({"is_eval": 0}, {"split": "train"}))


@pytest.mark.parametrize(
    ("plain", "wide"),
    [
        ("plain-s1/validation/log.csv", "wide-s1/train/log.csv"),
        ("val-s1.csv", "train-s1.csv"),
        ("plain-s1/val.csv", "wide-s1/train.csv"),
    ],
)
def test_paths_that_name_other_texts_are_refused(tmp_path, plain, wide):
    rows = [{"step": n, "loss": 3.0 + n} for n in (1, 2)]
    logs = read(*(write_csv(tmp_path / name, rows) for name in (plain, wide)))
    refuses("which are not comparable; name logs", refuse_unlike_readings, logs)


def test_rows_of_one_text_in_each_file_are_compared_across_files(tmp_path):
    """Of which one table with both is refused."""
    files = []
    for arm, split in (("plain", "val"), ("wide", "train")):
        rows = [{"step": n, "loss": 3.0 + n, "split": split} for n in (1, 2)]
        files.append(write_csv(tmp_path / f"{arm}-s1.csv", rows))
    refuses("of 'train' .* of 'val'", refuse_unlike_readings, read(*files))


def test_shares_and_percentages_are_refused():
    shares, percents = log("plain", 1, -0.5, loss_name="acc"), log("wide", 1, 48.2, loss_name="acc")
    refuses("write both in one unit", refuse_unlike_readings, [shares, percents])
    refuse_unlike_readings([percents, log("plain", 1, 47.0, loss_name="acc")])
    rewards = [replace(one, loss_name="reward") for one in (shares, percents)]
    refuse_unlike_readings(rewards)
