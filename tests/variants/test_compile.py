"""Options that the laws of all variants do not reach: each compiles as one graph."""

import pytest

from tests.support.forked import python

COMPILED = """
import warnings
import torch
from tests.model.small import shaken, small, tokens

warnings.simplefilter("error", UserWarning)
for name, options in [
    ("qk-norm", {"form": "full"}),
    ("qk-norm", {"form": "l2"}),
    ("gated-attention", {"gate": "head", "kv_heads": 2}),
    ("canon", {"places": "bd", "kernel": 2, "kv_heads": 2}),
    ("denseformer", {"dilation": 2, "layers": 3}),
    ("attention-residuals-block", {"blocks": 2, "layers": 2}),
    ("value-residual", {"form": "learned", "layers": 2}),
    ("history-5", {"first_layer": "zero", "divide": True, "layers": 2}),
]:
    torch._dynamo.reset()
    model = shaken(small(name, **{'layers': 1, **options})).train()
    x = tokens(2, 12)
    positions = torch.cat((torch.arange(5), torch.arange(7))).expand(2, -1)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    given = {"labels": x, "use_cache": False, "position_ids": positions}
    plain, found = model(x, **given), compiled(x, **given)
    torch.testing.assert_close(found.logits, plain.logits, rtol=0, atol=1e-11)
    found.loss.backward()
    print(name, options)
"""


@pytest.mark.full
def test_options_compile_as_one_graph():
    done = python("-c", COMPILED)
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(done.stdout.splitlines()) == 8
