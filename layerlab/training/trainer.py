"""One run: a loop over accelerate that can be stopped and resumed without a differing bit."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layerlab.console.progress import NullProgress, Progress
from layerlab.corpus.batches import Batch, BatchOrder, EvalBlocks
from layerlab.errors import UserError
from layerlab.model.loss import causal_loss
from layerlab.records.checkpoint_names import CHECKPOINTS
from layerlab.records.events import EventLog
from layerlab.system.hardware import CatchOutOfMemory, explain_memory, is_cut_off
from layerlab.system.rng import random_state, restore_random
from layerlab.system.signals import GracefulStop, Stopped
from layerlab.training.accelerator import RunAccelerator
from layerlab.training.checkpoints.checkpoint import CheckpointManager, CheckpointState, restoring
from layerlab.training.checkpoints.origin import RUN, load_own
from layerlab.training.checkpoints.parts import hash_together
from layerlab.training.checkpoints.result import fingerprint, keep_model, write_result
from layerlab.training.checkpoints.trackers import trackers
from layerlab.training.flops import flops_per_token
from layerlab.training.generate import generate_samples
from layerlab.training.lr_schedule import lr_at
from layerlab.training.manifest import Session, keep_manifest, manifest, read_sessions
from layerlab.training.monitor.monitor import Monitor
from layerlab.training.optimizer import allocate, build_optimizer
from layerlab.training.qk_control.penalties import QKControl
from layerlab.training.run_spec import RunSpec
from layerlab.training.setup import build_model, load_corpus
from layerlab.training.sharding import (
    any_process,
    full_tensor,
    gather_weights,
    is_sharded,
    restore_state,
    without_sync,
)
from layerlab.training.step.emulated_rounding import emulation
from layerlab.training.step.keyed_dropout import key_dropout
from layerlab.training.step.microbatch import SMALLER, MicroBatcher
from layerlab.training.step.nonfinite import Diverged, NonFiniteOrigin, explain_origin, find_origin
from layerlab.training.validation import ValidationResult, Validator


@explain_memory(SMALLER)
def train_run(run: RunSpec, folder: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Train the run of a folder from where it stands to its end; return its result.

    Raises:
        UserError: the loss is not finite, or memory or the disk does not suffice.
        Stopped: a signal asked to stop; a checkpoint was left, unless a compiler was at work.
    """
    training = Trainer(run, folder, progress or NullProgress())
    training.start()
    with GracefulStop(is_cut_off) as halt:
        while not training.done:
            training.advance()
            if any_process(training.place.accelerator, halt.wanted) and not training.done:
                training.checkpoint()
                raise Stopped(128 + training.place.pick_first(halt.signal))
    return training.finish()


