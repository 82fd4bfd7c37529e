"""The reference of the Python interface, and the examples on one page; part of `make docs`."""

import ast
from pathlib import Path

import layerlab

# What a file from outside declares itself with.
OWN = (
    "layerlab.measures.measure.Measure",
    "layerlab.observe.tracing.records.Layer",
    "layerlab.measures.measure.MeasureContext",
    "layerlab.measures.measure.Bound",
    "layerlab.errors.NotApplicable",
    "layerlab.blocks.part.Part",
    "layerlab.blocks.spec.Variant",
    "layerlab.blocks.spec.Spec",
    "layerlab.blocks.spec.BlockSpec",
    "layerlab.blocks.spec.StackSpec",
    "layerlab.studies.engine.study.Study",
)


def reference() -> str:
    """Return the page that the site fills with signatures and docstrings."""
    public = [f"layerlab.{name}" for name in layerlab.__all__ if not name.startswith("_")]
    parts = [
        "# Python",
        "What `import layerlab` offers. Nothing is imported before it is used. Where an argument "
        "is described no further, its name and its type say all.",
        "## Functions and results",
        *(f"::: {name}" for name in sorted(public, key=str.lower)),
        "## For measures, blocks and studies of your own",
        "A [measure](add-a-measure.md) or a [block](add-a-variant.md) is one file that declares "
        "itself in these terms.",
        *(f"::: {name}" for name in OWN),
    ]
    return "\n\n".join(parts) + "\n"


def examples(folder: Path) -> str:
    """Return the page of every example with its docstring, and all of its code."""
    parts = [
        "# Examples",
        "Each is one file in `examples` that runs by itself, on a laptop, without a network.",
    ]
    for path in sorted(folder.glob("*.py")):
        source = path.read_text("utf-8")
        title = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].rstrip(".")
        parts += [f"## {path.name}", f"{title}.", f"```python\n{source.rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"
