"""Inspect a model and read its findings, the gravest first.

    python examples/findings.py [MODEL]

MODEL is a built-in name, a local folder or a Hub id; with none it is the built-in default.
"""

import sys

import layerlab

MODEL = sys.argv[1] if len(sys.argv) > 1 else "pre-norm"
MEASURES = ["stream", "spectrum", "attention"]

if __name__ == "__main__":
    report = layerlab.inspect(MODEL, measures=MEASURES, context=64, progress=False)
    for finding in report.findings:
        print(f"{finding.severity}: {finding.text}")
    norms = report.frame("spectrum").groupby("layer")["norm"].mean()
    print("mean attention norm per layer:", norms.round(2).tolist())
