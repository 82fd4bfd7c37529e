"""What a terminal shows of times."""

import io
from typing import Any

import pytest
from rich.console import Console

from layerlab.latency.config import LatencyConfig
from layerlab.latency.measure import Latency, Timing
from layerlab.latency.paired_ratio import spread
from layerlab.latency.parameter_matching import pair
from layerlab.latency.table import timetable

TIMES = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]


def timed(name: str, slower: float = 1.0, **given: Any) -> Timing:
    sizes: dict[str, Any] = {"parameters": 7_000_000, "weights": 28_000_000, "cache": 5_000_000}
    return Timing(
        name=name,
        prefill=spread(TIMES),
        decode=spread([slower * one for one in TIMES]),
        **{"random": False, "peak": None, **sizes, **given},
    )


def shown(*models: Timing, threads: int = 1, **given: Any) -> list[str]:
    setting = LatencyConfig(threads=threads, repetitions=len(TIMES))
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(timetable(Latency(setting=setting, timed=models, **given), 300))
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


def test_two_models_are_shown_with_their_ratios(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    lines = shown(timed("drawn", 2.0, random=True, peak=30_000_000), timed("saved"))
    rows = [line for line in lines if "7.0M" in line]
    assert rows[0].endswith("6 [2.5, 14] 12 [5, 28] 28.0 5.0 30.0")
    assert rows[1].endswith("6 [2.5, 14] 6 [2.5, 14] 28.0 5.0 unknown")
    said = "first over second, paired, with 95 % intervals: "
    assert f"{said}prefill 1.000 [1.000, 1.000], decode 2.000 [2.000, 2.000]" in lines
    assert {"1: drawn, weights at random", "2: saved"} <= {*lines}
    assert any(line.endswith("cpu, 1 thread (OMP_NUM_THREADS), processor time") for line in lines)
    assert not any("published" in line or "predicted" in line for line in lines)


def test_one_model_has_no_ratio(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    lines = shown(timed("saved"), threads=2)
    assert not any("first over second" in line for line in lines)
    assert any(line.endswith("cpu, 2 threads, wall time") for line in lines)


@pytest.mark.parametrize(
    ("shape", "note"),
    [("1b", "; the source prints no depth of its 1B Llama: 13 is ours"), ("7b", "")],
)
def test_an_accounting_is_shown_beside_what_was_published(shape, note):
    found = pair("fewer-layers", shape=shape, width=128)
    lines = shown(timed("pangu", 0.5), timed("llama"), pair=found)
    said = f"predicted by the weights that a token reads: {found.predicted:.3f}{note}"
    assert said in lines
    name = shape.upper()
    assert any(line.startswith(f"pangu {name} over llama {name}: published, on") for line in lines)
    assert [line.split()[:2] for line in lines if line.startswith(("pangu ", "llama "))][:2] == [
        ["pangu", name],
        ["llama", name],
    ]
    assert lines[-1].startswith("10 % faster under fewer-layers") and ": holds; " in lines[-1]
