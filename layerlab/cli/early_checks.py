"""What a command refuses before it imports torch: an error comes within a second.

Names are looked up in `layerlab.known_names`. Files of the user's own and installed plug-ins may
declare more, which only running them tells: with them, names are checked later.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from layerlab import builtin
from layerlab.known_names import (
    MEASURES,
    STUDIES,
    VARIANTS,
    unknown_study,
    unknown_variant,
)

PLUGINS = "layerlab.variants"  # the entry-point group
LOAD = "model.load"


def check_loads(files: Iterable[Path] | None) -> None:
    """Refuse files of `--load` that are not there, or are no Python files."""
    from layerlab.system.python_file import read_python_file

    for file in files or ():
        read_python_file(file)


def check_measures(names: str | None, files: Sequence[Path] | None) -> None:
    """Refuse measures that there are not, or that are named twice."""
    from layerlab.measures.naming import check_once, parse_names

    if names is not None and not files:
        check_once(parse_names(names, MEASURES))


def check_formats(given: str | None) -> None:
    """Refuse number formats that there are not."""
    from layerlab.numerics.formats.formats import find

    for name in (given or "").split(","):
        if name.strip():
            find(name.strip())


def check_study(name: str) -> None:
    """Refuse a study that there is not."""
    if name not in STUDIES:
        raise unknown_study(name, STUDIES)


def check_variants(names: Iterable[str], files: Sequence[Path] | None = None) -> None:
    """Refuse names of variants and presets that there are not."""
    from importlib.metadata import entry_points

    from layerlab.model.preset import presets

    for name in names:
        known = name in VARIANTS or name in presets()
        if not known and not files and not entry_points(group=PLUGINS):
            raise unknown_variant(name, VARIANTS, presets())


def check_preset(name: str | None) -> None:
    """Refuse a preset that there is not."""
    from layerlab.model.preset import preset_of

    if name is not None:
        preset_of(name)


def check_recipe(recipe: Any, files: Sequence[Path] | None) -> None:
    """Refuse a recipe whose variants there are not, unless it or one of its arms loads files."""
    check_loads(files)
    arms = [one for one in (recipe.compare.arms if recipe.compare else ())]
    tables = [one for one in arms if not isinstance(one, str)]
    if files or recipe.model.load or any(LOAD in one.set for one in tables):
        return
    named = [one if isinstance(one, str) else one.variant for one in arms]
    check_variants([name or recipe.model.variant for name in named or [None]])
    check_preset(recipe.model.preset)


def check_candidates(names: Iterable[str], files: Sequence[Path] | None) -> None:
    """Refuse what is timed where it is neither a model, nor a variant or a preset with sizes."""
    from layerlab.loading.folders import check_found
    from layerlab.model.preset import presets

    for given in names:
        name, colon, _ = given.partition(":")
        if given in builtin.NAMES or Path(given).is_dir() or name in {*VARIANTS, *presets()}:
            continue
        if colon:
            check_variants([name], files)
        elif not files:
            check_found([given])


def check_task_files(words: str | None) -> None:
    """Refuse task files that cannot be read; names of lm-eval's own take lm-eval, and torch."""
    from layerlab.evaluation.lm_eval_tasks.files import ENDINGS, read_task_file

    for word in (words or "").split(","):
        if word.strip().endswith(ENDINGS):
            read_task_file(Path(word.strip()))
