"""Tasks for lm-eval: YAML files, and the functions that they name.

Type `lm-eval run --include_path` with this folder, or `layerlab evaluate`. The files below the
folders of benchmarks are written by `python -m layerlab.evaluation.tasks.configs`.

A group `layerlab_NAME` scores choices by their likelihood; `layerlab_NAME_gen` lets the model write
its answer, `layerlab_NAME_cot` after reasoning. The metadata `{"scoring": "mean_nll"}` asks for the
texts that OpenCompass compares. lm-eval knows no mean over tokens and compares their sums, which is
the same where all choices have as many tokens; `layerlab evaluate` takes the mean.
"""
