"""Models with queries and keys of a chosen size, and their largest scores."""

import torch
from torch import Tensor

from layerlab import build
from layerlab.model.modeling import LabForCausalLM
from layerlab.recipes.training_sections import ControlSection
from layerlab.training.qk_control.heads import heads_of
from layerlab.training.qk_control.penalties import QKControl

SIZES = {"width": 16, "layers": 2, "heads": 4, "vocab": 64, "context": 16}


def model(variant: str = "llama", large: float = 1.0, **options: object) -> LabForCausalLM:
    made = build(variant, **{**SIZES, **options}).train()
    with torch.no_grad():
        for head in heads_of(made):
            head.query.module.weight *= large
            head.key.module.weight *= large
    return made


def words() -> Tensor:
    return torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(0))


def largest_scores(one: LabForCausalLM, limit: float = 1e-6) -> Tensor:
    control = QKControl(one, ControlSection(qk_clip=limit))
    with torch.no_grad():
        one(words())
    found = torch.stack(control._scores.take())
    control.finish()
    return found
