"""A model run by torch itself as a shipped profile says: what the emulation is held against."""

import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.errors import NotApplicable
from layerlab.numerics.emulation.snapshot import copy_sharing
from layerlab.numerics.profiles.profile import NumericsProfile
from layerlab.numerics.profiles.token_scores import LOGITS, RunModel
from layerlab.system.model_cache import cache_of, read_on
from layerlab.system.offload import is_offloaded, running_device
from layerlab.system.torch_settings import evaluation_mode

COMPILERS = ("g++", "clang++")
WIDE = ("float32", "autocast")
RealRun = Callable[[nn.Module, Tensor, RunModel, int], Tensor]


def read_real(
    model: nn.Module,
    pieces: Sequence[Tensor],
    profile: NumericsProfile,
    call: RunModel,
    prompts: Sequence[int] = (),
) -> Tensor:
    """Return the log-probabilities of all tokens but the first of each text, by torch itself.

    The logits are the engine's; what is made of them here is not rounded.

    Args:
        model: the model; it is not changed.
        pieces: token ids of each text.
        profile: one that says how it is run.
        call: runs a model on the ids of one text.
        prompts: how many tokens of each text a run with a cache reads at once, before it goes on
            token by token; one if left out.

    Raises:
        NotApplicable: nothing here runs as the profile says, or not this model.
    """
    run = RUNS.get(profile.runs)
    if run is None:
        raise NotApplicable(f"nothing here runs as {profile.name} does")
    if is_offloaded(model):
        raise NotApplicable("the weights are spread over devices and cannot be copied")
    if profile.runs == "compile" and not any(map(shutil.which, COMPILERS)):
        raise NotApplicable("there is no C++ compiler to compile the model with")
    found = []
    # What a compiler says of the code of a model is nothing that its user can mend.
    quiet = warnings.catch_warnings(action="ignore")
    with quiet, evaluation_mode(model), torch.no_grad():
        # Compiled for each length, many of them would take minutes.
        own = prepare_model(model, profile.runs, many=len(set(map(len, pieces))) > 1)
        for ids, prompt in zip(pieces, prompts or [1] * len(pieces), strict=True):
            try:
                logits = run(own, ids, call, prompt)[0, :-1]
            except RuntimeError as error:
                raise NotApplicable(_refuse(error)) from None
            # A page over a large vocabulary takes gigabytes in float64.
            rows = max(LOGITS // (torch.float64.itemsize * logits.shape[-1]), 1)
            for part, targets in zip(logits.split(rows), ids[1:].split(rows), strict=True):
                scores = part.double().log_softmax(-1)
                found.append(scores.gather(-1, targets[:, None])[:, 0])
    return torch.cat(found)


def prepare_model(model: nn.Module, runs: str, many: bool = False) -> nn.Module:
    """Return a copy of a model as a run wants it: in bf16, with its attention, compiled.

    In float32, under autocast too, the attention is the model's own.

    Args:
        model: it is not changed.
        runs: how a profile is run.
        many: whether it is compiled once for texts of many lengths.

    Raises:
        NotApplicable: the model keeps the attention that it has.
    """
    dtype = torch.float32 if runs in WIDE else torch.bfloat16
    own: Any = copy_sharing(model)
    for one in own.parameters():
        # Buffers, as the frequencies of rotations, stay as they are when a model is loaded.
        one.data = one.data.to(dtype)
    if runs in WIDE:
        return own
    attention = "eager" if runs == "eager" else "sdpa"
    try:
        own.set_attn_implementation(attention)
    except ValueError as error:
        raise NotApplicable(_refuse(error)) from None
    if own.config._attn_implementation != attention:
        raise NotApplicable(
            f"the model keeps its attention, {own.config._attn_implementation}; load it with "
            f"attn_implementation={attention!r}"
        )
    if runs == "compile":
        own = torch.compile(own, dynamic=many)
    return own


def _refuse(error: Exception) -> str:
    reason = str(error).partition("\n")[0].partition(". ")[0]
    return f"torch refuses to run it so: {reason}"


def _run_whole(model: nn.Module, ids: Tensor, call: RunModel, prompt: int) -> Tensor:
    found: Tensor = call(model, ids)
    return found


def _run_autocast(model: nn.Module, ids: Tensor, call: RunModel, prompt: int) -> Tensor:
    with torch.autocast(running_device(model).type, torch.bfloat16):
        return _run_whole(model, ids, call, prompt)


def _run_cached(model: nn.Module, ids: Tensor, call: RunModel, prompt: int) -> Tensor:
    """Return logits as `generate` computes them."""
    return read_in_chunks(model, ids, [prompt, *[1] * (len(ids) - prompt)])


def read_in_chunks(model: nn.Module, ids: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the logits of a text that is read piece by piece with a cache of keys and values.

    Args:
        sizes: of the pieces in tokens.
    """
    cache, found = None, []
    for part in ids.split(list(sizes)):
        read = read_on(model, part[None], cache)
        cache = cache_of(read)
        found.append(read.logits)
    return torch.cat(found, dim=1)


RUNS: Mapping[str, RealRun] = {
    "float32": _run_whole,
    "eager": _run_whole,
    "sdpa": _run_whole,
    "compile": _run_whole,
    "autocast": _run_autocast,
    "cached": _run_cached,
}
