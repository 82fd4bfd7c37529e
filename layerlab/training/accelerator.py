"""Device, precision and processes of a run, as accelerate provides them."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import InitProcessGroupKwargs, gather_object
from torch import Tensor, nn

from layerlab.errors import UserError
from layerlab.recipes.checks import validate
from layerlab.recipes.training import TrainingRecipe
from layerlab.system.hardware import is_device_shared, peak_memory
from layerlab.training.sharding import check, wrap_model

PRECISIONS = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def select_device(name: str) -> None:
    """Make the device that has a number in its name the current one, which accelerate takes.

    Raises:
        UserError: there are fewer of its kind here.
    """
    kind, _, number = name.partition(":")
    seen = torch.accelerator.current_accelerator()
    if not number or seen is None or seen.type != kind:
        return
    if int(number) >= (count := torch.accelerator.device_count()):
        raise UserError(
            f"run.device is {name!r}, and PyTorch sees {count} of {kind} here, from {kind}:0 on; "
            f'write device = "{kind}:{count - 1}", or "{kind}"'
        )
    torch.accelerator.set_device_index(int(number))


class RunAccelerator:
    """The accelerator of a run, checked against what its recipe asks for.

    Attributes:
        shared: whether other runs computed on its device in any session: its speed is nobody's.
    """

    def __init__(self, recipe: TrainingRecipe) -> None:
        """Set up the device and precision that a recipe asks for.

        Raises:
            UserError: the run is not permitted, there is no such device here, or several processes
                were asked for and are not there.
        """
        validate(recipe)
        device, precision = recipe.run.device, recipe.train.mixed_precision
        select_device(device)
        # Accelerate keeps its choices for a whole process; an earlier run may have made others.
        if AcceleratorState._shared_state.get("_mixed_precision") != PRECISIONS[precision]:
            AcceleratorState._reset_state()
        if PartialState._shared_state and PartialState().device.type != device.partition(":")[0]:
            PartialState._reset_state()
        self.accelerator = Accelerator(
            cpu=device == "cpu",
            mixed_precision=PRECISIONS[precision],
            device_placement=True,
            kwargs_handlers=[
                # One that says nothing for longer has hung, and the others end.
                InitProcessGroupKwargs(timeout=timedelta(minutes=recipe.run.timeout_minutes))
            ],
        )
        self.device: torch.device = self.accelerator.device
        if self.device.type != device.partition(":")[0]:
            raise UserError(
                f"run.device is {device!r}, and there is none here (PyTorch sees "
                f'{self.device.type}); write device = "{self.device.type}"'
            )
        if ":" in device:
            self.device = torch.device(device)
        check(self.accelerator, recipe.run)
        self.shared = is_device_shared()
        self._settings = recipe.run
        self._mixed = precision != "fp32"

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return int(self.accelerator.process_index)

    @property
    def processes(self) -> int:
        """The number of processes of the run."""
        return int(self.accelerator.num_processes)

    @property
    def first(self) -> bool:
        """Return whether this process writes the files."""
        return bool(self.accelerator.is_main_process)

    def precision(self) -> AbstractContextManager[Any]:
        """Compute a forward pass in the precision of the recipe."""
        autocast: AbstractContextManager[Any] = (
            self.accelerator.autocast() if self._mixed else nullcontext()
        )
        return autocast

    def wrap(self, model: nn.Module) -> Any:
        """Return the model on its device, wrapped for several processes where there are any."""
        model.to(self.device)
        return wrap_model(model, self.accelerator, self._settings)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all processes."""
        if self.processes == 1:
            return values
        total: Tensor = self.accelerator.reduce(values.to(self.device), reduction="sum")
        return total

    def wait(self) -> None:
        """Wait for all processes: what the first writes is there when any of them goes on.

        Whoever started them ends all once one has ended in another way than well.
        """
        self.accelerator.wait_for_everyone()

    def pick_first(self, own: Any) -> Any:
        """Return what the first process that found something has found; None if none has."""
        return next(filter(None, gather_object([own])), None)

    def scaler_state(self) -> dict[str, Any]:
        """Return the state of the gradient scaler of float16, for a checkpoint."""
        scaler = self.accelerator.scaler
        return {} if scaler is None else {"scaler": scaler.state_dict()}

    def restore_scaler(self, state: Mapping[str, Any]) -> None:
        """Set the gradient scaler to the state that a checkpoint has of it."""
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])

    def peak_memory(self) -> int:
        """Return the most bytes that each process took, added up; every process must call this."""
        own = torch.tensor([peak_memory(self.device)], dtype=torch.float64)
        return int(self.sum(own))
