"""The sections of a recipe for adaptation: every setting with its kind, default and limits."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from layerlab.recipes.training import TrainingRecipe as Training
from layerlab.recipes.training_sections import (
    Count,
    Few,
    Name,
    Positive,
    Section,
    Sharding,
    Share,
    Source,
    Times,
    Whole,
)


class BaseSection(Section):
    """The model that is adapted: an existing one, or one trained from scratch.

    Attributes:
        model: a Hub id, a local folder, or a built-in name.
        recipe: of training: the tables of one, its file, or the name of one of the package.
        set: settings of that recipe by their paths, as `{"train.max_steps" = 100}`.
        dtype: of the weights in memory; bfloat16 halves what adapters stand on, and nothing but
            adapters learns above it.
    """

    model: Name | None = None
    recipe: str | Training | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    dtype: Literal["float32", "bfloat16"] = "float32"

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
        validation_fraction: share of each source's bytes that is held out, at its end; no stage
            learns it.
    """

    domain: tuple[Source, ...] = ()
    general: tuple[Source, ...] = ()
    validation_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.05


class CleanSection(Section):
    """Rules that decide which documents are kept.

    Attributes:
        unicode_form: of Unicode: NFC, NFKC, or none.
        min_chars: characters of a document.
        max_chars: characters of a document.
        max_broken_ratio: share of characters that may be U+FFFD or control characters.
        max_symbol_ratio: `#` and ellipses that may come to one word.
        min_word_ratio: share of words that must have a letter.
        max_bullet_ratio: share of lines that may begin with a bullet.
        max_ellipsis_ratio: share of lines that may end in an ellipsis.
        max_repeated_ratio: share of characters that may stand in runs of 10 that were there before.
        repetition: leave out what repeats lines, paragraphs or words, by Gopher's limits.
        exact_dedup: leave out a second document of the same words.
        near_duplicate_threshold: similarity from which a document counts as a copy; 0 looks for
            none.
        general: clean general text too.
        benchmarks: folders or files of questions, also by their place in the data folder, that are
            looked for in all that is learned from.
    """

    unicode_form: Literal["NFC", "NFKC", "none"] = "NFC"
    min_chars: Whole = 50
    max_chars: Count = 10_000_000
    max_broken_ratio: Share = 0.005
    max_symbol_ratio: Share = 0.1
    min_word_ratio: Share = 0.8
    max_bullet_ratio: Share = 0.9
    max_ellipsis_ratio: Share = 0.3
    max_repeated_ratio: Share = 0.5
    repetition: bool = True
    exact_dedup: bool = True
    near_duplicate_threshold: Share = 0.8
    general: bool = True
    benchmarks: tuple[Name, ...] = ()

    @model_validator(mode="after")
    def _lengths(self) -> "CleanSection":
        if self.min_chars > self.max_chars:
            raise ValueError(
                f"documents of {self.min_chars} to {self.max_chars} characters cannot be; expected "
                "min_chars <= max_chars"
            )
        return self