class Trainer:
    """A run in progress: model, optimizer, and position in the text."""

    alone = True  # in its process, whose peak of memory is then the run's

    def __init__(self, run: RunSpec, folder: Path, progress: Progress) -> None:
        """Build the model, and go on from the newest checkpoint where there is one.

        Raises:
            UserError: what the recipe asks for cannot be had here, the text is not what the run was
                planned on, or the folder holds another run.
        """
        self.run, self.folder, self.progress = run, folder, progress
        # By the run itself and nobody else: what a manifest says of a text is what was read.
        self.corpus = corpus = load_corpus(run)
        self.recipe = run.recipe
        self.train = run.recipe.train
        self.block, self.updates = run.recipe.data.block_size or 0, self.train.max_steps or 0
        self.place = RunAccelerator(run.recipe)
        self.model = build_model(run, self.place.device)
        self.control = QKControl(self.model, run.recipe.control)
        self.wrapped = self.place.wrap(self.model)
        optimizer = build_optimizer(self.model, self.train)
        self.optimizer = self.place.accelerator.prepare_optimizer(optimizer)
        every = run.recipe.monitor.interval
        self.monitor = Monitor(self.model, every=every, on_alarm=None) if every else None
        self.order = BatchOrder(corpus, self.block, self.train.seed)
        self.eval_blocks = EvalBlocks(corpus, self.block, run.recipe.evaluate.max_eval_blocks)
        share = self.train.batch_size // self.place.processes
        self.split = MicroBatcher(share, self.train.micro_batch_size)
        self.reader = Validator(self.eval_blocks, self.place, run.recipe.evaluate.batch_size)
        # Where weights are shared out, even a rehearsal waits for all processes.
        self.rehearsed = self.place.processes == 1 or is_sharded(self.wrapped)
        self.flops = flops_per_token(run.recipe).full * self.train.batch_size * self.block
        self.update, self.seconds, self.resumes = 0, 0.0, 0
        self.sessions: list[Session] = []
        self.losses: float | None = 0.0  # of all updates; an earlier version kept none
        self.score: ValidationResult | None = None
        self.step0: float | None = None
        self.saver = CheckpointManager(folder / CHECKPOINTS, run.recipe.run.save_total_limit)
        remarks, events = self._resume()
        allocate(self.optimizer)
        self.journal = EventLog(folder, events, silent=not self.place.first)
        self.model.register_forward_pre_hook(lambda *_, beat=self.journal.beat: beat())
        # On its text: it holds for all runs alike, and whoever planned them tells it once.
        for text in corpus.notes if self.update == 0 else ():
            self.journal.write("note", 0, text=text)
        for text in remarks:
            self.note(text)

    @property
    def done(self) -> bool:
        """Return whether all updates are done."""
        return self.update >= self.updates

    def start(self) -> None:
        """Write the manifest, and evaluate the model before its first update.

        Raises:
            UserError: a tracker is asked for that is not installed.
        """
        names = self.recipe.run.report_to if self.place.first else ()
        self.trackers = trackers(names, self.folder, self.recipe.decisive())
        if self.place.first:
            texts = self.corpus, self.order, self.eval_blocks
            content = manifest(self.run, *texts, self.split.size, shared=self.place.shared)
            self.sessions, remark = keep_manifest(content, self.folder, self.sessions, self.update)
            if remark is not None:
                self.note(remark)
        if self.step0 is None:
            self._evaluate()

    def note(self, text: str) -> None:
        """Show a note to the user, and write it to the journal."""
        self.progress.note(text)
        self.journal.write("note", self.update, text=text)

    def advance(self) -> None:
        """Do one update, and what is due after it: evaluation, samples, checkpoint."""
        start = time.perf_counter()
        loss, norm, rate = self._step()
        self.update += 1
        self.losses = None if self.losses is None else self.losses + loss
        self.seconds += time.perf_counter() - start
        last = self.update == self.updates
        if last or self.update % max(1, self.updates // self.recipe.run.log_points) == 0:
            self._count("train", loss=loss, rate=rate, norm=norm, **self.control.summary())
        if last or self.update % (self.recipe.evaluate.eval_steps or self.updates) == 0:
            self._evaluate()
        every = self.recipe.run.save_steps or max(1, self.updates // 10)
        if not last and self.update % every == 0:
            self.checkpoint()

    def _step(self) -> tuple[float, float, float]:
        """Do one optimizer step; return loss, gradient norm and learning rate."""
        rate = lr_at(self.update, self.updates, self.train)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("lr_factor", 1.0)
        loss = self._gradient()
        norm = self._clip_gradient()
        # In float16 a gradient too large to be held makes the scaler pass over an update.
        held = torch.isfinite(norm) | (self.train.mixed_precision == "fp16")
        if not bool(torch.isfinite(loss) & held):
            raise self._explain_divergence(loss)
        if self.monitor is not None:
            self.monitor.step(loss, norm)
            self._write_readings()
        self.optimizer.step()
        self.control.after_update()
        return float(loss), float(norm), rate

    def _gradient(self) -> Tensor:
        """Compute the batch's gradients and mean loss, in smaller pieces where memory runs out."""
        rows = self._rows()
        self._rehearse(rows)
        while True:
            with CatchOutOfMemory(bears=self.place.processes == 1) as short:
                loss = self.place.sum(self._accumulate_gradients(rows))
            if not short.found:
                return loss
            self.optimizer.zero_grad()
            self.note(self.split.halve())

    def _rehearse(self, rows: Batch) -> None:
        """Agree on a micro-batch size that fits every process, by trying one in each.

        In an update itself the others would wait for the gradients of the one that gave up.
        """
        while not self.rehearsed:
            with CatchOutOfMemory() as short, self._run_piece(0):
                self.place.accelerator.backward(self._loss(rows[: self.split.size], self.model))
            self.optimizer.zero_grad()
            self.rehearsed = not any_process(self.place.accelerator, short.found)
            if not self.rehearsed:
                self.note(self.split.halve())

    def _rows(self) -> Batch:
        """Return this process's rows of the batch."""
        batch = self.order.batch(self.update, self.train.batch_size)
        return batch.part(self.place.rank, self.place.processes).to(self.place.device)

    def _accumulate_gradients(self, rows: Batch) -> Tensor:
        """Accumulate the gradients of all micro-batches; every token has the same weight."""
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.place.device)
        for first, piece in self.split.pieces(rows):
            last = first + len(piece) == len(rows)
            # Processes exchange their gradients once an update.
            alone = last or self.place.processes == 1
            joined = nullcontext() if alone else without_sync(self.wrapped)
            with joined, self._run_piece(first):
                loss = self._loss(piece, self.wrapped)
                objective = self._objective(loss, last)
                # Several processes average their gradients; here they are to be added.
                self.place.accelerator.backward(objective * self.place.processes)
            total += loss.detach()
        return total

    @contextmanager
    def _run_piece(self, first: int) -> Iterator[None]:
        """Run a piece under its own dropout and emulated rounding."""
        first += self.train.batch_size * self.place.rank // self.place.processes
        when = (self.train.seed, self.update, first)
        with emulation(self.model, self.recipe.emulate, *when), key_dropout(self.model, *when):
            yield

    def _objective(self, loss: Tensor, last: bool) -> Tensor:
        """Add the penalties, once per update and not per micro-batch."""
        extra = self.control.loss() if last else None
        # Every process adds it, and what they add is summed up.
        return loss if extra is None else loss + extra / self.place.processes

    def _loss(self, rows: Batch, model: Any) -> Tensor:
        """Return what a piece adds to the mean loss of its batch."""
        with self.place.precision():
            output = model(input_ids=rows.inputs, position_ids=rows.positions, use_cache=False)
        return causal_loss(
            output.logits,
            rows.targets,
            output.logits.shape[-1],
            num_items_in_batch=self.train.batch_size * self.block,
            shift_labels=rows.targets,
        )

    def _clip_gradient(self) -> Tensor:
        """Clip the gradient; return its norm before."""
        limit = self.train.max_grad_norm or float("inf")
        return full_tensor(self.place.accelerator.clip_grad_norm_(self.model.parameters(), limit))

    def _explain_divergence(self, loss: Tensor) -> UserError:
        """Find the layer that made the first number of the batch that is not finite."""
        found = None if (sharded := is_sharded(self.wrapped)) else self._origin()
        text = explain_origin(found, float(loss), self.update, self.train, sharded=sharded)
        self.journal.write("note", self.update, text=text)
        self.finish(diverged=text)
        self.place.wait()
        return Diverged(text)

    def _origin(self) -> NonFiniteOrigin | None:
        """Find the origin in the unwrapped model: a wrapper would wait for the other processes."""
        rows = self._rows()

        def again(first: int, piece: Batch) -> Tensor:
            with self._run_piece(first):
                loss = self._loss(piece, self.model)
                return self._objective(loss, first + len(piece) == len(rows))

        tried = (find_origin(self.model, partial(again, *one)) for one in self.split.pieces(rows))
        return self.place.pick_first(next(filter(None, tried), None))

    def _write_readings(self) -> None:
        """Write the monitor's readings and alerts since the last call."""
        rows, alarms = self.monitor.news() if self.monitor is not None else ([], [])
        if rows:
            self._tell("monitor", readings=rows)
        for alarm in alarms:
            self.progress.note(alarm["text"])
            self._tell("alarm", **alarm)

    def _evaluate(self) -> None:
        start = time.perf_counter()
        self.score = score = self.reader.score(self.model, self.note)
        if self.update == 0:
            self.step0 = score.nats
        self._count("evaluation", **score.means(), runtime=round(time.perf_counter() - start, 4))
        with self.place.precision():
            for prompt, text in generate_samples(self.model, self.corpus, self.recipe.evaluate):
                self._tell("sample", prompt=prompt, text=text)

    def _count(self, kind: str, **content: Any) -> None:
        """Write an event with the update and the tokens so far."""
        self._tell(
            kind,
            tokens=self.update * self.train.batch_size * self.block,
            seconds=round(self.seconds, 4),
            flops=self.update * self.flops,
            **content,
        )

    def _tell(self, kind: str, **content: Any) -> None:
        event = self.journal.write(kind, self.update, **content)
        self.progress.update(self.run.name, event)
        self.trackers.take(event)

    def checkpoint(self) -> None:
        """Write a checkpoint: where weights are sharded, every process its own part."""
        self.journal.settle()
        state = CheckpointState(
            weights=self.model.state_dict(keep_vars=True),
            optimizer=self.optimizer.state_dict(),
            counters={
                "update": self.update,
                "seconds": self.seconds,
                "losses": self.losses,
                **self.journal.mark(),
                RUN: self.run.identity,
                "sittings": self.sessions,
                "shared": self.place.shared,
                "resumes": self.resumes,
                "micro_batch": self.split.size,
                "reading": self.reader.size,
                "step0_nats": self.step0,
                "clipped": self.control.untold,
                "monitor": None if self.monitor is None else self.monitor.state(),
            },
            random=random_state(),
            extra=self.place.scaler_state(),
        )
        if (remark := self.saver.save(state, self.place.rank, self.place.processes)) is not None:
            self.note(remark)
        self.place.wait()

    def _resume(self) -> tuple[list[str], int]:
        """Resume from the newest checkpoint, and note what was wrong with newer ones."""
        hasher = partial(hash_together, self.place.rank, self.place.processes)
        state, remarks = load_own(self.run.identity, self.folder, hasher)
        if state is None:
            return remarks, 0
        with restoring(dict(self.model.state_dict()), state, self.saver.folder):
            restore_state(self.model, self.optimizer, state, self.place.processes)
            restore_random(state.random)
            self.place.restore_scaler(state.extra)
            kept = state.counters
            self.update, self.seconds = kept["update"], kept["seconds"]
            self.resumes, self.losses = kept["resumes"] + 1, kept.get("losses")
            self.split.size, self.step0 = kept["micro_batch"], kept["step0_nats"]
            self.reader.size = kept.get("reading", self.reader.size)
            self.control.untold = kept.get("clipped", 0)
            self.sessions = kept.get("sittings") or read_sessions(self.folder)
            self.place.shared |= kept.get("shared", False)
            if self.monitor is not None:
                self.monitor.restore(kept["monitor"])
            return [*remarks, f"resumed after update {self.update}"], kept["events"]

    def finish(self, diverged: str | None = None) -> dict[str, Any]:
        """Write the result, and the model where there is one worth keeping."""
        self.control.finish()
        self.journal.settle()
        score = None if diverged else self.score
        weights = gather_weights(self.model, keep=self.place.first)
        tokens = self.update * self.train.batch_size * self.block
        speed = tokens / self.seconds if self.seconds and not self.place.shared else None
        result = {
            "run": self.run.name,
            "arm": self.run.arm,
            "seed": self.run.seed,
            "rate": self.run.rate,
            **(score.means() if score else dict.fromkeys(("nats", "bits_per_byte", "accuracy"))),
            "step0_nats": self.step0,
            "train_loss": self.losses / self.update if self.losses else None,
            "updates": self.update,
            "tokens": tokens,
            "seconds": self.seconds,
            "tokens_per_second": speed,
            "peak_memory_bytes": self.place.peak_memory() if self.alone else None,
            "parameters": self.model.num_parameters(),
            "flops": self.update * self.flops,
            "diverged": diverged,
            "weights": fingerprint(weights),
            "resumes": self.resumes,
            "micro_batch": self.split.size,
            "blocks": score and score.blocks,
        }
        if self.place.first:
            if diverged is None and self.recipe.run.save_model:
                keep_model(self.folder, self.model, self.corpus.tokenizer, weights)
            result = write_result(self.folder, result)
        self.trackers.finish()
        self.progress.end(self.run.name, "diverged" if diverged else "finished")
        return result
