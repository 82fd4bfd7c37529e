import pytest

from layerlab.evaluation.benchmarks.catalog import BENCHMARKS, find_benchmark
from layerlab.evaluation.results.averages import LAWBENCH
from layerlab.evaluation.results.published import find_tables, slips, tables

CELLS = [(number, model) for number, table in tables().items() for model in table.rows]
SLIPS = {(slip.table, slip.model): slip for slip in slips()}


def test_thirty_six_averages_and_five_slips():
    assert len(CELLS) == 36
    assert set(SLIPS) == {
        (5, "Baichuan2-7B"),
        (9, "LLaMA2-7B"),
        (10, "FinGPT-7B"),
        (10, "LLaMA2-7B"),
        (10, "HanFei-7B"),
    }


@pytest.mark.parametrize(("number", "model"), CELLS)
def test_the_average_follows_from_the_cells(number, model):
    table = tables()[number]
    value = table.recompute_average(model).mean.value
    slip = SLIPS.get((number, model))
    if slip is None:
        assert f"{value:.2f}" == f"{table.printed_average(model):.2f}"
        return
    assert f"{value:.2f}" == f"{slip.recomputed:.2f}" != f"{table.printed_average(model):.2f}"
    assert slip.printed == table.printed_average(model)
    # Cells rounded to 0.005 and an average cut off at 0.01 explain no more than 0.015.
    explained = abs(value - slip.printed) < 0.015
    assert slip.kind == ("rounding" if explained else "beyond rounding")


def test_columns_are_what_is_run_here():
    for number, table in tables().items():
        assert len(table.columns) == len(table.parts) == len(set(table.parts))
        assert all(len(row) == len(table.parts) + 1 for row in table.rows.values())
        assert all(0 <= cell <= 100 for row in table.rows.values() for cell in row)
        if number in {5, 6}:
            assert set(table.parts) <= set(BENCHMARKS)
        else:
            subjects = find_benchmark(table.benchmark).subjects
            assert find_benchmark(table.benchmark).average == table.rule
            assert set(table.parts) in (
                {one.name for one in subjects},
                {one.category for one in subjects},
            )
    assert tuple(LAWBENCH) == tables()[10].parts


def test_tables_of_a_benchmark():
    assert [table.number for table in find_tables("lawbench")] == [10]
    assert [table.number for table in find_tables("ax-b")] == [5, 6]
    assert find_tables("actuary_fin_math") == ()
    assert tables()[8].cells("YunShan")["futures_qualification"] == 55.93
    # The column after the benchmark's own subject, so that none is shifted by one.
    assert tables()[5].cells("PanGu-π-7B")["boolq"] == 64.77
