"""`Monitor` inside transformers' Trainer."""

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

if TYPE_CHECKING:
    from layerlab.training.monitor import Monitor


class MonitorCallback(TrainerCallback):
    """Reads where the Trainer is about to update; `Monitor.callback()` makes it.

    A reading goes into the Trainer's log history as an entry of its own, one number for each
    measure. The Trainer tells a callback its loss only where it logs, so it is judged there; it has
    clipped the gradients before, and they are told as they are then.
    """

    def __init__(self, monitor: "Monitor") -> None:
        self.monitor = monitor
        self._logged = 0
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
        alarms = self.monitor.alarms[self._logged :]
        self._logged = len(self.monitor.alarms)
        entry: dict[str, Any] = {}
        if self._read:
            entry = {f"monitor/{name}": value for name, value in self.monitor.latest.items()}
        if alarms:
            entry["monitor/alarms"] = [str(alarm) for alarm in alarms]
        if entry:
            state.log_history.append({"step": state.global_step, **entry})

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Judge the mean loss and the gradient's norm since the last log."""
        found = logs or {}
        if "loss" in found:
            self.monitor.judge(found["loss"], found.get("grad_norm"))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take off the hooks of a reading that will not come."""
        self.monitor.close()
