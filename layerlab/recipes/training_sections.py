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

FROM_FIRST_WEIGHTS = ("parametrization", "mup_base_width", "mup_base_head_width")


class Section(BaseModel):
    """A table of a recipe: frozen, no key that is not declared, no value of another kind."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ModelSection(Section):
    """The model: a variant at a size, as `layerlab.build` takes them.

    Attributes:
        variant: or a preset, which brings its sizes.
        vocab: the tokenizer's, where it is left out.
        options: of the variant's parts, as `{n = 3}` or `{"shortcut.form" = "full"}`.
        load: Python files with variants of your own.
    """

    variant: Name = "llama"
    preset: str | None = None
    width: Count | None = None
    layers: Annotated[Count | None, Field(examples=[6])] = None
    heads: Annotated[Count | None, Field(examples=[4])] = None
    kv_heads: Annotated[Count | None, Field(examples=[4])] = None
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
            of them with .gz or .zst, or .parquet), or `hf:NAME`.
        weight: of every batch that is drawn from it, beside the other sources.
        field: of a row that holds the text.
        split: of a data set of the Hub.
        subset: of a data set of the Hub, as `wikitext-103-raw-v1`.
        limit: bytes that are taken, from the beginning; all where it is left out.
        special_tokens: whether special tokens of the tokenizer that the text spells, as
            `<|endoftext|>`, are those tokens; else they are text like any other.
    """

    text: Name = "python-docs"
    weight: Times = 1.0
    field: Name = "text"
    split: Name = "train"
    subset: str | None = None
    limit: Count | None = None
    special_tokens: bool = False

    def reads_on(self, other: "Source") -> bool:
        """Return whether a text continues another beyond its end."""
        same = self.model_copy(update={"limit": other.limit, "weight": other.weight}) == other
        return same and other.limit is not None and (self.limit is None or self.limit > other.limit)


_ShardSize = Annotated[int, Field(ge=1024, le=10**12)]
_Sources = Annotated[tuple[Source, ...], Field(min_length=1, examples=[[{"text": "python-docs"}]])]


# In place of a tokenizer: a byte-level BPE is trained.
TRAINED = "train"


class TrainedTokenizer(Section):
    """A tokenizer that is trained on the training text, to `data.vocab_size` entries.

    Attributes:
        train: `bpe` over bytes; or `bpe-fallback`, as SentencePiece trains it: over characters,
            those that it lacks written in bytes.
        special_tokens: of it, beside the separator of documents, as the marks of a chat.
    """

    train: Literal["bpe", "bpe-fallback"]
    special_tokens: tuple[Name, ...] = ()


BYTE_LEVEL = TrainedTokenizer(train="bpe")


class DataSection(Section):
    """The text, how it becomes tokens, and how tokens become blocks.

    Attributes:
        sources: one or several, mixed by their weights.
        eval_sources: texts whose ends are held out and evaluated; those of `sources` where it is
            left out. A comparison fills it in for an arm that trains on other text.
        tokenizer: `train` trains a byte-level BPE on the training text, and
            `{ train = "bpe-fallback" }` one as SentencePiece does; else a name of the Hub, a folder
            or a file.
        vocab_size: of a tokenizer that is trained.
        validation_fraction: share of the documents' bytes that is held out, at the end of each
            source; of its first shard, where there are shards.
        shard_bytes: bytes of text in a shard: what comes after the first shard of each source is
            read and tokenized while the run goes on, a shard at a time, and blocks are shuffled
            within a shard; the first gives the tokenizer and the held-out text. Where it is left
            out, all of the text is tokenized before the first update.
        block_size: tokens that a sequence predicts; the model's context where it is left out.
        document_masking: whether attention stops at the boundaries of documents.
    """

    sources: _Sources = (Source(),)
    eval_sources: _Sources | None = None
    tokenizer: Name | TrainedTokenizer = TRAINED
    vocab_size: Annotated[int, Field(ge=257, le=4_000_000)] = 2048
    validation_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.05
    shard_bytes: Annotated[_ShardSize | None, Field(examples=[2**27])] = None
    block_size: Count | None = None
    document_masking: bool = False

    @property
    def trained_tokenizer(self) -> TrainedTokenizer | None:
        """The tokenizer that is trained on the text; None where one is named."""
        if self.tokenizer == TRAINED:
            return BYTE_LEVEL
        return self.tokenizer if isinstance(self.tokenizer, TrainedTokenizer) else None

    def head(self) -> "DataSection":
        """Return the settings of what is read before the first update."""
        size = self.shard_bytes
        if size is None:
            return self
        heads = (
            one.model_copy(update={"limit": min(size, one.limit or size)}) for one in self.sources
        )
        return self.model_copy(update={"sources": tuple(heads)})

    def text(self) -> "DataSection":
        """Return the settings that decide which corpus is read."""
        return self.model_copy(update={"block_size": None})

    @model_validator(mode="after")
    def _apart(self) -> "DataSection":
        """Refuse a text that reads on where another's held-out part begins."""
        for one in self.eval_sources or ():
            for own in self.sources:
                if own.reads_on(one):
                    raise ValueError(
                        f"data.sources reads {own.text!r} beyond the {one.limit:,} bytes whose end "
                        "is held out, and so trains on what it is judged on; write "
                        f"limit = {one.limit} there too, or a larger one where it is held out"
                    )
        return self


