"""One sitting of a run: Trainer goes on from what the folder remembers of those before."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import get_total_norm
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from layerlab.errors import UserError
from layerlab.records.parse import read_json
from layerlab.system.files import write_file, write_folder
from layerlab.training.sharding import full_tensor
from layerlab.validation import short_repr

PLAN, RESULT, MODEL = "plan.json", "result.json", "model"


def check_same_plan(out: Path, plan: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Keep the plan that a run begins with, or compare with the one it began with.

    Args:
        plan: what may not change between two sittings.
        arguments: of the caller for Trainer, which may not either.

    Raises:
        UserError: the folder holds a run that was begun with something else.
    """
    told = {name: str(value) for name, value in sorted(arguments.items())}
    plan = json.loads(json.dumps({**plan, "arguments": told}))
    file = out / PLAN
    if not file.is_file():
        write_file(file, json.dumps(plan, indent=1, ensure_ascii=False) + "\n")
        return
    kept = read_json(file)
    if other := [name for name, value in plan.items() if kept.get(name) != value]:
        raise UserError(
            f"{out} holds a run with another {other[0]} ({short_repr(kept.get(other[0]))}, not "
            f"{short_repr(plan[other[0]])}); name another folder, or remove that one"
        )


def newest_checkpoint(out: Path) -> str | None:
    """Return the newest checkpoint that was written to its end.

    Its state is written last.
    """
    found = []
    for folder in out.glob("checkpoint-*"):
        try:
            state = read_json(folder / "trainer_state.json")
            found.append((int(state["global_step"]), str(folder)))
        except (OSError, ValueError, KeyError):
            continue
    return max(found)[1] if found else None


def build_trainer(
    model: Any,
    settings: TrainingArguments,
    *,
    rows: Dataset[Any],
    collator: Callable[..., Any],
    loss: Callable[..., Any],
) -> Trainer:
    """Build a Trainer that prints nothing.

    Args:
        loss: of the outputs, the labels and the number of labels in the update.
    """
    with _uncached(model):  # Trainer turns the cache off, and leaves it so
        found = Trainer(
            model=model,
            args=settings,
            data_collator=collator,
            train_dataset=rows,
            compute_loss_func=loss,
        )
    found.remove_callback(PrinterCallback)
    return found


class FiniteGradientCallback(TrainerCallback):
    """Ends a run before an update by what is no number; Trainer goes on, and logs no such loss."""

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
        kept = newest_checkpoint(self.out)
        precision = ", or leave bf16 out" if args.bf16 else ""
        raise UserError(
            f"{self.stage}: the loss or its gradient is not finite at update "
            f"{state.global_step + 1:,} of {state.max_steps:,}; lower the learning rate (now "
            f"{args.learning_rate:g}){precision}; "
            + (f"the checkpoint before it is kept: {kept}" if kept else "no checkpoint was due yet")
        )


def resume(trainer: Trainer, out: Path, stage: str) -> None:
    """Train to the end, from the newest whole checkpoint where there is one.

    Args:
        stage: what it is called where it cannot go on.

    Raises:
        UserError: a gradient is not finite.
    """
    trainer.add_callback(FiniteGradientCallback(stage, out))
    with _uncached(trainer.model):
        trainer.train(resume_from_checkpoint=newest_checkpoint(out))


def remember_plan(out: Path, fill: Callable[[Path], None], result: Mapping[str, Any]) -> None:
    """Write the model, whole or not at all, and then the result of the run."""
    write_folder(out / MODEL, fill, "model", like=lambda _: True)
    write_file(out / RESULT, json.dumps(result, indent=1, ensure_ascii=False) + "\n")


@contextmanager
def _uncached(model: Any) -> Iterator[None]:
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
