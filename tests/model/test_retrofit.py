"""A pretrained model as a variant: the same function before training, and trainable after."""

import pytest
import torch

from layerlab import UserError
from layerlab.model.graft import grafted
from layerlab.model.retrofit import rebuilt, step0
from layerlab.variants.inventory import variant, variants
from tests.model.family import pretrained

IDENTICAL = [
    name
    for name, one in variants().items()
    if one.start == "identity" and one.baseline == "llama" and name != "llama"
]


@pytest.mark.parametrize("name", IDENTICAL)
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_identity_starts_keep_the_logits(kind: str, name: str) -> None:
    model = pretrained(kind)
    new = rebuilt(model, name, {})
    said = step0(model, new)
    # A start that computes more than it adds may round once more in each of 2 x 2 sublayers.
    assert said.difference <= 64 * torch.finfo(torch.float32).eps * said.scale, said
    assert said.dropped == ()


def test_pangu_on_gpt2_keeps_gpt2s_own_feed_forward() -> None:
    new = rebuilt(pretrained("gpt2"), "pangu-pi", {})
    options = new.config.parsed().block.ffn.given()
    assert options["body"] == "mlp" and options["bias"] is True
    assert new.config.parsed().stack.position == "learned"


def test_retrofitted_model_trains() -> None:
    new = rebuilt(pretrained("llama"), "pangu-pi", {"r": 8}).train()
    ids = torch.randint(0, 61, (2, 16), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(new.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = new(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1


def test_one_of_ours_can_be_rebuilt_again() -> None:
    first = rebuilt(pretrained("llama"), "pangu-pi-no-siaf", {})
    again = rebuilt(first, None, {})
    assert again.config.spec == first.config.spec
    assert step0(first, again).identical


def test_a_filled_slot_is_not_overwritten() -> None:
    spec = variant("qk-norm").spec
    with pytest.raises(UserError, match="slot of this model holds 'qk-norm' already"):
        grafted(spec, variant("value-residual"))


def test_weights_of_another_size_are_refused() -> None:
    model = pretrained("llama")
    model.config.intermediate_size = 128
    with pytest.raises(UserError, match="in the variant; expected the same sizes"):
        rebuilt(model, None, {})
