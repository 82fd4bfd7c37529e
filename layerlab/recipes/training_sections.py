"""The sections of a recipe: every setting with its kind, its default and its limits."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

# The largest are what arithmetic here can hold, not what anybody needs.
Count = Annotated[int, Field(ge=1, le=10**15)]
Whole = Annotated[int, Field(ge=0, le=10**15)]
Few = Annotated[int, Field(ge=1, le=4096)]
Positive = Annotated[float, Field(gt=0)]
Times = Annotated[float, Field(gt=0, le=1e9)]
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1)]
# It is the name of a folder, too.
Title = Annotated[
    str,
    Field(
        pattern=r"^\w[\w .+-]*$",
        description="letters, digits, blanks and _ . + -, beginning with a letter, a digit or _",
        examples=["my-recipe"],
    ),
]


class Section(BaseModel):
    """A table of a recipe: frozen, no key that is not declared, no value of another kind."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ModelSection(Section):
    """What is trained: a variant at a size, as `layerlab.build` takes them.

    Attributes:
        variant: or a preset, which brings its sizes.
        vocab: the tokenizer's, where it is left out.
        options: of the variant's parts, as `{n = 3}` or `{"shortcut.form" = "full"}`.
        load: Python files with variants of your own.
    """

    variant: Name = "llama"
    preset: str | None = None
    width: Count | None = None
    layers: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    head_width: Count | None = None
    inner: int | float | None = None
    vocab: Count | None = None
    context: Count | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    load: tuple[str, ...] = ()


class Source(Section):
    """A text to train on.

    Attributes:
        text: `python-docs`, `brown`, `wiki-zh`, `law-zh`, a file or folder (.txt, .md, .jsonl, any
            of them with .gz, or .parquet), or `hf:NAME`.
        weight: of every batch that is drawn from it, beside the other sources.
        field: of a row that holds the text.
        split: of a data set of the Hub.
        subset: of a data set of the Hub, as `wikitext-103-raw-v1`.
        limit: bytes that are taken, from the beginning; all where it is left out.
    """

    text: Name = "python-docs"
    weight: Times = 1.0
    field: Name = "text"
    split: Name = "train"
    subset: str | None = None
    limit: Count | None = None

    def reads_on(self, other: "Source") -> bool:
        """Return whether it is the same text as another, and reaches beyond the other's end."""
        same = self.model_copy(update={"limit": other.limit, "weight": other.weight}) == other
        return same and other.limit is not None and (self.limit is None or self.limit > other.limit)


_Sources = Annotated[tuple[Source, ...], Field(min_length=1, examples=[[{"text": "python-docs"}]])]


class DataSection(Section):
    """The text, how it becomes tokens, and how tokens become blocks.

    Attributes:
        sources: one or several, mixed by their weights.
        held: texts whose ends are held out and evaluated; those of `sources` where it is left out.
            A comparison fills it in for an arm that trains on other text.
        tokenizer: `train` trains a byte-level BPE on the training text; else a name of the Hub, a
            folder or a file.
        vocab: of a tokenizer that is trained.
        validation: share of the documents' bytes that is held out, at the end of each source.
        block: tokens that a sequence predicts; the model's context where it is left out.
        documents: whether attention stops at the boundaries of documents.
    """

    sources: _Sources = (Source(),)
    held: _Sources | None = None
    tokenizer: Name = "train"
    vocab: Annotated[int, Field(ge=257, le=4_000_000)] = 2048
    validation: Annotated[float, Field(gt=0, lt=1)] = 0.05
    block: Count | None = None
    documents: bool = False

    def text(self) -> "DataSection":
        """Return all of it but the blocks: what decides which corpus is read."""
        return self.model_copy(update={"block": None})

    @model_validator(mode="after")
    def _apart(self) -> "DataSection":
        """Return what is held out of the beginning of a text is trained on by whoever reads on."""
        for one in self.held or ():
            for own in self.sources:
                if own.reads_on(one):
                    raise ValueError(
                        f"data.sources reads {own.text!r} beyond the {one.limit:,} bytes whose end "
                        "is held out, and so trains on what it is judged on; write "
                        f"limit = {one.limit} there too, or a larger one where it is held out"
                    )
        return self


