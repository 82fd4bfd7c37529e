"""Autocast beside torch's own: the dtype of every operation, and the error of whole models."""

import copy
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

import layerlab
from layerlab import UserError, builtin
from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.attribution import attribution
from layerlab.numerics.emulation.autocast import LOWER, SINGLE, WIDEST, autocasting
from layerlab.numerics.emulation.emulate import emulate, reference
from layerlab.numerics.prediction.predict import spreads
from tests.measures.family import built
from tests.numerics.emulation.test_emulate import (
    DTYPES,
    gradient_errors,
    own_gradients,
    typical,
    words,
)

SIDE = 4


def _rows(x: Tensor) -> Tensor:
    return torch.arange(SIDE, device=x.device)


# One argument: each is given a float32 and a bf16 one.
ALONE: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in """acos asin cos cosh erf erfinv exp expm1 log log10 log1p log2 mean norm prod
        reciprocal relu rsqrt sigmoid sin sinh sqrt std sum tan tanh var""".split()
    },
    **{
        name: getattr(functional, name)
        for name in "dropout elu gelu leaky_relu logsigmoid mish relu6 silu softplus".split()
    },
    **{
        name: partial(getattr(torch, name), dim=-1)
        for name in "cumprod cumsum log_softmax logsumexp softmax".split()
    },
    "adaptive_avg_pool1d": lambda x: functional.adaptive_avg_pool1d(x.unsqueeze(0), 2),
    "cross_entropy": lambda x: functional.cross_entropy(x, _rows(x)),
    "embedding": lambda x: functional.embedding(_rows(x), x),
    "group_norm": lambda x: functional.group_norm(x, 2),
    "interpolate": lambda x: functional.interpolate(x.unsqueeze(0), scale_factor=2),
    "layer_norm": lambda x: functional.layer_norm(x, (SIDE,)),
    "linalg_norm": lambda x: torch.linalg.norm(x),
    "linalg_vector_norm": lambda x: torch.linalg.vector_norm(x),
    "linalg_matrix_norm": lambda x: torch.linalg.matrix_norm(x),
    "nll_loss": lambda x: functional.nll_loss(x, _rows(x)),
    "normalize": lambda x: functional.normalize(x),
    "of softmax as asked": lambda x: torch.softmax(x, -1, dtype=x.dtype),
    "pdist": functional.pdist,
    "pow": lambda x: x**2,
    "renorm": lambda x: torch.renorm(x, 2, 0, 1.0),
    "rms_norm": lambda x: functional.rms_norm(x, (SIDE,)),
    "rpow": lambda x: 2**x,
    "sdpa": lambda x: functional.scaled_dot_product_attention(
        x.unsqueeze(0), x.unsqueeze(0), x.unsqueeze(0)
    ),
    "softmax of a tensor": lambda x: x.softmax(-1),
    "softmin": lambda x: functional.softmin(x, dim=-1),
}
# Two arguments: each is given a float32 and a bf16 one, and two of either.
PAIRED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{name: getattr(operator, name) for name in "add matmul mul sub truediv".split()},
    **{name: getattr(torch, name) for name in "atan2 cdist dist maximum mm".split()},
    **{
        name: getattr(functional, name)
        for name in "cosine_similarity l1_loss linear mse_loss smooth_l1_loss".split()
    },
    "addbmm": lambda x, y: torch.addbmm(x, x.unsqueeze(0), y.unsqueeze(0)),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y),
    "addcmul": lambda x, y: torch.addcmul(x, x, y),
    "addmm": lambda x, y: torch.addmm(x, x, y),
    "addmv": lambda x, y: torch.addmv(x.select(0, 0), x, y.select(0, 0)),
    "addr": lambda x, y: torch.addr(x, x.select(0, 0), y.select(0, 0)),
    "baddbmm": lambda x, y: torch.baddbmm(x.unsqueeze(0), x.unsqueeze(0), y.unsqueeze(0)),
    "bilinear": lambda x, y: functional.bilinear(x, y, x.unsqueeze(0)),
    "bmm": lambda x, y: torch.bmm(x.unsqueeze(0), y.unsqueeze(0)),
    "cat": lambda x, y: torch.cat([x, y]),
    "conv1d": lambda x, y: functional.conv1d(x.unsqueeze(0), y.unsqueeze(2)),
    "cross": lambda x, y: torch.cross(x.narrow(1, 0, 3), y.narrow(1, 0, 3), dim=-1),
    "dot": lambda x, y: torch.dot(x.select(0, 0), y.select(0, 0)),
    "einsum": lambda x, y: torch.einsum("ij,jk->ik", x, y),
    "index_put": lambda x, y: torch.index_put(x, (_rows(x),), y),
    "kl_div": partial(functional.kl_div, reduction="sum"),
    "linalg_multi_dot": lambda x, y: torch.linalg.multi_dot([x, y, x]),
    "mv": lambda x, y: torch.mv(x, y.select(0, 0)),
    "scatter_add": lambda x, y: torch.scatter_add(x, 0, _rows(x).unsqueeze(0), y),
    "stack": lambda x, y: torch.stack([x, y]),
    "tensordot": lambda x, y: torch.tensordot(x, y, dims=1),
    "vdot": lambda x, y: torch.vdot(x.select(0, 0), y.select(0, 0)),
    "where": lambda x, y: torch.where(x > 0, x, y),
}
# Kernels beneath those that code calls, and recurrent cells, which emulation takes as they come.
BENEATH = frozenset(
    """_convolution _cudnn_rnn _scaled_dot_product_flash_attention _thnn_fused_gru_cell
    _thnn_fused_lstm_cell convolution cudnn_convolution cudnn_convolution_transpose einsum
    frobenius_norm gru_cell chain_matmul lstm_cell native_layer_norm nuclear_norm rnn_relu_cell
    rnn_tanh_cell""".split()
)
# Names of the layer above, which end in kernels that are listed.
SPELLED = frozenset("interpolate linalg_norm normalize rpow softmin".split())


