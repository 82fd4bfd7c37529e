"""A pretrained model rebuilt as a variant, with its weights, ready for continued training."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from layerlab import UserError
from layerlab.model.build import configuration, with_options
from layerlab.model.convert import Reading, read
from layerlab.model.graft import grafted
from layerlab.model.modeling import LabForCausalLM
from layerlab.variants.inventory import variant

PROBE = 16


@dataclass(frozen=True, kw_only=True)
class Step0:
    """How the rebuilt model compares with the original before any training.

    Attributes:
        difference: the largest of any logit, on random tokens.
        scale: the largest logit of the original there.
        added: parameters that the original does not have.
        dropped: weights of the original that have no place in the variant.
    """

    difference: float
    scale: float
    added: int
    dropped: tuple[str, ...]

    @property
    def identical(self) -> bool:
        """Whether every logit is the same bit for bit."""
        return self.difference == 0

    def told(self, name: str, variant: str, place: str) -> str:
        """What was done, in a few lines for a terminal."""
        added = f"{self.added:,} parameters that {name} does not have"
        lines = [f"{name} rebuilt as {variant}: {added}"]
        if self.dropped:
            lines.append(f"weights without a place in {variant}: {', '.join(self.dropped)}")
        if self.identical:
            lines.append("logits before training: the same, bit for bit")
        else:
            share = self.difference / self.scale if self.scale else self.difference
            lines.append(
                f"logits before training: off by up to {self.difference:.2g} ({share:.1e} of the "
                "largest)"
            )
        return "\n".join([*lines, f"saved in {place}"])


def rebuilt(
    model: PreTrainedModel, name: str | None, options: Mapping[str, Any], *, seed: int = 0
) -> LabForCausalLM:
    """The model as the variant `name` (None: the reference that it is), with its weights.

    Weights are shared with the original where nothing had to be transposed.

    Source: Own.

    Raises:
        UserError: a family that we do not know, a variant that does not fit it, or a weight that
            has another shape in the variant.
    """
    found = read(model)
    spec = found.spec if name is None else grafted(found.spec, variant(name))
    config = configuration(
        name or found.variant, with_options(spec, options), found.shape, seed=seed
    )
    for key, value in found.settings.items():
        setattr(config, key, value)
    config._attn_implementation = model.config._attn_implementation
    return _filled(config, found)


def step0(original: PreTrainedModel, new: LabForCausalLM) -> Step0:
    """The two models side by side on random tokens.

    Source: Own.
    """
    config = new.config
    numbers = torch.Generator().manual_seed(0)
    length = min(PROBE, config.max_position_embeddings)
    ids = torch.randint(0, config.vocab_size, (2, length), generator=numbers).to(new.device)
    with torch.no_grad():
        before, after = original(ids).logits, new(ids).logits
    had = read(original).state
    own = dict(new.named_parameters())
    return Step0(
        difference=(before - after).abs().max().item(),
        scale=before.abs().max().item(),
        added=sum(one.numel() for key, one in own.items() if key not in had),
        dropped=tuple(sorted(set(had) - set(new.state_dict()))),
    )


def _filled(config: Any, found: Reading) -> LabForCausalLM:
    state = dict(found.state)
    kept = next(iter(state.values()))
    with torch.device("meta"):
        skeleton = LabForCausalLM(config).state_dict()
    for key in set(state) & set(skeleton):
        if state[key].shape != skeleton[key].shape:
            raise UserError(
                f"{key} is {tuple(state[key].shape)} in the model and "
                f"{tuple(skeleton[key].shape)} in the variant; expected the same sizes"
            )
    state = {key: value for key, value in state.items() if key in skeleton}
    built: Any = LabForCausalLM.from_pretrained(
        None, config=config, state_dict=state, dtype=kept.dtype
    )
    moved: LabForCausalLM = built.to(kept.device).eval()
    return moved