class TrainSection(Section):
    """The optimization: everything that decides a run besides model and data.

    Attributes:
        max_steps: updates of the weights; or give tokens, or num_train_epochs.
        tokens: to train on, rounded to whole updates.
        num_train_epochs: passes over the training text, rounded to whole updates.
        batch_size: sequences per update.
        micro_batch_size: sequences per forward pass of a process; all of its share of a batch where
            it is left out, or is more. A batch that does not fit is split further by itself, and
            its gradients added up.
        optimizer: `adamw`, or `muon`: Muon for the weights of linear layers before the head, its
            updates scaled to the size of AdamW's, so that rate and decay carry over; AdamW for all
            else: embeddings, head, norms, biases, scalars, series and convolutions.
        parametrization: `standard`, or `mup`: first weights and the rate of each matrix follow the
            width, from a base width, so that the best learning rate stays where it is.
        mup_base_width: width at which `mup` is `standard`.
        mup_base_head_width: width of a head there; where it is left out, the model's own if the
            recipe gives it, else the base width over the heads.
        learning_rate: the largest learning rate; with `mup`, that at the base width.
        lr_scheduler_type: its course after the warm-up.
        warmup_steps: updates, or below 1 a share of them, in which it rises from 0.
        min_lr_ratio: share of the rate that is left at the end (cosine, linear, wsd).
        decay_ratio: share of the updates after the warm-up in which wsd falls.
        adam_beta1: decay of AdamW's mean of the gradient.
        adam_beta2: decay of AdamW's mean of its square.
        adam_epsilon: added to the root of that mean.
        weight_decay: of the weights of linear layers, embeddings and nn.Conv1d; all else has none.
        max_grad_norm: largest norm of the gradient; 0 clips nothing.
        mixed_precision: format of the forward and backward pass; weights and moments stay float32.
        torch_compile: each layer by torch.compile.
        attn_implementation: how attention is computed; `flex_attention` and `flash_attention_2`
            need a GPU.
        seed: draws the weights and the order of the text.
    """

    max_steps: Annotated[Count | None, Field(examples=[400])] = None
    tokens: Annotated[Count | None, Field(examples=[10_000_000])] = None
    num_train_epochs: Times | None = None
    batch_size: Count = 16
    micro_batch_size: Count | None = None
    optimizer: Literal["adamw", "muon"] = "adamw"
    parametrization: Literal["standard", "mup"] = "standard"
    mup_base_width: Count | None = None
    mup_base_head_width: Count | None = None
    learning_rate: Positive = 1e-3
    lr_scheduler_type: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    warmup_steps: Annotated[float, Field(ge=0)] = 0.05
    min_lr_ratio: Share = 0.1
    decay_ratio: Annotated[float, Field(gt=0, le=1)] = 0.2
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    adam_epsilon: Positive = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0
    mixed_precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    torch_compile: bool = False
    attn_implementation: Literal["sdpa", "eager", "flex_attention", "flash_attention_2"] = "sdpa"
    seed: Whole = 0

    @model_validator(mode="after")
    def _check_base(self) -> "TrainSection":
        """Refuse muP without a base width, and a base width without muP."""
        if self.parametrization == "mup" and self.mup_base_width is None:
            raise ValueError(
                'train.parametrization is "mup", which scales a model from a base width; write '
                "mup_base_width = 256, the width at which the learning rate was found"
            )
        for name in FROM_FIRST_WEIGHTS[1:]:
            if self.parametrization == "standard" and getattr(self, name) is not None:
                raise ValueError(
                    f"train.{name} is {getattr(self, name)}, and train.parametrization is "
                    f'"standard", which has no base; write parametrization = "mup"'
                )
        return self