class Calls(nn.Module):
    """Calls an operation on what autocast leaves in float32 and on what it made low."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.seen: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        low = x @ x
        if self.name in ALONE:
            given: list[tuple[Tensor, ...]] = [(x,), (low,)]
        else:
            given = [(x, x), (x, low), (low, x), (low, low)]
        called: Any = ALONE.get(self.name) or PAIRED[self.name]
        self.seen += [x.dtype, low.dtype, *(_tried(called, one) for one in given)]
        return x


def _tried(called: Any, given: tuple[Tensor, ...]) -> Any:
    """The dtype of what is given back; None where torch refuses."""
    try:
        return called(*given).dtype
    except (RuntimeError, NotImplementedError):
        return None


def seen_by_torch(name: str, device: str) -> list[Any]:
    """What torch's own autocast makes; that of CUDA is asked on tensors without values."""
    model = Calls(name)
    if device == "cpu":
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            model(torch.rand(SIDE, SIDE))
        return model.seen
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        with torch.no_grad(), FakeTensorMode():
            model(torch.rand(SIDE, SIDE, device="cuda"))
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])
    return model.seen


@pytest.mark.few(50)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", [*ALONE, *PAIRED])
def test_every_operation_gives_the_dtype_that_it_gives_under_torch_s_own(name, device):
    """Where torch refuses to mix dtypes, emulation goes on; `refused` says so."""
    model = Calls(name)
    with emulate(model, "bf16", "autocast", device=device):
        model(torch.rand(SIDE, SIDE))
    made = seen_by_torch(name, device)
    assert model.seen[:2] == made[:2] == [torch.float32, torch.bfloat16]
    assert any(made[2:])
    assert [ours for ours, dtype in zip(model.seen, made, strict=True) if dtype] == list(
        filter(None, made)
    )


