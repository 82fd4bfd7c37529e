"""`Monitor`: what goes on inside a model while any loop trains it."""

import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from layerlab.errors import UserError
from layerlab.observe.tracing.compiled import is_compiled, run_uncompiled
from layerlab.records.json_values import json_values
from layerlab.system.rng import keep_device_state
from layerlab.training.monitor.alerts import Alert, Limits, TrainingAlert
from layerlab.training.monitor.arguments import OnAlarm, check_settings, read_number
from layerlab.training.monitor.capture import Recording, Sample, name_arguments
from layerlab.training.monitor.compiled_call import CompiledCall
from layerlab.training.monitor.readings import Reading
from layerlab.training.monitor.rules import Rules
from layerlab.training.monitor.table import ReadingTable
from layerlab.training.monitor.wrapped_model import find_parts, unwrap_model

if TYPE_CHECKING:
    import pandas as pd

ReadingLog = Callable[[dict[str, float]], object]


class Monitor:
    """Reads a model while it trains, and warns before training fails.

    A reading listens to the training step itself: hooks are put on for that step alone, copy the
    beginning of a few sequences, and are taken off; nothing is computed twice. A compiled model
    calls no hooks: there the few sequences pass once more, uncompiled, before the step. Weights,
    gradients and random numbers are left as they are. Read are the first update and every
    `every`-th after it; of a batch that is taken in pieces, the first piece.

    Attributes:
        alarms: all that were given.
        notes: what could not be read, and why.
        updates: how many are finished, by the calls of `step`.

    Example:
        >>> from layerlab import Monitor, build
        >>> model = build("llama", width=16, layers=2, heads=2, vocab=64, context=16).train()
        >>> monitor = Monitor(model, every=100)
        >>> tokens = torch.arange(32).view(2, 16)
        >>> loss = model(input_ids=tokens, labels=tokens).loss
        >>> loss.backward()
        >>> monitor.step(loss)
        []
        >>> monitor.frame().query("measure == 'score'")[["update", "layer", "head"]].shape
        (4, 3)
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 100,
        *,
        sequences: int = 1,
        tokens: int = 256,
        limits: Limits | None = None,
        on_alarm: OnAlarm | str = "warn",
    ) -> None:
        """Watch a model.

        Args:
            model: a causal language model of transformers, also wrapped (DDP, torch.compile, PEFT);
                best the very object that the loop calls.
            every: updates between two readings.
            sequences: of the batch that are read.
            tokens: at the beginning of each that are read.
            limits: at which alarms are given.
            on_alarm: "warn", "raise", a function that is handed the alarm, or None. They are kept
                in `alarms` in any case.

        Raises:
            UserError: it is no such model, or a setting is not one.
        """
        check_settings(every, sequences, tokens, on_alarm)
        if limits is not None and not isinstance(limits, Limits):
            raise UserError(f"limits={limits!r} are no Limits; type limits=layerlab.Limits()")
        self.model, self._faces = unwrap_model(model)
        self._stack = find_parts(self.model)
        self.every = every
        self.on_alarm = on_alarm
        self.alarms: list[Alert] = []
        self.notes: dict[str, str] = {}
        self.updates = 0
        self._sample = Sample(sequences=sequences, tokens=tokens)
        self._rules = Rules(limits or Limits())
        self._table = ReadingTable()
        self._news_counts = [0, 0]
        self._latest: dict[str, float] = {}
        self._checked = False
        self._refused: set[int] = set()
        self._early = False
        self._handles: list[Any] = []
        self._session, self._uncompiled = ExitStack(), ExitStack()
        weakref.finalize(self, self._uncompiled.close)  # it holds for the whole process
        self._recording: Recording | None = None
        self._within: nn.Module | None = None
        self._arm()

    def step(
        self, loss: Tensor | float | None = None, norm: Tensor | float | None = None
    ) -> list[Alert]:
        """Say that an update is about to be made: after backward, before the optimizer's step.

        Args:
            loss: of the batch; without it nothing is said about it.
            norm: of the whole gradient before it was clipped, as `clip_grad_norm_` gives it;
                gradients are then told as they were before, too.

        Returns:
            the alarms of this update.

        Raises:
            TrainingAlert: there is one, and `on_alarm` is "raise".
        """
        size = read_number("norm", norm)
        alarms = self._rules.update(self.updates, read_number("loss", loss), size)
        if self._handles:
            alarms += self._read(size)
        self.updates += 1
        self._arm()
        self._give(alarms)
        return alarms

    def judge(
        self, loss: Tensor | float | None = None, norm: Tensor | float | None = None
    ) -> list[Alert]:
        """Judge a loss or a norm that the loop knows only after the update.

        Raises:
            TrainingAlert: there is an alert, and `on_alarm` is "raise".
        """
        numbers = read_number("loss", loss), read_number("norm", norm)
        alarms = self._rules.update(self.updates, *numbers)
        self._give(alarms)
        return alarms

    def frame(self) -> "pd.DataFrame":
        """Return all readings: update, layer, head (if any), measure, value."""
        return self._table.frame()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of all readings, in the form of `frame`."""
        return self._table.rows()

    @property
    def latest(self) -> dict[str, float]:
        """Return the newest reading: for each measure the worst over layers and heads."""
        return dict(self._latest)

    def news(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return readings and alarms since this was last asked, as JSON values.

        Without their update.
        """
        rows = self._table.rows(self._news_counts[0])
        alarms = [alarm.event() for alarm in self.alarms[self._news_counts[1] :]]
        self._news_counts = [len(self._table), len(self.alarms)]
        for row in rows:
            del row["update"]
        return json_values(rows, infinities=False), json_values(alarms, infinities=False)

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs to go on as if never interrupted, as JSON values."""
        return {"updates": self.updates, "rules": self._rules.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; readings and alarms so far stay as they are.

        Raises:
            UserError: it is no state of a monitor.
        """
        try:
            self.updates = int(state["updates"])
            if "rules" in state:
                self._rules.restore(state["rules"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"a {type(state).__name__} is no state of a monitor ({type(error).__name__}: "
                f"{error}); expected what state() returned: type monitor.restore(saved)"
            ) from error
        self.close()
        self._arm()

    def callback(self, log: ReadingLog | None = None) -> "MonitorCallback":
        """Return a callback for transformers' Trainer: `callbacks=[monitor.callback()]`.

        Args:
            log: is handed each reading, one number for each measure; `trainer.log` passes it on to
                whatever the Trainer reports to.
        """
        return MonitorCallback(self, log)

    def close(self) -> None:
        """Remove the hooks of a reading that is still to come."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._session.close()
        self._uncompiled.close()
        self._recording = self._within = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Monitor":
        """Return nothing for a copy of the model, such as an average of its weights."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return as good as nothing where a model is saved whole, which is not watched then."""
        return {"_faces": [], "_within": None}

    def _arm(self) -> None:
        """Set hooks for the coming update, if it is to be read."""
        if self.updates % self.every:
            return
        for face in self._faces:
            if face._compiled_call_impl is not None:
                self._handles.append(CompiledCall(face, self._begin, self._end))
                continue
            begin = face.register_forward_pre_hook(self._begin, with_kwargs=True)
            # Of two monitors the one that began to listen last is the first to end.
            end = face.register_forward_hook(self._end, always_call=True, prepend=True)
            self._handles += [begin, end]
        if self._early:  # until the step: what is checkpointed is then computed again the same way
            self._uncompiled.enter_context(torch.compiler.set_stance("force_eager"))

    def _begin(self, module: nn.Module, args: Any, options: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not self._faces:
            return
        if module is self._within:  # its last call was broken off by Ctrl-C, which ends no hook
            self._end(module, args, None)
        named = name_arguments(self.model, args, options)
        if self._recording is not None and self._within is not None and module is self.model:
            self._recording.call(named)  # a wrapper may put tokens in front
        if self._recording is not None or not any(module is face for face in self._faces):
            return
        self._follow()
        self._recording = Recording(self._stack, self._sample, named, not self._checked)
        try:
            if is_compiled(module):
                self._pass_beside(self._recording, args, options)
            else:
                self._session.enter_context(self._recording.listening(self.model))
        except Exception as error:  # training goes on
            self._session.close()
            self.notes["hooks"] = f"{type(error).__name__}: {error}"
        self._within = module

    def _follow(self) -> None:
        """Find the blocks again: they may be replaced, added and removed while a model trains."""
        try:
            stack = find_parts(self.model)
        except UserError as error:  # training goes on
            self.notes["blocks"] = str(error)
            return
        if stack != self._stack:
            self._stack, self._checked = stack, False
            self._refused.clear()

    def _pass_beside(self, recording: Recording, args: Any, options: dict[str, Any]) -> None:
        """Read the sampled sequences in a pass of their own: compiled code calls no hooks."""
        args, options = self._sample.cut((args, options))
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(keep_device_state())
            stack.enter_context(run_uncompiled(self._faces[0]))
            stack.enter_context(recording.listening(self.model))
            self.model(*args, **options)

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or module is not self._within:
            return
        self._within = None
        self._session.close()
        if output is None:  # it failed, for want of memory perhaps, and may be tried again
            self._recording = None

    def _read(self, norm: float | None) -> list[Alert]:
        recording = self._recording
        self.close()
        if recording is None:
            # The loop calls another object that compiled this one: its hooks were never asked.
            self._early = True
            self._follow()
            self.notes["forward"] = (
                "a forward pass was not heard; give Monitor the very object that the loop calls, "
                "such as the model that is compiled as a whole"
            )
        reading = Reading(self.model, self._stack, self._refused)
        reading.take(recording, norm)
        self._checked = self._checked or (recording is not None and bool(recording.attention_calls))
        self.notes |= reading.notes
        self._table.add(self.updates, reading.rows)
        self._latest = reading.summary()
        return self._rules.reading(self.updates, reading.rows, norm is not None)

    def _give(self, alarms: list[Alert]) -> None:
        self.alarms += alarms
        for alarm in alarms:
            if self.on_alarm == "warn":
                warnings.warn(str(alarm), RuntimeWarning, stacklevel=3)
            elif callable(self.on_alarm):
                self.on_alarm(alarm)
        if alarms and self.on_alarm == "raise":
            raise TrainingAlert(alarms[0])


class MonitorCallback(TrainerCallback):
    """Reads where the Trainer is about to update; `Monitor.callback()` makes it.

    A reading goes into the Trainer's log history as an entry of its own, one number for each
    measure. The Trainer tells a callback its loss only where it logs, so it is judged there; it has
    clipped the gradients before, and they are told as they are then.
    """

    def __init__(self, monitor: Monitor, log: ReadingLog | None = None) -> None:
        self.monitor = monitor
        self._log = log
        self._logged = len(monitor.alarms)
        self._read = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count from where a resumed run stands."""
        self.monitor.restore({"updates": state.global_step})

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Read what the coming update is made from."""
        self._read = self.monitor.updates % self.monitor.every == 0
        self.monitor.step()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log a new reading, and the alarms since the last one."""
        if self._read:
            reading = {f"monitor/{name}": value for name, value in self.monitor.latest.items()}
            if self._log is None:
                state.log_history.append({"step": state.global_step, **reading})
            else:
                # A Trainer that has just logged would not log the loss that is due.
                due = control.should_log
                self._log(reading)
                control.should_log = due
        self._log_alarms(state)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Judge the mean loss and the gradient's norm since the last log."""
        if logs and "loss" in logs:
            self.monitor.judge(logs["loss"], logs.get("grad_norm"))
            self._log_alarms(state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Remove the hooks of a reading that will not come."""
        self.monitor.close()

    def _log_alarms(self, state: TrainerState) -> None:
        alarms = self.monitor.alarms[self._logged :]
        self._logged = len(self.monitor.alarms)
        if alarms:
            entry: dict[str, Any] = {"monitor/alarms": [str(alarm) for alarm in alarms]}
            state.log_history.append({"step": state.global_step, **entry})
