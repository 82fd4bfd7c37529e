"""The recipe of a run, or of a comparison: checked TOML."""

import hashlib
import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import model_validator

from layerlab.errors import UserError
from layerlab.recipes import load
from layerlab.recipes.compared_measures import is_watched
from layerlab.recipes.comparison_sections import Arm, CompareSection
from layerlab.recipes.ladder_section import FEWEST_SEEDS, LadderSection
from layerlab.recipes.load import (
    load_table,
    merge_settings,
    rename_settings,
    validate_table,
    with_settings,
)
from layerlab.recipes.paths import drop_folders, nearby
from layerlab.recipes.training_sections import (
    ControlSection,
    DataSection,
    EmulateSection,
    EvaluateSection,
    ModelSection,
    MonitorSection,
    RunSection,
    Section,
    Title,
    TrainSection,
)
from layerlab.records.renamed_settings import current_changes, settings_of_0_1
from layerlab.system.files import read_whole
from layerlab.validation import short_repr, suggest

# How a run is carried out and what it is called do not decide what comes out of it.
_BESIDE = frozenset({"name", "about", "inferred", "run", "compare", "ladder"})
DEEPEST = 16  # recipes that extend one another
HOME = "training"
LENGTHS = ("max_steps", "tokens", "num_train_epochs")
EXCLUSIVE = {"train": LENGTHS, "ladder": ("sizes", "count")}


