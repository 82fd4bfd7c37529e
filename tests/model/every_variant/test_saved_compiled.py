"""What a compiled step keeps for its backward pass: llama's bytes, and what the equation needs.

The compiler decides by cutting the graph, before it writes code: so the code is not written here.
"""

import json

import pytest

from layerlab.variants.registry import variant
from tests.support.forked import python

WIDTH, INNER, LAYERS = 256, 688, 3
# A token's numbers in each layer that the equation takes beside what any block keeps, in widths.
NEEDED = {
    # Four streams for one, and what is written into them, at two sublayers.
    "hyper-connections": 2 * 4,
    "mhc": 2 * 4,
    # What is convolved, and what comes of it: at a and c, and of queries, keys and values.
    "canon": 2 + 3,
    # What attention and feed-forward give, which a learned weight multiplies.
    "laurel": 2,
    "laurel-rw": 2,
    # Gates and features of three experts more.
    "widenet": 3 * 2 * INNER / WIDTH,
    # No more than any block keeps.
    **dict.fromkeys(("attention-residuals", "polynorm", "pangu-pi", "peri-ln", "qk-norm"), 0),
}

PROGRAM = """
import json, sys
import torch
from layerlab.model.build import build

torch.set_num_threads(1)
width, layers, precise = json.loads(sys.argv[1])
sizes = {"width": width, "layers": layers, "heads": 4, "vocab": 256, "context": 128}
found = {}
for name in json.loads(sys.argv[2]):
    torch._dynamo.reset()
    model = build(name, **sizes).train()
    own = {one.untyped_storage()._cdata for one in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage  # alive, so that no other takes its place
        return tensor

    for layer in model.model.layers:  # one by one, as training compiles them
        layer.compile(fullgraph=True, dynamic=False, backend="aot_eager_decomp_partition")
    with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            ids = torch.randint(0, 256, (4, 128))
            model(ids, labels=ids, use_cache=False)
    found[name] = sum(storage.nbytes() for storage in kept.values())
print(json.dumps(found))
"""


@pytest.mark.full
@pytest.mark.parametrize("precise", [True, False], ids=["float32", "bf16"])
def test_a_compiled_step_keeps_what_the_equation_needs(precise):
    names = sorted({*NEEDED, *(variant(name).baseline for name in NEEDED)})
    given = python("-c", PROGRAM, json.dumps([WIDTH, LAYERS, precise]), json.dumps(names))
    assert given.returncode == 0, given.stderr[-4000:]
    found = json.loads(given.stdout.splitlines()[-1])
    width = LAYERS * 4 * 128 * WIDTH * 4  # bytes: streams are float32 under autocast too
    for name, needed in NEEDED.items():
        assert found[name] <= 1.2 * found[variant(name).baseline] + needed * width, (name, found)
