"""Checks settings for what a run cannot do, before it begins or reads its text.

Whatever hangs on the machine, or on a package that is not there, is told where it is needed.
"""

import difflib
import json
import re
from collections.abc import Mapping

from layerlab.errors import UserError
from layerlab.recipes.arms import arms, sides
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.recipes.training import TrainingRecipe
from layerlab.recipes.training_sections import ControlSection, warmup_of
from layerlab.validation import short_repr

DEVICES = ("cpu", "cuda", "cuda:N", "mps", "npu", "xpu")
_DEVICE = re.compile(r"cpu|mps|(cuda|npu|xpu)(:\d+)?")
# Attention that no CPU can train with, and why.
_ELSEWHERE = {
    "flex_attention": "it has no backward pass on a CPU",
    "flash_attention_2": "FlashAttention has no kernels for a CPU",
}


def check_arms(recipe: TrainingRecipe, *, several: bool) -> CompareSection | None:
    """Return the compare section of a recipe, which it has if it is to compare several arms.

    Raises:
        UserError: it compares nothing, or should not.
    """
    section, name = recipe.compare, short_repr(recipe.name)
    if several and section is None:
        raise UserError(
            f"the recipe {name} has no compare section; "
            "type layerlab train in place of layerlab compare, or name what to compare: "
            "--arms llama,gpt2"
        )
    if section is not None and not several:
        raise UserError(
            f"the recipe {name} compares several arms; "
            "type layerlab compare in place of layerlab train"
        )
    return section


def refuse_single_arm(recipe: TrainingRecipe) -> None:
    """Refuse to train a single arm: with one rate, one size, and no score or published value.

    Raises:
        UserError: a recipe compares it with nothing.
    """
    section = recipe.compare
    if section is None or recipe.ladder is not None or len(section.arms) > 1:
        return
    if len(section.learning_rates) < 2 and section.published is None and not section.measures:
        (arm,) = arms(section, recipe)
        pair = [str(arm.variant), "pangu-pi" if arm.variant == "llama" else "llama"]
        raise UserError(
            f"compare.arms has {short_repr(arm.name)} alone, which is held against none; expected "
            f"two or more: type --arms {','.join(pair)}, or write arms = {json.dumps(pair)}"
        )


def check_sides(recipe: TrainingRecipe) -> dict[str, TrainingRecipe]:
    """Return the recipe of each arm by name, once each of them can be carried out.

    Raises:
        UserError: as `sides`, `validate` or `check_lockstep`.
    """
    found = sides(recipe)
    for side in found.values():
        validate(side)
    if recipe.compare is not None and recipe.compare.lockstep:
        check_lockstep(found)
    return found


def check_lockstep(sides: Mapping[str, TrainingRecipe]) -> None:
    """Refuse arms that one process cannot train in lockstep, before anything is read.

    Args:
        sides: what each arm trains, by its name.

    Raises:
        UserError: another runner than this process is asked for, or several processes; or arms
            differ in their precision, of which a process has one, or in their text.
    """
    first = next(iter(sides))
    for setting, expected in (("executor", "local"), ("num_processes", 1)):
        given = getattr(sides[first].run, setting)  # which all arms share
        if given != expected:
            raise UserError(
                "compare.lockstep runs all arms in one process, here, and "
                f"run.{setting} is {json.dumps(given)}; write lockstep = false, or "
                f"{setting} = {json.dumps(expected)}"
            )
    precisions = sorted({side.train.mixed_precision for side in sides.values()})
    if len(precisions) > 1:
        raise UserError(
            f"compare.lockstep runs all arms in one process, and they ask for {precisions}; "
            "expected one train.mixed_precision: write lockstep = false"
        )
    for name, side in sides.items():
        if side.data.text() != sides[first].data.text():
            raise UserError(
                f"compare.lockstep shows all arms the same batch in turn, and {name!r} has another "
                f"text or tokenizer than {first!r}; write lockstep = false"
            )


def validate(recipe: TrainingRecipe) -> None:
    """Refuse a run that could only fail, or that would not do what its recipe says.

    Raises:
        UserError: a device that is none, or one for several processes; a precision or attention
            that it cannot train with, emulated rounding of what hides it, rows that cannot be
            split, sharding of nothing, a trial of runs that go elsewhere or have several processes,
            a setting that needs whole weights in every process, or a warm-up that leaves nothing of
            the run; control that excludes itself, or sees no scores.
    """
    for check in (_place, _flash, _emulate, _rising, _share, _trial, _whole, _control):
        check(recipe)


def check_control(section: ControlSection) -> None:
    """Refuse two ways at once to set the size of the query and key weights.

    Raises:
        UserError: it asks for both.
    """
    if section.qk_clip and section.sigma_reparam:
        raise UserError(
            "control.qk_clip and control.sigma_reparam both set the size of the query and key "
            "weights; choose one of them"
        )


