"""The compiled kernel gives the bits of pure torch, and its absence is a reason, not an error."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from layerlab.numerics.formats import kernel as home
from layerlab.numerics.formats.formats import FLOATS, find
from layerlab.numerics.formats.grid import MODES
from layerlab.numerics.formats.kernel import GRAIN, Kernel, compiler, kernel
from layerlab.numerics.formats.round import rounder
from layerlab.numerics.formats.round_reference import CHUNK
from layerlab.numerics.formats.scalar import Rounding
from tests.support.oldest import needs_views

WORDS = {torch.float32: torch.int32, torch.float64: torch.int64}
FORMATS = (
    *FLOATS,
    *("t1", "t11", "t53", "t30:-140:10", "t4:-130:0", "t2:200:300"),
    *("fp8_e4m3:nan", "bf16:saturate", "t11:saturate"),
)
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no g++")


def random(count: int, dtype: torch.dtype) -> Tensor:
    size = torch.finfo(dtype).bits
    draw = np.random.default_rng(7)
    bits = draw.integers(-(2 ** (size - 1)), 2 ** (size - 1), count, dtype=np.int64)
    near = draw.normal(size=count)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan]
    return torch.cat(
        [
            torch.from_numpy(bits).to(WORDS[dtype]).view(dtype),
            torch.tensor([*near, *special], dtype=dtype),
        ]
    )


def both(name: str, mode: str, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """Bits of the kernel and of pure torch, from the same seed."""
    found = []
    for switch in ("1", "0"):
        monkeypatch.setenv("LAYERLAB_KERNEL", switch)
        found.append(rounder(name, mode, torch.Generator().manual_seed(1))(x))
    return found[0].view(WORDS[x.dtype]), found[1].view(WORDS[x.dtype])


@needs_compiler
def test_there_is_a_kernel_where_there_is_a_compiler():
    assert kernel().library is not None, kernel().reason


@needs_compiler
@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("mode", MODES)
def test_kernel_gives_the_bits_of_pure_torch(mode, dtype, monkeypatch):
    x = random(4_000, dtype)
    for name in FORMATS:
        fused, plain = both(name, mode, x, monkeypatch)
        assert torch.equal(fused, plain), name


@needs_compiler
@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("name", ["fp16", "fp8_e5m2", "bf16", "t11", "t1"])
def test_pieces_without_odd_values_take_a_shorter_way_to_the_same_bits(name, dtype, monkeypatch):
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(4 * CHUNK, generator=generator, dtype=dtype)
    x *= torch.exp2(torch.randint(-40, 15, x.shape, generator=generator).to(dtype))
    x[:CHUNK:7] = 0.0
    # The second piece has a subnormal, the third overflows, the last one has it all.
    x[CHUNK] = torch.finfo(dtype).smallest_normal / 4
    x[2 * CHUNK] = torch.finfo(dtype).max
    x[-len(random(100, dtype)) :] = random(100, dtype)
    for mode in ("nearest", "up"):
        fused, plain = both(name, mode, x, monkeypatch)
        assert torch.equal(fused, plain), mode


@needs_compiler
@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
def test_threads_and_pieces_change_nothing(mode, monkeypatch):
    x = torch.randn(max(GRAIN, 2 * CHUNK) + 77)
    alone, plain = both("fp8_e4m3", mode, x, monkeypatch)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        together, _ = both("fp8_e4m3", mode, x, monkeypatch)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone, plain)
    assert torch.equal(alone, together)


@needs_compiler
def test_a_dense_layout_is_rounded_where_it_lies(monkeypatch):
    x = torch.randn(5, 6, 7).transpose(0, 2)
    monkeypatch.setenv("LAYERLAB_KERNEL", "1")
    found = rounder("fp8_e4m3")(x)
    assert found.stride() == x.stride()
    monkeypatch.setenv("LAYERLAB_KERNEL", "0")
    assert torch.equal(found, rounder("fp8_e4m3")(x.contiguous()))


@pytest.mark.parametrize("switch", ["0", "1"])
@pytest.mark.parametrize("dtype", WORDS)
def test_flushing_subnormal_numbers_to_zero_changes_nothing(dtype, switch, monkeypatch):
    monkeypatch.setenv("LAYERLAB_KERNEL", switch)
    limits = torch.finfo(dtype)
    x = torch.linspace(-2, 2, 401, dtype=torch.float64).to(dtype) * limits.tiny
    cases = [(name, mode) for name in ("bf16", "t5", "fp16") for mode in ("nearest", "up")]
    before = [rounder(name, mode)(x).view(WORDS[dtype]) for name, mode in cases]
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush to zero")
    try:
        after = [rounder(name, mode)(x).view(WORDS[dtype]) for name, mode in cases]
    finally:
        torch.set_flush_denormal(False)
    for one, two in zip(before, after, strict=True):
        assert torch.equal(one, two)
    assert any(bool((bits != 0).any()) for bits in before)


@needs_views
def test_a_tensor_without_address_falls_back_to_pure_torch():
    rounding = Rounding(find("bf16"))
    rounding(torch.ones(2))  # the kernel is at hand, were there an address
    x = torch.randn(3, 4)
    assert torch.equal(torch.vmap(rounding)(x), rounding(x))


def test_the_kernel_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("LAYERLAB_KERNEL", "0")
    assert kernel() == Kernel(None, "turned off by LAYERLAB_KERNEL=0")


def test_without_a_compiler_there_is_a_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    found = home._obtain()
    assert found.library is None
    assert found.reason == "no C++ compiler (g++, clang++) was found"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'error: out of ideas' >&2\nexit 1", "out of ideas"),
        ("exec sleep 60", "timed out"),  # nor is it waited for
    ],
)
def test_a_compiler_that_fails_is_quoted_and_leaves_nothing_behind(
    script, reason, monkeypatch, tmp_path
):
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(home, "PATIENCE_S", 0.5)
    found = home._obtain()
    assert found.library is None
    assert found.reason is not None and reason in found.reason
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.mark.full
@needs_compiler
def test_it_is_compiled_once_kept_and_never_taken_from_a_stranger(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = home._obtain()
    assert first.path is not None and first.path.is_file()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [first.path]
    # What an interrupted build leaves behind is in nobody's way.
    (first.path.parent / "draft-left").mkdir()
    monkeypatch.setattr(home, "_compile", lambda target: pytest.fail("compiled again"))
    assert home._obtain().path == first.path
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))  # what is there needs no compiler
    assert home._obtain().path == first.path
    monkeypatch.setattr(home, "_ours", lambda path: False)
    monkeypatch.setattr(home, "_compile", lambda target: target.write_bytes(b""))
    assert home._obtain().library is None


@needs_compiler
def test_a_cache_that_cannot_be_written_costs_only_the_cache(monkeypatch, tmp_path):
    kept = kernel().path
    (tmp_path / "file").write_text("not a folder", "utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(home, "_compile", lambda target: shutil.copyfile(kept, target))
    found = home._obtain()
    assert found.path is None
    assert found.library is not None, found.reason


@needs_compiler
def test_a_damaged_kernel_is_built_anew_once(monkeypatch, tmp_path):
    kept = kernel().path
    whole = kept.read_bytes()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built = []

    def compile(target: Path) -> None:
        built.append(target)
        target.write_bytes(whole)

    monkeypatch.setattr(home, "_compile", compile)
    first = home._obtain().path
    for damaged in (whole[:9000], b""):
        # Under a new inode: the mapped one belongs to this process.
        first.unlink()
        first.write_bytes(damaged)
        again = home._obtain()
        assert again.library is not None and again.path == first, again.reason
    assert len(built) == 3 and home._obtain().path == first
    # Whole, by its name, but no library.
    first.unlink()
    (tmp_path / "odd").write_bytes(b"odd")
    (tmp_path / "odd").rename(first.with_name(home._name(tmp_path / "odd")))
    assert home._obtain().path == first and len(built) == 4


def test_a_kernel_that_rounds_wrongly_is_refused():
    def call(given: int, noise: None, out: int, *rest: int) -> None:
        """Leave zeros."""

    with pytest.raises(RuntimeError, match="rounds wrongly"):
        home._try(SimpleNamespace(**dict.fromkeys(home.ENTRIES.values(), call)))
