"""Two blocks on equal terms: as many parameters, one start, then what they do to features.

    python examples/variant.py [VARIANT]

A control of Llama's kind gets the variant's extra parameters in its feed-forward.
"""

import sys

import torch

import layerlab

NAME = sys.argv[1] if len(sys.argv) > 1 else "pangu-pi"
SIZES = {"width": 64, "layers": 6, "heads": 4, "vocab": 256, "context": 64}
SHARED = "model.layers.0.attention.query.weight"

if __name__ == "__main__":
    model = layerlab.build(NAME, **SIZES)
    control = layerlab.build("llama", **layerlab.matched("llama", NAME, by="ffn", **SIZES).sizes)
    print(f"{model.num_parameters()} and {control.num_parameters()} parameters")
    print("same start:", torch.equal(model.state_dict()[SHARED], control.state_dict()[SHARED]))

    ids = torch.randint(0, 256, (2, 64), generator=torch.Generator().manual_seed(0))
    pair = [model, control]
    report = layerlab.inspect(pair, input_ids=ids, measures=["diversity"], progress=False)
    frame = report.frame("diversity").query("place == 'stream'")
    table = frame.pivot_table(index="layer", columns="model", values="relative_residual")
    print("relative residual before training (0: all tokens are equal)")
    print(table.round(3).to_string())
