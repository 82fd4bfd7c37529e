"""The kernel of GPUs gives the bits of pure torch and of the compiled kernel.

Where there is no GPU it runs in Triton's interpreter: the same code, in NumPy.
"""

import math
import os

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed: it is in the extra `gpu`")

import layerlab
from layerlab.numerics.formats.formats import FLOATS, find
from layerlab.numerics.formats.grid import MODES, grid
from layerlab.numerics.formats.round import round_to, rounder, sparing
from layerlab.numerics.formats.round_reference import in_torch
from layerlab.numerics.formats.triton import kernel as module
from layerlab.numerics.formats.triton.kernel import TritonLaunch
from tests.numerics.formats.test_kernel import FORMATS, random
from tests.numerics.formats.test_round import awkward, halves
from tests.numerics.formats.triton_sample import (
    DEVICE,
    WORDS,
    bits,
    draw_words,
    equal,
    take_for_gpu,
)
from tests.support.forked import empty_python
from tests.support.oldest import needs_views


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let `round_to` take the kernel here as it does on a GPU, and name what was launched."""
    take_for_gpu(monkeypatch)
    seen, launch = [], module.launch

    def counted(kernel: object, *rest: object) -> None:
        seen.append(getattr(kernel, "__name__", "kernel"))
        launch(kernel, *rest)

    monkeypatch.setattr(module, "launch", counted)
    return seen


def fused(
    x: Tensor, name: str, mode: str, words: Tensor | None = None, spare: bool = False
) -> Tensor:
    given = x.to(DEVICE)
    out = torch.empty_like(given)
    drawn = None if words is None else words.to(DEVICE)
    numbers = grid(find(name), mode, x.dtype, spare)
    TritonLaunch(numbers, mode, x.dtype)(given, out, words=drawn)
    return out


def plain(x: Tensor, name: str, mode: str, words: Tensor | None = None) -> Tensor:
    out = torch.empty_like(x)
    in_torch(x, out, grid(find(name), mode, x.dtype), mode, words)
    return out


def check(x: Tensor, name: str, mode: str) -> None:
    words = draw_words(len(x), WORDS[x.dtype]) if mode == "stochastic" else None
    assert equal(fused(x, name, mode, words), plain(x, name, mode, words)), (name, mode)


@pytest.mark.parametrize("usual", [torch.float64, torch.bfloat16])
def test_the_first_rounding_is_right_whatever_the_usual_dtype(usual):
    before = torch.get_default_dtype()
    torch.set_default_dtype(usual)
    try:
        module.check(DEVICE)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("mode", MODES)
def test_it_gives_the_bits_of_pure_torch(mode, dtype):
    near = awkward(8).to(dtype)
    tiny = torch.linspace(-3, 3, 97, dtype=dtype) * torch.finfo(dtype).tiny
    x = torch.cat([random(1_500, dtype), near, near * 2.0**-126, tiny])
    for name in FORMATS:
        check(x, name, mode)


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8_e4m3", "t11", "t30:-140:10"])
def test_it_gives_the_bits_of_the_compiled_kernel(name):
    x = random(3_000, torch.float32)
    for mode in ("nearest", "away", "zero", "up", "down"):
        assert equal(fused(x, name, mode), round_to(x, name, mode)), mode


@pytest.mark.parametrize("name", ["fp8_e4m3", "t11"])
def test_masks_are_spared(name):
    masks = torch.tensor([1e30, 3e38, torch.inf, torch.nan, 9.9e29])
    x = torch.cat([masks, -masks, random(500, torch.float32)])
    assert equal(fused(x, name, "nearest", spare=True), sparing(find(name), "nearest", None)(x))


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FORMATS)
def test_every_number_of_sixteen_bits_and_millions_of_others(name, mode):
    check(torch.cat([halves(torch.bfloat16).float(), halves(torch.float16).float()]), name, mode)
    x = awkward(125_000)
    assert len(x) > 2_400_000
    check(x, name, mode)


@pytest.mark.full
@pytest.mark.parametrize("name", FORMATS)
def test_many_numbers_of_64_bits(name):
    x = random(100_000, torch.float64)
    for mode in MODES:
        check(x, name, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", WORDS)
def test_nan_keeps_every_bit_and_zero_its_sign(dtype, mode):
    word = WORDS[dtype]
    least = torch.tensor([torch.iinfo(word).min], dtype=word)
    infinite = torch.tensor([math.inf], dtype=dtype).view(word)
    # Signalling ones too.
    x = torch.cat([infinite | 1, infinite | 12345 | least, least, least & 0]).view(dtype)
    for name in ("fp4_e2m1", "bf16", "t11"):
        words = draw_words(4, word) if mode == "stochastic" else None
        assert equal(fused(x, name, mode, words), x)


def test_the_check_can_fail():
    with pytest.raises(AssertionError):
        assert equal(fused(torch.tensor([1.01]), "bf16", "up"), torch.tensor([1.0]))
    with pytest.raises(RuntimeError, match="rounds wrongly"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "KNOWN_FORMAT", FLOATS["bf16"])
        module.check(DEVICE)
    module.check(DEVICE)


def test_shapes_and_strides_stay(launches):
    x = torch.randn(6, 8, 4)
    wanted, there = plain(x, "fp8_e4m3", "nearest"), x.to(DEVICE)
    half = x.bfloat16()
    narrow = plain(half.float(), "fp4_e2m1", "nearest").bfloat16()
    views = {
        "transposed": lambda y: y.transpose(0, 2),
        "strided": lambda y: y[::2, :, 1:],
        "expanded": lambda y: y[:1].expand(5, 8, 4),
        "shifted": lambda y: y.view(-1)[1:],
        "single": lambda y: y[0, 0, 0],
        "empty": lambda y: y[:0],
    }
    for name, view in views.items():
        launches.clear()
        assert equal(round_to(view(there), "fp8_e4m3"), view(wanted)), name
        assert launches == ["_round_each"] * (name != "empty"), name
        out = torch.empty_like(view(there))
        assert round_to(view(there), "fp8_e4m3", out=out) is out
        assert equal(out, view(wanted)), name
    assert round_to(there.transpose(0, 2), "bf16").stride() == there.transpose(0, 2).stride()
    assert equal(round_to(there, "fp8_e4m3", out=there), wanted)
    assert equal(there, wanted)
    assert torch.equal(round_to(half.to(DEVICE), "fp4_e2m1").cpu(), narrow)


def test_it_is_left_out_where_it_cannot_be_used(launches, monkeypatch):
    x = torch.randn(3, 4, device=DEVICE)
    wanted = plain(x.cpu(), "bf16", "nearest")
    assert equal(round_to(x, "bf16"), wanted)
    assert launches.count("_round_each") == 1
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert equal(rounder("bf16")(x), wanted)
    monkeypatch.undo()
    take_for_gpu(monkeypatch)
    monkeypatch.setenv("LAYERLAB_KERNEL", "0")
    assert equal(rounder("bf16")(x), wanted)
    assert launches.count("_round_each") == 1


@needs_views
def test_inside_transforms_of_functions_pure_torch_does_the_work(launches):
    x = torch.randn(3, 4, device=DEVICE)
    assert equal(torch.vmap(rounder("bf16"))(x), round_to(x, "bf16"))
    assert len(launches) == 1


def test_gradient_passes_straight_through(launches):
    x = torch.randn(5, device=DEVICE, requires_grad=True)
    (round_to(x, "fp4_e2m1") * torch.arange(5.0, device=DEVICE)).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.arange(5.0))
    assert launches == ["_round_each"]


@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("name", ["bf16", "fp8_e4m3", "t11"])
def test_words_drawn_there_give_the_right_mean_at_every_place(name, dtype, launches):
    """Four places share a draw of Philox: each has a fair word of its own, and so have pairs."""
    draws, generator = 40_000, torch.Generator().manual_seed(3)
    for value in (1.2345678, -0.7071067):
        x = torch.full((draws, 4), value, dtype=dtype, device=DEVICE)
        low, high = (float(round_to(x[0, 0], name, mode)) for mode in ("down", "up"))
        chance = (float(x[0, 0]) - low) / (high - low)
        found = round_to(x, name, "stochastic", generator).cpu().double()
        assert found.unique().tolist() == [low, high]
        upper = ((found - low) / (high - low)).round()
        deviation = math.sqrt(chance * (1 - chance) / draws)
        assert bool(((upper.mean(0) - chance).abs() < 5 * deviation).all())
        centred = upper - chance
        for shift in (1, 2, 3):
            pairs = (centred * centred.roll(shift, 1)).mean(0)
            assert bool((pairs.abs() < 5 * deviation**2 * math.sqrt(draws)).all()), shift
    assert "_round_each" in launches


on_gpu = pytest.param("cuda", marks=pytest.mark.gpu)


def stochastic(x: Tensor, generator: torch.Generator | None) -> Tensor:
    return round_to(x, "fp8_e4m3", "stochastic", generator)


@pytest.mark.parametrize("device", ["cpu", on_gpu])
@pytest.mark.parametrize("dtype", WORDS)
def test_the_seed_alone_decides(dtype, device, launches):
    x = torch.randn(37, 11, dtype=dtype).to(DEVICE)
    generator = torch.Generator(device).manual_seed(5)
    one, two = stochastic(x, generator), stochastic(x, generator)
    generator.manual_seed(5)
    assert equal(one, stochastic(x, generator)) and equal(two, stochastic(x, generator))
    assert not equal(one, two)
    assert not equal(one, stochastic(x, torch.Generator(device).manual_seed(6)))
    generator.manual_seed(5)
    turned = x.t().contiguous().t()  # the same places in the tensor, others in memory
    assert equal(one, stochastic(turned, generator))
    torch.manual_seed(8)
    free = stochastic(x, None)
    torch.manual_seed(8)
    assert equal(free, stochastic(x, None))
    assert set(launches) == {"_round_each"}


@pytest.mark.parametrize("dtype", WORDS)
def test_how_the_work_is_divided_changes_nothing(dtype, monkeypatch):
    x = torch.randn(5_001, dtype=dtype, device=DEVICE)
    numbers, seed = grid(find("bf16"), "stochastic", dtype), torch.tensor([7], device=DEVICE)
    found = []
    for block, large in ((module.BLOCK, module.LARGE), (1024, module.LARGE), (1024, 0)):
        monkeypatch.setattr(module, "BLOCK", block)
        monkeypatch.setattr(module, "LARGE", large)
        out = torch.full_like(x, 9.0)
        TritonLaunch(numbers, "stochastic", dtype)(x[:-1], out[:-1], seed)
        assert float(out[-1]) == 9.0, "nothing is written past the end"
        found.append(out)
    assert equal(found[0], found[1]) and equal(found[0], found[2])
    assert not torch.equal(bits(found[0])[:-1], bits(plain(x.cpu(), "bf16", "nearest"))[:-1])


@pytest.mark.full
def test_a_model_is_emulated_with_it(monkeypatch):
    model = layerlab.build("llama", width=16, layers=1, heads=2, vocab=32, context=8).to(DEVICE)
    ids = torch.arange(8, device=DEVICE)[None]

    def run(seed: int, **options: str) -> Tensor:
        with layerlab.emulate(model, "fp8_e4m3", seed=seed, **options):
            return model(ids).logits

    monkeypatch.setenv("LAYERLAB_KERNEL", "0")
    wanted = run(0)
    seen, launch = [], module.launch
    take_for_gpu(monkeypatch)
    monkeypatch.setattr(module, "launch", lambda *call: seen.append(call[0]) or launch(*call))
    assert equal(run(0), wanted) and len(seen) > 20
    one, two, three = (run(seed, rounding="stochastic") for seed in (1, 1, 2))
    assert equal(one, two) and not equal(one, three)


@pytest.mark.full
def test_it_compiles_for_a_gpu_without_one():
    """Four elements of float32 to a load, none exchanged between threads, nothing spilled."""
    env = {**os.environ, "TRITON_INTERPRET": "0"}
    done = empty_python("-m", "tests.numerics.formats.compile_triton", env=env)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 16 and not any("not ok" in line for line in lines), done.stdout


@pytest.mark.gpu
def test_a_gpu_takes_it():
    x = random(100_000, torch.float32)
    for name in FORMATS:
        for mode in ("nearest", "away", "zero", "up", "down"):
            assert equal(round_to(x.cuda(), name, mode), round_to(x, name, mode)), (name, mode)
