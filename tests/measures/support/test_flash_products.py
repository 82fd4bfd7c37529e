"""Products by kernels that never store the matrix, in Triton's interpreter, beside stored tiles."""

import os
from dataclasses import replace

import pytest
import torch

from layerlab.measures.quantities import spectrum as spectrum_measure
from layerlab.measures.quantities.attention import FOCUS, focus
from layerlab.measures.quantities.spectrum import spectrum
from layerlab.measures.support import attention_products
from layerlab.measures.support.attention_pass import read_heads
from layerlab.measures.support.attention_products import products
from layerlab.measures.support.products import RowBlocks, dense
from layerlab.observe.tracing import device_schedule
from tests.measures.regime import KINDS, attention, record, svd_contraction, svd_norm
from tests.support.forked import empty_python

triton = pytest.importorskip("triton", reason="triton is not installed: it is in the extra gpu")
flash_products = pytest.importorskip("layerlab.measures.support.flash_products")
DRAW = torch.Generator().manual_seed(3)
SPECTRUM = spectrum_measure.MEASURES[0].heads({"dtype": "float32"})
SINKS = torch.randn(2, generator=DRAW)
OPTIONS = {
    "plain": {},
    "not causal": {"causal": False},
    "window": {"window": 9},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": SINKS},
    "narrow": {"width": 7},
}


@pytest.fixture(autouse=True)
def cut_for_an_accelerator(monkeypatch):
    monkeypatch.setitem(device_schedule.SCHEDULES, "cpu", device_schedule.ACCELERATOR)


def fused(attended):
    found = products(attended, kept=10)
    assert not isinstance(found, RowBlocks)
    return found


def close(one, other, loose=2e-5):
    return torch.allclose(one.double(), other.double(), rtol=loose, atol=1e-6)


@pytest.mark.parametrize("name", OPTIONS)
def test_products_are_those_of_the_matrix_written_out(name):
    attended = record("peaky", 70, heads=2, **OPTIONS[name])
    matrix, found = attention(attended), fused(attended)
    known, stored = found.profile(), dense(matrix).profile()
    for column in ("column_sums", "column_norms", "row_sum_min", "row_norm"):
        assert close(getattr(known, column), getattr(stored, column)), column
    vectors = torch.rand(2, 2, 70, generator=DRAW)
    shift = torch.rand(2, 2, generator=DRAW).double()
    expected = dense(matrix).gram(vectors.double(), shift)
    assert all(map(close, found.gram(vectors, shift), expected))
    one = found.gram(vectors[:, :1], shift[:, :1])
    assert close(one[0], expected[0][:, :1])


@pytest.mark.parametrize("name", OPTIONS)
def test_what_a_kernel_says_of_rows_is_what_their_entries_say(name, monkeypatch):
    """Entropy, sinks and scores take no pass of their own over rows that are written out."""
    attended = record("peaky", 70, heads=2, **OPTIONS[name])
    expected = vars(focus(attended, dtype=torch.float64))

    def never(*_, **__):
        raise AssertionError("rows are written out")

    monkeypatch.setattr(attention_products, "stream", never)
    monkeypatch.setattr(attention_products, "tile", never)
    for asked in ([FOCUS], [FOCUS, SPECTRUM]):
        found = read_heads(attended, asked, dense=10)
        for column, value in expected.items():
            both_nan = value.isnan().all() and found[column].isnan().all()
            assert both_nan or close(found[column], value), column


def test_grouped_heads_halves_and_fewer_rows_than_keys():
    attended = record("peaky", 66, heads=4)
    # The interpreter takes float16 as it is stored, and bfloat16 for whole numbers.
    few = replace(attended, query=attended.query[:, 30:].half(), key=attended.key[::2].half())
    index = [few.kv_head(head) for head in range(4)]
    scores = few.query.double() @ few.key[index].double().mT * few.scaling
    hidden = torch.ones(36, 66, dtype=torch.bool).triu(31)
    matrix = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
    vectors, shift = torch.rand(4, 1, 66, generator=DRAW), torch.zeros(4, 1).double()
    expected = dense(matrix).gram(vectors.double(), shift)
    assert all(map(close, fused(few).gram(vectors, shift), expected))


