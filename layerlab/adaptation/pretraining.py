"""Continued pretraining on domain text, with general text replayed, by transformers' Trainer."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import (
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

from layerlab import UserError
from layerlab.adaptation.curve import Curves, Place, Share, Watched, shares
from layerlab.adaptation.forgetting import Change, Gauge
from layerlab.adaptation.replay import (
    GENERAL,
    Blocks,
    Material,
    Mixed,
    Progress,
    Reading,
    mixed,
    stacked,
)
from layerlab.adaptation.resampling import batch_losses, drawn
from layerlab.disk import write_file, write_folder
from layerlab.domain import shown
from layerlab.lock import locked
from layerlab.measures.checkpoint import quiet
from layerlab.measures.subject import Subject
from layerlab.training.batch import Held, Order
from layerlab.training.words import entries

PLAN, RESULT, MODEL = "plan.json", "result.json", "model"
# What this module decides; the rest of TrainingArguments is the caller's.
OWN = (
    "output_dir",
    "max_steps",
    "num_train_epochs",
    "seed",
    "data_seed",
    "train_sampling_strategy",
    "group_by_length",
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


@dataclass(frozen=True, kw_only=True)
class Course:
    """How long, in what steps, and how closely watched.

    Attributes:
        tokens: to train on, rounded to whole updates.
        batch: blocks of an update, over all processes.
        seed: decides the order of the blocks, and dropout.
        every: updates between two readings of held-out text; a tenth of the run where left out.
        held: blocks of held-out text of each kind that are read, at equal distances; None reads
            all of it.
        resample: share of the batches that is trained on, drawn by their loss under the model as
            it is handed in (resampling.py); None trains on each of them.
    """

    tokens: int
    batch: int = 16
    seed: int = 0
    every: int | None = None
    held: int | None = 512
    resample: int | float | None = None


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """What came of it.

    Attributes:
        updates: of the weights.
        tokens: that were predicted.
        sources: how much was read of each.
        before: held-out text in bits per byte at the start, by kind.
        after: the same at the end.
        change: after minus before, with an interval, by kind.
        folder: with events.jsonl, result.json and the model.
        notes: what the reader of a result has to know.
    """

    updates: int
    tokens: int
    sources: tuple[Share, ...]
    before: Mapping[str, float]
    after: Mapping[str, float]
    change: Mapping[str, Change]
    folder: Path
    notes: tuple[str, ...] = ()

    @property
    def forgetting(self) -> Change | None:
        """Of general text: above 0 is forgotten. None where no general text was given."""
        return self.change.get(GENERAL)

    def to_json(self) -> dict[str, Any]:
        """Everything but where it lies."""
        content = asdict(replace(self, folder=Path())) | {"forgetting": None}
        del content["folder"]
        if self.forgetting is not None:
            content["forgetting"] = asdict(self.forgetting)
        return content

    def told(self) -> str:
        """Lines for a terminal."""
        lines = [f"{self.updates:,} updates, {self.tokens:,} tokens"]
        for one in self.sources:
            again = "; seen more than once" if one.passes > 1 else ""
            lines.append(
                f"{one.kind}: {one.source}: {one.tokens:,} tokens, {one.passes:.2f} passes{again}"
            )
        for kind, found in self.change.items():
            name = "general (forgetting)" if kind == GENERAL else kind
            bits = f"{self.before[kind]:.4f} -> {self.after[kind]:.4f} bits per byte"
            lines.append(f"{name}: {bits}, {found}")
        return "\n".join([*lines, *self.notes])


def pretrain(
    model: Any,
    words: PreTrainedTokenizerFast,
    domain: Material,
    general: Material | None = None,
    *,
    course: Course,
    out: Path,
    ratio: Sequence[int | float] = (1, 1),
    reading: Reading | None = None,
    progress: Progress | None = None,
    **arguments: Any,
) -> Pretrained:
    """Train a causal language model on, in place, on blocks of domain and general text by turns.

    No prefix of the blocks strays from the ratio by more than one block, whatever the lengths of
    the documents. The same call goes on from the newest whole checkpoint in `out`, with the blocks
    and the weights of a run that was never stopped. The loss is the mean over the tokens of an
    update, however it is split over passes and processes.

    Several processes: start the program with `accelerate launch --num_processes N`; each reads its
    rows of an update. FSDP2 on GPUs: `accelerate launch --use_fsdp --fsdp_version 2
    --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --fsdp_state_dict_type SHARDED_STATE_DICT
    --num_processes N`, or the same in a file for `--config_file`; checkpoints are then sharded, and
    the model at the end is whole. It has been tested with two processes that copy the model (DDP,
    gloo, CPU), not with FSDP2.

    LoRA: hand in a model wrapped by PEFT, with the embeddings among `modules_to_save` where the
    vocabulary is new; what is saved is the adapter. Gradient checkpointing, bf16, the optimizer and
    its schedule are arguments of transformers.TrainingArguments.

    Source: pangu23, section on YunShan (domain and replayed general text 1:1).

    Args:
        model: of transformers or layerlab.
        words: its tokenizer.
        domain: a file, a folder, a name, or several; as `text` of a recipe's data.sources.
        general: text to replay. None knows no general text; the ratio (1, 0) keeps what there is
            for the measurement of forgetting alone.
        out: a folder of its own.
        ratio: of domain to general tokens.
        reading: how text becomes blocks; blocks of the model's context, at most 1024, where it is
            left out.
        progress: is told what is done, and the share of it.
        arguments: of TrainingArguments; `per_device_train_batch_size` splits an update further.

    Returns:
        What was read, both curves' ends, and what was forgotten.

    Raises:
        UserError: the text, the tokenizer or an argument cannot be used, or `out` holds another
            run.
    """
    _check(model, words, course)
    reading = reading or Reading(block=min(1024, _context(model) or 1024))
    with ExitStack() as stack:
        stack.enter_context(quiet())
        settings = _arguments(course, reading, out, arguments)
        first = settings.process_index == 0
        if first:
            stack.enter_context(locked(out))
        text = mixed(
            words,
            domain,
            general,
            ratio=ratio,
            reading=reading,
            progress=progress if first else None,
        )
        if first:
            _planned(out, _plan(text, course, reading, ratio, arguments))
        return _trained(Run(model, words, text, course, reading, settings), out, progress)


@dataclass(frozen=True)
class Run:
    """All that a run is made of."""

    model: Any
    words: PreTrainedTokenizerFast
    text: Mixed
    course: Course
    reading: Reading
    settings: TrainingArguments

    def loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> Any:
        """The part of an update's mean that some of its rows have.

        Every block is full: an update has batch * block tokens, whoever reads them. A router's own
        loss is added as its model would.
        """
        size = self.course.batch * self.reading.block
        nats = cross_entropy(
            outputs.logits.flatten(0, 1).float(), labels.flatten(), reduction="sum"
        )
        loss = nats / size
        if getattr(outputs, "aux_loss", None) is not None:
            weight = getattr(self.model.config, "router_aux_loss_coef", 0.0)
            loss = loss + weight * outputs.aux_loss * (labels.numel() / size)
        return loss


def _trained(run: Run, out: Path, progress: Progress | None) -> Pretrained:
    order = Order(run.text.corpus, run.reading.block, run.course.seed)
    updates = _updates(run.course, run.reading)
    blocks = Blocks(order, updates * run.course.batch)
    trainer = Trainer(
        model=run.model,
        args=run.settings,
        data_collator=stacked,
        train_dataset=blocks,
        compute_loss_func=run.loss,
    )
    trainer.remove_callback(PrinterCallback)
    accelerator = trainer.accelerator
    place = Place(
        part=(accelerator.process_index, accelerator.num_processes),
        reduce=lambda sums: (
            accelerator.reduce(sums.to(accelerator.device), reduction="sum")
            if accelerator.num_processes > 1
            else sums
        ),
        precision=accelerator.autocast,
    )
    if run.course.resample is not None:
        chosen = _chosen(run, order, updates, out, place)
        trainer.train_dataset = blocks = Blocks(order, run.course.batch, chosen)
        run.settings.max_steps = updates = len(chosen)
    watched = Watched(
        gauges={
            kind: Gauge(Held(held, run.reading.block, run.course.held))
            for kind, held in run.text.held.items()
        },
        blocks=blocks,
        kinds=run.text.kinds,
        batch=run.course.batch,
        every=run.course.every or max(1, updates // 10),
        micro=run.settings.per_device_train_batch_size,
    )
    curves = Curves(watched, out, place, progress)
    trainer.add_callback(curves)
    trainer.train(resume_from_checkpoint=_latest(out))
    found = _found(run, curves, watched, updates, out)
    _saved(run, trainer, found, out, place)
    return found


def _found(run: Run, curves: Curves, watched: Watched, updates: int, out: Path) -> Pretrained:
    read = shares(watched.blocks, watched.kinds, updates * run.course.batch)
    notes = list(run.text.corpus.notes)
    notes += [f"{one.source} was read {one.passes:.2f} times" for one in read if one.passes > 1]
    return Pretrained(
        updates=updates,
        tokens=sum(one.tokens for one in read),
        sources=tuple(read),
        before={kind: cost.bits_per_byte for kind, cost in curves.start.items()},
        after={kind: cost.bits_per_byte for kind, cost in curves.now.items()},
        change=curves.changes(),
        folder=out,
        notes=tuple(notes),
    )


def _saved(run: Run, trainer: Trainer, found: Pretrained, out: Path, place: Place) -> None:
    """The model under its name once it is whole; all processes take part where it is sharded."""
    partial = out / f".{MODEL}.partial"
    trainer.save_model(str(partial))
    if place.first:

        def fill(folder: Path) -> None:
            for one in partial.iterdir():
                if one.suffix != ".bin":  # the arguments, pickled
                    one.rename(folder / one.name)
            run.words.save_pretrained(folder)

        write_folder(out / MODEL, fill, "model", like=lambda _: True)
        for left in partial.iterdir():
            left.unlink()
        partial.rmdir()
        write_file(out / RESULT, json.dumps(found.to_json(), indent=1) + "\n")
    trainer.accelerator.wait_for_everyone()


def _chosen(run: Run, order: Order, updates: int, out: Path, place: Place) -> Any:
    """The batches that are trained on; once drawn, they stay."""
    kept = out / "batches.json"
    if kept.is_file():
        return json.loads(kept.read_text(encoding="utf-8"))["batches"]
    losses = batch_losses(
        run.model,
        order,
        updates,
        run.course.batch,
        micro=run.settings.per_device_train_batch_size,
        part=place.part,
        reduce=place.reduce,
        precision=place.precision,
    )
    count = max(1, round((run.course.resample or 1.0) * updates))
    chosen = drawn(losses, count, run.course.seed).tolist()
    if place.first:
        content = {"batches": chosen, "losses": losses.tolist()}
        write_file(kept, json.dumps(content) + "\n")
    return chosen


def _arguments(
    course: Course, reading: Reading, out: Path, given: Mapping[str, Any]
) -> TrainingArguments:
    reserved = sorted(set(given) & set(OWN))
    if reserved:
        raise UserError(
            f"{reserved[0]} is no argument of yours here: pretrain decides it; leave it out "
            "(tokens, batch and seed are those of the course)"
        )
    updates = _updates(course, reading)
    line = max(1, updates // 100)
    settings = {
        "report_to": "none",
        "logging_steps": line,
        "save_steps": 10 * line,
        "save_total_limit": 2,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "per_device_train_batch_size": course.batch,
        **given,
    }
    try:
        found = TrainingArguments(
            output_dir=str(out),
            max_steps=updates,
            seed=course.seed,
            train_sampling_strategy="sequential",
            remove_unused_columns=False,
            disable_tqdm=True,
            **settings,
        )
    except TypeError as error:
        raise UserError(
            f"{str(error).partition(') ')[2] or error}; expected arguments of "
            "transformers.TrainingArguments"
        ) from None
    processes, devices = found.world_size, found.n_gpu
    if devices > 1:
        raise UserError(
            f"this one process sees {devices} GPUs; type: accelerate launch --num_processes "
            f"{devices} ..., or set CUDA_VISIBLE_DEVICES to one of them"
        )
    micro = min(found.per_device_train_batch_size, -(-course.batch // processes))
    if course.batch % (micro * processes):
        raise UserError(
            f"a batch of {course.batch} blocks cannot be split into {micro} for each of "
            f"{processes} process{'es' if processes > 1 else ''}; choose a batch that can, or "
            "another per_device_train_batch_size"
        )
    found.per_device_train_batch_size = micro
    found.gradient_accumulation_steps = course.batch // (micro * processes)
    return found


def _updates(course: Course, reading: Reading) -> int:
    return max(1, round(course.tokens / (course.batch * reading.block)))


def _check(model: Any, words: PreTrainedTokenizerFast, course: Course) -> None:
    for name in ("tokens", "batch"):
        if getattr(course, name) < 1:
            raise UserError(f"{name} is {shown(getattr(course, name))}; expected at least 1")
    if course.resample is not None and not 0 < course.resample <= 1:
        raise UserError(
            f"resample is {shown(course.resample)}; expected a share of the batches, above 0 and "
            "at most 1"
        )
    rows = model.get_input_embeddings().weight.shape[0]
    if entries(words) > rows:
        raise UserError(
            f"the tokenizer has {entries(words)} entries and the model embeds {rows} tokens; "
            "type: layerlab adapt embed MODEL --tokenizer DIR --out DIR"
        )


def _context(model: Any) -> int | None:
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    return Subject(name="", source="memory", model=whole, tokenizer=None).context


def _plan(
    text: Mixed,
    course: Course,
    reading: Reading,
    ratio: Sequence[int | float],
    arguments: Mapping[str, Any],
) -> dict[str, Any]:
    """What may not change between two sittings of a run."""
    return {
        "text": text.corpus.digest,
        "ratio": list(ratio),
        **asdict(course),
        **asdict(replace(reading, cache=None)),
        "arguments": {name: str(value) for name, value in sorted(arguments.items())},
    }


def _planned(out: Path, plan: dict[str, Any]) -> None:
    """Keep what a run was begun with, or compare it.

    Raises:
        UserError: the folder holds a run that was begun with something else.
    """
    plan = json.loads(json.dumps(plan))
    file = out / PLAN
    if not file.is_file():
        write_file(file, json.dumps(plan, indent=1) + "\n")
        return
    kept = json.loads(file.read_text(encoding="utf-8"))
    other = [name for name, value in plan.items() if kept.get(name) != value]
    if other:
        raise UserError(
            f"{out} holds a run with another {other[0]} ({shown(kept.get(other[0]))}, not "
            f"{shown(plan[other[0]])}); name another folder, or remove that one"
        )


def _latest(out: Path) -> str | None:
    """The newest checkpoint that was written to its end; its state is written last."""
    found = []
    for folder in out.glob("checkpoint-*"):
        try:
            state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
            found.append((int(state["global_step"]), str(folder)))
        except (OSError, ValueError, KeyError):
            continue
    return max(found)[1] if found else None
