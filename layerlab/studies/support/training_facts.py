"""Time, machine and settings of the runs that a study judges."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from layerlab.recipes.paths import file_name
from layerlab.records.parse import find_table
from layerlab.records.renamed_settings import current_manifest

# Of a manifest: what a reader of a study asks first, by the name that the page says.
RECIPE = {
    "width": ("recipe", "model", "width"),
    "layers": ("recipe", "model", "layers"),
    "heads": ("recipe", "model", "heads"),
    "vocabulary": ("recipe", "model", "vocab"),
    "context": ("recipe", "model", "context"),
    "parameters": ("model", "parameters"),
    "sequences per update": ("recipe", "train", "batch_size"),
    "learning rate": ("recipe", "train", "learning_rate"),
}
MACHINE = ("processor", "device", "threads")
LIBRARIES = ("python", "layerlab", "torch", "transformers")
# More values than these are said as a range.
LISTED = 3


def runs_in(folders: Sequence[Path]) -> dict[str, Any]:
    """Count the runs, and return their total time and machine, as strict JSON values."""
    results = [find_table(folder / "result.json") for folder in folders]
    manifests = [find_table(folder / "manifest.json") for folder in folders]
    return {
        "runs": len(folders),
        "hours": round(sum(one.get("seconds") or 0 for one in results) / 3600, 2),
        **{name: _describe(_at(one, "machine", name) for one in manifests) for name in MACHINE},
        "versions": ", ".join(
            f"{name} {_describe(_at(one, 'versions', name) for one in manifests)}"
            for name in LIBRARIES
        ),
    }


def settings_of(folders: Sequence[Path]) -> dict[str, str]:
    """Describe the text, sizes and length of runs: one value, or all that there are."""
    results = [find_table(folder / "result.json") for folder in folders]
    manifests = [current_manifest(find_table(folder / "manifest.json")) for folder in folders]
    return {
        "text": _describe(
            ", ".join(
                file_name(source["text"]) for source in _at(one, "recipe", "data", "sources") or ()
            )
            for one in manifests
        ),
        **{name: _describe(_at(one, *path) for one in manifests) for name, path in RECIPE.items()},
        "updates": _describe(one.get("updates") for one in results),
        "tokens": _describe(one.get("tokens") for one in results),
    }


def _describe(values: Iterable[Any]) -> str:
    """List different values with commas where they are few, else by the smallest and largest."""
    found = list(dict.fromkeys(value for value in values if value is not None))
    numbers = sorted(value for value in found if isinstance(value, int | float))
    if len(numbers) == len(found) and len(numbers) > LISTED:
        return f"{_number(numbers[0])} to {_number(numbers[-1])}"
    return ", ".join(map(_number, numbers if len(numbers) == len(found) else found)) or "–"


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _at(content: Any, *path: str) -> Any:
    for name in path:
        content = content.get(name) if isinstance(content, dict) else None
    return content
