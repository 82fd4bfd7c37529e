"""`layerlab doctor`: what it says is so."""

import json
from importlib.metadata import version

import torch

import layerlab
from layerlab.api import diagnose
from layerlab.cli import app
from layerlab.numerics.formats.choose_kernel import GpuKernel
from layerlab.numerics.formats.kernel import kernel


def test_it_names_versions_devices_threads_and_the_kernel(capsys):
    app.doctor()
    text = capsys.readouterr().out
    for wanted in (layerlab.__version__, version("torch"), "transformers", "device", "cpu"):
        assert wanted in text
    assert f"{torch.get_num_threads()} of torch" in text
    kept = kernel()
    assert str(kept.path if kept.reason is None else kept.reason) in text


def test_json_says_the_same(capsys):
    app.doctor(as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found == layerlab.diagnose().to_dict()
    assert found["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert found["devices"][0] == "cpu" and found["threads"] == torch.get_num_threads()
    assert set(found["extras"]) >= {"eval", "sft"}


def test_it_says_why_there_is_no_kernel(monkeypatch):
    monkeypatch.setenv("LAYERLAB_KERNEL", "0")
    assert "pure torch: turned off by LAYERLAB_KERNEL=0" in str(layerlab.diagnose())
    assert layerlab.diagnose().kernel_path is None


def test_it_says_what_rounds_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "kernel on a GPU  no GPU" in str(layerlab.diagnose())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    reasons = {None: "triton", "triton is not installed": "pure torch: triton is not installed"}
    for reason, said in reasons.items():
        monkeypatch.setattr(diagnose, "gpu_kernel", lambda reason=reason: GpuKernel(reason))
        assert layerlab.diagnose().gpu_kernel == said


def test_what_an_extra_lacks_is_named(monkeypatch):
    present = diagnose._version
    monkeypatch.setattr(diagnose, "_version", lambda one: None if one == "peft" else present(one))
    found = layerlab.diagnose()
    assert found.extras["sft"] == ["peft"]
    assert "lacks peft" in str(layerlab.diagnose())


def test_lines_are_as_wide_as_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    app.doctor()
    app.compare()
    lines = capsys.readouterr().out.splitlines()
    # What is one word, as a path, is never cut.
    assert not [one for one in lines if len(one) > 40 and " " in one[17:].strip()]