def test_what_cuda_casts_beyond_a_cpu_is_all_known_by_name():
    """A torch that lists another operation fails here; one that casts it otherwise, above."""
    cast = torch._C._dispatch_has_kernel_for_dispatch_key
    listed = {
        name.removeprefix("aten::").partition(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and cast(name, "AutocastCUDA")
        if not cast(name, "AutocastCPU")
    }
    told = {name for name in listed if not name.lstrip("_").startswith("upsample")}
    assert told - BENEATH <= SINGLE | LOWER | WIDEST
    assert (SINGLE - SPELLED) | LOWER | WIDEST <= listed
    assert SINGLE | LOWER | WIDEST <= set(ALONE) | set(PAIRED)


@pytest.mark.full
@pytest.mark.parametrize("format", ["bf16", "fp16"])
@pytest.mark.parametrize("name", [*builtin.NAMES, "random gpt2", "random llama"])
def test_a_model_errs_as_much_as_under_torch_s_own_autocast(name, format):
    """The median token's error of the logits against float64, over 1024 tokens."""
    model, ids = drawn(name)
    with reference(model):
        exact = model(ids).logits
    with emulate(model, format, "autocast"):
        emulated = typical(model(ids).logits, exact)
    with torch.no_grad(), torch.autocast("cpu", dtype=DTYPES[format]):
        real = typical(model(ids).logits, exact)
    assert 0.9 <= emulated / real <= 1.1


def drawn(name: str) -> tuple[nn.Module, Tensor]:
    """A built-in model and its text, or one with random weights and random tokens."""
    if name not in builtin.NAMES:
        model = built(name.removeprefix("random "))
        return model, words(model, 64, rows=16)
    folder = builtin.path(name)
    text = builtin.SAMPLE.read_text(encoding="utf-8")[:6000]
    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt").input_ids[0]
    return AutoModelForCausalLM.from_pretrained(folder).eval(), ids[:1024].view(8, 128)


@pytest.mark.full
def test_as_run_is_not_autocast():
    """A stream in bf16, and weights that were rounded, cost a third more and above."""
    model, ids = drawn("llama")
    with reference(model):
        exact = model(ids).logits
    errors = []
    for mode in ("as-run", "autocast"):
        with emulate(model, "bf16", mode):
            errors.append(typical(model(ids).logits, exact))
    assert errors[0] > 1.3 * errors[1]


@pytest.mark.full
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_gradients_err_as_much_as_under_torch_s_own(family):
    model = built(family)
    ids = words(model, 64, rows=4)
    low = copy.deepcopy(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = low(ids, labels=ids).loss
    loss.backward()
    emulated, real = gradient_errors(model, ids, "autocast", own_gradients(low))
    assert emulated == pytest.approx(real, rel=0.1)


class Streams(nn.Module):
    """Adds what a layer gives to a stream, once under autocast and once where it is turned off."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIDE, SIDE)
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor, fail: bool = False) -> Tensor:
        given = self.layer(x)
        with torch.autocast("cpu", enabled=False):
            kept = self.layer(x)
        self.seen += [self.layer.weight.dtype, x.dtype, given.dtype, (x + given).dtype, kept.dtype]
        if fail:
            raise RuntimeError
        return x + given


@pytest.mark.parametrize("device", [None, "cpu", "cuda"])
def test_parameters_and_stream_stay_in_float32(device):
    model, single = Streams(), torch.float32
    x = torch.rand(SIDE, SIDE)
    with emulate(model, "fp16", "autocast", device=device) as run:
        found = model(x)
        assert not torch.is_autocast_enabled("cpu")
    assert model.seen == [single, single, torch.float16, single, single]
    # The casts of input, weight and bias, and the product: the sums with the stream are exact.
    assert {str(place): count for place, count in run.roundings.items()} == {"layer": 4}
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        torch.testing.assert_close(found, model(x), atol=2e-3, rtol=2e-3)


def test_nothing_of_it_is_left_behind():
    model = Streams()
    with emulate(model, "bf16", "autocast", device="cuda"):
        with pytest.raises(RuntimeError):
            model(torch.rand(SIDE, SIDE), fail=True)
        assert not torch.is_autocast_enabled("cpu")
    assert not torch._C._is_torch_function_mode_enabled()
    assert not model._forward_hooks and not model._forward_pre_hooks


@pytest.mark.full
def test_what_it_rounds_can_be_attributed_and_predicted():
    model = built("llama")
    ids = words(model, 32)
    found = attribution(model, lambda: model(ids), "bf16", "autocast")
    assert found.closure == pytest.approx(1, abs=0.35)
    assert not any(part.name == "residual stream" for part in found.components)
    kind = make_arithmetic("bf16", "autocast")
    modules = list(model.model.layers)
    _, deviations = spreads(model, lambda: model(ids), kind, modules, "variance")
    with reference(model):
        exact = model(ids).logits
    with emulate(model, "bf16", "autocast"):
        error = float((model(ids).logits.double() - exact).square().mean().sqrt())
    told = float(deviations[-1].double().square().mean().sqrt())
    assert 0.5 < told / error < 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"format": "fp8_e4m3"}, "torch.autocast knows bf16 and fp16, not 'fp8_e4m3'"),
        ({"format": "int8"}, "torch.autocast knows bf16 and fp16, not 'int8'"),
        ({"device": "tpu"}, "device='tpu' goes with mode='autocast' alone, whose rules are those"),
        ({"mode": "as-run", "device": "cpu"}, "device='cpu' goes with mode='autocast' alone"),
        (
            {"policy": layerlab.Policy(format="bf16", keep=())},
            "leave policy or mode='autocast' out",
        ),
    ],
)
def test_what_means_nothing_to_it_is_refused(options, text):
    given = {"format": "bf16", "mode": "autocast", **options}
    with pytest.raises(UserError, match=text), emulate(built("gpt2"), **given):
        pass


def test_the_rules_of_a_cpu_are_for_models_on_it():
    elsewhere = nn.Linear(SIDE, SIDE, device="meta")
    text = (
        "device='cpu', but the model is on meta, where only the rules of meta run; type model.cpu"
    )
    with pytest.raises(UserError, match=text), autocasting(elsewhere, torch.bfloat16, "cpu"):
        pass
