"""The sections of a recipe for adaptation: every setting with its kind, default and limits."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from layerlab.recipes.training import TrainingRecipe as Training
from layerlab.recipes.training_sections import (
    Count,
    Name,
    Positive,
    Section,
    Share,
    Source,
    Times,
    Whole,
)


class BaseSection(Section):
    """The model that is adapted: one that is there, or one that is trained from nothing.

    Attributes:
        model: a Hub id, a local folder, or a built-in name.
        recipe: of training: the tables of one, its file, or the name of one of the package.
        set: settings of that recipe by their paths, as `{"train.updates" = 100}`.
    """

    model: Name | None = None
    recipe: str | Training | None = None
    set: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one(self) -> "BaseSection":
        if (self.model is None) == (self.recipe is None):
            given = "neither" if self.model is None else "both"
            raise ValueError(
                f"base gives {given} of model and recipe; expected one of them: "
                'write model = "NAME" or recipe = "NAME"'
            )
        return self


class TextSection(Section):
    """The texts of the domain, and general ones that are replayed.

    Attributes:
        domain: as the sources of training.
        general: the same; without it no forgetting can be measured.
        validation: share of each source's bytes that is held out, at its end; no stage learns it.
    """

    domain: tuple[Source, ...] = ()
    general: tuple[Source, ...] = ()
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.05


class CleanSection(Section):
    """Which documents are kept.

    Attributes:
        form: of Unicode: NFC, NFKC, or none.
        shortest: characters of a document.
        longest: characters of a document.
        broken: share of characters that may be U+FFFD or control characters.
        symbols: `#` and ellipses that may come to one word.
        words: share of words that must have a letter.
        bullets: share of lines that may begin with a bullet.
        ellipses: share of lines that may end in an ellipsis.
        characters: share of characters that may stand in runs of 10 that were there before.
        repetition: leave out what repeats lines, paragraphs or words, by Gopher's limits.
        exact: leave out a second document of the same words.
        near: similarity from which a document counts as a copy; 0 looks for none.
        general: clean general text too.
        benchmarks: folders or files of questions, also by their place in the data folder, that are
            looked for in all that is learned from.
    """

    form: Literal["NFC", "NFKC", "none"] = "NFC"
    shortest: Whole = 50
    longest: Count = 10_000_000
    broken: Share = 0.005
    symbols: Share = 0.1
    words: Share = 0.8
    bullets: Share = 0.9
    ellipses: Share = 0.3
    characters: Share = 0.5
    repetition: bool = True
    exact: bool = True
    near: Share = 0.8
    general: bool = True
    benchmarks: tuple[Name, ...] = ()


class VocabularySection(Section):
    """What becomes of the tokenizer.

    Attributes:
        size: `+1600` adds so many entries, `8000` leaves so many.
        jec_qa: prove it on the questions of JEC-QA as well, beside the source's figures.
    """

    size: Annotated[
        str,
        Field(
            pattern=r"^\+?[1-9]\d*$",
            description="a text: a whole number from 1, or one behind a +",
            examples=["+1600"],
        ),
    ]
    jec_qa: bool = False


class EmbeddingSection(Section):
    """How the rows of new tokens begin.

    Attributes:
        input: of the embedding: mean, mean-resizing, first or random.
        head: of the head; one that is tied follows the embedding.
        seed: of what is drawn.
    """

    input: Literal["mean", "mean-resizing", "first", "random"] = "mean"
    head: Literal["mean", "mean-resizing", "first", "random"] = "mean-resizing"
    seed: Whole = 0


class StepSection(Section):
    """What both stages of training have in common.

    Attributes:
        batch: rows of an update.
        micro_batch: rows of a forward pass; all of a batch where it is left out.
        block: tokens of a row; the model's context, at most 1024, where it is left out.
        rate: the largest learning rate.
        warmup: share of the updates in which it rises.
        schedule: as transformers calls it.
        decay: weight decay.
        beta2: of AdamW.
        precision: of the forward and backward pass.
        recompute: activations in the backward pass, which saves memory.
        every: updates between two readings; a tenth of the run where it is left out.
        checkpoint: updates between two checkpoints; a tenth of the run where it is left out.
    """

    batch: Count = 16
    micro_batch: Count | None = None
    block: Annotated[int, Field(ge=2)] | None = None
    rate: Positive = 1e-4
    warmup: Share = 0.05
    schedule: Literal["cosine", "linear", "constant", "constant_with_warmup"] = "cosine"
    decay: Annotated[float, Field(ge=0)] = 0.1
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    precision: Literal["fp32", "bf16"] = "fp32"
    recompute: bool = False
    every: Count | None = None
    checkpoint: Count | None = None


class PretrainSection(StepSection):
    """Continued pretraining, with general text replayed.

    Attributes:
        tokens: to train on, rounded to whole updates.
        ratio: of domain to general tokens; [1, 0] replays nothing.
        held: blocks of held-out text of each kind that are read; all where it is 0.
        resample: share of the batches that is trained on, drawn by their loss; all where left out.
        seeds: one run each; what follows goes on from the first.
    """

    tokens: Count
    ratio: Annotated[
        tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=2, max_length=2)
    ] = (1, 1)
    held: Whole = 512
    resample: Annotated[float, Field(gt=0, le=1)] | None = None
    seeds: Annotated[tuple[Whole, ...], Field(min_length=1)] = (1,)


class RowsSection(Section):
    """Conversations to learn from.

    Attributes:
        name: in tables.
        rows: a .jsonl, .json or .parquet file, or a folder of them; also by its place in the data
            folder.
        kind: whether they are of the domain or general.
        weight: of the source's tokens beside the others'; where none gives one, every row is read
            once in an epoch.
        limit: rows that are taken, from the first.
        ignore: columns that are left out.
    """

    name: Name
    rows: Name
    kind: Literal["domain", "general"] = "domain"
    weight: Positive | None = None
    limit: Count | None = None
    ignore: tuple[str, ...] = ()


class LoraSection(Section):
    """Adapters in place of all weights.

    Attributes:
        r: rank.
        alpha: scale.
        dropout: of what goes into an adapter.
        whole: modules that learn without one, such as a grown embedding.
    """

    r: Count = 16
    alpha: Positive = 32
    dropout: Share = 0.0
    whole: tuple[str, ...] = ()


class TuneSection(StepSection):
    """Instruction tuning: rows of all sources, shuffled in one stage.

    Attributes:
        sources: of rows.
        epochs: passes over all rows.
        tokens: to read instead.
        held: share of the rows of each source that is only measured.
        pack: put several conversations into a row, where none sees another.
        seed: of the order and of what is held out.
        lora: adapters, which are added to the weights at the end.
    """

    sources: Annotated[tuple[RowsSection, ...], Field(min_length=1)]
    epochs: Times = 1.0
    tokens: Count | None = None
    held: Annotated[float, Field(ge=0, lt=1)] = 0.05
    pack: bool = True
    seed: Whole = 0
    lora: LoraSection | None = None


class EvaluateSection(Section):
    """What is asked of the model after each stage.

    Attributes:
        suite: as `layerlab evaluate --suite`; nothing is asked where it is empty.
        after: of the stages base, vocabulary, pretrain and tune, those that are asked.
        domain: benchmarks that count as the domain's; the others are general.
        shots: examples before each question; as usual where left out.
        limit: only so many questions of every subject.
        batch: prompts that are run at once.
        text: bytes of held-out text of each kind that each model is read on; 0 reads none.
        prompts: what each model is asked to answer, for a look at it.
        length: tokens of an answer.
    """

    suite: str = ""
    after: tuple[Literal["base", "vocabulary", "pretrain", "tune"], ...] = (
        "base",
        "vocabulary",
        "pretrain",
        "tune",
    )
    domain: tuple[Name, ...] = ("lawbench", "financeiq", "fineval")
    shots: Whole | None = None
    limit: Count | None = None
    batch: Count = 16
    text: Whole = 200_000
    prompts: tuple[Name, ...] = ()
    length: Count = 64


class ArmSection(Section):
    """A variation: what it has in common with the others is carried out once.

    Attributes:
        name: in tables and pictures.
        set: settings of the recipe by their paths, as `{"pretrain.ratio" = [1, 0]}`.
    """

    name: Name
    set: dict[str, Any] = Field(default_factory=dict)


class RunSection(Section):
    """How stages are carried out: nothing here decides what comes out.

    Attributes:
        device: cpu, cuda, cuda:N or mps.
        threads: on a CPU.
    """

    device: Name = "cpu"
    threads: Count = 1
