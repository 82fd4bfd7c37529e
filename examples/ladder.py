"""Two variants at three sizes: a verdict for each, and how the gain changes with size.

    python examples/ladder.py

It takes seconds, and runs so short decide next to nothing: the sentence says so.
"""

import layerlab

RECIPE = {
    "name": "example-ladder",
    "model": {"width": 48, "layers": 3, "heads": 6, "context": 32},
    "data": {"vocab_size": 300},
    "train": {"max_steps": 20, "batch_size": 8, "learning_rate": 5e-3},
    "evaluate": {"eval_steps": 10, "max_eval_blocks": 32},
    "compare": {
        "arms": ["llama", "pangu-pi"],
        "seeds": [1, 2, 3],
        "match": "parameters",
        "lockstep": True,  # all arms of a size in this process, one batch after the other
    },
    "ladder": {"count": 3, "ratio": 2.0},  # of which the last is the size above
}

if __name__ == "__main__":
    comparison = layerlab.compare(RECIPE, progress=False)
    rows = comparison.frame("ladder")[["size", "arm", "n", "nats", "difference", "verdict"]]
    print(rows.round(4).to_string(index=False))
    for arm in comparison.content["ladder"]["arms"]:
        print("-", arm["said"])
