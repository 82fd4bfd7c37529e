"""What a compiler for GPUs is given, computed without one: the same numbers and gradients."""

import pytest
import torch
from torch import Tensor

from layerlab.blocks.operations import recompute, sinkhorn
from layerlab.variants.residual import depth
from tests.model.small import shaken, small, tokens

CASES = {
    "attention-residuals": {"layers": 3},
    "attention-residuals-block": {"layers": 3, "blocks": 2, "values": "normed"},
    "siaf-2": {},
    "siaf-4": {},
    "pangu-pi": {},
    "mhc": {},
    "hyper-connections": {},
}
FUSED = (recompute, depth, sinkhorn)


def run(model: torch.nn.Module, call: torch.nn.Module | None = None) -> dict[str, Tensor]:
    """Return the logits, and the gradient of every weight, of a model or what compiles it."""
    x = tokens(2, 12).to(model.device)
    model.zero_grad()
    out = (model if call is None else call)(x, labels=x, use_cache=False)
    out.loss.backward()
    weights = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return {"logits": out.logits.detach(), **weights}


def compare(found: dict[str, Tensor], expected: dict[str, Tensor], *, loose: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        slack = loose * (1 + value.abs().max().item())
        torch.testing.assert_close(found[name], value, rtol=0, atol=slack, msg=name)


@pytest.mark.parametrize("name", CASES)
def test_fused_forms_compute_the_same(name, monkeypatch):
    model = shaken(small(name, **CASES[name])).train()
    plain = run(model)
    for module in FUSED:
        monkeypatch.setattr(module, "is_fused", lambda x: True)
    compare(run(model), plain)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # what torch says while it compiles
@pytest.mark.parametrize("name", CASES)
def test_fused_forms_compile_as_one_graph(name, monkeypatch):
    model = shaken(small(name, **CASES[name])).train()
    plain = run(model)
    for module in FUSED:
        monkeypatch.setattr(module, "is_fused", lambda x: torch.compiler.is_compiling())
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager_decomp_partition")
    compare(run(model, compiled), plain)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # what torch says while it compiles
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_kernels_of_a_gpu_compute_the_same(name, dtype):
    model = shaken(small(name, **CASES[name])).train().to("cuda", dtype)
    plain = run(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True)
    compare(run(model, compiled), plain, loose=1e-10 if dtype == torch.float64 else 1e-4)
