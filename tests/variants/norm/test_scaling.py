"""LayerNorm Scaling: the factor of each layer, and what it must not be combined with."""

import torch

from tests.model.small import shaken, small, tokens
from tests.variants.option import TIGHT


def test_layer_l_counted_from_1_reads_the_norm_over_the_root_of_l():
    scaled, plain = shaken(small("layernorm-scaling")), shaken(small("llama"))
    assert scaled.state_dict().keys() == plain.state_dict().keys()
    x = tokens()
    expected = _read(plain, x)
    # The first layer is the same; from the second on, the inputs differ, so norms are compared.
    for layer, (scaled_layer, norm) in enumerate(zip(scaled.model.layers, expected, strict=True)):
        for role in ("attention_norm", "ffn_norm"):
            inside = getattr(scaled_layer, role)(norm)
            outside = getattr(plain.model.layers[layer], role)(norm)
            torch.testing.assert_close(inside, outside / (layer + 1) ** 0.5, rtol=TIGHT, atol=0)
    assert torch.equal(scaled.model.norm(expected[0]), plain.model.norm(expected[0]))


def _read(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    return list(model(x, output_hidden_states=True).hidden_states[:-1])


def test_it_is_llama_whose_gains_are_divided_by_the_root_of_the_layer():
    scaled, plain = shaken(small("layernorm-scaling")), shaken(small("llama"))
    with torch.no_grad():
        for layer, block in enumerate(plain.model.layers, start=1):
            block.attention_norm.weight.div_(layer**0.5)
            block.ffn_norm.weight.div_(layer**0.5)
    close = {"rtol": 0, "atol": TIGHT}
    torch.testing.assert_close(scaled(tokens()).logits, plain(tokens()).logits, **close)