class TrainingRecipe(Section):
    """All settings of a run, and how it is executed.

    Attributes:
        name: of the folder that its runs are put in.
        about: what it is for, in a sentence or two.
        inferred: what of it a source does not say and stands here as an inference.
    """

    name: Title = "recipe"
    about: str = ""
    inferred: str = ""
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    train: TrainSection = TrainSection()
    evaluate: EvaluateSection = EvaluateSection()
    compare: CompareSection | None = None
    ladder: LadderSection | None = None
    monitor: MonitorSection = MonitorSection()
    control: ControlSection = ControlSection()
    emulate: EmulateSection = EmulateSection()
    run: RunSection = RunSection()

    @model_validator(mode="after")
    def _lengths(self) -> "TrainingRecipe":
        given = [name for name in LENGTHS if getattr(self.train, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"train gives {' and '.join(given) or 'no length'}; expected one of "
                f"{', '.join(LENGTHS)}: write max_steps = 400"
            )
        if self.data.shard_bytes is not None and self.train.num_train_epochs is not None:
            raise ValueError(
                "train.num_train_epochs counts passes over a text that data.shard_bytes leaves "
                "unread; write tokens = 10_000_000_000 or max_steps = 400 in its place"
            )
        if self.compare is not None and self.compare.lockstep and self.compare.search == "optuna":
            raise ValueError(
                "compare.lockstep runs all arms side by side, and a search decides as it goes; "
                'write lockstep = false or search = "grid"'
            )
        return self

    @model_validator(mode="after")
    def _check_timed(self) -> "TrainingRecipe":
        section = self.compare
        if section is None:
            return self
        given = [Arm(variant=one) if isinstance(one, str) else one for one in section.arms]
        names = [one.name or one.variant or self.model.variant for one in given]
        runs = [f"{name}-s{seed}" for name in names for seed in section.seeds]
        for run in section.timed:
            if run not in runs:
                hint = suggest(run, runs)
                raise ValueError(
                    f"compare.timed has {run!r}, which is no run; {hint}expected an arm and a "
                    f'seed: write timed = ["{runs[0]}"]'
                )
        for claim in section.claims:
            for name in claim.names():
                if name not in names:
                    hint = suggest(name, names)
                    raise ValueError(
                        f"the claim {claim.statement!r} names {name!r}, which is no arm; {hint}"
                        f"arms: {', '.join(names)}; or judge none: claims = []"
                    )
        return self

    @model_validator(mode="after")
    def _check_monitor(self) -> "TrainingRecipe":
        """Check that there is a monitor where a measure is read off one."""
        measures = self.compare.measures if self.compare is not None else ()
        for name in measures:
            if is_watched(name) and not self.monitor.interval:
                raise ValueError(
                    f"compare.measures has {name!r}, which is read off a monitor, and "
                    "monitor.interval is 0, which watches nothing; write [monitor] interval = 10"
                )
        return self

    @model_validator(mode="after")
    def _check_models(self) -> "TrainingRecipe":
        """Check that runs keep their models where those are scored."""
        scored = self.compare.scored if self.compare is not None else ()
        if scored and not self.run.save_model:
            raise ValueError(
                f"compare.measures has {scored[0]!r}, which is a score of the finished model, and "
                "run.save_model is false; write [run] save_model = true"
            )
        return self

    @model_validator(mode="after")
    def _climbs(self) -> "TrainingRecipe":
        """Check that a ladder compares, with seeds enough and without looks."""
        section = self.compare
        if self.ladder is None:
            return self
        if section is None:
            raise ValueError(
                "[ladder] compares arms at several sizes, and the recipe has no compare section; "
                'write [compare] with arms = ["llama", "pangu-pi"]'
            )
        if len(section.seeds) < FEWEST_SEEDS:
            raise ValueError(
                f"compare.seeds has {len(section.seeds)}, too few seeds for a ladder, which needs "
                f"the noise of each size; expected {FEWEST_SEEDS} or more: write seeds = [1, 2, 3]"
            )
        if self.train.num_train_epochs is not None:
            raise ValueError(
                "train.num_train_epochs is the length of one size, and a ladder's follows from its "
                "parameters; write train.max_steps, or ladder.tokens_per_parameter beside it"
            )
        if section.looks:
            raise ValueError(
                "compare.looks stops a comparison early, and a ladder needs every size; write "
                "looks = [], or leave [ladder] out"
            )
        return self

    def decisive(self) -> dict[str, Any]:
        """Return the settings that decide the result, as JSON values."""
        return self.model_dump(mode="json", exclude=set(_BESIDE))

    def hash(self, *, as_written: bool = False) -> str:
        """Return a hash of the decisive settings in twelve hexadecimal digits.

        Files of one's own count by what is in them, and the name of a run has the digest of its
        text too: a recipe that is used from another working folder is the same. Defaults are left
        out, so that a setting which a later version adds leaves the runs of an earlier one what
        they are; so do the names of settings, of which those of 0.1 count.

        Args:
            as_written: whether folders of texts and files count, as the recipe writes them.
        """
        content = self.model_dump(mode="json", exclude=set(_BESIDE), exclude_defaults=True)
        loaded = [hashlib.blake2b(read_whole(Path(one))).hexdigest() for one in self.model.load]
        named = settings_of_0_1(content if as_written else drop_folders(content, absolute=False))
        text = json.dumps([named, loaded], sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    def change(self, settings: Mapping[str, Any]) -> "TrainingRecipe":
        """Return the recipe with settings by their paths, as `{"train.batch_size": 8}`.

        Raises:
            UserError: there is no such setting, or it takes no such value.
        """
        return with_settings(self, settings, EXCLUSIVE)


def make_recipe(
    content: Mapping[str, Any],
    source: str = "the recipe",
    settings: Mapping[str, Any] | None = None,
) -> TrainingRecipe:
    """Make a recipe from plain values.

    Args:
        content: the settings; beside them `extends` may name a recipe that has all the others.
        source: what errors call it: the file, beside which another may lie.
        settings: changes by path, as `TrainingRecipe.change` takes them; they may complete what is
            given.

    Raises:
        UserError: a key that no section has, or a value that a setting does not take; a recipe that
            extends itself.

    Example:
        >>> make_recipe({"extends": "smoke", "train": {"max_steps": 3}}).train.max_steps
        3
    """
    settings = current_changes(settings or {})
    merged = merge_settings(TrainingRecipe, _whole(content, source, ()), settings, EXCLUSIVE)
    return validate_table(TrainingRecipe, merged, source, settings)


def _whole(content: Mapping[str, Any], source: str, seen: tuple[Path, ...]) -> dict[str, Any]:
    """Return all settings: those of the extended recipe, overridden by its own."""
    own = dict(nearby(rename_settings(content, source), Path(source).parent))
    if "extends" not in own:
        return own
    given = own.pop("extends")
    if not isinstance(given, str):
        raise UserError(
            f"{source}: extends is {short_repr(given)}; expected a TOML file or the name of a "
            'recipe: write extends = "smoke"'
        )
    folder = Path(source).parent
    found, name = load_table(folder / given if Path(given).suffix else given, HOME, beside=folder)
    way = (*seen, Path(source).resolve())
    if len(way) > DEEPEST:
        raise UserError(
            f"{source}: extends goes through {len(way)} recipes; expected {DEEPEST} at most: write "
            "what they say into one"
        )
    if Path(name).resolve() in way:
        raise UserError(f"{source}: extends {given!r}, which extends it in turn; leave one out")
    base = _whole(found, name, way)
    del base["name"]
    for name, keys in EXCLUSIVE.items():
        table, mine = base.get(name), own.get(name)
        if isinstance(table, dict) and isinstance(mine, dict) and not mine.keys().isdisjoint(keys):
            base[name] = {key: value for key, value in table.items() if key not in keys}
    return _merge(base, own)


def _merge(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables setting by setting; lists and values whole."""
    both = {
        key: _merge(base[key], value)
        for key, value in own.items()
        if isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
    }
    return {**base, **own, **both}


def load_recipe(
    given: str | PathLike[str], settings: Mapping[str, Any] | None = None
) -> TrainingRecipe:
    """Load a recipe from a TOML file, or one of the package by its name.

    Args:
        settings: as for `make_recipe`.

    Raises:
        UserError: there is none, it is not TOML, or a setting is wrong.

    Example:
        >>> load_recipe("eight-residuals-twin").compare.baseline
        'llama'
    """
    return make_recipe(*load_table(given, HOME), settings)


def list_packaged() -> list[str]:
    """List names of the recipes that come with the package."""
    return load.list_packaged(HOME)