class TrainSection(Section):
    """The optimisation: all that decides a run beside its model and its data.

    Attributes:
        updates: of the weights; or give tokens, or epochs.
        tokens: to train on, rounded to whole updates.
        epochs: passes over the training text, rounded to whole updates.
        batch: sequences per update.
        micro_batch: sequences per forward pass of a process; all of its share of a batch where it
            is left out, or is more. A batch that does not fit is split further by itself, and its
            gradients added up.
        rate: the largest learning rate.
        schedule: its course after the warm-up.
        warmup: updates, or below 1 a share of them, in which it rises from 0.
        final: share of the rate that is left at the end (cosine, linear, wsd).
        cooldown: share of the updates in which wsd falls.
        decay: weight decay of matrices; norms, biases, scalars and series have none.
        clip: largest norm of the gradient; 0 clips nothing.
        precision: of the forward and backward pass; weights and moments stay float32.
        compile: each layer by torch.compile.
        attention: how it is computed; `flex_attention` and `flash_attention_2` need a GPU.
        seed: draws the weights and the order of the text.
    """

    updates: Count | None = None
    tokens: Count | None = None
    epochs: Times | None = None
    batch: Count = 16
    micro_batch: Count | None = None
    rate: Positive = 1e-3
    schedule: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    warmup: Annotated[float, Field(ge=0)] = 0.05
    final: Share = 0.1
    cooldown: Annotated[float, Field(gt=0, le=1)] = 0.2
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    epsilon: Positive = 1e-8
    decay: Annotated[float, Field(ge=0)] = 0.1
    clip: Annotated[float, Field(ge=0)] = 1.0
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    compile: bool = False
    attention: Literal["sdpa", "eager", "flex_attention", "flash_attention_2"] = "sdpa"
    seed: Whole = 0


class EvaluateSection(Section):
    """What is measured on the text that was held out.

    Attributes:
        every: updates; a tenth of the run where it is left out. The last update is always measured.
        blocks: at most as many, the same for every run; all where it is left out.
        batch: sequences per forward pass.
        prompts: texts to continue, at each evaluation.
        length: tokens of each continuation.
    """

    every: Count | None = None
    blocks: Count | None = None
    batch: Count = 16
    prompts: tuple[str, ...] = ()
    length: Count = 64


class MonitorSection(Section):
    """What is watched while a run goes on.

    Attributes:
        every: updates between two readings; 0 watches nothing.
    """

    every: Whole = 0


class ControlSection(Section):
    """What keeps the product of key and query weights small, for any variant.

    Attributes:
        spectral: weight of a penalty on the spectral norm of each head's W_k^T W_q.
        condition: weight of a penalty on the logarithm of its condition number.
        clip: QK-clip: the largest score that a head may reach; its weights are scaled down after an
            update that passes it. 0 clips nothing.
        reparametrise: sigma-reparametrisation of the query and key matrices.
        gamma: where their learnable size then starts: at their own `norm`, so that the model is at
            first the same, or at `one`.
    """

    spectral: Annotated[float, Field(ge=0)] = 0.0
    condition: Annotated[float, Field(ge=0)] = 0.0
    clip: Annotated[float, Field(ge=0)] = 0.0
    reparametrise: bool = False
    gamma: Literal["norm", "one"] = "norm"


class EmulateSection(Section):
    """Training under emulated rounding.

    Attributes:
        format: of what is rounded, as `bf16`; nothing is where it is left out.
        where: forward pass, backward pass, or both.
        mode: nearest, or stochastic.
    """

    format: str | None = None
    where: Literal["forward", "backward", "both"] = "both"
    mode: Literal["nearest", "stochastic"] = "nearest"


class SlurmSection(Section):
    """How Slurm is asked for a job; submitit's names.

    Attributes:
        minutes: after which a job is stopped and put back in the queue.
        extra: further sbatch options by name.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    minutes: Count = 60
    gpus: Whole = 0
    cpus: Few = 1
    memory_gb: Count | None = None
    parallel: Few = 32
    extra: dict[str, Any] = Field(default_factory=dict)


class RunSection(Section):
    """Where and how runs are carried out: nothing here decides what comes out.

    Attributes:
        device: cpu, cuda, cuda:N, mps, npu (torch_npu; untested) or xpu (untested).
        threads: of each run on a CPU.
        slots: runs at once; one per core or GPU where it is left out.
        runner: `local` processes, `slurm`, or `submitit` (its local executor).
        processes: of one run; more than 1 trains one model on several devices.
        sharding: `none` copies the model (DDP), `fsdp` shards it (FSDP2).
        checkpoint: updates between two checkpoints; a tenth of the run where it is left out.
        keep: checkpoints; the newest and those before it, at least 2. A finished run keeps none.
        model: whether a finished run keeps its model.
        points: lines of training loss in a journal, at most about as many.
        track: trackers that accelerate knows: tensorboard, wandb, mlflow, trackio.
        timeout: minutes after which a run that says nothing counts as crashed.
        attempts: at a run that crashes.
    """

    device: Name = "cpu"
    threads: Few = 1
    slots: Few | None = None
    runner: Literal["local", "slurm", "submitit"] = "local"
    processes: Few = 1
    sharding: Literal["none", "fsdp"] = "none"
    checkpoint: Count | None = None
    keep: Annotated[int, Field(ge=2)] = 2
    model: bool = True
    points: Count = 1000
    track: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ()
    timeout: Times = 60.0
    attempts: Few = 2
    slurm: SlurmSection = SlurmSection()


def warmup_of(updates: int, train: TrainSection) -> int:
    """Return updates of the warm-up: as given, or below 1 a share of the run."""
    wanted = train.warmup * updates if train.warmup < 1 else train.warmup
    return min(updates, round(wanted))
