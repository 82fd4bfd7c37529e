"""What is said of the machine, and the product that a model's speed is held against."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from layerlab.system import hardware
from layerlab.system.hardware import (
    COMPILED,
    FRESH,
    cache_folder,
    here,
    keep_compiled_code,
    machine,
    matmul_peak,
    peak_memory,
    release_memory,
    stopwatch,
    versions,
    with_threads,
)
from tests.support.refused import refuses


@pytest.mark.parametrize("whose", ["nobody's", "own", "linked", "another's"])
def test_headers_that_another_user_may_change_are_not_taken(whose, tmp_path, monkeypatch):
    from torch._inductor import config
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(COMPILED, str(tmp_path / "compiled"))
    folder = Path(default_cache_dir())
    if whose == "linked":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    elif whose != "nobody's":
        folder.mkdir()
    if whose == "another's":
        monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with config.patch(cpp_cache_precompile_headers=True):
        keep_compiled_code()
        assert config.cpp_cache_precompile_headers == (whose in {"nobody's", "own"})
    assert folder.is_dir()  # nobody else can make it now


def test_a_machine_has_a_name_that_json_keeps():
    said = machine("cpu", 3)
    assert set(said) == {"processor", "device", "threads"}
    assert said["processor"].strip() and said["device"] == "cpu" and said["threads"] == 3
    assert json.loads(json.dumps(said)) == said


def test_versions_are_those_that_run():
    said = versions()
    assert said["torch"] is not None and torch.__version__.startswith(said["torch"].split("+")[0])
    assert said["python"] == sys.version.split()[0]
    assert None not in said.values()


@pytest.mark.full
def test_peak_memory_grows_with_what_is_held():
    held = torch.ones(peak_memory("cpu") // 4 + 1_000_000)  # of four bytes each
    assert peak_memory("cpu") >= 4 * held.numel()


@pytest.mark.full
def test_peak_memory_is_that_of_this_process_and_not_of_the_one_that_started_it():
    if not Path("/proc/self/status").exists():
        pytest.skip("only Linux tells the two apart")
    held = torch.ones(100_000_000)
    program = "from layerlab.system.hardware import peak_memory; print(peak_memory('cpu'))"
    said = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert int(said.stdout) < peak_memory("cpu") - 2 * held.numel()


def test_a_peak_is_measured_once_and_then_known(cache, monkeypatch):
    first = matmul_peak("cpu", "fp32", 1)
    assert 1e8 < first < 1e13
    monkeypatch.setattr(hardware, "_fastest", lambda *_: pytest.fail("measured again"))
    assert matmul_peak("cpu", "fp32", 1) == first
    (file,) = (cache / "peak").iterdir()
    assert json.loads(file.read_text())["of"]["threads"] == 1


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of memory that are given back, as on a machine with two GPUs in use."""
    found: list[str] = []
    for name in ("is_available", "is_initialized"):
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: found.append("cache"))
    clear = "_cuda_clearCublasWorkspaces"
    monkeypatch.setattr(torch._C, clear, lambda: found.append("workspaces"), raising=False)
    return found


def test_workspaces_of_products_are_given_back_before_the_cache(freed):
    release_memory()
    assert freed == ["workspaces", "cache"]


def test_a_measured_peak_leaves_no_memory_behind(cache, freed, monkeypatch):
    monkeypatch.setattr(hardware, "_fastest", lambda *_: 7.0)
    for _ in range(2):
        matmul_peak("cpu", "fp32", 1)
    assert freed == ["workspaces", "cache"]


def test_who_asks_for_a_device_does_not_start_it(freed, monkeypatch):
    monkeypatch.setattr(torch, "empty", lambda *_, **__: pytest.fail("started"))
    found = [here(name) for name in ("cuda", "cuda:1", "cuda:2")]
    assert found == [True, True, False]


@pytest.mark.gpu
def test_products_leave_no_memory_behind_once_it_is_released():
    torch.mm(*torch.ones(2, 256, 256, device="cuda"))
    release_memory()
    assert torch.cuda.memory_reserved() < 2**22


def test_a_peak_of_another_precision_or_thread_count_is_another(cache, monkeypatch):
    values = iter([1.0, 2.0, 3.0])
    monkeypatch.setattr(hardware, "_fastest", lambda *_: next(values))
    found = [matmul_peak("cpu", *key) for key in (("fp32", 1), ("bf16", 1), ("fp32", 2))]
    assert found == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"flops": "x", "when": 1}', '{"flops": -1, "when": NOW}'],
)
def test_a_damaged_cache_is_measured_anew(cache, monkeypatch, content):
    monkeypatch.setattr(hardware, "_fastest", lambda *_: 7.0)
    matmul_peak("cpu", "fp32", 1)
    (file,) = (cache / "peak").iterdir()
    file.write_text(content.replace("NOW", str(time.time())))
    monkeypatch.setattr(hardware, "_fastest", lambda *_: 8.0)
    assert matmul_peak("cpu", "fp32", 1) == 8.0


def test_an_old_peak_is_measured_anew(cache, monkeypatch):
    monkeypatch.setattr(hardware, "_fastest", lambda *_: 7.0)
    matmul_peak("cpu", "fp32", 1)
    (file,) = (cache / "peak").iterdir()
    file.write_text(json.dumps({"flops": 6.0, "when": time.time() - FRESH - 1}))
    assert matmul_peak("cpu", "fp32", 1) == 7.0
    file.write_text(json.dumps({"flops": 6.0, "when": time.time() - FRESH + 60}))
    assert matmul_peak("cpu", "fp32", 1) == 6.0


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(hardware, "_fastest", lambda *_: 7.0)
    assert matmul_peak("cpu", "fp32", 1) == 7.0


def test_an_unknown_precision_is_named(cache):
    refuses("no peak is measured in 'fp8'; expected fp32, bf16, fp16", matmul_peak, "cpu", "fp8", 1)


def test_measuring_leaves_threads_and_random_state_alone(cache):
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    matmul_peak("cpu", "bf16", 2)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads


def test_threads_come_back_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError), with_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise RuntimeError
    assert torch.get_num_threads() == before


def test_one_thread_is_timed_by_what_it_works():
    clock = stopwatch("cpu", 1)
    start = clock()
    time.sleep(0.05)
    assert clock() - start < 0.04
    other = stopwatch("cpu", 2)
    start = other()
    time.sleep(0.05)
    assert other() - start >= 0.05


def test_the_cache_is_where_the_user_says(cache, monkeypatch):
    assert cache_folder() == cache
    monkeypatch.delenv("LAYERLAB_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "layerlab"
