"""Settings in which the arms of logs differ: of their configurations, and of their tables."""

from dataclasses import replace
from typing import Any

from layerlab.experiments.judge_logs import JudgeRequest, judge_logs
from layerlab.experiments.log_settings import describe_unlike, find_unlike, refuse_unlike
from layerlab.logs.training_log import TrainingLog
from tests.experiments.test_judge_logs import pair
from tests.support.refused import refuses

NAMES = ("plain", "wide")


def given(plain: dict[str, Any], wide: dict[str, Any], **more: Any) -> list[TrainingLog]:
    return [replace(one, settings=plain if one.arm == "plain" else wide, **more) for one in pair()]


def test_a_column_that_differs_between_arms_is_named_beside_the_verdict():
    logs = given({"lr": 1e-3, "batch_size": 8}, {"lr": 3e-3, "batch_size": 8})
    found = find_unlike(logs, NAMES, ())
    assert found.by_arm == {"plain": [], "wide": ["lr"]} and list(found.unknown) == list(NAMES)
    told = describe_unlike(found, NAMES)
    assert told[0] == "wide differs from plain in lr" and "what else differs" in told[1]
    row = judge_logs(logs, JudgeRequest()).content["rows"][1]
    assert row["verdict"] == "better" and "arms also differ in lr" in row["said"]
    assert not find_unlike(logs, NAMES, ["lr"]).by_arm["wide"]


def test_a_column_that_not_all_runs_have_says_nothing():
    assert not find_unlike(given({"lr": 1e-3}, {}), NAMES, ()).by_arm["wide"]


def test_a_column_that_names_the_arms_is_no_other_setting():
    logs = given({"optimizer": "plain"}, {"optimizer": "wide"})
    assert not find_unlike(logs, NAMES, ()).by_arm["wide"]


def test_columns_do_not_make_up_for_a_configuration():
    logs = given({"lr": 1e-3}, {"lr": 1e-3})
    refuses("no configuration of their own", refuse_unlike, find_unlike(logs, NAMES, ()), NAMES)


def test_columns_count_beside_a_configuration():
    logs = given({"lr": 1e-3}, {"lr": 3e-3}, config={"width": 64})
    found = find_unlike(logs, NAMES, ())
    assert found.by_arm["wide"] == ["lr"] and not found.unknown
    refuses("wide differs from plain in lr", refuse_unlike, found, NAMES)
