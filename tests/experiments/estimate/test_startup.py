"""What a run takes beside its updates: measured once, believed from then on."""

import pytest

from layerlab.experiments.estimate import startup
from layerlab.experiments.estimate.startup import ASSUMED, startup_seconds, total_free_memory
from layerlab.system.hardware import free_memory

# What takes a known time of a processor, where a worker's imports take six seconds.
BUSY = "import time\nwhile time.process_time() < 0.4: pass\nprint(time.process_time())"


@pytest.mark.parametrize("program", [BUSY, pytest.param(startup.STARTED, marks=pytest.mark.full)])
def test_a_start_is_measured_once(program, tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path))
    assert startup_seconds("cpu", measure=False) == ASSUMED
    assert not list(tmp_path.rglob("*.json"))
    monkeypatch.setattr(startup, "STARTED", program)
    found = startup_seconds("cpu")
    assert 0.3 < found < 60
    monkeypatch.setattr(startup, "STARTED", "raise SystemExit(1)")
    assert startup_seconds("cpu") == startup_seconds("cpu", measure=False) == found
    assert startup_seconds("cpu", "json", measure=False) == ASSUMED


def test_each_module_has_a_start_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(startup, "STARTED", "print(0.25)")
    assert startup_seconds("cpu", "json") == 0.25
    assert startup_seconds("cpu", "csv", measure=False) == ASSUMED


def test_what_cannot_be_started_is_assumed(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(startup, "STARTED", "raise SystemExit(1)")
    assert startup_seconds("cpu") == ASSUMED
    assert not list(tmp_path.rglob("*.json"))


def test_memory_is_told_where_the_device_tells_it():
    assert total_free_memory("cpu") == pytest.approx(free_memory("cpu"), rel=0.3)
    assert total_free_memory("meta") is None
