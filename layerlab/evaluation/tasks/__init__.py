"""Tasks for lm-eval: their configurations, and the functions that they name.

Type `layerlab evaluate`, or `layerlab evaluate --export-tasks DIR` and `lm-eval run --include_path`
with that folder.

A group `layerlab_NAME` scores choices by their likelihood; `layerlab_NAME_gen` lets the model write
its answer, `layerlab_NAME_cot` after reasoning. The metadata `{"scoring": "mean_nll"}` asks for the
texts that OpenCompass compares. lm-eval knows no mean over tokens and compares their sums, which is
the same where all choices have as many tokens; `layerlab evaluate` takes the mean.
"""
