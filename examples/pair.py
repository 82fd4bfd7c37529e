"""Compare two models on the same text: where do their tokens become alike?

    python examples/pair.py [MODEL MODEL]

The built-in pair differs in the place of its norms and in nothing else. Two checkpoints of one run
work the same way: give their folders.
"""

import sys

import layerlab

PAIR = sys.argv[1:3] if len(sys.argv) > 2 else ["pre-norm", "post-norm"]

if __name__ == "__main__":
    report = layerlab.inspect(PAIR, measures=["diversity"], context=64, progress=False)
    frame = report.frame("diversity").query("place == 'stream'")
    table = frame.pivot_table(index="layer", columns="model", values="relative_residual")
    print("relative residual (0: all tokens are equal)")
    print(table.round(3).to_string())
    print("report:", report.save("pair"))
