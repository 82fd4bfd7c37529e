"""Words for times that are given; what is timed, and that the fast mode times nothing."""

import json
from functools import partial

import pytest

from layerlab.errors import DamageWarning
from layerlab.model.cost.cost import account
from layerlab.records.kept import read_kept, write_kept
from layerlab.studies.engine.runner import study
from layerlab.studies.pangu23.tables import latency
from layerlab.studies.pangu23.tables.latency import (
    FEWER,
    PRINTED,
    SAME,
    STUDY,
    describe_times,
    judge_costs,
    judge_explained,
    judge_quicker,
    locate_times,
    matched_models,
    plot,
    run,
)
from layerlab.system.files import write_file
from tests.studies.small import context


def planted(fewer=0.9, same=1.04, predicted=0.91, spread=0.005):
    """Times of a machine that does not exist."""
    found = {}
    for name, ratio, weights in ((FEWER, fewer, predicted), (SAME, same, 1.005)):
        found[name] = {
            "ratio": {"median": ratio, "low": ratio - spread, "high": ratio + spread, "pairs": 12},
            "predicted": weights,
            "milliseconds": [100 * ratio, 100.0],
            "machine": {"processor": "an abacus", "device": "cpu", "threads": 1},
            "versions": {"torch": "2", "transformers": "5"},
        }
    return found


class Stopped(Exception):
    """Before anything is timed."""


def on_gpu():
    found = planted()
    for one in found.values():
        one["machine"]["device"] = "an accelerator"
    return found


def words(found):
    return [judge(found).word for judge in (judge_quicker, judge_costs, judge_explained)]


def test_what_the_source_prints_would_hold():
    assert (
        words(planted(**dict(zip(("fewer", "same"), (43 / 47.6, 7.86 / 7.56), strict=True))))
        == ["holds"] * 3
    )


def test_a_slower_machine_speaks_against_it():
    assert words(planted(fewer=1.0, same=1.2)) == ["fails"] * 3
    assert judge_explained(planted(fewer=1.0)).number == pytest.approx(1 / 0.91)


def test_wide_intervals_decide_nothing():
    assert words(planted(spread=0.2)) == ["not decided"] * 3
    few = planted()
    for one in few.values():
        one["ratio"] |= {"low": None, "high": None}
    assert words(few) == ["not decided"] * 3


def test_nothing_is_decided_where_nothing_was_timed():
    assert words(None) == ["not decided"] * 3
    assert judge_quicker(None).number == pytest.approx(0.903, abs=1e-3)
    assert len(plot(None).data[0]["y"]) == 2 and len(plot(planted()).data[0]["y"]) == 6


def test_the_printed_quotients_are_those_of_the_source():
    assert {name: round(pangu / llama, 3) for name, (pangu, llama) in PRINTED.items()} == {
        FEWER: 0.903,
        SAME: 1.040,
    }


def test_matched_models_differ_in_what_is_said():
    found = matched_models(256)
    shapes = {
        name: [one.design.shape for one in (pangu, llama)]
        for name, (pangu, llama, _) in found.items()
    }
    assert [one.layers for one in shapes[FEWER]] == [29, 32]
    assert [one.layers for one in shapes[SAME]] == [12, 12]
    for pair in shapes.values():
        assert [one.width for one in pair] == [256, 256] and pair[0].vocab == pair[1].vocab
    pangu, llama, predicted = found[SAME]
    counts = [account(one.design.spec, one.design.shape).parameters for one in (pangu, llama)]
    assert counts[0] > counts[1] and 1 < predicted < 1.05
    assert 0.9 < found[FEWER][2] < 0.95


work = partial(context, options={"width": 256, "device": "cpu"})


