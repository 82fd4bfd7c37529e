"""Control of W_k^T W_q: penalties on its norm and condition, QK-clip, sigma-reparametrisation.

QK-norm is a variant (`qk-norm`), not a control: it changes what is computed.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from layerlab.errors import UserError
from layerlab.measures.quantities.weights.querykey import KeyWeights, QueryWeights
from layerlab.numerics.emulation.emulated_tensor import EmulatedTensor, plain, unwrap
from layerlab.recipes.checks import check_control
from layerlab.recipes.training_sections import ControlSection
from layerlab.shapes import HeadVector
from layerlab.training.qk_control.heads import QKHead, heads_of
from layerlab.training.qk_control.logits import MaxLogits
from layerlab.training.qk_control.sigma_reparam import Reparametrisation


class QKControl:
    """Keeps the product of key and query weights small while a model trains.

    It comes before the optimizer and before weights are loaded from a checkpoint, since
    reparametrisation gives the model other parameters. Without any setting it does nothing.

    Attributes:
        clipped: heads that the last update scaled down.
        untold: the sum of them since `told` was last asked.

    Args:
        model: any model whose query and key weights can be told apart.
        section: what to do.

    Raises:
        UserError: the weights of a head are not to be found, or the settings exclude each other.

    Example:
        >>> import layerlab
        >>> model = layerlab.build("llama", width=16, layers=1, heads=2, vocab=32, context=8)
        >>> control = QKControl(model, ControlSection(spectral_penalty=0.1))
        >>> control.loss().requires_grad
        True
    """

    def __init__(self, model: nn.Module, section: ControlSection) -> None:
        self.section = section
        self.clipped = 0
        self.untold = 0
        wanted = (
            section.spectral_penalty
            or section.condition_penalty
            or section.qk_clip
            or section.sigma_reparam
        )
        self.heads = heads_of(model) if wanted else []
        self._check()
        self._scores = MaxLogits(model, self.heads, section.qk_clip) if section.qk_clip else None
        self._forms = (
            Reparametrisation(self.heads, section.gamma) if section.sigma_reparam else None
        )

    def _check(self) -> None:
        section = self.section
        check_control(section)
        weights = section.spectral_penalty or section.condition_penalty or section.qk_clip
        if weights and any(head.normed for head in self.heads):
            raise UserError(
                "a norm stands on queries and keys (QK-norm), so the size of W_k^T W_q does not "
                "reach the scores; leave spectral, condition and clip out"
            )

    def loss(self) -> Tensor | None:
        """Return the penalty to be added to the loss of an update, once; None without one.

        spectral * mean sigma_1^2 + condition * mean log(sigma_1 / sigma_r)

        sigma are the singular values of s W_k^T W_q of each head, s the factor on its scores, r the
        head's width; means are over layers and heads. The norm enters as its square, as weight
        decay does: the pull is in proportion to the norm, large heads feel it and small ones hardly
        do, and it is smooth at 0.
        """
        spectral, condition = self.section.spectral_penalty, self.section.condition_penalty
        if not spectral and not condition:
            return None
        extremes = [_extremes(head) for head in self.heads]
        largest = torch.cat([norm for norm, _ in extremes])
        total = spectral * largest.square().mean()
        if condition:
            smallest = torch.cat([least for _, least in extremes])
            total = total + condition * log_condition(largest, smallest).mean()
        return total

    @torch.no_grad()
    def after_update(self) -> None:
        """Scale down heads above the largest allowed score, and update the norms."""
        if self._forms is not None:
            self._forms.after_update()
        if self._scores is None:
            return
        # Layers may share their weights: the largest score of all then decides.
        shared: dict[tuple[int, int], tuple[QKHead, Tensor]] = {}
        for head, found in zip(self.heads, self._scores.take(), strict=True):
            key = (id(head.query.module.weight), id(head.key.module.weight))
            before = shared.get(key)
            shared[key] = (head, found if before is None else torch.maximum(found, before[1]))
        self.clipped = sum(self._clip(head, largest) for head, largest in shared.values())
        self.untold += self.clipped

    def summary(self) -> dict[str, int]:
        """Return for the journal how many heads were scaled down since the last call.

        Nothing without `clip`.
        """
        found, self.untold = self.untold, 0
        return {"clipped": found} if self.section.qk_clip else {}

    def _clip(self, head: QKHead, largest: Tensor) -> int:
        """Clip one layer (QK-clip); return how many heads were scaled down.

        gamma = clip / S for heads with S > clip. W_q and W_k are both scaled by sqrt(gamma); where
        several heads share a key, which must then stay as it is for the others, W_q by gamma. So
        does the source with what its heads share.

        Source: kimi25, section 2.1.
        """
        above = (largest > self.section.qk_clip) & largest.isfinite()
        count = int(above.sum())
        if count:
            gamma = torch.where(above, self.section.qk_clip / largest, 1.0)
            if head.group == 1:
                head.query.scale(gamma.sqrt())
                head.key.scale(gamma.sqrt())
            else:
                head.query.scale(gamma)
        return count

    def finish(self) -> None:
        """Leave the model plain: nothing listens, and matrices are what they multiplied as."""
        if self._scores is not None:
            self._scores.close()
            self._scores = None
        if self._forms is not None:
            self._forms.finish()
            self._forms = None


def _extremes(head: QKHead) -> tuple[Tensor, Tensor]:
    """Return largest and smallest singular value of every head of a layer, its scaling included."""
    query, key = plain(head.query.weight()), plain(head.key.weight())
    with torch.autocast(query.device.type, enabled=False):
        largest, smallest = extreme_values(query, key)
    return largest * abs(head.scaling), smallest * abs(head.scaling)


def extreme_values(query: QueryWeights, key: KeyWeights) -> tuple[HeadVector, HeadVector]:
    """Return the extreme singular values of W_k^T W_q of every head, with their gradients.

    sigma = u^T W_k^T W_q v   with singular vectors u, v from the factors of W_q^T and W_k^T

    The vectors are held still: where a singular value is simple, that is its whole derivative;
    where several coincide it is one of them, and finite.
    """
    left, right = _vectors(query.detach(), key.detach())
    group = query.shape[0] // key.shape[0]
    keys = key.repeat_interleave(group, 0)
    values = ((keys @ left) * (query @ right)).sum(1)
    return values[:, 0], values[:, 1]


@torch.no_grad()
def _vectors(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Return left and right singular vectors of the first and the last singular value."""
    if isinstance(query, EmulatedTensor):
        with _disable_current_modes():
            return _vectors(unwrap(query), unwrap(key))
    first, upper = torch.linalg.qr(query.mT)
    second, lower = torch.linalg.qr(key.mT)
    group = len(query) // len(key)
    form = lower.repeat_interleave(group, 0) @ upper.mT
    finite = form.isfinite().all(-1).all(-1)[:, None, None]
    left, _, right = torch.linalg.svd(torch.where(finite, form, 0.0))
    ends = [0, -1]
    return (
        second.repeat_interleave(group, 0) @ left[:, :, ends],
        first @ right.mT[:, :, ends],
    )


def log_condition(largest: HeadVector, smallest: HeadVector) -> HeadVector:
    """Return log(sigma_1 / sigma_r) of each head; sigma_r is at least what its precision resolves.

    Below that the smallest counts as that much, and has no gradient. A head of zeros has 0.
    """
    info: Any = torch.finfo(largest.dtype)
    floor = (largest.detach() * 4 * info.eps).clamp_min(info.tiny)
    return largest.clamp_min(info.tiny).log() - torch.maximum(smallest, floor).log()