class EvaluateSection(Section):
    """Evaluation on held-out text.

    Attributes:
        eval_steps: updates; a tenth of the run where it is left out. The last update is always
            measured.
        max_eval_blocks: at most as many, the same for every run; all where it is left out.
        batch_size: sequences per forward pass.
        prompts: texts to continue, at each evaluation.
        max_new_tokens: tokens of each continuation.
    """

    eval_steps: Count | None = None
    max_eval_blocks: Count | None = None
    batch_size: Count = 16
    prompts: tuple[str, ...] = ()
    max_new_tokens: Count = 64


class MonitorSection(Section):
    """The monitor of a run.

    Attributes:
        interval: updates between two readings; 0 watches nothing.
    """

    interval: Whole = 0


class ControlSection(Section):
    """Control of the product of key and query weights, for any variant.

    Attributes:
        spectral_penalty: weight of a penalty on the spectral norm of each head's W_k^T W_q.
        condition_penalty: weight of a penalty on the logarithm of its condition number.
        qk_clip: QK-clip: the largest score that a head may reach; its weights are scaled down after
            an update that passes it. 0 clips nothing.
        sigma_reparam: sigma-reparametrisation of the query and key matrices.
        gamma: where their learnable size then starts: at their own `norm`, so that the model is at
            first the same, or at `one`.
    """

    spectral_penalty: Annotated[float, Field(ge=0)] = 0.0
    condition_penalty: Annotated[float, Field(ge=0)] = 0.0
    qk_clip: Annotated[float, Field(ge=0)] = 0.0
    sigma_reparam: bool = False
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


Sharding = Literal["none", "fsdp"]


class SlurmSection(Section):
    """The options of a Slurm job, under submitit's names.

    Attributes:
        minutes: after which a job is stopped and put back in the queue; the last three are for its
            checkpoint.
        extra: further sbatch options by name.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    minutes: Annotated[int, Field(ge=5, le=10**15)] = 60
    gpus: Whole = 0
    cpus: Few = 1
    memory_gb: Count | None = None
    parallel: Few = 32
    extra: dict[str, Any] = Field(default_factory=dict)


class RunSection(Section):
    """The execution of runs, which decides nothing but rounding.

    Attributes:
        device: cpu, cuda, cuda:N, mps, npu (torch_npu; untested) or xpu (untested).
        threads: of each run on a CPU.
        max_parallel: runs at once; one per core or GPU where it is left out, `auto` tries how
            many are fastest in all.
        executor: `local` processes, `slurm`, or `submitit` (its local executor).
        num_processes: of one run; more than 1 trains one model on several devices.
        sharding: `none` copies the model (DDP), `fsdp` shards it (FSDP2).
        save_steps: updates between two checkpoints; a tenth of the run where it is left out.
        save_total_limit: checkpoints; the newest and those before it, at least 2. A finished run
            keeps none.
        save_model: whether a finished run keeps its model.
        log_points: lines of training loss in a journal, at most about as many.
        report_to: trackers that accelerate knows: tensorboard, wandb, mlflow, trackio.
        timeout_minutes: minutes after which a run that says nothing counts as crashed.
        max_attempts: at a run that crashes.
    """

    device: Name = "cpu"
    threads: Few = 1
    max_parallel: Few | Literal["auto"] | None = Field(default=None, examples=["auto"])
    executor: Literal["local", "slurm", "submitit"] = "local"
    num_processes: Few = 1
    sharding: Sharding = "none"
    save_steps: Count | None = None
    save_total_limit: Annotated[int, Field(ge=2)] = 2
    save_model: bool = True
    log_points: Count = 1000
    report_to: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ()
    timeout_minutes: Times = 60.0
    max_attempts: Few = 2
    slurm: SlurmSection = SlurmSection()

    @property
    def at_once(self) -> int | None:
        """The number of runs at once; None where it is not given, or still to be tried."""
        return None if self.max_parallel == "auto" else self.max_parallel


def warmup_of(updates: int, train: TrainSection) -> int:
    """Return the warm-up in updates; a value below 1 is a share of the run."""
    wanted = train.warmup_steps * updates if train.warmup_steps < 1 else train.warmup_steps
    return min(updates, round(wanted))