def test_times_are_left_with_their_machine_and_read_by_the_fast_mode(tmp_path, monkeypatch):
    monkeypatch.setattr(latency, "measure_times", lambda width, device, count: planted(fewer=1.0))
    first = run(work(tmp_path))
    assert read_kept(locate_times(tmp_path, 256))[FEWER]["milliseconds"] == [100.0, 100.0]
    monkeypatch.setattr(latency, "measure_times", None)
    again = run(work(tmp_path, fast=True))
    assert first.verdicts == again.verdicts and first.verdicts[0].word == "fails"
    assert "an abacus" in again.remarks[-2] and again.remarks[-2] == describe_times(planted())
    for elsewhere in ({"width": 512}, {"width": 256, "device": "cuda"}):
        other = run(work(tmp_path, fast=True, options={"device": "cpu", **elsewhere}))
        assert {one.word for one in other.verdicts} == {"not decided"}


@pytest.mark.parametrize(
    "left",
    [
        *("[]", "{", "{}", "null", '{"a": NaN}', f'{{"{FEWER}": 5}}', json.dumps(planted())),
        *(b"\xff", {}, {FEWER: 5}, {FEWER: planted()[FEWER]}),
        {name: {**one, "ratio": {}} for name, one in planted().items()},
        {name: {**one, "machine": []} for name, one in planted().items()},
        {name: {**one, "milliseconds": [1.0]} for name, one in planted().items()},
    ],
)
def test_times_that_nobody_measured_do_not_count(tmp_path, left):
    file = locate_times(tmp_path, 256)
    if isinstance(left, dict):
        write_kept(file, left)
    else:
        write_file(file, left)
    with pytest.warns(DamageWarning, match=f"{file.name} does not count: ") as said:
        found = run(work(tmp_path, fast=True))
    assert len(said) == 1 and latency.UNTIMED in found.remarks
    assert {one.word for one in found.verdicts} == {"not decided"}


def test_what_was_not_measured_as_planned_is_marked(tmp_path, monkeypatch):
    found = planted()
    monkeypatch.setattr(latency, "measure_times", lambda width, device, count: found)
    marked = run(work(tmp_path))
    assert {(one.looked, one.unit) for one in marked.verdicts} == {(True, "12 repetitions")}
    assert any("12 repetitions and not the 40 of the plan" in one for one in marked.remarks)
    for one in found.values():
        one["ratio"]["pairs"] = STUDY.draws
    planned = run(work(tmp_path))
    assert {one.looked for one in planned.verdicts} == {False}
    assert not any("not the" in one for one in planned.remarks)


def test_on_a_gpu_it_times_what_a_gpu_takes(monkeypatch):
    asked = []

    def record(contestants, chosen):
        asked.append((chosen.device, chosen.kind, [one.name for one in contestants]))
        raise Stopped

    monkeypatch.setattr("layerlab.latency.measure.measure_latency", record)
    monkeypatch.setattr("layerlab.latency.config._place", lambda device: device)
    with pytest.raises(Stopped):
        latency.measure_times(4096, "cuda", 40)
    ((device, kind, names),) = asked
    assert (device, kind) == ("cuda", "bfloat16")
    assert "width=4096,layers=29" in names[0] and "width=4096,layers=32" in names[1]
    # The 1B of the source is no wider than 2048, and there its vocabulary is whole.
    same = matched_models(4096)[SAME]
    assert same[0].design.shape.width == 2048 and same[0].design.shape.vocab == 32_000
    assert "an accelerator" in describe_times(on_gpu()) and "bfloat16" in describe_times(on_gpu())


@pytest.mark.full
def test_the_full_run_times_both_and_says_on_what(tmp_path, monkeypatch):
    monkeypatch.setattr(latency, "CONTEXT", 4)
    monkeypatch.setattr(latency, "NEW", 2)
    found = study(
        "latency-measured", draws=4, width=128, progress=False, threads=1, runs=tmp_path
    ).to_dict()
    # Too few repetitions for an interval: whatever the machine does, no word hangs on it.
    assert {one["word"] for one in found["verdicts"]} == {"not decided"}
    kept = read_kept(locate_times(tmp_path, 128))
    assert all(one["milliseconds"][0] > 0 and one["ratio"]["pairs"] == 4 for one in kept.values())
    assert kept[FEWER]["machine"]["threads"] == 1 and "4 repetitions" in found["remarks"][-1]
