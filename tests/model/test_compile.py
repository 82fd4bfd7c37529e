"""Every variant compiles as one graph; in a process of its own, since type checks break graphs."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.model.exempt import bound

LEARNING = ("llama", "pangu-pi", "mhc", "value-residual", "canon")
INDUCTOR = ("llama", "pangu-pi", "hyper-connections")
FLEX = ("llama", "value-residual")
# The first layer and another: what a further one adds is the same code again. Machine code takes
# ten seconds a layer: there the two sublayers of one layer have to do.
LAYERS = {"eager": 2, "aot_eager": 2, "inductor": 1, "flex": 2}

PROGRAM = """
import json, sys
import torch
from layerlab.blocks import piece
from tests.model.small import shaken, small, tokens

torch.set_num_threads(1)
piece.LARGE = 1  # what is written for large tensors would be chosen at this size, uncompiled
layers, wanted, gaps = json.loads(sys.argv[1]), json.loads(sys.argv[2]), {}


def gradients(run, model, x):
    # All of them as one vector.
    model.zero_grad()
    run(x, labels=x, use_cache=False).loss.backward()
    return torch.cat([one.grad.flatten() for one in model.parameters()])


for backend, name in [(one, name) for one, names in wanted.items() for name in names]:
    model, x = shaken(small(name, layers=layers[backend], dtype=torch.float32)), tokens()
    torch._dynamo.reset()
    try:
        if backend == "aot_eager":
            plain = gradients(model.train(), model, x)
            given = gradients(torch.compile(model, fullgraph=True, backend=backend), model, x)
        else:
            with torch.no_grad():
                plain, run = model(x, use_cache=False).logits, model
                if backend == "flex":
                    model.set_attn_implementation("flex_attention")
                else:
                    run = torch.compile(model, fullgraph=True, backend=backend)
                given = run(x, use_cache=False).logits
    except Exception as error:
        gaps[f"{name}, {backend}"] = f"{type(error).__name__}: {error}"[:600]
    else:
        gaps[f"{name}, {backend}"] = float((given - plain).abs().max() / plain.abs().max())
print(json.dumps(gaps))
"""

# In float32, after some hundred operations whose order a compiler may change.
CLOSE = 64 * 2.0**-23


def check(**wanted: Sequence[str]) -> None:
    """Compile the wanted variants by backend, and compare with what they give uncompiled."""
    given = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(LAYERS), json.dumps(wanted)],
        env={**os.environ, "JAXTYPING_DISABLE": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    gaps = json.loads(given.stdout.splitlines()[-1])
    assert len(gaps) == sum(map(len, wanted.values())) > 0
    wrong = {key: gap for key, gap in gaps.items() if isinstance(gap, str) or gap > CLOSE}
    assert wrong == {}


def test_every_variant_is_one_graph() -> None:
    check(eager=bound("compile"))


def test_some_learn_compiled_as_they_do_plainly() -> None:
    check(aot_eager=LEARNING)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: `apt-get install g++`")
def test_some_run_as_machine_code() -> None:
    check(inductor=INDUCTOR, flex=FLEX)
