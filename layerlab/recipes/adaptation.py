"""The recipe of an adaptation: its stages and their settings, checked TOML."""

from collections.abc import Mapping
from os import PathLike
from typing import Any

from pydantic import model_validator

from layerlab.errors import UserError
from layerlab.recipes import load
from layerlab.recipes.adaptation_sections import (
    ArmSection,
    BaseSection,
    BenchmarkSection,
    CleanSection,
    EmbeddingSection,
    PretrainSection,
    SftSection,
    StageRunSection,
    TextSection,
    VocabularySection,
)
from layerlab.recipes.load import load_table, rename_settings, validate_table, with_settings
from layerlab.recipes.training import LENGTHS, load_recipe
from layerlab.recipes.training import TrainingRecipe as Training
from layerlab.recipes.training_sections import Section, Title

HOME = "adaptation"


class AdaptationRecipe(Section):
    """The stages of an adaptation; a stage without a section is skipped.

    Attributes:
        name: of the folder that its stages are put in.
        about: what it is for, in a sentence or two.
        inferred: what of it a source does not say and stands here as an inference.
        arm: variations that share the stages they have in common.
    """

    name: Title = "adaptation"
    about: str = ""
    inferred: str = ""
    base: BaseSection
    data: TextSection = TextSection()
    clean: CleanSection | None = None
    vocabulary: VocabularySection | None = None
    embedding: EmbeddingSection | None = None
    pretrain: PretrainSection | None = None
    sft: SftSection | None = None
    evaluate: BenchmarkSection | None = None
    arm: tuple[ArmSection, ...] = ()
    run: StageRunSection = StageRunSection()

    @model_validator(mode="after")
    def _whole(self) -> "AdaptationRecipe":
        """Check that each stage has what it needs."""
        text = 'write [data] with domain = [{ text = "FILE" }]'
        for name in ("clean", "vocabulary", "pretrain"):
            if getattr(self, name) is not None and not self.data.domain:
                raise ValueError(f"{name} needs text of the domain, and there is none; {text}")
        if self.embedding is not None and self.vocabulary is None:
            raise ValueError(
                "embedding gives rows to new tokens, and there are none; write [vocabulary] with "
                'size = "+1600", or leave [embedding] out'
            )
        if self.sft is not None and not self.sft.sources:
            raise ValueError(
                'sft has nothing to learn from; write sources = [{ name = "law", path = "FILE" }]'
            )
        if self.pretrain is not None and self.pretrain.ratio[0] <= 0:
            raise ValueError(
                "pretrain.ratio reads nothing of the domain; write ratio = [1, 1], or [1, 0] for "
                "no replay"
            )
        if self.pretrain is not None and self.pretrain.ratio[1] and not self.data.general:
            raise ValueError(
                "pretrain.ratio replays general text, and there is none; write general = "
                '[{ text = "FILE" }] under [data], or ratio = [1, 0]'
            )
        weighed = [one.weight is not None for one in self.sft.sources] if self.sft else []
        if any(weighed) and not all(weighed):
            raise ValueError(
                "some of sft.sources have a weight and others have none; give one to all or none"
            )
        return self

    @model_validator(mode="after")
    def _learns(self) -> "AdaptationRecipe":
        """Check that what learns has digits enough for small updates."""
        for name in ("pretrain", "sft"):
            stage = getattr(self, name)
            if self.base.dtype != "float32" and stage is not None and stage.lora is None:
                raise ValueError(
                    f'base.dtype is "{self.base.dtype}" and {name} trains all weights, of which '
                    'most updates would be rounded away; write dtype = "float32" and '
                    f'mixed_precision = "bf16" under [{name}], or give it a [{name}.lora]'
                )
            if self.base.dtype != "float32" and stage is not None and stage.lora.modules_to_save:
                raise ValueError(
                    f'base.dtype is "{self.base.dtype}" and {name}.lora.modules_to_save trains '
                    f"{', '.join(stage.lora.modules_to_save)} whole, of which most updates would "
                    'be rounded away; write dtype = "float32", or leave modules_to_save out'
                )
        lora = None if self.pretrain is None else self.pretrain.lora
        if self.vocabulary is not None and lora is not None and not lora.modules_to_save:
            raise ValueError(
                "the recipe grows the vocabulary, and pretrain.lora leaves the rows of its new "
                "tokens as they begin; write pretrain.lora.modules_to_save = "
                '["embed_tokens", "lm_head"], as the model calls them, or leave [pretrain.lora] or '
                "[vocabulary] out"
            )
        return self

    @model_validator(mode="after")
    def _shares(self) -> "AdaptationRecipe":
        """Check that processes can share the rows and the weights."""
        count = self.run.num_processes
        if count == 1 and self.run.sharding != "none":
            raise ValueError(
                'run.sharding is "fsdp" and run.num_processes is 1: nothing can be shared out; '
                'write num_processes = 2 or sharding = "none"'
            )
        for name in ("pretrain", "sft"):
            stage = getattr(self, name)
            if stage is not None and stage.batch_size % count:
                raise ValueError(
                    f"{name}.batch_size is {stage.batch_size}, which {count} processes cannot "
                    f"share evenly; write batch_size = {count * (stage.batch_size // count + 1)}"
                )
        if count > 1 and self.run.device.partition(":")[2]:
            raise ValueError(
                f'run.device is "{self.run.device}", one device, for {count} processes; '
                'write device = "cuda"'
            )
        return self

    @model_validator(mode="after")
    def _names(self) -> "AdaptationRecipe":
        """Check that no name is used twice."""
        rows = [one.name for one in self.sft.sources] if self.sft else []
        for what, names in (("arm", [one.name for one in self.arm]), ("sft.sources", rows)):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what} has the name {twice[0]!r} twice; give each its own")
        return self

    def change(self, settings: Mapping[str, Any]) -> "AdaptationRecipe":
        """Return the recipe with settings by their paths, as `{"pretrain.tokens": 4096}`.

        Raises:
            UserError: there is no such setting, or it takes no such value.
        """
        return with_settings(self, settings, {"train": LENGTHS})

    def arms(self) -> dict[str, "AdaptationRecipe"]:
        """Return each variation by its name; the recipe itself where it has none.

        Raises:
            UserError: a variation sets what there is not.
        """
        if not self.arm:
            return {self.name: self}
        return {one.name: self._vary(one) for one in self.arm}

    def _vary(self, arm: ArmSection) -> "AdaptationRecipe":
        shared = sorted({"name", "arm", "run"} & {path.partition(".")[0] for path in arm.set})
        if shared:
            raise UserError(
                f"the arm {arm.name!r} sets {shared[0]}, which is the same for all arms; "
                "set it in the recipe"
            )
        return self.change(arm.set) if arm.set else self

    def training(self) -> Training | None:
        """Return the recipe that trains the base; None where the base is there already.

        Raises:
            UserError: there is no such recipe, or it compares several runs.
        """
        given = self.base.recipe
        if given is None:
            return None
        found = load_recipe(given) if isinstance(given, str) else given
        found = found.change(self.base.set) if self.base.set else found
        if found.compare is not None:
            raise UserError(
                f"base.recipe {found.name!r} compares several runs; give a recipe that trains one"
            )
        own = {"device": self.run.device, "threads": self.run.threads, "save_model": True}
        return found.model_copy(update={"run": found.run.model_copy(update=own)})


def make_recipe(content: Mapping[str, Any], source: str = "the recipe") -> AdaptationRecipe:
    """Make a recipe from plain values.

    Raises:
        UserError: a key that no section has, or a value that a setting does not take.

    Example:
        >>> make_recipe({"base": {"model": "pre-norm"}}).arms().keys()
        dict_keys(['adaptation'])
    """
    return validate_table(AdaptationRecipe, rename_settings(content, source), source)


def load_adaptation(given: str | PathLike[str]) -> AdaptationRecipe:
    """Load a recipe from a TOML file, or one of the package by its name.

    Raises:
        UserError: there is none, it is not TOML, or a setting is wrong.
    """
    return make_recipe(*load_table(given, HOME))


def list_packaged() -> list[str]:
    """List names of the recipes for adaptation that come with the package."""
    return load.list_packaged(HOME)
