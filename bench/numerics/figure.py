"""Figure 1 of budzinskiy25: all draws at once, beside a plain loop over draws in NumPy with pychop.

Part of `python bench/rounding.py --section figure`. Both round every scalar operation of the same
Transformer; the loop is timed on one layer of one draw and extrapolated, ours on some draws.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from layerlab.studies.budzinskiy25.figure1_depth import DIGITS, ENSEMBLE, SIZE
from layerlab.studies.budzinskiy25.figure1_depth import one as batch
from layerlab.studies.budzinskiy25.support.reference_transformer import Weights, block
from layerlab.studies.budzinskiy25.support.scalar_arithmetic import Strict
from layerlab.studies.engine.sampling import Sampler

DRAWS, LAYERS, FEW = 5000, 40, 128
LIMIT = 300.0
CORES = 2

Line = Callable[..., None]
Round = Callable[[Any], Any]


def drawn(count: int, seed: int = 0) -> Sampler:
    return Sampler(count=count, generator=torch.Generator().manual_seed(seed))


def figure(line: Line, optional: Callable[[str], Any]) -> None:
    """Print the processor seconds of the whole figure, ours and the loop's."""
    print(f"\nFigure 1, {DRAWS} draws, {LAYERS} layers, width {SIZE}, {len(DIGITS)} precisions")
    batch(drawn(8), "layer", 2)
    start = time.process_time()
    for seed in range(FEW // 64):
        batch(drawn(64, seed), "layer", LAYERS)
    ours = (time.process_time() - start) * DRAWS / FEW
    value = f"{ours:.0f} s of one core, {ours / CORES:.0f} s of {CORES}"
    line(
        f"  layerlab, extrapolated from {FEW} draws",
        value,
        f"<= {LIMIT:.0f} s",
        ours <= CORES * LIMIT,
    )
    pychop = optional("pychop")
    if pychop is None:
        line("  loop with pychop: not installed", "-")
        return
    pychop.backend("numpy")
    theirs = DRAWS * LAYERS * sum(looped(pychop, digits) for digits in DIGITS)
    line("  NumPy and pychop, extrapolated from one layer", f"{theirs / 3600:.1f} h of one core")
    line("  layerlab is faster", f"{theirs / ours:.0f} x")


def looped(pychop: Any, digits: int) -> float:
    """Return the seconds of one layer of one draw; its result is ours, bit for bit."""
    rounded = pychop.Chop(exp_bits=11, sig_bits=digits - 1, rmode=1)
    strict, draw = Strict(digits, carrier=torch.float64), drawn(1)
    x, weights = strict.take(ENSEMBLE.start(draw)), ENSEMBLE.weights(draw).convert(strict)
    expected = block(strict, x, weights)[0].numpy()
    plain = {name: getattr(weights, name)[0].numpy() for name in Weights.__annotations__}
    start = time.process_time()
    found = layer(rounded, x[0].numpy(), plain)
    spent = time.process_time() - start
    if not np.array_equal(found, expected):
        differ = int((found != expected).sum())
        print(f"  {digits} digits: {differ} of {found.size} numbers differ from the loop's")
    return spent


def layer(fl: Round, x: np.ndarray, w: dict[str, np.ndarray]) -> np.ndarray:
    """Compute one pre-norm block, as anybody would write it."""
    x = fl(x + attention(fl, norm(fl, x), w))
    hidden = np.maximum(product(fl, norm(fl, x), w["inner"].T), 0)
    return fl(x + product(fl, hidden, w["outer"].T))


def attention(fl: Round, x: np.ndarray, w: dict[str, np.ndarray]) -> np.ndarray:
    query, key, value = (product(fl, x, w[name].T) for name in ("query", "key", "value"))
    scores = fl(product(fl, query, key.T) / fl(np.array([np.sqrt(x.shape[1])]))[0])
    past = np.tril(np.ones_like(scores, dtype=bool))
    largest = np.where(past, scores, -np.inf).max(1, keepdims=True)
    powers = np.where(past, fl(np.exp(np.where(past, fl(scores - largest), 0))), 0)
    return product(fl, fl(powers / total(fl, powers)), value)


def norm(fl: Round, x: np.ndarray) -> np.ndarray:
    centred = fl(x - fl(total(fl, x) / x.shape[1]))
    size = fl(np.sqrt(total(fl, fl(centred * centred))))
    return fl(fl(centred / size) * fl(np.array([np.sqrt(x.shape[1])]))[0])


def product(fl: Round, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    found = fl(np.outer(x[:, 0], y[0]))
    for k in range(1, x.shape[1]):
        found = fl(found + fl(np.outer(x[:, k], y[k])))
    return found


def total(fl: Round, x: np.ndarray) -> np.ndarray:
    found = x[:, :1]
    for k in range(1, x.shape[1]):
        found = fl(found + x[:, k : k + 1])
    return found
