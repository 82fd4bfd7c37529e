"""Instruction tuning by transformers' Trainer: domain and general rows shuffled in one stage."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import Tensor
from transformers import PreTrainedTokenizerFast, Trainer, TrainerCallback, TrainingArguments

from layerlab.adaptation.sft.chat_template import add_plain_template
from layerlab.adaptation.sft.conversations import Conversation
from layerlab.adaptation.sft.dataset import PackedRows, SFTDataset, prepare_dataset
from layerlab.adaptation.sft.mixing import SourceStats
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
    build_trainer,
    check_same_plan,
    find_day,
    remember_model,
    resume,
)
from layerlab.adaptation.trainer.router_loss import weigh_router_loss
from layerlab.adaptation.trainer.separation import check_separation
from layerlab.adaptation.trainer.stage_trainer import whole_model
from layerlab.corpus.corpus import ProgressCallback
from layerlab.loading.batching import Batching, find_batching
from layerlab.loading.generation import stop_at
from layerlab.model.loss import IGNORED, causal_loss
from layerlab.recipes.adaptation_sections import SftSection
from layerlab.recipes.training_sections import Sharding
from layerlab.records.renamed_settings import settings_of_0_1
from layerlab.system.locks import lock_folder
from layerlab.system.logs import quiet_libraries

HELD = "held"


@dataclass(frozen=True, kw_only=True)
class SftResult:
    """The result of instruction tuning.

    Attributes:
        model: in which adapters are still apart, unless they were to be merged.
        updates: of the weights.
        sources: what became of the rows, by source.
        curve: update, and nats per token of held-out answers by source: the first before any
            update; the last of the merged model, where the weights round what is added to them.
        folder: with the result and the model.
        notes: what the reader of a result has to know.
    """

    model: Any
    updates: int
    sources: Mapping[str, SourceStats]
    curve: Sequence[tuple[int, Mapping[str, float]]]
    folder: Path
    notes: tuple[str, ...] = ()

    @property
    def before(self) -> Mapping[str, float]:
        """The loss of held-out answers before any update, in nats per token, by source."""
        return self.curve[0][1] if self.curve else {}

    @property
    def after(self) -> Mapping[str, float]:
        """The loss of held-out answers at the end, in nats per token, by source."""
        return self.curve[-1][1] if self.curve else {}

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, without the model and its folder."""
        return {
            "updates": self.updates,
            "sources": {name: asdict(one) for name, one in self.sources.items()},
            "before": dict(self.before),
            "after": dict(self.after),
            "curve": [[update, dict(found)] for update, found in self.curve],
            "notes": list(self.notes),
        }

    def summary(self) -> str:
        """Return the lines that a terminal shows."""
        lines = [f"{self.updates:,} updates"]
        for name, one in self.sources.items():
            lines.append(
                f"{name}: {one.rows:,} rows, {one.turns:,} turns, {one.tokens:,} tokens, of them "
                f"{one.answers:,} the assistant's; {one.passes:.2f} passes; {one.held:,} held out"
            )
            if one.cut:
                lines.append(f"{name}: {one.cut:,} rows lost turns that a block has no room for")
            lines += [f"{name}: {count:,} rows {why}" for why, count in one.dropped.items()]
        lines += [
            f"{name}: {self.before[name]:.4f} -> {self.after[name]:.4f} nats per held-out token"
            for name in self.after
        ]
        return "\n".join([*lines, *self.notes])


def tune(
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    rows: Mapping[str, Iterable[Conversation]],
    *,
    out: Path,
    section: SftSection,
    weights: Mapping[str, int | float] | None = None,
    merge: bool = False,
    sharding: Sharding = "none",
    progress: ProgressCallback | None = None,
    **arguments: Any,
) -> SftResult:
    """Train a causal language model in place on the assistant's tokens alone.

    The loss of an update is the mean over all tokens of the assistant in it, however they are
    split over rows, passes and processes. Conversations that share a row have positions of their
    own, and that they do not see each other is tried out at the start. The same call goes on from
    the newest whole checkpoint in `out`, with the weights of a run that was never stopped.

    Several processes: as `pretrain`.

    Source: pangu23, section 6.3 (domain and general instructions shuffled in one stage).

    Args:
        model: of transformers or layerlab; what is trained of it in float32, beside adapters.
        tokenizer: is given a plain chat template where it has none.
        rows: conversations by the name of their source.
        section: as in a recipe; its sources are not read.
        weights: share of the tokens by source; None reads every row once in an epoch.
        merge: at the end, add what the adapters learned to the weights.
        sharding: whether several processes copy the model (DDP) or share it out (FSDP2).
        out: a folder of its own, which at the end holds the model too.
        progress: is told what is done, and the share of it.
        arguments: of transformers.TrainingArguments.

    Raises:
        UserError: rows, tokenizer, model or an argument cannot be used, `out` holds another run or
            files of yours, or a gradient is not finite: no update is made by it, and the
            checkpoints stay.
    """
    lora = section.lora
    check_learner(model, tokenizer, lora, merge=merge)
    note = add_plain_template(tokenizer)
    notes = (note,) if note else ()
    block = block_of(model, section)
    given = {**section_arguments(section), **arguments}
    with ExitStack() as stack:
        stack.enter_context(quiet_libraries())
        settings = trainer_arguments(out, {}, given, seed=section.seed, sharding=sharding)
        split_batch(settings, section.batch_size, "rows")
        if section.packing:
            micro = settings.per_device_train_batch_size
            check_separation(model, "packed conversations", "packing", micro)
        first = settings.process_index == 0
        if first:
            stack.enter_context(lock_folder(out))
            check_own(out)
        found = prepare_dataset(tokenizer, rows, section, block, weights, find_day(out))
        if found.closing is not None and stop_at(model, found.closing):
            notes = (
                *notes,
                f"an answer ends with {tokenizer.convert_ids_to_tokens(found.closing)}, which did "
                "not end what the model generates: it was added to eos_token_id of its "
                "generation_config.json",
            )
        for name, value in step_counts(found.updates).items():
            setattr(settings, name, given.get(name, value))
        if first:
            plan = _plan(found, block, weights, merge, sharding)
            check_same_plan(out, plan, given, describe_beginning(model, tokenizer))
        settings.distributed_state.wait_for_everyone()  # what is refused is refused by the first
        learner = add_adapters(model, lora, section.seed) if lora else model
        trainer, curve, remarks = _train(learner, found, settings, out, progress, sharding)
        learner = whole_model(trainer).eval()
        shared = sharding != "none"
        if lora and merge and (first or not shared):
            apart = curve.curve[-1][1] if curve.curve else {}
            measure = None if shared else curve.measure
            learner, rounded = merge_and_measure(learner, apart, "nats per token", measure)
            remarks += rounded
        done = SftResult(
            model=learner,
            updates=found.updates,
            sources={one.name: one.tally for one in found.sources},
            curve=curve.curve,
            folder=out,
            notes=(*notes, *found.notes, *remarks),
        )
        if first:
            remember_model(out, learner, tokenizer, done.to_dict())
        trainer.accelerator.wait_for_everyone()
        return done


