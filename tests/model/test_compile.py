"""Every part compiles as one graph; in a process of its own, since type checks break graphs.

A variant takes a second. Those that differ from others in a number alone, or have no part and no
form of one that another has not, are not compiled again: what is left has all that there is.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import fields

import pytest

from layerlab.variants.inventory import variant, variants
from tests.forked import python
from tests.model.exempt import bound

LEARNING = ("pangu-pi", "mhc", "value-residual", "canon")
INDUCTOR = ("pangu-pi", "hyper-connections")
FLEX = ("value-residual",)
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
    given = python("-c", PROGRAM, json.dumps(LAYERS), json.dumps(wanted))
    assert given.returncode == 0, given.stderr[-4000:]
    gaps = json.loads(given.stdout.splitlines()[-1])
    assert len(gaps) == sum(map(len, wanted.values())) > 0
    wrong = {key: gap for key, gap in gaps.items() if isinstance(gap, str) or gap > CLOSE}
    assert wrong == {}


def traits(name: str) -> Iterator[tuple[object, ...]]:
    """All that decides which code a variant's forward pass goes through."""
    spec = variant(name).spec
    yield "order", spec.block.placement, spec.block.residual.name
    for side in (spec.block, spec.stack):
        for one in fields(side):
            chosen = getattr(side, one.name)
            if one.name == "initialisation":
                continue
            if not hasattr(chosen, "options"):
                yield one.name, chosen
                continue
            forms = [
                (key, form)
                for key, form in chosen.options
                if key == "method" or isinstance(form, str | bool)
            ]
            yield one.name, chosen.name, *forms


def covering() -> list[str]:
    """Few variants that together have every trait: always the one that adds the most."""
    having = {name: set(traits(name)) for name in bound("compile")}
    left, chosen = set[tuple[object, ...]]().union(*having.values()), list[str]()
    while left:
        chosen.append(max(having, key=lambda name: len(having[name] & left)))
        left -= having[chosen[-1]]
    return chosen


def test_every_part_in_every_form_is_one_graph() -> None:
    chosen = covering()
    assert {*LEARNING, *INDUCTOR, *FLEX} - {*chosen} == set()
    assert len(variants()) / 2 < len(chosen)
    # What learns compiled is compiled there.
    check(eager=[name for name in chosen if name not in LEARNING])


def test_some_learn_compiled_as_they_do_plainly() -> None:
    check(aot_eager=LEARNING)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: `apt-get install g++`")
def test_some_run_as_machine_code() -> None:
    check(inductor=INDUCTOR, flex=FLEX)
