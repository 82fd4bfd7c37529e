"""Every variant compiles as one graph; in a process of its own, since type checks break graphs."""

import json
import os
import subprocess
import sys

import pytest

from tests.model.exempt import bound

INDUCTOR = ("llama", "pangu-pi", "hyper-connections")
FLEX = ("llama", "value-residual")
LAYERS = 2  # the first and another: what a further layer adds is the same code again

PROGRAM = """
import json, sys
import torch
from tests.model.small import shaken, small, tokens

torch.set_num_threads(1)
backend, layers, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
gaps = {}
for name in names:
    model, x = shaken(small(name, layers=layers, dtype=torch.float32)), tokens()
    torch._dynamo.reset()
    with torch.no_grad():
        plain = model(x, use_cache=False).logits
        try:
            if backend == "flex":
                model.set_attn_implementation("flex_attention")
                given = model(x, use_cache=False).logits
            else:
                given = torch.compile(model, fullgraph=True, backend=backend)(x, use_cache=False)
                given = given.logits
        except Exception as error:
            gaps[name] = f"{type(error).__name__}: {error}"[:600]
        else:
            gaps[name] = float((given - plain).abs().max() / plain.abs().max())
print(json.dumps(gaps))
"""

# In float32, after some hundred operations whose order a compiler may change.
CLOSE = 64 * 2.0**-23


def gaps(backend: str, names: tuple[str, ...]) -> dict[str, float | str]:
    """How far each variant is from what it gives uncompiled, or the error."""
    given = subprocess.run(
        [sys.executable, "-c", PROGRAM, backend, str(LAYERS), *names],
        env={**os.environ, "JAXTYPING_DISABLE": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    found: dict[str, float | str] = json.loads(given.stdout.splitlines()[-1])
    return found


def wrong(found: dict[str, float | str]) -> dict[str, float | str]:
    return {name: gap for name, gap in found.items() if isinstance(gap, str) or gap > CLOSE}


def test_every_variant_is_one_graph() -> None:
    names = tuple(bound("compile"))
    found = gaps("eager", names)
    assert set(found) == set(names)
    assert wrong(found) == {}


@pytest.mark.parametrize("backend", ["inductor", "flex"])
def test_some_run_compiled_to_machine_code(backend: str) -> None:
    found = gaps(backend, INDUCTOR if backend == "inductor" else FLEX)
    assert len(found) >= 2 and wrong(found) == {}
