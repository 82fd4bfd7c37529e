"""From the folders of runs to verdicts and their page; no text is read, and nothing is run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from layerlab import registry
from layerlab.domain import shown
from layerlab.errors import UserError
from layerlab.parse import read_json
from layerlab.report.comparison import DATA, save_comparison
from layerlab.report.language import ENGLISH, language
from layerlab.training.agreement import agree
from layerlab.training.compare import compared
from layerlab.training.comparison import Comparison
from layerlab.training.corpus import Corpus
from layerlab.training.launch import LOG
from layerlab.training.look import looked
from layerlab.training.plan import Run
from layerlab.training.recipe import Recipe, load_recipe, packaged, recipe_of
from layerlab.training.runner import Outcome
from layerlab.training.setting import checked
from layerlab.training.stored import belonging, planned_again, sort_out

RUNS = "runs"
Given = str | PathLike[str] | Mapping[str, Any] | Recipe


@dataclass(frozen=True)
class Task:
    """A recipe made ready: its runs, and where they lie.

    Attributes:
        out: folder of the recipe.
        corpora: the text of each arm as tokens; none where runs are only judged.
        lang: language of the page.
    """

    recipe: Recipe
    runs: tuple[Run, ...]
    out: Path
    corpora: Mapping[str, Corpus] = field(default_factory=dict)
    lang: str = ENGLISH

    @property
    def notes(self) -> list[str]:
        """What the reader of a result has to know of the texts, each once."""
        return list(dict.fromkeys(note for one in self.corpora.values() for note in one.notes))

    def folder(self, run: Run) -> Path:
        """Of a run."""
        return self.out / RUNS / run.name


def stored(
    recipe: Given,
    out: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    lang: str = ENGLISH,
) -> Task:
    """A recipe with its runs as their folders tell them.

    Args:
        recipe: as for `layerlab.compare`, or the folder of a comparison, which has its recipe.
        out: folder under which the recipe has one of its own; a comparison's folder is its own.

    Raises:
        UserError: a setting is wrong, nothing has run, the folder is that of something else, runs
            were made on two texts, or there is no page in the language.
    """
    language(lang)  # an unknown one is refused before the work is done
    own = _comparison(recipe)
    read = recipe_given(recipe if own is None else _recipe_in(own), settings or {})
    place = out / read.name if own is None else own
    if read.compare is None:
        raise UserError(
            f"the recipe {shown(read.name)} has no compare section; "
            "type layerlab train in place of layerlab compare"
        )
    registry.load_named(read.model.load)
    records, _ = sort_out(place / RUNS)
    runs = planned_again(read, records) if records else []
    agree(read.compare, runs)
    return Task(recipe=read, runs=tuple(runs), out=place, lang=lang)


def recipe_given(given: Given, settings: Mapping[str, Any]) -> Recipe:
    """A recipe from a TOML file, the name of one of the package, its content, or itself.

    Raises:
        UserError: there is none, or a setting is wrong.
    """
    if isinstance(given, Recipe):
        return given.changed(settings)
    if isinstance(given, Mapping):
        return recipe_of(given, settings=settings)
    return load_recipe(given, settings)


def judged(
    task: Task,
    failed: Sequence[Outcome] = (),
    *,
    tell: Callable[[Comparison], None] | None = None,
) -> Comparison:
    """The comparison of what is finished, with its report written.

    Args:
        tell: is handed the comparison before its report is written, which may find no room.

    Raises:
        UserError: runs differ in what the recipe does not declare, none of them is the recipe's, or
            the report cannot be written.
    """
    section = task.recipe.compare
    records, unfit = sort_out(task.out / RUNS)
    found, left = (records, []) if section is None else belonging(section, task.runs, records)
    told = [
        *(
            f"{one.run.name} {one.text}; all that it said is in {one.folder / LOG}"
            for one in failed
        ),
        *(f"left out: {error}" for error in unfit),
    ]
    if not records:
        raise UserError(
            told[0]
            if told
            else f"nothing has run yet in {task.out}; type layerlab compare without --judge"
        )
    content = looked(compared(task.recipe, found).content, task.out / DATA)
    if not content["runs"]:
        why = [*told, *left, *content["remarks"][-1:]]
        raise UserError(
            f"no run in {task.out} is of the recipe {shown(task.recipe.name)}: {why[0]}"
        )
    texts = dict.fromkeys(note for one in found for note in one.manifest["data"].get("notes", ()))
    remarks = [*content["remarks"], *left, *texts, *told]
    comparison = Comparison({**content, "failed": told, "remarks": remarks})
    if tell is not None:
        tell(comparison)
    save_comparison(comparison.content, task.out, task.lang)
    return comparison


def _comparison(given: Given) -> Path | None:
    """The folder of a comparison, where one is given: itself or its `runs`."""
    if not isinstance(given, str | PathLike) or str(given) in packaged():
        return None
    place = Path(given)
    if not place.is_dir():
        return None
    return place.parent if place.name == RUNS and not (place / DATA).exists() else place


def _recipe_in(place: Path) -> Recipe:
    """The recipe of a comparison, from what was judged of it before.

    Raises:
        UserError: the folder is that of something else.
    """
    file = place / DATA
    try:
        content = read_json(file)["recipe"]
    except FileNotFoundError:
        raise UserError(
            f"{place} is no folder of a comparison: it has no {DATA}, which says what is compared; "
            f"name the recipe: type layerlab compare RECIPE --out {place.parent} --judge"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"cannot read the recipe in {file}: {' '.join(str(error).split())}; name the recipe: "
            f"type layerlab compare RECIPE --out {place.parent} --judge"
        ) from None
    return checked(Recipe, content, str(file))