class AnswerLossCallback(TrainerCallback):
    """Measures the loss of held-out answers; its history is part of the checkpoints."""

    def __init__(
        self,
        found: SFTDataset,
        batching: Batching,
        trainer: Trainer,
        progress: ProgressCallback | None,
    ) -> None:
        self.prepared, self.batching, self.trainer = found, batching, trainer
        self.progress = progress if trainer.is_world_process_zero() else None
        self.every = found.section.eval_steps or max(1, found.updates // 10)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Measure before any update."""
        if state.global_step == 0:
            self.measure(self.trainer.model)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Measure where it is due, and after the last update."""
        if state.global_step % self.every == 0 or state.global_step == state.max_steps:
            self.measure(self.trainer.model)
        if self.progress:
            held = self.curve[-1:]
            losses = [f"{name} {value:.4f}" for _, one in held for name, value in one.items()]
            losses.insert(0, f"update {state.global_step:,} of {state.max_steps:,}")
            self.progress(", ".join(losses), state.global_step / state.max_steps)

    @property
    def curve(self) -> list[tuple[int, dict[str, float]]]:
        """The losses of all readings, with their updates."""
        history: list[Any] = self.trainer.state.log_history
        return [(one["step"], one[HELD]) for one in history if HELD in one]

    def measure(self, model: Any) -> dict[str, float]:
        """Measure the loss of held-out answers by source, and remember it."""
        precision, state = self.trainer.accelerator.autocast, cast(Any, self.trainer.state)
        size = self.trainer.args.per_device_train_batch_size
        found = self.prepared.loss(model, self.batching, precision, size)
        if found:
            state.log_history.append({"step": state.global_step, HELD: found})
        return found


def mean_loss(model: Any, outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Any:
    """Return the part of an update's mean over the assistant's tokens from some of its rows."""
    nats = causal_loss(
        outputs.logits, labels, outputs.logits.shape[-1], num_items_in_batch=num_items_in_batch
    )
    own = (labels[..., 1:] != IGNORED).sum()
    share = 1.0 if num_items_in_batch is None else own / num_items_in_batch
    return nats + weigh_router_loss(model, outputs, share)


def _train(
    model: Any,
    found: SFTDataset,
    settings: TrainingArguments,
    out: Path,
    progress: ProgressCallback | None,
    sharding: Sharding,
) -> tuple[Trainer, AnswerLossCallback, list[str]]:
    loss = partial(mean_loss, model)
    # Found out before Trainer puts it under bf16, whose rounding would look like what is read.
    batching = find_batching(model, "right")
    trainer = build_trainer(
        model,
        settings,
        rows=PackedRows(found),
        collator=found.collator,
        loss=loss,
        sharding=sharding,
    )
    curve = AnswerLossCallback(found, batching, trainer, progress)
    trainer.add_callback(curve)
    return trainer, curve, resume(trainer, out, "instruction tuning")


def _plan(
    found: SFTDataset,
    block: int,
    weights: Mapping[str, int | float] | None,
    merge: bool,
    sharding: Sharding,
) -> dict[str, Any]:
    """Return the plan, which may not change between two sessions of a run, by the names of 0.1."""
    section = found.section
    lora = None
    if section.lora:
        adapters = section.lora.model_dump(exclude={"target_modules"})
        lora = settings_of_0_1(adapters, "sft.lora")
        lora |= {"target": section.lora.target_modules, "merged": merge}
    return {
        "block": block,
        MIXTURE: [
            f"{one.name}: {len(one.examples)} rows, {len(one.held)} held out"
            for one in found.sources
        ],
        "batch": section.batch_size,
        "epochs": section.num_train_epochs,
        "tokens": section.tokens,
        "weights": weights and dict(weights),
        "held": section.validation_fraction,
        "every": section.eval_steps,
        "pack": section.packing,
        "seed": section.seed,
        "lora": lora,
        "order of rows": found.digest,
        "sharding": None if sharding == "none" else sharding,  # checkpoints are of one kind
    }