def test_tiles_outside_of_a_window_are_not_computed(monkeypatch):
    computed, scores = [], flash_products._scores

    def counted(*given):
        computed.append(given[2:4])
        return scores(*given)

    monkeypatch.setattr(flash_products, "_scores", counted)
    # Of eight tiles along a side, each row of tiles reaches its own and the one before.
    for work in ("_forward", "_backward"):
        found = fused(record("peaky", 256, heads=1, window=9))
        computed.clear()
        getattr(found, work)(torch.rand(1, 1, 256, generator=DRAW))
        assert len(computed) == 8 + 7


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_norms_are_those_of_a_decomposition(kind):
    attended = record(kind, 70, heads=1)
    found, exact = spectrum(attended, dense=10), attention(attended)
    assert close(found.norm, svd_norm(exact), 1e-5)
    assert close(found.contraction, svd_contraction(exact), 1e-4)
    assert_encloses(found, svd_norm(exact))


@pytest.mark.full
def test_half_precision_compiles_to_matrix_instructions_without_a_spill():
    env = {**os.environ, "TRITON_INTERPRET": "0"}
    done = empty_python("-m", "tests.measures.support.compile_flash", env=env, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 3 * 4 + 2 * 4
    for dtype, width, name, matrix, *used in lines:
        assert matrix == ("fma" if dtype == "fp32" else "wgmma"), (name, width)
        assert dtype == "fp32" or "STACK:0" in used, (name, width)


def test_what_the_kernels_do_not_know_is_done_with_tiles(caplog, monkeypatch):
    attended = record("init", 40)
    assert isinstance(products(attended), RowBlocks)
    biased = replace(attended, bias=torch.zeros(1, 40, 40))
    assert isinstance(products(biased, kept=10), RowBlocks)
    assert isinstance(products(attended, torch.float64, kept=10), RowBlocks)
    assert isinstance(products(record("init", 40, width=129), kept=10), RowBlocks)

    with monkeypatch.context() as off:
        off.setenv("LAYERLAB_KERNEL", "0")
        assert isinstance(products(attended, kept=10), RowBlocks)

    def broken(given):
        raise RuntimeError("no such GPU\nand more")

    monkeypatch.setattr("layerlab.measures.support.flash_products.FlashProducts", broken)
    assert isinstance(products(attended, kept=10), RowBlocks)
    (line,) = [one.getMessage() for one in caplog.records]
    assert line == "attention is read without Triton, which is slower: RuntimeError: no such GPU"

    def full(given):
        raise RuntimeError("Triton Error [CUDA]: out of memory")

    monkeypatch.setattr("layerlab.measures.support.flash_products.FlashProducts", full)
    with pytest.raises(RuntimeError, match="out of memory"):
        products(attended, kept=10)


@pytest.mark.parametrize("name", ["_log_sums", "_row_statistics", "_forward", "_backward"])
@pytest.mark.parametrize("fails", ["compile", "compile for two"])
def test_a_kernel_that_does_not_compile_is_replaced_by_tiles(name, fails, caplog, monkeypatch):
    if fails == "compile for two" and name in ("_log_sums", "_row_statistics"):
        pytest.skip("it takes no vectors")
    plain = getattr(flash_products, name)

    class Broken:
        def __getitem__(self, grid):
            def run(*given, **kind):
                if fails == "compile" or kind["two"]:
                    raise RuntimeError("no such instruction")
                return plain[grid](*given, **kind)

            return run

    monkeypatch.setattr(flash_products, name, Broken())
    attended = record("init", 40, heads=1)
    found, exact = spectrum(attended, dense=10), attention(attended)
    assert close(found.norm, svd_norm(exact), 1e-5)
    (said,) = {one.getMessage() for one in caplog.records}
    assert said.endswith("without Triton, which is slower: RuntimeError: no such instruction")


def test_queries_in_float64_are_read_with_tiles_without_a_warning(caplog):
    attended = record("init", 40)
    wide = replace(attended, query=attended.query.double(), key=attended.key.double())
    assert isinstance(products(wide, kept=10), RowBlocks) and not caplog.records


def test_kernels_run_on_the_device_of_what_they_are_given(monkeypatch):
    entered, plain = [], torch.cuda.device_of
    monkeypatch.setattr(torch.cuda, "device_of", lambda x: entered.append(x.shape) or plain(x))
    attended = record("init", 40, heads=1)
    found = fused(attended)
    entered.clear()
    vectors = torch.rand(1, 2, 40)
    found.gram(vectors, torch.zeros(1, 2).double())
    assert entered == [attended.query.shape] * 2
    with pytest.raises(AssertionError, match="one or two vectors"):
        found.gram(torch.rand(1, 3, 40), torch.zeros(1, 3).double())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_gives_the_norms_of_float64(kind, dtype):
    assert_close_on("cuda", kind, dtype)


def assert_close_on(device, kind, dtype, tokens=150):
    """Products, spectra and enclosures on a device, beside the matrix in float64 on the host."""
    for name, options in OPTIONS.items():
        whole = record(kind, tokens, heads=4, **{**options, "sinks": None})
        sinks = torch.linspace(-1, 1, 4) if "sinks" in options else None
        # Numbers that the format holds, so that it is the kernels alone that may differ.
        query, key = whole.query.to(dtype), whole.key[::2].to(dtype)
        held = replace(whole, query=query, key=key, sinks=sinks)
        there = {
            name: value.to(device) for name, value in vars(held).items() if torch.is_tensor(value)
        }
        attended, exact = replace(held, **there), attention(held)
        assert not isinstance(products(attended, kept=10), RowBlocks)
        found = spectrum(attended, dense=10)
        for column, expected in (("norm", svd_norm), ("contraction", svd_contraction)):
            value = getattr(found, column).cpu()
            assert torch.allclose(value.double(), expected(exact), rtol=1e-4, atol=1e-6), name
        known, stored = products(attended, kept=10).profile(), dense(exact).profile()
        for column in ("column_sums", "column_norms", "row_sum_min", "row_norm"):
            assert close(getattr(known, column).cpu(), getattr(stored, column)), (column, name)
        assert_encloses(found, svd_norm(exact))


def assert_encloses(found, exact):
    """What is certified is the norm of the matrix as the kernels compute it, in float32."""
    rounded = 1e-6
    lower, norm, upper = (value.cpu().double() for value in (found.lower, found.norm, found.upper))
    assert (lower <= norm).all() and (norm <= upper).all()
    assert (lower <= exact * (1 + rounded)).all() and (exact <= upper * (1 + rounded)).all()


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIONS)
def test_both_products_compute_the_same_matrix_to_the_bit(name):
    """Else the enclosure, whose two sides come of A x and A^T y, would be of two matrices."""
    assert_same_matrix(record("peaky", 40, heads=1, **{**OPTIONS[name], "sinks": None}))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_both_products_of_a_gpu_compute_the_same_matrix_to_the_bit(dtype):
    attended = record("peaky", 150, heads=1)
    there = {name: getattr(attended, name).to("cuda", dtype) for name in ("query", "key")}
    assert_same_matrix(replace(attended, **there))


def assert_same_matrix(attended):
    found, device = fused(attended), attended.query.device
    columns = [found._forward(one[None, None])[0, 0] for one in torch.eye(attended.keys).to(device)]
    rows = [found._backward(one[None, None])[0, 0] for one in torch.eye(attended.tokens).to(device)]
    assert torch.equal(torch.stack(columns, 1), torch.stack(rows))
