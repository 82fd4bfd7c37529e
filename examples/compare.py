"""Two variants on equal terms: same text, same order, same first weights, as many parameters.

    python examples/compare.py

It takes seconds, and four runs so short hardly tell anything from chance: the verdict says so.
"""

import layerlab

RECIPE = {
    "name": "example-pair",
    "model": {"width": 32, "layers": 2, "heads": 2, "context": 32},
    "data": {"vocab_size": 300},
    "train": {"max_steps": 20, "batch_size": 8, "learning_rate": 5e-3},
    "evaluate": {"eval_steps": 10, "max_eval_blocks": 32},
    "compare": {
        "arms": ["llama", "pangu-pi"],
        "seeds": [1, 2],
        "match": "parameters",
        "lockstep": True,  # all arms in this process, one batch after the other
    },
}

if __name__ == "__main__":
    comparison = layerlab.compare(RECIPE, progress=False)
    rows = comparison.frame()[["arm", "n", "nats", "difference", "low", "high", "verdict"]]
    print(rows.round(4).to_string(index=False))
    for row in comparison.rows:
        print("-", row["said"])
