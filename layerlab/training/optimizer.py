"""AdamW with its weight decay on matrices alone, or Muon for hidden matrices."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.errors import UserError
from layerlab.model.modeling import LabForCausalLM
from layerlab.model.parametrization import PLAIN, Scale
from layerlab.recipes.training_sections import TrainSection

DECAYED = (nn.Linear, nn.Embedding, nn.Conv1d)
WRAPPED = ".parametrizations.weight.original"  # the weight of a module that torch reparametrises
Group = dict[str, Any]


def build_optimizer(model: nn.Module, train: TrainSection) -> torch.optim.Optimizer:
    """Build the optimizer of a recipe; AdamW is fused, with one group that decays and one not.

    Only weights of linear layers, embeddings and convolutions decay. Norms, biases, the scales and
    shifts of series activations, mixing coefficients of residual schemes, and whatever else a part
    of one's own holds as a bare parameter do not: for a scale, zero is no neutral value.

    Raises:
        UserError: Muon is asked for, and the model has nothing for it.
    """
    decayed = {id(one) for one in _weights(model, DECAYED)}
    hidden = hidden_matrices(model) if train.optimizer == "muon" else []
    if train.optimizer == "muon" and not hidden:
        raise UserError(
            'train.optimizer is "muon", and the model has no linear layer before its head that '
            'learns; write optimizer = "adamw"'
        )
    taken = {id(one) for one in hidden}
    # Tied parameters are listed once, and stand in the group of the first that holds them.
    every = [one for one in model.parameters() if one.requires_grad and id(one) not in taken]
    factors = _factors(model, train)
    adamw = torch.optim.AdamW(
        [
            *_groups([one for one in every if id(one) in decayed], factors, train, decays=True),
            *_groups([one for one in every if id(one) not in decayed], factors, train),
        ],
        lr=train.learning_rate,
        betas=(train.adam_beta1, train.adam_beta2),
        fused=True,
    )
    muon = _groups(hidden, factors, train, decays=True, muon=True)
    return MuonWithAdamW(muon, adamw, train) if hidden else adamw


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the hidden matrices of a model, and AdamW for all other parameters, as one.

    Both work on the groups and the state of this one, which a checkpoint therefore has whole: the
    groups of Muon come first. An update of Muon is scaled by 0.2 sqrt(max(rows, columns)), so that
    its root mean square is about that of AdamW's; learning rate and weight decay are then those of
    AdamW.

    Source: jordan24 for the update; liu25, section 2.2, for its scale.
    """

    def __init__(self, hidden: list[Group], adamw: torch.optim.AdamW, train: TrainSection) -> None:
        muon = torch.optim.Muon(
            hidden,
            lr=train.learning_rate,
            weight_decay=train.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        self.both = muon, adamw
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self._share()

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Take over groups and state, as `load_state_dict` does at its end."""
        super().__setstate__(dict(state))
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Do an update of all parameters."""
        loss = None if closure is None else closure()
        for one in self.both:
            one.step()
        return loss

    def _share(self) -> None:
        muon, adamw = self.both
        first = len(muon.param_groups)
        muon.param_groups, adamw.param_groups = self.param_groups[:first], self.param_groups[first:]
        muon.state = adamw.state = self.state


def _factors(model: nn.Module, train: TrainSection) -> Mapping[int, Scale]:
    """Return the factors of muP of each parameter by its identity.

    Raises:
        UserError: the model was not built for it.
    """
    if train.parametrization == "standard":
        return {}
    if not isinstance(model, LabForCausalLM) or model.config.mup_base_width is None:
        raise UserError(
            f'train.parametrization is "mup", and this {type(model).__name__} was not built for '
            'it, from its first weights on; write parametrization = "standard"'
        )
    factors = {}
    scales = model.scales()
    for name, one in model.named_parameters():
        plain = f"{name.removesuffix(WRAPPED)}.weight" if name.endswith(WRAPPED) else name
        if plain in scales:
            factors[id(one)] = scales[plain]
    return factors


def _groups(
    parameters: list[Tensor],
    factors: Mapping[int, Scale],
    train: TrainSection,
    *,
    decays: bool = False,
    muon: bool = False,
) -> list[Group]:
    """Return parameters in groups of one rate.

    What a weight loses in an update, rate times decay, is the same at every width.
    """
    together: dict[Scale, list[Tensor]] = {}
    for one in parameters:
        together.setdefault(factors.get(id(one), PLAIN), []).append(one)
    groups: list[Group] = []
    for scale, members in together.items():
        factor = scale.std if muon else scale.rate
        group = {"params": members, "weight_decay": train.weight_decay / factor if decays else 0.0}
        if factor != 1:
            group |= {"lr": train.learning_rate * factor, "lr_factor": factor}
        if not muon:
            group["eps"] = train.adam_epsilon * scale.epsilon
        groups.append(group)
    return groups


def allocate(optimizer: torch.optim.Optimizer) -> None:
    """Allocate what the optimizer keeps of all parameters, where it has nothing of them yet.

    They are most of what a run still takes after its first pass. Where they are there before it,
    memory that runs out does so in a pass, which can be taken in smaller pieces.
    """
    for group in optimizer.param_groups:
        for one in group["params"]:
            if optimizer.state[one]:
                continue
            if "momentum" in group:
                optimizer.state[one] = {"momentum_buffer": torch.zeros_like(one)}
                continue
            # Of a sharded weight each process makes its part.
            moments = {name: torch.zeros_like(one) for name in ("exp_avg", "exp_avg_sq")}
            step = torch.zeros((), dtype=torch.float32, device=one.device)
            optimizer.state[one] = {"step": step, **moments}


def hidden_matrices(model: nn.Module) -> list[Tensor]:
    """Return the weights of linear layers before the head, each once, if they learn.

    The head's are not among them, tied or not, nor is what a layer shares with an embedding.
    """
    head = getattr(model, "lm_head", None)
    edge = {id(one) for one in _weights(model, nn.Embedding)}
    edge |= {id(one) for one in _weights(head, nn.Linear)} if head is not None else set()
    found = {id(one): one for one in _weights(model, nn.Linear) if one.requires_grad}
    return [one for key, one in found.items() if key not in edge]


def _weights(
    model: nn.Module, kinds: type[nn.Module] | tuple[type[nn.Module], ...]
) -> Iterator[Tensor]:
    for module in model.modules():
        if isinstance(module, kinds):
            forms: Any = getattr(module, "parametrizations", {})
            found: Any = forms.weight.original if "weight" in forms else module.weight
            yield found
