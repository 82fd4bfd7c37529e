"""What a compiled step keeps for its backward pass: llama's bytes, and what the equation needs.

The compiler decides by cutting the graph, before it writes code: so the code is not written here.
"""

import json
from pathlib import Path

import pytest

from layerlab.variants.registry import variant
from tests.support.forked import python

BENCH = Path(__file__).resolve().parents[3] / "bench"
# Enough tokens for their numbers to outweigh the copies of weights that autocast makes.
WIDTH, INNER, LAYERS, CONTEXT, BATCH = 256, 688, 3, 256, 8
# Widths that a token takes in each layer by the equation, beside what any block keeps: those that
# are float32 also under autocast, as the stream is, and those that autocast makes bf16.
NEEDED = {
    # Four streams for one at two sublayers, and what is written into them.
    "hyper-connections": (2 * 3, 2),
    "mhc": (2 * 3, 2),
    # What is convolved at a and c; queries, keys and values before they are.
    "canon": (2, 3),
    # What attention and feed-forward give, which a learned weight multiplies; with rank, the stream
    # as a low-rank product reads it.
    "laurel-rw": (0, 2),
    "laurel": (0, 2 + 2),
    "laurel-pa": (0, 2),
    # Gates and features of three experts more: all four are computed for every token.
    "widenet": (0, 3 * 2 * INNER / WIDTH),
    # No more than any block keeps.
    **dict.fromkeys(("attention-residuals", "polynorm", "pangu-pi", "peri-ln", "qk-norm"), (0, 0)),
}

PROGRAM = """
import json, runpy, sys
import torch

torch.set_num_threads(1)
bench = runpy.run_path(sys.argv[1])
bench["SIZES"].update(json.loads(sys.argv[2]))
mode, width, names = json.loads(sys.argv[3])
print(json.dumps({name: bench["saved"](name, mode, width, "cpu") for name in names}))
"""


@pytest.mark.full
@pytest.mark.parametrize("mode", ["compiled", "compiled-bf16"])
def test_a_compiled_step_keeps_what_the_equation_needs(mode):
    names = sorted({*NEEDED, *(variant(name).baseline for name in NEEDED)})
    sizes = {"layers": LAYERS, "vocab": 256, "context": CONTEXT}
    asked = map(json.dumps, (sizes, (mode, WIDTH, names)))
    given = python("-c", PROGRAM, str(BENCH / "saved.py"), *asked)
    assert given.returncode == 0, given.stderr[-4000:]
    found = json.loads(given.stdout.splitlines()[-1])
    width = LAYERS * BATCH * CONTEXT * WIDTH  # numbers
    for name, (single, mixed) in NEEDED.items():
        needed = width * (4 * single + (4 if mode == "compiled" else 2) * mixed)
        assert found[name] <= 1.2 * found[variant(name).baseline] + needed, (name, found)
