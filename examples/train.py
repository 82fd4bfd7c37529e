"""Train a small model on Python's own documentation, and read what came out.

    python examples/train.py

It takes seconds. What a run leaves is kept: called again it is finished at once, and a run that
was killed goes on where it was.
"""

import torch

import layerlab

RECIPE = {
    "name": "example",
    "model": {"variant": "pangu-pi", "width": 32, "layers": 2, "heads": 2, "context": 32},
    "data": {"vocab_size": 300},
    "train": {"max_steps": 60, "batch_size": 8, "learning_rate": 5e-3},
    "evaluate": {"eval_steps": 20, "max_eval_blocks": 32},
}

if __name__ == "__main__":
    run = layerlab.train(RECIPE, progress=False)
    curve = run.frame("evaluation")[["update", "nats", "bits_per_byte"]]
    print(curve.round(3).to_string(index=False))

    model = run.model()  # a Hugging Face model; its tokenizer lies beside it
    ids = torch.zeros(1, 8, dtype=torch.long)
    print("logits:", tuple(model(ids).logits.shape))
    print("the page:", run.page)
