"""Resumes a run of transformers' Trainer from the checkpoints in its folder."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import get_total_norm
from torch.utils.data import Dataset
from transformers import (
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from layerlab.adaptation.trainer.own_folder import MODEL, PLAN, BeginCallback
from layerlab.adaptation.trainer.stage_trainer import ShardedTrainer, StageTrainer
from layerlab.errors import UserError
from layerlab.recipes.training_sections import Sharding
from layerlab.records.events import find_misfit
from layerlab.records.file_digests import FILE as SEAL
from layerlab.records.file_digests import check_seal, seal_folder
from layerlab.records.parse import digest_of, one_line, read_json
from layerlab.system.files import OnlyOwn, force_folder_to_disk, write_file, write_folder
from layerlab.training.sharding import full_tensor
from layerlab.validation import short_repr

RESULT, BEGINNING = "result.json", "beginning"
PLANNED = "plan"  # the entry of what a run left with the hash of its plan
MIXTURE = "mixture"  # the entry of a plan with the sources, in words
DAY = "day"  # the entry of a plan with the day that its run began on


def check_same_plan(
    out: Path,
    plan: Mapping[str, Any],
    arguments: Mapping[str, Any],
    beginning: Mapping[str, str | None],
) -> None:
    """Write the plan of a new run, or compare with that of a resumed one.

    Args:
        plan: what may not change between two sessions.
        arguments: of the caller for Trainer, which may not either.
        beginning: hashes of the model and tokenizer that the run begins with.

    Raises:
        UserError: the folder holds a run that was begun with something else.
    """
    texts = {name: str(value) for name, value in sorted(arguments.items())}
    plan = json.loads(json.dumps({**plan, DAY: str(find_day(out)), "arguments": texts}))
    file = out / PLAN
    if not file.is_file():
        content = {**plan, BEGINNING: beginning}
        write_file(file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        return
    kept = _read_plan(out)
    if BEGINNING in kept:  # as in every run but those of earlier versions
        _check_same_beginning(out, kept[BEGINNING], beginning)
    for one in (MIXTURE, DAY):  # earlier versions did not keep them
        kept.setdefault(one, plan.get(one))
    if other := [name for name, value in plan.items() if kept.get(name) != value]:
        raise UserError(
            f"{out} holds a run with another {other[0]} ({short_repr(kept.get(other[0]))}, not "
            f"{short_repr(plan[other[0]])}); name another folder, or remove that one"
        )


def _check_same_beginning(out: Path, kept: Any, beginning: Mapping[str, str | None]) -> None:
    earlier = kept if isinstance(kept, dict) else {}
    if other := [name for name, value in beginning.items() if earlier.get(name) != value]:
        raise UserError(
            f"{out} holds a run that began with another {other[0]} than this call; hand in what it "
            "began with, as it was before training, name another folder, or remove that one"
        )


def find_day(out: Path) -> date:
    """Return the day that a run began on, whatever day it is gone on with: rows may have its date.

    Raises:
        UserError: the plan of the run cannot be read.
    """
    kept = _read_plan(out) if (out / PLAN).is_file() else {}
    return date.fromisoformat(str(kept[DAY])) if DAY in kept else date.today()


def hash_plan(out: Path) -> str:
    """Return a hash of a run's plan and beginning, by which what it left is known for its own."""
    return digest_of(_read_plan(out))


def _read_plan(out: Path) -> dict[str, Any]:
    try:
        found = read_json(out / PLAN)
        if not isinstance(found, dict):
            raise ValueError("it is no table")
        date.fromisoformat(str(found.get(DAY, date.min)))
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read {out / PLAN}: {one_line(error)}; remove {out}, or name another folder"
        ) from None
    return found


def newest_checkpoint(out: Path) -> tuple[str | None, list[str]]:
    """Return the newest checkpoint that can be gone on from, and notes on what was not taken.

    One without its seal was not written to its end: that comes last. One of an earlier version,
    whose seal does not say which plan it is of, is believed, with a note.

    Raises:
        UserError: one is of another run, or none has the journal that it relies on.
    """
    notes, misfit = list[str](), ""
    for folder in sorted(out.glob("checkpoint-*"), key=_step, reverse=True):
        if not (folder / SEAL).exists():
            continue
        try:
            sealed = check_seal(folder)
            why = _find_misfit(out, _read_state(folder))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, UserError) as error:
            notes.append(f"{folder.name} is damaged ({one_line(error)}) and was passed over")
            continue
        notes += _check_run(out, folder, sealed)
        if why is None:
            return str(folder), notes
        misfit = f"{folder.name}: {why}"
        notes.append(f"{folder.name} cannot be used: {why}; it was passed over")
    if misfit:  # what was trained is lost only if the user wants that
        raise UserError(
            f"no checkpoint in {out} can be used ({misfit}); put the file back, or remove {out} to "
            "train anew"
        )
    return None, notes


