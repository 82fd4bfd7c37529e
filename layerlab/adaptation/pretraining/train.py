"""Continued pretraining on domain text, with general text replayed, by transformers' Trainer."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments

from layerlab.adaptation.pretraining.callbacks import Curves, CurveSettings, ProcessGroup, shares
from layerlab.adaptation.pretraining.forgetting import BitsPerByteEvaluator
from layerlab.adaptation.pretraining.loss_resampling import batch_losses, draw_hard_batches
from layerlab.adaptation.pretraining.replay import (
    BlockDataset,
    MixedCorpus,
    ReplayData,
    mix_texts,
    stack_rows,
)
from layerlab.adaptation.pretraining.result import PretrainingResult
from layerlab.adaptation.trainer.arguments import (
    block_of,
    section_arguments,
    split_batch,
    step_counts,
    trainer_arguments,
)
from layerlab.adaptation.trainer.beginning import describe_beginning
from layerlab.adaptation.trainer.lora import (
    add_adapters,
    check_learner,
    merge_and_measure,
)
from layerlab.adaptation.trainer.own_folder import check_own
from layerlab.adaptation.trainer.resume import (
    MIXTURE,
    PLANNED,
    build_trainer,
    check_same_plan,
    hash_plan,
    remember_model,
    resume,
)
from layerlab.adaptation.trainer.router_loss import weigh_router_loss
from layerlab.adaptation.trainer.separation import check_separation
from layerlab.adaptation.trainer.stage_trainer import whole_model
from layerlab.corpus.batches import BatchOrder, EvalBlocks
from layerlab.corpus.corpus import ProgressCallback
from layerlab.errors import UserError
from layerlab.recipes.adaptation_sections import PretrainSection
from layerlab.recipes.training_sections import Sharding
from layerlab.records.parse import one_line, read_json, seal, unseal
from layerlab.system.files import write_file
from layerlab.system.locks import lock_folder
from layerlab.system.logs import quiet_libraries


def pretrain(
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    reading: ReplayData,
    *,
    section: PretrainSection,
    seed: int = 0,
    merge: bool = False,
    sharding: Sharding = "none",
    out: Path,
    progress: ProgressCallback | None = None,
    **arguments: Any,
) -> PretrainingResult:
    """Train a causal language model in place on blocks of domain and general text in turn.

    No prefix of the blocks strays from the ratio by more than one block, whatever the lengths of
    the documents, but where batches are drawn by their loss: of those that are harder there may be
    more. The same call goes on from the newest whole checkpoint in `out`, with the blocks and the
    weights of a run that was never stopped. The loss is the mean over the tokens of an update,
    however it is split over passes and processes.

    Several processes: start the program with `torchrun --nproc_per_node N`; each reads its rows of
    an update. Where they share the model out, every process has a part of each weight, gradient and
    moment, a checkpoint the parts of all, and the first process at the end the whole model.

    LoRA: `section.lora`, or a model wrapped by PEFT, with the embeddings among `modules_to_save`
    where the vocabulary is new; what is saved is the adapter, unless it is merged. Gradient
    checkpointing, bf16, the optimizer and its schedule are arguments of
    transformers.TrainingArguments.

    Source: pangu23, section 6.3 (domain and replayed general text 1:1).

    Args:
        model: of transformers or layerlab; what is trained of it in float32, beside adapters.
        tokenizer: that of the model.
        reading: the text.
        section: how long, in what steps, and how closely watched; its `seeds` are not looked at.
        seed: decides the order of the blocks, dropout, and what adapters begin with.
        merge: at the end, add what the adapters learned to the weights.
        sharding: whether several processes copy the model (DDP) or share it out (FSDP2).
        out: a folder of its own.
        progress: is told what is done, and the share of it.
        arguments: of TrainingArguments; `per_device_train_batch_size` splits an update further.

    Returns:
        What was read, both curves' ends, and what was forgotten.

    Raises:
        UserError: the text, the tokenizer, the model or an argument cannot be used, `out` holds
            another run or files of yours, or a gradient is not finite: no update is made by it,
            and the checkpoints stay.
    """
    lora = section.lora
    check_learner(model, tokenizer, lora, merge=merge)
    block = block_of(model, section)
    updates = count_updates(section, block)
    given = {**section_arguments(section), **arguments}
    with ExitStack() as stack:
        stack.enter_context(quiet_libraries())
        settings = trainer_arguments(out, step_counts(updates), given, seed=seed, sharding=sharding)
        split_batch(settings, section.batch_size, "blocks")
        if reading.documents:
            micro = settings.per_device_train_batch_size
            check_separation(model, "documents", "documents", micro)
        first = settings.process_index == 0
        if first:
            stack.enter_context(lock_folder(out))
            check_own(out)
        text = mix_texts(tokenizer, reading, progress if first else None, section.ratio)
        if first:
            plan = _plan(text, section, seed, reading, block, merge, sharding)
            check_same_plan(out, plan, given, describe_beginning(model, tokenizer))
        settings.distributed_state.wait_for_everyone()  # what is refused is refused by the first
        learner = add_adapters(model, lora, seed) if lora else model
        run = PretrainingRun(
            *(learner, tokenizer, text, section, seed, block, settings),
            sharding=sharding,
            merge=merge and lora is not None,
        )
        return _train(run, out, progress)


def count_updates(section: PretrainSection, block: int) -> int:
    """Count the updates of the weights, with blocks of so many tokens."""
    return max(1, round(section.tokens / (section.batch_size * block)))


@dataclass(frozen=True)
class PretrainingRun:
    """Model, text and settings of a run.

    Attributes:
        merge: whether adapters become part of the weights at the end.
    """

    model: Any
    tokenizer: PreTrainedTokenizerFast
    text: MixedCorpus
    section: PretrainSection
    seed: int
    block: int
    settings: TrainingArguments
    sharding: Sharding
    merge: bool

    def loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> Any:
        """Return the part of an update's mean loss that some of its rows contribute.

        Every block is full: an update has batch * block tokens, whoever reads them.
        """
        size = self.section.batch_size * self.block
        nats = cross_entropy(
            outputs.logits.flatten(0, 1).float(), labels.flatten(), reduction="sum"
        )
        return nats / size + weigh_router_loss(self.model, outputs, labels.numel() / size)


def _train(run: PretrainingRun, out: Path, progress: ProgressCallback | None) -> PretrainingResult:
    order = BatchOrder(run.text.corpus, run.block, run.seed)
    updates = count_updates(run.section, run.block)
    blocks = BlockDataset(order, updates * run.section.batch_size)
    trainer = build_trainer(
        run.model,
        run.settings,
        rows=blocks,
        collator=stack_rows,
        loss=run.loss,
        sharding=run.sharding,
    )
    group = _place(trainer)
    if run.section.resample_fraction is not None:
        chosen = _choose(run, order, updates, out, group)
        trainer.train_dataset = blocks = BlockDataset(order, run.section.batch_size, chosen)
        run.settings.max_steps = updates = len(chosen)
    watched = CurveSettings(
        gauges={
            kind: BitsPerByteEvaluator(
                EvalBlocks(held, run.block, run.section.max_eval_blocks or None)
            )
            for kind, held in run.text.held.items()
            if not held.loss  # else there are no bits per byte
        },
        blocks=blocks,
        kinds=run.text.kinds,
        batch=run.section.batch_size,
        every=run.section.eval_steps or max(1, updates // 10),
        micro=run.settings.per_device_train_batch_size,
    )
    curves = Curves(watched, out, group, progress)
    trainer.add_callback(curves)
    notes = resume(trainer, out, "continued pretraining")
    learner = whole_model(trainer)
    shared = run.sharding != "none"
    if run.merge and (group.first or not shared):
        apart = {kind: cost.bits_per_byte for kind, cost in curves.now.items()}
        measure = None if shared else curves.measure_merged
        learner, rounded = merge_and_measure(learner, apart, "bits per byte", measure)
        notes += rounded
    found = _find(run, curves, watched, updates, out, notes)
    if group.first:
        remember_model(out, learner, run.tokenizer, found.to_dict())
    trainer.accelerator.wait_for_everyone()
    return found


def _place(trainer: Trainer) -> ProcessGroup:
    accelerator = trainer.accelerator
    return ProcessGroup(
        part=(accelerator.process_index, accelerator.num_processes),
        reduce=lambda sums: (
            accelerator.reduce(sums.to(accelerator.device), reduction="sum")
            if accelerator.num_processes > 1
            else sums
        ),
        precision=accelerator.autocast,
    )


def _find(
    run: PretrainingRun,
    curves: Curves,
    watched: CurveSettings,
    updates: int,
    out: Path,
    remarks: Sequence[str],
) -> PretrainingResult:
    read = shares(watched.blocks, watched.kinds, updates * run.section.batch_size)
    notes = [*run.text.corpus.notes, *remarks]
    notes += [f"{one.source} was read {one.passes:.2f} times" for one in read if one.passes > 1]
    return PretrainingResult(
        updates=updates,
        tokens=sum(one.tokens for one in read),
        sources=tuple(read),
        before={kind: cost.bits_per_byte for kind, cost in curves.start.items()},
        after={kind: cost.bits_per_byte for kind, cost in curves.now.items()},
        change=curves.changes(),
        held={
            kind: {"digest": gauge.eval_blocks.digest, "whole": gauge.eval_blocks.whole}
            for kind, gauge in watched.gauges.items()
        },
        folder=out,
        notes=tuple(notes),
    )


def _choose(
    run: PretrainingRun, order: BatchOrder, updates: int, out: Path, group: ProcessGroup
) -> Any:
    """Choose the batches that are trained on; once drawn, they stay."""
    kept = out / "batches.json"
    if kept.is_file():
        return _read_batches(kept)
    losses = batch_losses(
        run.model,
        order,
        updates,
        run.section.batch_size,
        micro=run.settings.per_device_train_batch_size,
        group=group,
    )
    count = max(1, round((run.section.resample_fraction or 1.0) * updates))
    chosen = draw_hard_batches(losses, count, run.seed).tolist()
    if group.first:
        own = {PLANNED: hash_plan(out)}
        content = seal({**own, "batches": chosen, "losses": losses.tolist()})
        write_file(kept, json.dumps(content) + "\n")
    return chosen


def _read_batches(file: Path) -> Any:
    """Return the batches that were drawn by an earlier session.

    Raises:
        UserError: the file is not what was written, or was written in another run.
    """
    plan = hash_plan(file.parent)
    try:
        found = unseal(read_json(file))
        if found.get(PLANNED, plan) != plan:  # an earlier version did not keep it
            raise ValueError("it is of another run")
        return found["batches"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"cannot read {file}: {one_line(error)}; remove {file.parent}, and type it again"
        ) from None


def _plan(
    text: MixedCorpus,
    section: PretrainSection,
    seed: int,
    reading: ReplayData,
    block: int,
    merge: bool,
    sharding: Sharding,
) -> dict[str, Any]:
    """Return the plan, which may not change between two sessions of a run."""
    return {
        "text": text.corpus.digest,
        MIXTURE: [
            f"{kind} {stream.weight:g}"
            for kind, stream in zip(text.kinds, text.corpus.train, strict=True)
        ],
        "ratio": list(section.ratio),
        "tokens": section.tokens,
        "batch": section.batch_size,
        "seed": seed,
        "every": section.eval_steps,
        "held": section.max_eval_blocks or None,
        "resample": section.resample_fraction,
        "block": block,
        "validation": reading.validation,
        "documents": reading.documents,
        "lora": section.lora and {**section.lora.model_dump(mode="json"), "merged": merge},
        "sharding": None if sharding == "none" else sharding,  # checkpoints are of one kind
    }
