"""Every part compiles as one graph; in a process of its own, since type checks break graphs.

A model takes a second. So those that differ in a number alone are not compiled again, and a model
brings as many parts, each in a form of its own, as it has slots: together they have all there is.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import fields, replace

import pytest

from layerlab.blocks.spec import NONE, Spec
from layerlab.variants.registry import variant, variants
from tests.model.exempt import bound
from tests.support.forked import python

LEARNING = ("pangu-pi", "mhc", "value-residual", "canon")
INDUCTOR = ("pangu-pi", "hyper-connections")
FLEX = ("value-residual",)
# The first layer and another: what a further one adds is the same code again. Machine code takes
# ten seconds a layer: there the two sublayers of one layer have to do.
# Nor does a second layer learn otherwise, where nothing but the stream goes from one to the next.
LAYERS = {"eager": 2, "aot_eager": 2, "inductor": 1, "flex": 2, "pangu-pi": 1, "canon": 1}
# What stands in these slots decides which code is there beside it; the others take any part.
FRAME = {"order", "placement", "residual", "shortcut"}

PROGRAM = """
import json, sys
import torch
from layerlab.blocks.operations import chunking as piece
from layerlab.blocks.spec import Spec
from layerlab.model.build import assemble
from layerlab.model.design import design
from tests.model.small import SIZES, shaken, tokens

torch.set_num_threads(1)
piece.LARGE = 1  # what is written for large tensors would be chosen at this size, uncompiled
layers, wanted, gaps = json.loads(sys.argv[1]), json.loads(sys.argv[2]), {}


def gradients(run, model, x):
    # All of them as one vector.
    model.zero_grad()
    run(x, labels=x, use_cache=False).loss.backward()
    return torch.cat([one.grad.flatten() for one in model.parameters()])


for backend, name, spec in [(one, *it) for one, specs in wanted.items() for it in specs.items()]:
    sizes = {**SIZES, "layers": layers.get(name, layers[backend])}
    shape = design(name.split()[0], sizes=sizes).shape
    model, x = shaken(assemble(name, Spec.from_dict(spec), shape)), tokens()
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


def named(*names: str) -> dict[str, Spec]:
    return {name: variant(name).spec for name in names}


def check(**wanted: dict[str, Spec]) -> None:
    """Compile the wanted specs by backend, and compare with what they give uncompiled."""
    written = {
        backend: {name: spec.to_dict() for name, spec in specs.items()}
        for backend, specs in wanted.items()
    }
    given = python("-c", PROGRAM, json.dumps(LAYERS), json.dumps(written))
    assert given.returncode == 0, given.stderr[-4000:]
    gaps = json.loads(given.stdout.splitlines()[-1])
    assert len(gaps) == sum(map(len, wanted.values())) > 0
    wrong = {key: gap for key, gap in gaps.items() if isinstance(gap, str) or gap > CLOSE}
    assert wrong == {}


def traits(spec: Spec) -> Iterator[tuple[object, ...]]:
    """All that decides which code a forward pass goes through."""
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


def with_part(spec: Spec, slot: str, other: Spec) -> Spec:
    """The spec with what another one has in a slot."""
    side = "block" if hasattr(spec.block, slot) else "stack"
    return replace(
        spec,
        **{side: replace(getattr(spec, side), **{slot: getattr(getattr(other, side), slot)})},
    )


def covering() -> dict[str, Spec]:
    """Few specs that together have every trait, but for those of what is compiled to learn.

    Each is the variant that adds the most, which in its other slots takes what is still missing.
    """
    specs = named(*bound("compile"))
    seen = {trait for name in LEARNING for trait in traits(specs[name])}
    left = {trait for spec in specs.values() for trait in traits(spec)} - seen
    chosen = dict[str, Spec]()
    while left:

        def worth(name: str) -> tuple[int, int]:
            missing = left.intersection(traits(specs[name]))
            return len([one for one in missing if one[0] in FRAME]), len(missing)

        name = max(specs, key=worth)
        mixed, words = specs[name], [name]
        for other, spec in specs.items():
            for trait in left.intersection(traits(spec)).difference(traits(mixed)):
                free = str(trait[0]) not in FRAME and left.isdisjoint(
                    one for one in traits(mixed) if one[0] == trait[0]
                )
                if free and (trait[0] != "ffn" or mixed.block.ffn != NONE):
                    mixed = with_part(mixed, str(trait[0]), spec)
                    words.append(f"{trait[0]} of {other}")
        chosen[" ".join(words)] = mixed
        left.difference_update(traits(mixed))
    return chosen


@pytest.mark.full
def test_every_part_in_every_form_is_one_graph():
    chosen = covering()
    reached = {
        trait for spec in [*chosen.values(), *named(*LEARNING).values()] for trait in traits(spec)
    }
    assert reached >= {trait for name in bound("compile") for trait in traits(variant(name).spec)}
    assert len(variants()) / 4 < len(chosen)
    # What learns compiled is compiled there.
    check(eager=chosen)


@pytest.mark.full
def test_some_learn_compiled_as_they_do_plainly():
    specs = named(*LEARNING)
    balanced = specs["mhc"].block.residual.with_options(iterations=3)  # not 20 times the same
    check(aot_eager={**specs, "mhc": specs["mhc"].with_block(residual=balanced)})


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: `apt-get install g++`")
def test_some_run_as_machine_code():
    check(inductor=named(*INDUCTOR), flex=named(*FLEX))