def _check_run(out: Path, folder: Path, sealed: Mapping[str, Any]) -> list[str]:
    """Refuse a checkpoint that somebody moved here; whoever did may have no other copy of it."""
    if PLANNED not in sealed:
        return [
            f"{folder.name} is of an earlier version, which did not keep what run it is of: it is "
            "believed"
        ]
    if sealed[PLANNED] != hash_plan(out):
        raise UserError(
            f"{folder} is of another run, with another plan or beginning; move it away, and the "
            "same call does without it"
        )
    return []


def _read_state(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = read_json(folder / "trainer_state.json")
    if state["global_step"] != _step(folder) or any(folder.glob("*model*.bin")):
        raise ValueError("it is no checkpoint of that name")
    return state


def _find_misfit(out: Path, state: Mapping[str, Any]) -> str | None:
    """Say why the journal of a stage that keeps one is not the one that a checkpoint relies on."""
    for one in state.get("stateful_callbacks", {}).values():
        if isinstance(one, dict) and "events" in (mark := one.get("attributes", {})):
            return find_misfit(out, mark)
    return None


def _step(folder: Path) -> int:
    number = folder.name.removeprefix("checkpoint-")
    return int(number) if number.isdecimal() else -1


class SealCallback(TrainerCallback):
    """Seals each checkpoint once all processes have written their part of it."""

    def __init__(self, trainer: Trainer, out: Path) -> None:
        self.accelerator, self.out = trainer.accelerator, out

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Write the hashes of the checkpoint's files, and of the plan of its run."""
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            plan = {PLANNED: hash_plan(self.out)}
            seal_folder(self.out / f"checkpoint-{state.global_step}", **plan)


def build_trainer(
    model: Any,
    settings: TrainingArguments,
    *,
    rows: Dataset[Any],
    collator: Callable[..., Any],
    loss: Callable[..., Any],
    sharding: Sharding,
) -> Trainer:
    """Build a Trainer that prints nothing.

    Args:
        loss: of the outputs, the labels and the number of labels in the update.
        sharding: whether processes copy the model or share it out.
    """
    kind = ShardedTrainer if sharding == "fsdp" else StageTrainer
    with _disable_cache(model):  # Trainer turns the cache off, and leaves it so
        found = kind(
            model=model,
            args=settings,
            data_collator=collator,
            train_dataset=rows,
            compute_loss_func=loss,
        )
    found.remove_callback(PrinterCallback)
    return found


class FiniteGradientCallback(TrainerCallback):
    """Ends a run before an update by a gradient that is not finite."""

    def __init__(self, stage: str, out: Path) -> None:
        self.stage, self.out = stage, out

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Check the gradient, which all processes share; float16 skips some updates.

        Raises:
            UserError: it is not finite.
        """
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        if args.fp16 or bool(torch.isfinite(full_tensor(get_total_norm(gradients)))):
            return
        kept, _ = newest_checkpoint(self.out)
        precision = ", or leave bf16 out" if args.bf16 else ""
        raise UserError(
            f"{self.stage}: the loss or its gradient is not finite at update "
            f"{state.global_step + 1:,} of {state.max_steps:,}; lower the learning rate (now "
            f"{args.learning_rate:g}){precision}; "
            + (f"the checkpoint before it is kept: {kept}" if kept else "no checkpoint was due yet")
        )


def resume(trainer: Trainer, out: Path, stage: str) -> list[str]:
    """Train to the end, from the newest whole checkpoint; return a note on each damaged one.

    Args:
        stage: what it is called where it cannot go on.

    Raises:
        UserError: a gradient is not finite.
    """
    trainer.add_callback(FiniteGradientCallback(stage, out))
    trainer.add_callback(BeginCallback(out))  # behind the one that decides when one is due
    # Before all others: what ends a run at a checkpoint leaves it sealed.
    trainer.callback_handler.callbacks.insert(0, SealCallback(trainer, out))
    kept, notes = newest_checkpoint(out)
    if trainer.args.max_steps == 1:  # the first update of a rising rate has one of 0
        trainer.args.warmup_steps = 0
    with _disable_cache(trainer.model):
        trainer.train(resume_from_checkpoint=kept)
    return notes


def remember_model(
    out: Path, model: Any, tokenizer: PreTrainedTokenizerFast, result: Mapping[str, Any]
) -> None:
    """Write the model with its tokenizer, and then the result of the run."""
    write_model(out, model, tokenizer)
    write_file(out / RESULT, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def write_model(out: Path, model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write a model with its tokenizer, whole or not at all."""

    def fill(folder: Path) -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        force_folder_to_disk(folder)  # what it was trained from goes once this is here

    write_folder(out / MODEL, fill, "model", like=OnlyOwn())


@contextmanager
def _disable_cache(model: Any) -> Iterator[None]:
    """Turn off the cache of keys and values, since nothing is generated."""
    config = model.config
    before = getattr(config, "use_cache", None)
    if before is not None:
        config.use_cache = False
    try:
        yield
    finally:
        if before is not None:
            config.use_cache = before
