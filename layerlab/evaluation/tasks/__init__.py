"""Tasks for lm-eval: YAML files, and the functions that they name.

Type `lm-eval run --include_path` with this folder, or `layerlab evaluate`. The files below the
folders of benchmarks are written by `python -m layerlab.evaluation.task`.
"""
