"""What benches say of their own measurements."""

import json
import math
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from layerlab.model.build import build
from tests.support.forked import empty_python

BENCH = Path(__file__).resolve().parents[1] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bench as a module: it takes its own folder off the path, and puts another there."""
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    return lambda name: runpy.run_path(str(BENCH / f"{name}.py"))


def test_runs_are_timed_while_both_are_at_work(bench):
    """Alone a run makes 200 tokens a second, beside the other 100: before 4 s and after 10 s."""
    early = [
        (float(second), 200.0 * second if second < 4 else 400.0 + 100 * second)
        for second in range(11)
    ]
    late = [(second + 4.5, 100.0 * second) for second in range(6)]
    late += [(9.5 + second, 500.0 + 200 * second) for second in range(1, 5)]
    together = bench("runner")["together"]
    assert together([early, late]) == [100.0, 100.0]
    assert together([late, early]) == [100.0, 100.0]
    assert together([[(0.0, 0.0), (1.0, 50.0), (2.0, 300.0)]]) == [150.0]
    with pytest.raises(SystemExit, match="not at work at the same time"):
        together([early, [(20.0, 0.0), (21.0, 100.0)]])


def test_the_best_rate_of_a_curve_and_its_drift(bench):
    """Parabolas with their lowest points at -8.3, -8.3 - d and -8.3 - 2 d."""
    made = bench("mup")
    octaves = [-11.0, -10.0, -9.0, -8.5, -8.0, -7.5, -7.0, -6.0]
    for step in (0.0, 0.25, 0.7):
        lowest = [-8.3 - step * doubling for doubling in range(3)]
        curves = [{one: 3 + 0.2 * (one - place) ** 2 for one in octaves} for place in lowest]
        found = [made["best"](curve) for curve in curves]
        assert found == pytest.approx(lowest)
        assert made["drift"]([64, 128, 256], found) == pytest.approx(-step, abs=1e-9)
    assert made["best"]({-9.0: 4.0, -8.0: 3.0, -7.0: 2.0}) is None
    assert made["best"]({-9.0: 4.0, -8.0: 3.0, -7.0: float("inf")}) is None
    assert made["drift"]([64, 128], [-8.0, None]) is None


@pytest.mark.parametrize("alive", [True, False])
def test_fewer_kills_than_asked_for_are_a_failure(alive, bench, monkeypatch):
    """The run may be over before the last of them."""
    main = bench("resume")["main"]
    fake = {
        "killed": lambda *_: alive,
        "report": lambda *_: None,
        "subprocess": type("Nothing", (), {"run": lambda *_, **__: None, "DEVNULL": None}),
    }
    for name, value in fake.items():
        monkeypatch.setitem(main.__globals__, name, value)
    monkeypatch.setattr(sys, "argv", ["resume.py", "--kills", "3"])
    if alive:
        main()
        return
    with pytest.raises(SystemExit, match="0 of 3 kills; type another --seed"):
        main()


LATE = """
import pathlib, sys, time
run = pathlib.Path(sys.argv[1], "run")
run.mkdir()
(run / "events.jsonl").write_text('{"kind": "train", "update": 9}\\n')
time.sleep(0.2)
(run / "checkpoints" / "step-00000005").mkdir(parents=True)
time.sleep(60)
"""


def test_a_run_is_killed_once_it_has_a_checkpoint(bench, monkeypatch, tmp_path):
    killed = bench("resume")["killed"]
    start = [sys.executable, "-c", LATE, str(tmp_path)]
    monkeypatch.setitem(killed.__globals__, "command", lambda *_: start)
    assert killed(tmp_path / "recipe.toml", tmp_path, 3, 0.0)
    assert (tmp_path / "run" / "checkpoints" / "step-00000005").is_dir()


def test_kills_without_a_resume_are_a_failure(bench, tmp_path):
    report = bench("resume")["report"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        (folder / "model").mkdir(parents=True)
        save_file({"w": torch.ones(2)}, folder / "model" / "model.safetensors")
        (folder / "events.jsonl").write_text('{"kind": "train", "update": 9}\n')
        (folder / "result.json").write_text('{"resumes": 0}')
    with pytest.raises(SystemExit, match="never went on from a checkpoint"):
        report(whole, broken, 3)
    (broken / "result.json").write_text('{"resumes": 1}')
    report(whole, broken, 3)


@pytest.mark.full
@pytest.mark.filterwarnings("error::FutureWarning")
def test_the_bench_of_training_names_settings_as_they_are_called(bench):
    made = bench("training")
    for way in made["WAYS"].values():
        found = made["recipe"](True, "cpu", **way).train
        assert found.max_steps == made["UPDATES"] and found.learning_rate == 1e-3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_absent_is_one_line(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"^no GPU is here; expected one that torch.cuda sees, or"):
        bench("gpu")["main"]()
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_sections_of_a_gpu_fill_a_table_and_one_that_fails_stops_no_other(
    bench, monkeypatch, tmp_path
):
    gpu = bench("gpu")
    sections = gpu["SECTIONS"]

    def fails(given: Any) -> None:
        raise RuntimeError("CUDA error\nand more")

    monkeypatch.setitem(sections, "limits", type(sections["limits"])(fails, 5))
    words = ["gpu.py", "--small", "--out", str(tmp_path)]
    words += ["--section", "limits", "--section", "inspect"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        gpu["main"]()
    assert ended.value.code == 1
    table = json.loads((tmp_path / "gpu.json").read_text())
    first, second, *rest = table["lines"]
    assert first["failed"] and first["value"] == "failed: RuntimeError: CUDA error"
    assert second["section"] == "inspect" and second["target"] == "<= 8 s"
    assert {line["name"] for line in rest} >= {"1 B: spectrum", "1 B: gain"}
    page = (tmp_path / "gpu.md").read_text()
    assert page.count("\n| inspect |") == 1 + len(rest) and "FAILED" in page


@pytest.mark.full
def test_small_shapes_try_every_section_that_needs_no_process(bench, monkeypatch, tmp_path, capsys):
    sections = (
        *("limits", "rounding", "emulation", "errors", "kernels", "long", "large"),
        *("peers", "offload", "formats"),
    )
    words = [word for name in sections for word in ("--section", name)]
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--small", "--out", str(tmp_path), *words])
    bench("gpu")["main"]()
    lines = json.loads((tmp_path / "gpu.json").read_text())["lines"]
    assert {line["section"] for line in lines} == set(sections)
    assert not any(line["failed"] for line in lines)
    long = [line for line in lines if line["section"] == "long"]
    assert [line["target"] for line in long[:2]] == ["", "<= 60 s"]
    assert "16,384" in long[0]["name"] and "by torch" in long[0]["limit"]
    assert len(capsys.readouterr().out.splitlines()) == len(lines)
    names = {
        line["section"]: [one for one in lines if one["section"] == line["section"]]
        for line in lines
    }
    assert {line["name"] for line in names["rounding"]} >= {
        f"{format}, stochastic" for format in ("bf16", "fp8_e4m3", "mxfp4")
    }
    # What a small shape can hold: the arithmetic is right, whatever the device.
    assert [line["share"] <= 1 for line in names["errors"]] == [True, True]
    assert any("torch.linalg.svdvals" in line["name"] for line in names["peers"])
    spread, _, agree = names["offload"]
    assert spread["limit"].endswith("weights on cpu, disk") and agree["share"] <= 1


@pytest.mark.full
def test_small_shapes_try_what_users_do(bench, monkeypatch):
    gpu = bench("gpu")
    table, device = gpu["Table"]("a GPU", {}, True), torch.device("cpu")
    for name in ("use", "commands"):
        gpu["_run"](name, gpu["Bench"](device, True, end=math.inf), table)
    assert len(table.lines) == 4 and not any(line.failed for line in table.lines), table.lines


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: `apt-get install g++`")
@pytest.mark.filterwarnings("ignore")  # what torch says while it compiles
def test_small_shapes_try_a_monitor_beside_compiled_updates(bench):
    gpu = bench("gpu")
    table, device = gpu["Table"]("a GPU", {}, True), torch.device("cpu")
    torch.compiler.reset()  # else a layer that another test has compiled is taken again
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    gpu["_run"]("monitor", gpu["Bench"](device, True, end=math.inf), table)
    (line,) = table.lines
    assert not line.failed and line.value.endswith("% of an update")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > before


def test_every_line_is_kept_before_the_next_is_measured(bench, monkeypatch, tmp_path):
    gpu = bench("gpu")
    sections = gpu["SECTIONS"]

    def killed(given: Any) -> None:
        given.line("first", "1 s")
        raise SystemExit(137)

    monkeypatch.setitem(sections, "limits", type(sections["limits"])(killed, 5))
    words = ["gpu.py", "--small", "--section", "limits", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit):
        gpu["main"]()
    (line,) = json.loads((tmp_path / "gpu.json").read_text())["lines"]
    assert line["name"] == "first" and "| limits | first |" in (tmp_path / "gpu.md").read_text()


def test_what_users_do_comes_before_the_longest_and_formats_are_gated_by_themselves(bench):
    order = list(bench("gpu")["SECTIONS"])
    assert order.index("use") < order.index("long") < order.index("large")
    assert order[-1] == "formats"
    # All fit into the time of `make gpu`, if each takes what is reckoned.
    assert sum(one.seconds for one in bench("gpu")["SECTIONS"].values()) <= 480
    assert bench("gpu")["SECTIONS"]["formats"].seconds < 300  # what it may take at most


@pytest.mark.parametrize(("fails", "code"), [("bench/gpu.py", 2), ("pytest", 2), ("", 0)])
def test_make_gpu_runs_the_tests_too_where_the_bench_fails(fails, code, tmp_path):
    python, ready = tmp_path / "python", tmp_path / "ready"
    stops = f'case "$*" in *{fails or "nothing"}*) exit 1;; esac'
    python.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/said\n{stops}\n')
    python.chmod(0o755)
    ready.touch()
    command = ["make", "gpu", f"BIN={python}", f"READY={ready}"]
    done = subprocess.run(command, cwd=BENCH.parent, capture_output=True, check=False)
    said = (tmp_path / "said").read_text().splitlines()
    assert said == ["bench/gpu.py --minutes 8", "-m pytest -ra -m gpu"]
    assert done.returncode == code


@pytest.mark.full
def test_a_whole_comparison_is_timed_over_its_updates(bench, capsys):
    options = ("--arms", "llama,gpt2", "--set", "train.max_steps=4")
    bench("runner")["wall"]("smoke", *options)
    told = capsys.readouterr().out
    ratio = float(told.split("updates: ")[1].split()[0])
    assert told.startswith("smoke: 6 runs, ") and ratio > 1


def test_a_section_without_time_is_named_and_not_begun(bench, monkeypatch):
    gpu = bench("gpu")
    table = gpu["Table"]("a GPU", {}, False)
    device = torch.device("cpu")
    gpu["_run"]("large", gpu["Bench"](device, False, end=0.0), table)
    (line,) = table.lines
    assert line.value.startswith("not run: it takes 75 s") and not line.failed


def test_a_ladder_whose_gain_is_large_is_decided_at_every_size(bench):
    """By the code that judges trained ones; one that gains nothing gets no word of a gain."""
    ladder = bench("ladder")
    _, wrong, right = ladder["setting"]("stays large", "alike", 2, 5, 4, 0.0)
    assert list(right[:3]) == [1.0, 1.0, 1.0] and list(wrong[1:4]) == [0.0, 0.0, 0.0]
    _, _, none = ladder["setting"]("none", "alike", 2, 3, 1, 0.0)
    assert all(math.isnan(one) for one in none)  # there is nothing that could be decided


@pytest.mark.full
@pytest.mark.parametrize(("never", "least"), [(False, 0.6), (True, 0.25)])
def test_a_campaign_adopts_what_works_and_nothing_else(never, least, bench):
    made = bench("judging/ledger")
    terms = made["CampaignTerms"](baseline="plain", never=never)
    none = made["campaigns"](300, 500, 0, terms)
    # Three Monte-Carlo errors above what is promised.
    most = 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5
    assert none.any < most and none.best > 0.8 and none.boast > 1.2
    some = made["campaigns"](300, 500, 20, terms)
    assert some.found > least * some.planned and some.false < 0.1
    assert not never or some.wrong < most


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: `apt-get install g++`")
def test_shapes_for_a_gpu_are_tried_small_beside_trainer():
    words = ["--section", "large", "--small", "--rounds", "1", "--updates", "1"]
    done = empty_python("-W", "error::FutureWarning", BENCH / "training.py", *words)
    assert done.returncode == 0, done.stderr
    held = [line for line in done.stdout.splitlines() if "at least" in line]
    # Each has what was measured, and no word on it: a small model on any machine meets no target.
    assert len(held) == 3 and not re.search(r"\b(met|MISSED)$", done.stdout, re.M), done.stdout
    assert all(float(re.findall(r"[0-9][0-9,.]*", line)[0].replace(",", "")) > 0 for line in held)


def test_bytes_that_a_pass_keeps_are_those_of_its_tensors(bench):
    """Plain features at least: an input of each of two norms in six layers, in float32."""
    found = bench("saved")
    widths = found["BATCH"] * found["SIZES"]["context"] * 64 * 4
    llama, wide = (found["saved"](name, "eager", 64, "cpu") for name in ("llama", "widenet"))
    assert 2 * 6 * widths < llama < 40 * 6 * widths
    # Gates and features of three experts more, which are kept at the least.
    inner = build("llama", width=64).config.shape().inner
    assert wide - llama > 3 * 2 * 6 * widths * inner / 64 / 2


def test_the_roofline_counts_products_bytes_and_operations(bench):
    made = bench("numerics/roofline")
    limits = made["argparse"].Namespace(products=1e-9, half=2e-9, memory=1e-3)  # 1, 2 kFLOP/s
    with made["Counting"](limits) as counting:
        torch.ones(4, 8) @ torch.ones(8).expand(3, 8).T  # 2 * 4 * 8 * 3 products
        with counting.decomposing():
            torch.ones(64, 64) @ torch.ones(64, 64)
    cost = counting.costs["forward and the rest"]
    assert dict(cost.flops) == {"float32": 192}
    assert cost.moved == 4 * (32 + 8 + (32 + 8 + 12))  # both are made, then read
    assert cost.device == pytest.approx(0.192 + 4 * 40 / 1e9)
    assert cost.host > 0
    names = made["Cost"](moved=10, operations=5).extend(made["Cost"](moved=13, operations=7), 15)
    assert (names.moved, names.operations) == (55, 35)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # what torch says while it compiles
def test_kernels_that_are_planned_move_what_they_read_and_write(bench):
    planner, x = bench("compiled/moved")["Planner"](), torch.randn(64, 32, requires_grad=True)
    torch._dynamo.reset()
    found = torch.compile(lambda x: x.sin() * x, backend=planner)(x)
    torch.testing.assert_close(found, x.sin() * x)
    found.sum().backward()
    there, back = planner.called
    assert (there.bytes, back.bytes) == (2 * 4 * 64 * 32, 3 * 4 * 64 * 32)
    assert not there.library and there.seconds == there.bytes / 2.6e12


@pytest.mark.full
def test_what_a_layer_moves_is_printed_beside_its_baseline():
    words = ("--device", "cpu", "--variant", "siaf-2", "--width", "64", "--layers", "1")
    done = empty_python(BENCH / "compiled/moved.py", *words)
    assert done.returncode == 0, done.stderr[-4000:]
    llama, siaf = done.stdout.splitlines()[2:]
    assert re.match(r"  llama +\d+ kB in \d+ kernels, 0\.\d MFLOP +\d+ ns \+0\.0%$", llama)
    assert re.match(r"  siaf-2 +\d+ kB in \d+ kernels, 0\.\d MFLOP +\d+ ns \+\d+\.\d%$", siaf)
    if torch.version.cuda is None:
        done = empty_python(BENCH / "compiled/moved.py")
        assert "is built without CUDA; expected a build for CUDA 13" in done.stderr
