"""What lines of text say beside their numbers: their words, and the unit of a loss."""

from pathlib import Path

import pytest

from layerlab.experiments.judge_logs import JudgeRequest, judge_logs
from layerlab.logs.formats.line_words import BEFORE, PASSING, UNIT, find_unit, list_before
from tests.logs.written import put, read
from tests.support.refused import refuses

LINE = r"step (?P<step>\d+): val loss (?P<loss>\S+)"


def files(folder: Path, plain: str, wide: str) -> list[Path]:
    return [
        put(
            folder / f"{arm}-s{seed}.log",
            "".join(
                f"{line.format(step=10 * n, loss=3.0 + n / 8 + seed / 64)}\n" for n in range(3)
            ),
        )
        for arm, line in (("plain", plain), ("wide", wide))
        for seed in (1, 2)
    ]


@pytest.mark.parametrize("given", [{}, {"line": LINE}])
def test_words_before_the_step_that_differ_between_arms_are_told(tmp_path, given):
    line = "2026-11-28 10:00:01 INFO [{}] gpu0 step {{step}}: val loss {{loss}}"
    logs = read(*files(tmp_path, line.format("wikitext"), line.format("c4")), **given)
    assert [one.settings[BEFORE] for one in logs] == ["wikitext", "wikitext", "c4", "c4"]
    row = judge_logs(logs, JudgeRequest()).content["rows"][1]
    assert f"arms also differ in {BEFORE}" in row["said"]


@pytest.mark.parametrize("given", [{}, {"line": LINE}])
def test_units_behind_a_loss_that_differ_are_refused(tmp_path, given):
    line = "step {{step}}: val loss {{loss}} {}"
    logs = read(*files(tmp_path, line.format("nats"), line.format("bits")), **given)
    assert [one.settings[UNIT] for one in logs] == ["nats", "nats", "bits", "bits"]
    refuses("wide, seed 1 are in bits", judge_logs, logs, JudgeRequest())


def test_a_unit_that_only_one_arm_names_is_told(tmp_path):
    line = "step {step}: val loss {loss}"
    logs = read(*files(tmp_path, line, f"{line} bits"))
    row = judge_logs(logs, JudgeRequest()).content["rows"][1]
    assert f"arms also differ in {UNIT}" in row["said"]


def test_names_of_arms_and_words_that_change_are_no_others(tmp_path):
    line = "{} step {{step}}: val loss {{loss}}"
    logs = read(*files(tmp_path, line.format("plain"), line.format("[wide]")))
    assert [one.settings[BEFORE] for one in logs] == [""] * 4
    row = judge_logs(logs, JudgeRequest()).content["rows"][1]
    assert "arms also differ" not in row["said"]


@pytest.mark.parametrize(
    ("behind", "unit"),
    [
        (" (nats)", "nats"),
        (" bits per byte", "bits/byte"),
        (" bits/char | lr 1", "bits/char"),
        (" bpb", "bpb"),
        (" bpb 1.2", ""),  # which is the name of another number
        (" ppl: 3", ""),
        (" | bits 3", ""),
        (" bitsandbytes", ""),
    ],
)
def test_a_unit_stands_behind_its_number(behind, unit):
    assert find_unit(behind) == unit


def test_words_of_a_place_and_of_a_time_are_left_out():
    assert list_before("Sat Nov 28 [rank3] WARNING node12 fineweb ", PASSING) == "fineweb"