def _place(recipe: TrainingRecipe) -> None:
    """Check that the device exists and can compute what the recipe asks for."""
    device, train = recipe.run.device, recipe.train
    if not _DEVICE.fullmatch(device):
        near = ["cuda"] if device == "gpu" else difflib.get_close_matches(device, DEVICES, n=1)
        raise UserError(
            f"run.device is {device!r}, which is no device; expected {', '.join(DEVICES)}: "
            f'write device = "{near[0].removesuffix(":N") if near else "cpu"}"'
        )
    kind, number, _ = device.partition(":")
    if number and recipe.run.num_processes > 1:
        raise UserError(
            f'run.device is "{device}", one device, for {recipe.run.num_processes} processes; '
            f'write device = "{kind}"'
        )
    if device != "cpu":
        return
    if train.mixed_precision == "fp16":
        raise UserError(
            'train.mixed_precision is "fp16", which PyTorch trains in on GPUs alone; '
            'write mixed_precision = "bf16" or run.device = "cuda"'
        )
    if train.attn_implementation in _ELSEWHERE:
        raise UserError(
            f"train.attn_implementation is {train.attn_implementation!r}, which cannot be had on a "
            f'CPU: {_ELSEWHERE[train.attn_implementation]}; write attn_implementation = "sdpa"'
        )


def _flash(recipe: TrainingRecipe) -> None:
    """Check for what FlashAttention's kernels cannot compute."""
    if recipe.train.attn_implementation != "flash_attention_2":
        return
    if recipe.data.document_masking:
        raise UserError(
            'data.document_masking is true, and "flash_attention_2" attends across documents; '
            'write attn_implementation = "sdpa" or document_masking = false'
        )
    if recipe.train.mixed_precision == "fp32":
        raise UserError(
            'train.mixed_precision is "fp32", and "flash_attention_2" knows 16-bit numbers alone; '
            'write mixed_precision = "bf16" or attn_implementation = "sdpa"'
        )


def _emulate(recipe: TrainingRecipe) -> None:
    """Check for what hides operations from an emulation, or has its gradients elsewhere."""
    train, processes = recipe.train, recipe.run.num_processes
    if recipe.emulate.format is None:
        return
    if train.torch_compile:
        raise UserError(
            "train.torch_compile is true: what a compiled layer rounds inside cannot be emulated; "
            "write torch_compile = false"
        )
    if train.mixed_precision != "fp32":
        raise UserError(
            f'train.mixed_precision is "{train.mixed_precision}", and its own rounding would come '
            'on top of the emulated one; write mixed_precision = "fp32"'
        )
    if processes > 1:
        raise UserError(
            f"run.num_processes is {processes}: emulated gradients are not exchanged between "
            "processes; write num_processes = 1"
        )


def _rising(recipe: TrainingRecipe) -> None:
    train = recipe.train
    if train.max_steps is not None and 0 < train.max_steps <= warmup_of(train.max_steps, train):
        raise UserError(
            f"train.warmup_steps is {train.warmup_steps:g}, and the run has {train.max_steps} "
            "updates, in all of which the rate would rise; write warmup_steps = 0.05, a share of "
            "the run, or a longer run"
        )


def _share(recipe: TrainingRecipe) -> None:
    """Check that processes can share the rows and the weights."""
    settings, batch = recipe.run, recipe.train.batch_size
    if batch % settings.num_processes:
        raise UserError(
            f"train.batch_size is {batch}, which {settings.num_processes} processes cannot share "
            "evenly; write batch_size = "
            f"{settings.num_processes * (batch // settings.num_processes + 1)}"
        )
    if settings.sharding != "none" and settings.num_processes == 1:
        raise UserError(
            'run.sharding is "fsdp" and run.num_processes is 1: nothing can be shared out; '
            'write num_processes = 2 or sharding = "none"'
        )


def _trial(recipe: TrainingRecipe) -> None:
    """Check that what is to be tried can be: one process a run, on this machine."""
    settings = recipe.run
    if settings.max_parallel != "auto":
        return
    for setting, expected in (("executor", "local"), ("num_processes", 1)):
        if (given := getattr(settings, setting)) != expected:
            raise UserError(
                'run.max_parallel is "auto", which tries runs of one process on this machine, and '
                f"run.{setting} is {json.dumps(given)}; write max_parallel = 1, or another number"
            )


def _whole(recipe: TrainingRecipe) -> None:
    """Check for what needs whole weights where no process has them."""
    if recipe.run.sharding != "none" and recipe.train.optimizer == "muon":
        raise UserError(
            'train.optimizer is "muon", which needs whole matrices, and run.sharding = "fsdp" '
            'leaves a part in each process; write optimizer = "adamw" or sharding = "none"'
        )
    for name in ("monitor", "control") if recipe.run.sharding != "none" else ():
        if getattr(recipe, name) != type(getattr(recipe, name))():
            raise UserError(
                f'[{name}] reads whole weights, and run.sharding = "fsdp" leaves a part in each '
                f'process; leave [{name}] out, or write sharding = "none"'
            )


def _control(recipe: TrainingRecipe) -> None:
    check_control(recipe.control)
    attention = recipe.train.attn_implementation
    if recipe.control.qk_clip and attention not in ("sdpa", "eager"):
        raise UserError(
            f'train.attn_implementation is "{attention}", of which control.qk_clip cannot see the '
            'scores; write attn_implementation = "sdpa"'
        )
