"""A policy made true on a model: what is kept has float32 parameters and is given float32.

Every module with parameters casts what it is given to their dtype, and nothing else is cast: the
output of a kept module flows on in float32 until a module in the low format takes it. The same
hooks serve a real model in a low dtype and an emulated one, where dtypes are nominal.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.hooks import RemovableHandle

from layerlab.errors import UserError
from layerlab.numerics.emulation.emulated_tensor import floating
from layerlab.numerics.emulation.policies.attention_dtype import (
    SINGLE,
    answer,
    attends,
    finite,
    implementations,
)
from layerlab.numerics.emulation.policies.loaded_dtypes import (
    HALVES,
    find_followers,
    low_precision_weights,
)
from layerlab.numerics.emulation.policies.policy import (
    APPLIED,
    ATTENTION,
    CARRIED,
    RESIDUAL,
    Policy,
    load_policy,
)
from layerlab.numerics.emulation.selection import patterns
from layerlab.numerics.emulation.snapshot import Snapshot
from layerlab.system.hooks import temporary_hooks
from layerlab.system.offload import check_held

_LOG = logging.getLogger("layerlab")
# What attention is given beside the stream, as transformers calls it.
SUPPLIES = ("attention_mask", "alibi")
REAL = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class AppliedPolicy:
    """The meaning of a policy for one model.

    Attributes:
        modules: paths of the modules that stay in float32.
        attentions: paths of the modules whose attention does.
        residual: whether the stream between blocks does.
        tied: paths of other modules that share a parameter with a kept one.
    """

    modules: frozenset[str]
    attentions: frozenset[str]
    residual: bool
    tied: frozenset[str]

    def parameter(self, name: str) -> bool:
        """Return whether a parameter of this path stays in float32."""
        return name.rpartition(".")[0] in self.modules | self.tied


def find_kept(model: nn.Module, policy: Policy) -> AppliedPolicy:
    """Look up what a policy keeps.

    Raises:
        UserError: an entry names no module, no module that computes attention, or an operation.
    """
    residual = RESIDUAL in policy.keep
    named = [entry for entry in policy.keep if entry != RESIDUAL]
    _check_entries(named)
    _look_up(named, model)
    names = [name for name, _ in model.named_modules() if name]
    inner = [entry.removesuffix(ATTENTION) for entry in named if entry.endswith(ATTENTION)]
    entries = [entry for entry in named if not entry.endswith(ATTENTION)]
    modules = {name for name in names if _within(name, entries)}
    if residual:
        modules |= {name for name, module in model.named_modules() if _scales(module)}
    hearing = [name for name in names if attends(model.get_submodule(name))]
    for entry in inner:
        if not any(fnmatchcase(name, entry) for name in hearing):
            raise UserError(
                f"no module {entry!r} asks transformers' AttentionInterface for its attention, so"
                " it cannot be kept in float32 apart; keep the whole module instead"
            )
    wanted = [*inner, *modules]
    attentions = {name for name in hearing if any(fnmatchcase(name, entry) for entry in wanted)}
    return AppliedPolicy(
        frozenset(modules), frozenset(attentions), residual, _find_tied(model, modules)
    )


def _check_entries(entries: list[str]) -> None:
    """Refuse entries that name operations: places have operations, policies do not."""
    for entry in entries:
        path, mark, _ = entry.partition(":")
        if mark and not entry.endswith(ATTENTION):
            raise UserError(
                f"keep={entry!r} names an operation, and no operation can be kept apart; what can"
                f" be kept: {RESIDUAL!r}, modules by their path, as {path!r}, and their attention,"
                f" as {path + ATTENTION!r}"
            )


def apply_precision(
    model: nn.Module, policy: Policy | str | os.PathLike[str] | None = None
) -> nn.Module:
    """Put a model into a low dtype except for what a policy keeps in float32.

    In place; start from float32 weights, since what has been rounded stays rounded. The policy is
    part of the configuration, so `save_pretrained` writes it. `from_pretrained` reads it and does
    nothing with it: load the model in float32, and apply its own policy to it again.

    Args:
        model: a model of transformers.
        policy: from `layerlab.precision` or by hand, or the path of one that was saved; the one in
            the model's configuration if left out.

    Returns:
        The same model.

    Raises:
        UserError: a format that torch does not compute in, an entry that names nothing, or a model
            that has its policy already, or none where it is left out.

    Example:
        >>> import copy, layerlab
        >>> model = layerlab.build("llama", width=16, layers=2, heads=2, vocab=32, context=8)
        >>> policy = layerlab.Policy(format="bf16", keep=("residual", "lm_head"))
        >>> low = layerlab.apply_precision(copy.deepcopy(model), policy)
        >>> low.lm_head.weight.dtype, low.model.layers[0].ffn.up.weight.dtype
        (torch.float32, torch.bfloat16)
    """
    check_held(model)
    if policy is None:
        policy = saved_policy(model)
    policy = policy if isinstance(policy, Policy) else load_policy(policy)
    low = REAL.get(policy.format)
    if low is None:
        raise UserError(
            f"torch computes in no {policy.format}: a policy for bf16 or fp16 can be applied,"
            f" others can be emulated: with layerlab.emulate(model, {policy.format!r},"
            " policy=policy): ..."
        )
    found = find_kept(model, policy)
    _check(model, found)
    followers = find_followers(model, low)
    rounded = 0
    for owner, name, _, value, dtype in low_precision_weights(model, low, followers):
        kept = found.parameter(f"{owner}.{name}")
        rounded += kept and value.dtype in HALVES
        value.data = value.data.to(torch.float32 if kept else dtype)
    if rounded:
        _LOG.warning(
            "of the parameters that the policy keeps in float32 %d had 16 bits already, and what "
            "was rounded stays so: load a model in float32 that is stored in it",
            rounded,
        )
    list(_install(model, found, low))
    setattr(model, APPLIED, policy)
    if (config := getattr(model, "config", None)) is not None:
        setattr(config, CARRIED, {"format": policy.format, "keep": list(policy.keep)})
    return model


def saved_policy(model: nn.Module) -> Policy:
    """Return the policy that a model was saved with.

    Raises:
        UserError: its configuration has none, or one that says nothing.
    """
    found = getattr(getattr(model, "config", None), CARRIED, None)
    if not isinstance(found, dict):
        raise UserError(
            "this model was saved without a policy; give one, from layerlab.load_policy('FILE') or"
            " layerlab.precision(model).policy"
        )
    return Policy(format=found.get("format"), keep=found.get("keep", ()))


@contextmanager
def cast(model: nn.Module, policy: Policy, low: torch.dtype) -> Iterator[AppliedPolicy]:
    """Cast as a policy says for as long as the block lasts.

    The parameters are the caller's.
    """
    found = find_kept(model, policy)
    _check(model, found)
    before = Snapshot(model)
    config: Any = getattr(model, "config", None)
    asked = implementations(config)
    try:
        with temporary_hooks(_install(model, found, low)):
            yield found
    finally:
        before.restore()
        if asked:
            config._attn_implementation = asked


def _install(model: nn.Module, found: AppliedPolicy, low: torch.dtype) -> Iterator[RemovableHandle]:
    """Yield the hooks as they are set: nobody knows where Ctrl-C comes."""
    if not (found.modules or found.attentions or found.residual):
        return  # what the code itself widens stays so
    for name, module in model.named_modules():
        leaf = next(module.children(), None) is None
        # Rotary tables are made in the dtype of the stream that is shown to them.
        turns = "Rotary" in type(module).__name__
        if _owns(module) or (leaf and (turns or name in found.modules)):
            single = name in found.modules | found.tied
            wanted = torch.float32 if single else None if _owns(module) else low
            yield module.register_forward_pre_hook(_casting(wanted), with_kwargs=True, prepend=True)
    if not found.residual:
        for name in found.tied:
            yield model.get_submodule(name).register_forward_hook(_narrowing(low))
    if found.residual:
        first = model.get_submodule(blocks(model)[0])
        yield first.register_forward_pre_hook(_widening, with_kwargs=True, prepend=True)
    for name in found.attentions:
        setattr(model.get_submodule(name), SINGLE, True)
    for name, module in model.named_modules():
        if "Attention" in type(module).__name__ and not attends(module):
            supply = _supplying(torch.float32 if name in found.modules else low)
            yield module.register_forward_pre_hook(supply, with_kwargs=True, prepend=True)
    answer(model)


def blocks(model: nn.Module) -> list[str]:
    """Return the paths of the blocks of the stack.

    They are in the outermost list of modules, and the longest of these.

    Raises:
        UserError: the model has no list of blocks.
    """
    lists = [
        (name.count("."), -len(module), name)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module)
    ]
    if not lists:
        raise UserError("this model has no list of blocks, so no residual stream to keep")
    name = min(lists)[2]
    return [(f"{name}.{number}") for number in range(len(model.get_submodule(name)))]  # type: ignore[arg-type]


def _casting(wanted: torch.dtype | None) -> Callable[..., Any]:
    """Return a hook that brings a module's input to its low parameters' dtype, or the one wanted.

    Where all are loaded in float32 whatever the policy, the code around them sees to its input.

    What comes beside its input, such as the weights of experts, is not narrowed.
    """

    def cast_input(module: nn.Module, args: Any, options: Any) -> Any:
        dtype = wanted or _find_low(module)
        if dtype is None:
            return None
        first = next((value for value in (*args, *options.values()) if floating(value)), None)

        def bring(value: Any) -> Any:
            return _to(value, dtype) if value is first or dtype == torch.float32 else value

        return tuple(map(bring, args)), {name: bring(one) for name, one in options.items()}

    return cast_input


def _supplying(dtype: torch.dtype) -> Callable[..., Any]:
    """Return a hook for attention that does not unify dtypes itself.

    The stream and what comes beside it are cast.

    Masks and slopes are made in the dtype of the stream, which may be kept.
    """

    def cast_supply(module: nn.Module, args: Any, options: Any) -> Any:
        stream = next((value for value in (*args, *options.values()) if floating(value)), None)

        def supply(value: Any) -> Any:
            return finite(value, dtype) if floating(value) else value

        def supply_chosen(name: str, value: Any) -> Any:
            return tree_map(supply, value) if value is stream or name in SUPPLIES else value

        return tuple(supply_chosen("", value) for value in args), {
            name: supply_chosen(name, value) for name, value in options.items()
        }

    return cast_supply


def _widening(module: nn.Module, args: Any, options: Any) -> Any:
    """Return a hook before the first block: from here on the stream is in float32."""
    if args:
        return (_to(args[0], torch.float32), *args[1:]), options
    return args, {**options, "hidden_states": _to(options["hidden_states"], torch.float32)}


def _narrowing(low: torch.dtype) -> Callable[..., Any]:
    """Return a hook that narrows what a parameter shared with a kept module gave."""
    return lambda module, args, output: _to(output, low)


def _find_tied(model: nn.Module, modules: set[str]) -> frozenset[str]:
    """Return the modules outside that share a parameter with one inside."""
    owners: dict[int, list[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(value), []).append(name.rpartition(".")[0])
    shared = (names for names in owners.values() if modules & set(names))
    return frozenset(name for names in shared for name in names if name not in modules)


def _to(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if floating(value) and value.dtype != dtype else value


def _find_low(module: nn.Module) -> torch.dtype | None:
    owned = (value.dtype for value in module._parameters.values() if value is not None)
    return next((one for one in owned if one.is_floating_point and one != torch.float32), None)


def _owns(module: nn.Module) -> bool:
    """Return whether a module has parameters of its own to compute with."""
    return any(
        value is not None and value.dtype.is_floating_point for value in module._parameters.values()
    )


def _scales(module: nn.Module) -> bool:
    """Return whether a module has only gains and shifts, as a norm does."""
    owned = [value for value in module._parameters.values() if value is not None]
    return bool(owned) and all(value.dim() <= 1 for value in owned)


def _within(name: str, entries: list[str]) -> bool:
    parts = name.split(".")
    around = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return any(fnmatchcase(path, entry) for path in around for entry in entries)


def _check(model: nn.Module, found: AppliedPolicy) -> None:
    """Refuse a model that has a policy or no stream to keep, and a kernel that has no float32."""
    if hasattr(model, APPLIED):
        raise UserError(
            "this model has a policy already, and what it rounded is lost; load the model anew"
        )
    if found.residual:
        blocks(model)
    own = getattr(getattr(model, "config", None), "_attn_implementation", None) or ""
    if found.attentions and "flash" in own:
        raise UserError(
            f"{own} computes in no float32; load the model with attn_implementation='sdpa' to keep"
            " its attention in it"
        )


def _look_up(entries: list[str], model: nn.Module) -> None:
    try:
        patterns(entries, model)
    except UserError as error:
        raise UserError(str(error).replace("where=", "keep=", 1)) from None
