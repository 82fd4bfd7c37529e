"""One run: a fully resolved recipe, written to its folder and read back."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from layerlab.blocks.shape import Shape
from layerlab.errors import UserError
from layerlab.model.cost.cost import Account, account
from layerlab.model.cost.match import Match
from layerlab.model.design import Design, design, with_base
from layerlab.recipes.training import TrainingRecipe, make_recipe
from layerlab.records.renamed_settings import current_settings
from layerlab.records.run_files import RECIPE, RUN, read_table
from layerlab.system.files import write_file
from layerlab.variants.registry import code_beside, find_needed

SCHEMA = 1
SIZES = ("width", "layers", "heads", "kv_heads", "head_width", "inner", "vocab", "context")


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run of a plan: its recipe says all, with every size and length written out.

    Attributes:
        arm: the side of the comparison that it belongs to.
        recipe: without a compare section.
        digest: of the corpus.
        match: what was resized, where arms are matched.
        code: what its model runs beside the package and the recipe's files: SHA-256 by name.
        as_written: whether its name hangs on the folders in which texts and files lie, as that of a
            run of 0.1 does.
    """

    arm: str
    recipe: TrainingRecipe
    digest: str
    match: Match | None = None
    code: Mapping[str, str] = field(default_factory=dict)
    as_written: bool = False

    @property
    def seed(self) -> int:
        """The seed of the weights and of the order of the text."""
        return self.recipe.train.seed

    @property
    def rate(self) -> float:
        """The largest learning rate."""
        return self.recipe.train.learning_rate

    @property
    def name(self) -> str:
        """The name of its folder: readable, and different for different settings."""
        code = [json.dumps(dict(self.code), sort_keys=True)] if self.code else []
        content = "/".join([self._hash, self.digest, *code])
        key = hashlib.blake2b(content.encode(), digest_size=4)
        return f"{self.arm}-s{self.seed}-r{self.rate:g}-{key.hexdigest()}"

    @property
    def identity(self) -> dict[str, str]:
        """Return what its checkpoints must agree in: the name (with a short hash) and more."""
        return {"name": self.name, "recipe": self._hash, "text": self.digest}

    @property
    def _hash(self) -> str:
        return self.recipe.hash(as_written=self.as_written)


def as_named(run: RunSpec, names: Collection[str]) -> RunSpec:
    """Return a run as it is called among names: where it has its older one alone, by that."""
    older = replace(run, as_written=True)
    return older if older.name in names and run.name not in names else run


def design_model(recipe: TrainingRecipe) -> Design:
    """Return the design of a recipe's model.

    Raises:
        UserError: an unknown variant or option, or sizes that do not fit.
    """
    model, train = recipe.model, recipe.train
    sizes = {name: getattr(model, name) for name in SIZES}
    found = design(model.variant, preset=model.preset, sizes=sizes, options=model.options)
    if train.mup_base_width is None:
        return found
    return with_base(found, train.mup_base_width, train.mup_base_head_width)


def own_code(recipe: TrainingRecipe) -> dict[str, str]:
    """Return the code that a recipe's model runs and no recipe names: SHA-256 by name."""
    return code_beside(design_model(recipe).spec)


def own_files(recipe: TrainingRecipe) -> dict[str, str]:
    """Return the code that a recipe's model needs beside the package: SHA-256 by name."""
    named = find_needed(design_model(recipe).spec) if recipe.model.load else {}
    return {**named, **own_code(recipe)}


def count_costs(recipe: TrainingRecipe) -> Account:
    """Count parameters and FLOPs of a resolved recipe's model, by formula."""
    found = design_model(recipe)
    return account(found.spec, found.shape)


def write_run(run: RunSpec, folder: Path) -> None:
    """Write what a worker needs: `recipe.json`, then `run.json`.

    Raises:
        UserError: the folder cannot be written.
    """
    recipe = run.recipe.model_dump(mode="json")
    write_file(folder / RECIPE, json.dumps(recipe, indent=1) + "\n")
    match = None if run.match is None else run.match.to_dict()
    body = {
        "schema": SCHEMA,
        "run": run.name,
        "arm": run.arm,
        "digest": run.digest,
        "match": match,
        "code": dict(run.code),
    }
    write_file(folder / RUN, json.dumps(body, indent=1) + "\n")


def read_run(folder: Path) -> RunSpec:
    """Read the run that was written to a folder.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    body, recipe = read_table(folder / RUN), read_table(folder / RECIPE)
    try:
        run = RunSpec(
            arm=body["arm"],
            recipe=make_recipe(current_settings(recipe), str(folder / RECIPE)),
            digest=body["digest"],
            match=None if body["match"] is None else _match(body["match"]),
            code=dict(body.get("code", {})),
        )
        return as_named(run, {body["run"]})
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{folder / RUN} lacks {error}; it is of another version of layerlab: "
            "type the command that planned the run again, with another --out"
        ) from None


def _match(body: dict[str, Any]) -> Match:
    kept = {name: body[name] for name in ("by", "on", "found", "wanted")}
    return Match(shape=Shape(**body["sizes"]), **kept)