class VocabularySection(Section):
    """The change of the tokenizer.

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
    """The initialisation of the embeddings of new tokens.

    Attributes:
        input: of the embedding: mean, mean-resizing, first or random.
        head: of the head; one that is tied follows the embedding.
        seed: of what is drawn.
    """

    input: Literal["mean", "mean-resizing", "first", "random"] = "mean"
    head: Literal["mean", "mean-resizing", "first", "random"] = "mean-resizing"
    seed: Whole = 0


class LoraSection(Section):
    """Adapters: W x becomes W x + (lora_alpha / r) B A x; A and B learn, and B starts at zero.

    Attributes:
        r: rank of B A.
        lora_alpha: scale.
        lora_dropout: of what goes into an adapter.
        target_modules: names of linear modules; all of them but the head where left out.
        modules_to_save: modules that learn without one, such as a grown embedding.
    """

    r: Count = 16
    lora_alpha: Positive = 32
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: tuple[Name, ...] | None = None
    modules_to_save: tuple[str, ...] = ()


class StepSection(Section):
    """Settings that both training stages share.

    Attributes:
        batch_size: rows of an update.
        micro_batch_size: rows of a forward pass; all of a batch where it is left out.
        block_size: tokens of a row; the model's context, at most 1024, where it is left out.
        learning_rate: the largest learning rate.
        warmup_ratio: share of the updates in which it rises; a single update has all of it.
        lr_scheduler_type: as transformers calls it.
        weight_decay: weight decay.
        adam_beta2: decay of AdamW's mean of the squared gradient.
        mixed_precision: of the forward and backward pass.
        gradient_checkpointing: activations in the backward pass, which saves memory.
        eval_steps: updates between two readings; a tenth of the run where it is left out.
        save_steps: updates between two checkpoints; a tenth of the run where it is left out.
        lora: adapters, which are added to the weights at the end.
    """

    batch_size: Count = 16
    micro_batch_size: Count | None = None
    block_size: Annotated[int, Field(ge=2)] | None = None
    learning_rate: Positive = 1e-4
    warmup_ratio: Share = 0.05
    lr_scheduler_type: Literal["cosine", "linear", "constant", "constant_with_warmup"] = "cosine"
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    mixed_precision: Literal["fp32", "bf16"] = "fp32"
    gradient_checkpointing: bool = False
    eval_steps: Count | None = None
    save_steps: Count | None = None
    lora: LoraSection | None = None


class PretrainSection(StepSection):
    """Continued pretraining, with general text replayed.

    Attributes:
        tokens: to train on, rounded to whole updates.
        ratio: of domain to general tokens; [1, 0] replays nothing.
        max_eval_blocks: blocks of held-out text of each kind that are read; all where it is 0.
        resample_fraction: share of the batches that is trained on, drawn by their loss; all where
            left out.
        seeds: one run each; what follows goes on from the first.
    """

    tokens: Count
    ratio: Annotated[
        tuple[Annotated[float, Field(ge=0)], ...], Field(min_length=2, max_length=2)
    ] = (1, 1)
    max_eval_blocks: Whole = 512
    resample_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    seeds: Annotated[tuple[Whole, ...], Field(min_length=1)] = (1,)


class RowsSection(Section):
    """Conversations to learn from.

    Attributes:
        name: in tables.
        path: a .jsonl, .json or .parquet file, or a folder of them; also by its place in the data
            folder.
        kind: whether they are of the domain or general.
        weight: of the source's tokens beside the others'; where none gives one, every row is read
            once in an epoch.
        limit: rows that are taken, from the first.
        ignore: columns that are left out.
    """

    name: Name
    path: Name
    kind: Literal["domain", "general"] = "domain"
    weight: Positive | None = None
    limit: Count | None = None
    ignore: tuple[str, ...] = ()


class SftSection(StepSection):
    """Instruction tuning: rows of all sources, shuffled in one stage.

    Attributes:
        sources: of rows; a recipe has one at least.
        num_train_epochs: passes over all rows.
        tokens: to read instead.
        validation_fraction: share of the rows of each source that is only measured.
        packing: put several conversations into a row, where none sees another.
        seed: of the order and of what is held out.
    """

    sources: Annotated[tuple[RowsSection, ...], Field(min_length=1)] = ()
    num_train_epochs: Times = 1.0
    tokens: Count | None = None
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.05
    packing: bool = True
    seed: Whole = 0


class BenchmarkSection(Section):
    """Benchmarks that the model is evaluated on after each stage.

    Attributes:
        suite: as `layerlab evaluate --suite`; nothing is asked where it is empty.
        after: of the stages base, vocabulary, pretrain and tune, those that are asked.
        domain: benchmarks that count as the domain's; the others are general.
        num_fewshot: examples before each question; as usual where left out.
        limit: only so many questions of every subject.
        batch_size: prompts that are run at once.
        text_bytes: bytes of held-out text of each kind that each model is read on; 0 reads none.
        prompts: what each model is asked to answer, for a look at it.
        max_new_tokens: tokens of an answer.
    """

    suite: str = ""
    after: tuple[Literal["base", "vocabulary", "pretrain", "tune"], ...] = (
        "base",
        "vocabulary",
        "pretrain",
        "tune",
    )
    domain: tuple[Name, ...] = ("lawbench", "financeiq", "fineval")
    num_fewshot: Whole | None = None
    limit: Count | None = None
    batch_size: Count = 16
    text_bytes: Whole = 200_000
    prompts: tuple[Name, ...] = ()
    max_new_tokens: Count = 64


# Tables list several arms with commas between their names.
Listed = Annotated[
    str, Field(pattern=r"^[^,]+$", description="a text without a comma", examples=["no replay"])
]


class ArmSection(Section):
    """A variation of the recipe; stages shared with others run once.

    Attributes:
        name: in tables and pictures.
        set: settings of the recipe by their paths, as `{"pretrain.ratio" = [1, 0]}`.
    """

    name: Listed
    set: dict[str, Any] = Field(default_factory=dict)


class StageRunSection(Section):
    """The execution of stages, which decides nothing but rounding.

    Attributes:
        device: cpu, cuda, cuda:N or mps.
        threads: of each process on a CPU.
        num_processes: of continued pretraining and tuning; more than 1 train on several devices.
        sharding: `none` copies the model (DDP), `fsdp` shards it (FSDP2).
        memory_gb: of each process, which the plan holds its needs against; that of the device where
            it is left out.
    """

    device: Name = "cpu"
    threads: Count = 1
    num_processes: Few = 1
    sharding: Sharding = "none"
    memory_gb: Positive | None = None
