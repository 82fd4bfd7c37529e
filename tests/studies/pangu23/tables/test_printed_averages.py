"""Printed averages: a planted slip is found, and one of rounding is not taken for one."""

from dataclasses import replace

from layerlab.evaluation.results.published import slips, tables
from layerlab.studies.engine.runner import study
from layerlab.studies.pangu23.tables.printed_averages import (
    averages,
    beyond,
    is_ranked,
    judge_follow,
    rows,
    same,
)


def planted(change):
    found = tables()[8]
    cells = found.rows["YunShan"]
    return replace(found, rows={**found.rows, "YunShan": (*cells[:-1], cells[-1] + change)})


def test_the_slips_are_those_that_are_known():
    found = {(row["table"], row["model"]) for row in rows() if not same(row)}
    assert found == {(slip.table, slip.model) for slip in slips()}


def test_a_planted_slip_is_found_and_rounding_is_not_one():
    (row,) = (row for row in averages(planted(0.3)) if row["model"] == "YunShan")
    assert beyond(row) and judge_follow([row]).number == 1
    (row,) = (row for row in averages(planted(0.01)) if row["model"] == "YunShan")
    assert not same(row) and not beyond(row) and judge_follow([row]).word == "holds"


def test_an_average_that_moves_a_model_changes_the_order():
    assert is_ranked(tables()[8]) and not is_ranked(planted(-30))


def test_the_verdicts():
    found = study("printed-averages", fast=True, progress=False)
    assert [one["word"] for one in found.verdicts] == ["fails", "holds"]
    assert found.number == 3
