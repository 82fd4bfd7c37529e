"""The same questions in a lower precision: what it costs on tasks, and in perplexity."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch

from layerlab.errors import UserError
from layerlab.loading.inputs import sequences
from layerlab.loading.model import LoadedModel
from layerlab.loading.text_input import sample
from layerlab.numerics.emulation.emulate import emulate
from layerlab.numerics.emulation.policies.policy import Policy, load_policy
from layerlab.numerics.formats.formats import find, spans_tensor

SAMPLES = 4
CONTEXT = 512


@dataclass(frozen=True)
class PrecisionSetting:
    """The arithmetic that a model computes in.

    Attributes:
        format: that every result is rounded to; None: as the model was loaded.
        policy: what stays in float32.
    """

    format: str | None = None
    policy: Policy | None = None

    @property
    def name(self) -> str:
        """Return the setting as tables call it; empty for a model as it was loaded.

        Example:
            >>> PrecisionSetting("int4").name, PrecisionSetting().name
            ('int4', '')
        """
        kept = f", {len(self.policy.keep)} kept" if self.policy is not None else ""
        return f"{self.format or ''}{kept}"

    @property
    def key(self) -> str:
        """Return the whole setting as one text."""
        return (self.format or "") + (self.policy.toml() if self.policy is not None else "")

    @property
    def alone(self) -> bool:
        """Return whether sequences in one batch round each other, so that each is run by itself.

        Example:
            >>> PrecisionSetting("int4").alone, PrecisionSetting("bf16").alone
            (True, False)
        """
        return self.format is not None and spans_tensor(find(self.format))

    @contextmanager
    def running(self, subject: LoadedModel) -> Iterator[None]:
        """Run a model in this setting until the block ends."""
        if self.format is None:
            yield
            return
        with emulate(subject.model, self.format, policy=self.policy):
            yield


def arithmetics(
    formats: str | None, policy: str | PathLike[str] | Policy | None
) -> tuple[PrecisionSetting, ...]:
    """List the settings: as loaded, in each format named, and under a policy.

    Raises:
        UserError: no such format, or a policy that cannot be read.

    Example:
        >>> [one.name for one in arithmetics("bf16,int4", None)]
        ['', 'bf16', 'int4']
    """
    names = [word.strip() for word in (formats or "").split(",") if word.strip()]
    found = [PrecisionSetting(), *(PrecisionSetting(_format(name)) for name in names)]
    if policy is not None:
        read = policy if isinstance(policy, Policy) else load_policy(policy)
        found.append(PrecisionSetting(str(read.format), read))
    return tuple({one.key: one for one in found}.values())


def perplexity(subject: LoadedModel) -> dict[str, float | None]:
    """Return a model's perplexity on the built-in sample, in its current arithmetic.

        perplexity = exp(nats per token)

    1 means that every token was foreseen; None that the model computes no finite number.

    Raises:
        UserError: the sample cannot be read with this model's tokenizer.
    """
    limit = min(subject.context or CONTEXT, CONTEXT)
    nats, tokens = 0.0, 0
    with torch.no_grad():
        for ids in sequences(sample(samples=SAMPLES, context=limit), subject):
            logits: Any = subject.model(input_ids=ids[None], use_cache=False).logits
            scores = torch.log_softmax(logits[0, :-1].to(torch.float32), dim=-1)
            nats -= float(scores.gather(-1, ids[1:, None]).sum())
            tokens += len(ids) - 1
    mean = nats / tokens
    if not math.isfinite(mean):
        return {"nats_per_token": None, "perplexity": None, "tokens": tokens}
    return {"nats_per_token": mean, "perplexity": math.exp(min(mean, 700.0)), "tokens": tokens}


def _format(name: str) -> str:
    try:
        return str(getattr(find(name), "name", name))
    except UserError as error:
        raise UserError(f"--format: {error}") from None
