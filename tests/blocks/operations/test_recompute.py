"""What a compiled step makes again: the same numbers, and nothing kept but what was given."""

import pytest
import torch
from torch import Tensor

from layerlab.blocks.operations import recompute as recomputation
from layerlab.blocks.operations.recompute import recompute, write_gradient


def chain(x: Tensor, scale: Tensor) -> Tensor:
    """Sums and products that a compiler would rather keep."""
    square = x * x
    return torch.rsqrt(square.mean(-1, keepdim=True) + 1) * square * square * scale


def run(function, x: Tensor, scale: Tensor) -> tuple[Tensor, int]:
    """Return the gradient of x, and how many large tensors were kept."""
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = function(x, scale) @ torch.ones(x.shape[-1], 2)
    (found,) = torch.autograd.grad(out.sin().sum(), x)
    return found, sum(tensor.shape == x.shape for tensor in kept.values())


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(64, 32, requires_grad=True), torch.randn(32, requires_grad=True)


def test_a_function_runs_once_where_nothing_is_compiled():
    calls = []
    x, scale = inputs()
    out = recompute(lambda *given: calls.append(1) or chain(*given), x, scale)
    out.sum().backward()
    assert len(calls) == 1 and torch.equal(out, chain(x, scale))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # what torch says while it compiles
def test_compiled_it_gives_the_same_and_keeps_its_input_alone():
    x, scale = inputs()
    plain, many = run(chain, x, scale)
    again = torch.compile(
        lambda *given: recompute(chain, *given),
        fullgraph=True,
        backend="aot_eager_decomp_partition",
    )
    found, few = run(again, x, scale)
    torch.testing.assert_close(found, plain)
    assert few == 1 < many


def test_compiled_without_gradients_it_is_the_function():
    x, scale = inputs()
    compiled = torch.compile(
        lambda *given: recompute(chain, *given), fullgraph=True, backend="eager"
    )
    with torch.no_grad():
        assert torch.equal(compiled(x, scale), chain(x, scale))


@pytest.mark.filterwarnings("ignore:Guards may run slower")  # on Python 3.13.0
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_model_has_plain_operations(strict):
    class Chained(torch.nn.Module):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return recompute(chain, x, scale)

    given = inputs()
    exported = torch.export.export(Chained(), given, strict=strict)
    assert "checkpoint" not in str(exported.graph)
    assert torch.equal(exported.module()(*given), chain(*given))


def test_a_written_gradient_is_the_gradient_under_transforms_too(monkeypatch):
    monkeypatch.setattr(recomputation, "is_fused", lambda x: True)
    (x, _), rows = inputs(), torch.arange(64.0)
    slope = torch.func.vmap(torch.func.grad(lambda x, row: (write_gradient(x) * x * row).sum()))
    torch.testing.assert_close(slope(x.detach(), rows), 2 * x.detach() * rows[:, None])
    (found,) = torch.autograd.grad(write_gradient(x).sum(), x)  # an expanded one has no strides
    assert torch.equal(found, torch.ones_like(x))
