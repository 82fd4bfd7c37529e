"""A pretrained model rebuilt as a variant, with its weights, ready for continued training."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from layerlab.blocks.spec import Spec
from layerlab.errors import UserError
from layerlab.model.build import configuration
from layerlab.model.config import LabConfig
from layerlab.model.modeling import LabForCausalLM
from layerlab.model.option import with_options
from layerlab.model.surgery.convert import ConvertedModel, read
from layerlab.model.surgery.transplant import describe_carried, graft
from layerlab.system.torch_settings import evaluation_mode
from layerlab.variants.registry import variant

PROBE = 16
SHOWN = 4  # names of weights in a message
POSITIONS = "model.embed_positions.weight"
# What the names of weights tell of a model that was changed after loading, and what undoes it.
REMEDIES = {
    ".base_layer.": "merge the adapter: type PeftModel.from_pretrained(model, folder)"
    ".merge_and_unload()",
    ".parametrizations.": "type torch.nn.utils.parametrize.remove_parametrizations(module, name) "
    "for each",
    "_mask": "type torch.nn.utils.prune.remove(module, name) for each",
}


@dataclass(frozen=True, kw_only=True)
class Step0:
    """The difference between the rebuilt model and the original before any training.

    Attributes:
        difference: the largest of any logit, on random tokens.
        scale: the largest logit of the original there.
        added: parameters that the original does not have.
        dropped: weights of the original that have no place in the variant.
        remark: what was carried over of a variant that is not one of the model's kind.
        counted: whether positions are learned, which the original counts from the padding on.
        attention: implementation of both, as it was compared.
    """

    difference: float
    scale: float
    added: int
    dropped: tuple[str, ...]
    remark: str = ""
    counted: bool = False
    attention: str | None = None

    @property
    def identical(self) -> bool:
        """Return whether every logit is the same bit for bit."""
        return self.difference == 0

    def summary(self, name: str, variant: str, folder: str) -> str:
        """Return what was done, in a few lines for a terminal."""
        added = f"{self.added:,} parameters that {name} does not have"
        lines = [f"{name} rebuilt as {variant}: {added}"]
        if self.remark:
            lines.append(self.remark)
        if self.dropped:
            names = ", ".join(self.dropped[:SHOWN])
            more = len(self.dropped) - SHOWN
            also = f" and {more} more" if more > 0 else ""
            lines.append(f"weights without a place in {variant}: {names}{also}")
        if self.identical:
            lines.append("logits before training: the same, bit for bit")
            if self.attention == "eager":  # as families have it that know no other
                lines.append(
                    "this holds with attn_implementation='eager', which the original uses; "
                    "without it the saved model takes fused attention, which sums in another order"
                )
        else:
            share = self.difference / self.scale if self.scale else self.difference
            lines.append(
                f"logits before training: off by up to {self.difference:.2g} ({share:.1e} of the "
                "largest)"
            )
        if self.counted:
            lines.append(
                f"padding on the left: {name} counts it where no position_ids are given; here "
                "positions begin at the first token that is none"
            )
        return "\n".join([*lines, f"saved in {folder}"])


def rebuild(
    model: PreTrainedModel,
    name: Any,
    options: Mapping[str, Any],
    *,
    seed: int = 0,
    shared: bool = False,
) -> LabForCausalLM:
    """Rebuild a model as the variant `name` (None: the reference), with the model's weights.

    Args:
        shared: keep the original's tensors where nothing has to be transposed, so that training
            one model changes the other; else every weight is a copy.

    Raises:
        UserError: a family that we do not know, a variant that does not fit it, or that ties what
            differs here, a weight that has another shape in the variant, or a model that is not
            what its configuration says.
    """
    if name is not None and not isinstance(name, str):
        raise UserError(
            f"the variant is a {type(name).__name__}; expected the name of a variant: "
            'type retrofit(model, "pangu-pi")'
        )
    found = read(model)
    spec = found.spec
    if name is not None:
        spec = graft(spec, variant(name), kind=found.variant)
    spec = with_options(spec, options)
    _check_names(found)
    attention = model.config._attn_implementation
    config = _configure(name or found.variant, spec, found, attention, seed=seed)
    kept = {one.untyped_storage().data_ptr() for one in model.state_dict().values()}
    new = _fill(config, found, set() if shared else kept)
    if spec == found.spec:
        _check_logits(model, new, found)
    else:
        # Untied: a model whose head was replaced has two matrices, whatever it says.
        untied = found.spec.with_stack(head="untied")
        plain = _configure(found.variant, untied, found, attention)
        _check_logits(model, _fill(plain, found, set()), found)
    new.generation_config = deepcopy(model.generation_config)
    return new


def step0(original: PreTrainedModel, new: LabForCausalLM) -> Step0:
    """Compare the two models on random tokens, without dropout; their modes are put back."""
    difference, scale = _compare(original, new)
    found = read(original)
    return Step0(
        difference=difference,
        scale=scale,
        added=_add(new, found.state),
        dropped=tuple(sorted(set(found.state) - set(new.state_dict()))),
        remark=describe_carried(new.config.variant, found.variant),
        counted=new.config.parse_spec().stack.position == "learned",
        attention=new.config._attn_implementation,
    )


def _compare(original: PreTrainedModel, new: LabForCausalLM) -> tuple[float, float]:
    """Return the largest difference of any logit on random tokens, and the largest logit."""
    config = new.config
    numbers = torch.Generator().manual_seed(0)
    length = min(PROBE, config.max_position_embeddings)
    ids = torch.randint(0, config.vocab_size, (2, length), generator=numbers).to(new.device)
    with torch.no_grad(), evaluation_mode(original), evaluation_mode(new):
        before, after = (one(ids, use_cache=False).logits for one in (original, new))
    return (before - after).abs().max().item(), before.abs().max().item()


def _configure(
    name: str, spec: Spec, found: ConvertedModel, attention: str | None, *, seed: int = 0
) -> LabConfig:
    """Return the configuration of a spec at the sizes and with the settings of a model."""
    config = configuration(name, spec, found.shape, seed=seed)
    for key, value in found.settings.items():
        if key != "rope_parameters" or (value and spec.stack.position == "rotary"):
            setattr(config, key, value)
    config._attn_implementation = attention
    return config


def _check_names(found: ConvertedModel) -> None:
    """Refuse a model whose weights are not those of its configuration: some would be drawn."""
    with torch.device("meta"):
        reference = LabForCausalLM(configuration(found.variant, found.spec, found.shape))
    names = set(reference.state_dict())
    missing = sorted(names - set(found.state) - set(reference.all_tied_weights_keys))
    left = sorted(set(found.state) - names)
    if not missing and not left:
        return
    seen = [f"lacks {missing[0]}"] if missing else []
    seen += [f"has {left[0]} besides"] if left else []
    remedies = (way for sign, way in REMEDIES.items() if any(sign in name for name in left))
    remedy = next(remedies, "set model.config to what the model has, or load the model anew")
    raise UserError(
        f"the model {' and '.join(seen)}; expected the weights that its configuration names, "
        f"and no others: {remedy}"
    )


def _check_logits(model: PreTrainedModel, reference: LabForCausalLM, found: ConvertedModel) -> None:
    """Refuse a model that computes something else than its weights and configuration say.

    Half of the digits may differ: what is computed in another order rounds at each step.
    """
    difference, scale = _compare(model, reference)
    kinds = {one.dtype for one in found.state.values() if one.is_floating_point()}
    if not isfinite(difference):
        raise UserError(
            "the model's logits on random tokens are not finite, though its weights are; expected "
            "numbers: mend its config.json, or load it in float32"
        )
    allowed = max(torch.finfo(kind).eps for kind in kinds) ** 0.5
    if difference > allowed * scale:
        raise UserError(
            "the model computes something else than its weights and configuration say: its logits "
            f"are off by up to {difference:.2g} ({difference / scale:.1e} of the largest); take "
            "its hooks and replaced modules out, or load the model anew"
        )


def _add(new: LabForCausalLM, state: Mapping[str, Tensor]) -> int:
    """Count the parameters beyond those of the original.

    A second copy of one that the original ties counts as well.
    """
    met: set[int] = set()
    added = 0
    for key, own in new.named_parameters():
        address = state[key].data_ptr() if key in state else None
        if address is None or address in met:
            added += own.numel()
        else:
            met.add(address)
    return added


def _fill(config: Any, found: ConvertedModel, foreign: set[int]) -> LabForCausalLM:
    """Return the model with the weights that were read, copying those whose memory is foreign."""
    first = next(iter(found.state.values()))
    with torch.device("meta"):
        skeleton = LabForCausalLM(config)
    shapes = {key: one.shape for key, one in skeleton.state_dict().items()}
    for key in sorted(set(found.state) & set(shapes)):
        if found.state[key].shape != shapes[key]:
            raise UserError(
                f"{key} is {tuple(found.state[key].shape)} in the model and "
                f"{tuple(shapes[key])} in the variant; expected the same sizes"
            )
    if POSITIONS in shapes and POSITIONS not in found.state:
        raise UserError(
            "the model has no table of positions to learn on from; expected its own kind: "
            f"type position={found.spec.stack.position}"
        )
    tied = skeleton.all_tied_weights_keys
    _check_tied(found.state, tied)
    state = {key: one for key, one in found.state.items() if key in shapes and key not in tied}
    built: Any = LabForCausalLM.from_pretrained(
        None, config=config, state_dict=_apart(state, foreign), dtype=first.dtype
    )
    moved: LabForCausalLM = built.to(first.device).eval()
    return moved


def _check_tied(state: Mapping[str, Tensor], tied: Mapping[str, str]) -> None:
    """Refuse to tie two weights that differ."""
    for key, kept in tied.items():
        if key in state and not torch.equal(state[key], state[kept]):
            way = "head=untied" if key.startswith("lm_head") else "sharing=none"
            raise UserError(
                f"{key} and {kept} are one weight in the variant and two that differ in the "
                f"model; expected a variant that keeps both: type {way}"
            )


def _apart(state: Mapping[str, Tensor], foreign: set[int]) -> dict[str, Tensor]:
    """Return the same weights, each in its own memory: none foreign, and no two in one place.

    One that was made in the inference mode is copied as well: it could never be trained.
    """
    seen, found = set(foreign), {}
    for key, tensor in state.items():
        address = tensor.untyped_storage().data_ptr()
        found[key] = tensor.clone() if address in seen or tensor.is_inference() else tensor
        seen.add(address)
    return found
