"""Builds the arguments of transformers' Trainer from those of the caller and the stage."""

from collections.abc import Iterable, Mapping
from os import environ
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, TrainingArguments

from layerlab.errors import UserError
from layerlab.loading.model import LoadedModel
from layerlab.recipes.adaptation_sections import StepSection
from layerlab.recipes.training_sections import Sharding
from layerlab.tokenization.load import entries

# From 1 on transformers takes a share of the updates for their number.
BELOW_ONE = 1 - 2**-53
# What a stage decides; the rest of TrainingArguments is the caller's.
OWN = (
    "output_dir",
    "max_steps",
    "num_train_epochs",
    "seed",
    "data_seed",
    "train_sampling_strategy",
    "remove_unused_columns",
    "gradient_accumulation_steps",
    "average_tokens_across_devices",
    "auto_find_batch_size",
    "ignore_data_skip",
    "label_smoothing_factor",
    "dataloader_drop_last",
    "save_only_model",
    "eval_strategy",
    "disable_tqdm",
)


def trainer_arguments(
    out: Path,
    own: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    seed: int,
    sharding: Sharding = "none",
) -> TrainingArguments:
    """Return the arguments of Trainer for rows that have an order of their own.

    Args:
        own: what the stage asks for, where the caller asks for nothing else.
        given: what the caller asks for.
        sharding: whether processes copy the model or share it out.

    Raises:
        UserError: one of them is the stage's or is none, one process sees several GPUs or is alone
            and is to share the model out, or accelerate is told to do it.
    """
    if reserved := sorted(set(given) & set(OWN)):
        raise UserError(
            f"{reserved[0]} is no argument of yours here: the stage decides it by its tokens, "
            "batch and seed; leave it out"
        )
    if environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true" or given.get("fsdp"):
        raise UserError(
            "accelerate is asked to share the model out (fsdp), and what it leaves cannot be "
            'resumed here; leave that away, and give sharding="fsdp", or write it under [run]'
        )
    usual = {
        "report_to": "none",
        "save_total_limit": 2,
        "dataloader_pin_memory": torch.cuda.is_available(),
    }
    try:
        found = TrainingArguments(
            output_dir=str(out),
            seed=seed,
            train_sampling_strategy="sequential",
            remove_unused_columns=False,
            disable_tqdm=True,
            **{**usual, **own, **given},
        )
    except TypeError as error:
        raise UserError(
            f"{str(error).partition(') ')[2] or error}; expected arguments of "
            "transformers.TrainingArguments"
        ) from None
    if sharding == "fsdp" and found.world_size == 1:
        raise UserError(
            'sharding is "fsdp" and this is one process: nothing can be shared out; start several '
            'with torchrun --nproc_per_node 2 ..., or give sharding="none"'
        )
    if found.n_gpu > 1:
        raise UserError(
            f"this one process sees {found.n_gpu} GPUs; type: accelerate launch --num_processes "
            f"{found.n_gpu} ..., or set CUDA_VISIBLE_DEVICES to one of them"
        )
    return found


def section_arguments(section: StepSection) -> dict[str, Any]:
    """Return a stage's settings by the names of transformers.TrainingArguments."""
    given: dict[str, Any] = {
        "learning_rate": section.learning_rate,
        "warmup_steps": min(section.warmup_ratio, BELOW_ONE),
        "lr_scheduler_type": section.lr_scheduler_type,
        "weight_decay": section.weight_decay,
        "adam_beta2": section.adam_beta2,
        "per_device_train_batch_size": section.micro_batch_size or section.batch_size,
    }
    if section.mixed_precision == "bf16":
        given["bf16"] = True
    if section.gradient_checkpointing:
        given["activation_checkpointing"] = True
    if section.save_steps is not None:
        given["save_steps"] = section.save_steps
    return given


def split_batch(settings: TrainingArguments, batch: int, what: str) -> None:
    """Split an update over processes and passes, as evenly as the batch of a device allows.

    Args:
        batch: rows of an update.
        what: they are, in words.

    Raises:
        UserError: the processes cannot have equal parts.
    """
    own, rest = divmod(batch, settings.world_size)
    if rest:
        raise UserError(
            f"a batch of {batch} {what} cannot be shared by {settings.world_size} processes; "
            "choose a multiple of that"
        )
    micro = split_rows(own, settings.per_device_train_batch_size)
    settings.per_device_train_batch_size = micro
    settings.gradient_accumulation_steps = own // micro


def split_rows(rows: int, most: int) -> int:
    """Return the rows of a pass: the most that divide the rows of a process.

    Example:
        >>> split_rows(12, 5)
        4
    """
    return next(size for size in range(min(rows, most), 0, -1) if rows % size == 0)


def step_counts(updates: int) -> dict[str, int]:
    """Return Trainer's default number of steps, and how often it saves."""
    line = max(1, updates // 100)
    return {"max_steps": updates, "logging_steps": line, "save_steps": 10 * line}


def check_entries(model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    """Refuse a tokenizer with tokens that the model has no row for.

    Raises:
        UserError: the tokenizer has more entries than the model embeds.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    if entries(tokenizer) > rows:
        raise UserError(
            f"the tokenizer has {entries(tokenizer)} entries and the model embeds {rows} tokens; "
            "type: layerlab adapt embed MODEL --tokenizer DIR --out DIR"
        )


def check_trained(model: Any, weights: Iterable[tuple[str, Tensor]] | None = None) -> None:
    """Refuse to train weights that hold too few digits for a sum of small updates.

    Args:
        model: that they are of.
        weights: that are trained, with their names; those of the model that ask for a gradient
            where it is left out.

    Raises:
        UserError: one has fewer bits than float32.
    """
    if weights is None:
        weights = ((name, one) for name, one in model.named_parameters() if one.requires_grad)
    for name, one in weights:
        if one.dtype.itemsize < torch.float32.itemsize:
            kind = str(one.dtype).removeprefix("torch.")
            raise UserError(
                f"{type(model).__name__} has {name} in {kind}, in which most updates are rounded "
                "away; load it with dtype=torch.float32, and give bf16=True for mixed precision"
            )


def context_of(model: Any) -> int | None:
    """Return the longest input in tokens of a model that PEFT may have wrapped."""
    base_model = model.get_base_model() if hasattr(model, "get_base_model") else model
    return LoadedModel(name="", source="memory", model=base_model, tokenizer=None).context


def block_of(model: Any, section: StepSection) -> int:
    """Return the tokens of a row: those that are asked for, else the model's context up to 1024.

    Raises:
        UserError: more are asked for than the model reads.
    """
    context = context_of(model)
    if section.block_size is None:
        return min(1024, context or 1024)
    if context is not None and section.block_size > context:
        raise UserError(
            f"block_size is {section.block_size}, more than the model's context of {context}; "
            f"write block_size = {context}"
        )
    return section.block_size
