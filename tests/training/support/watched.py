"""What tests of the monitor share: a step of training, and a predictable text."""

from typing import Any

import torch
from torch import Tensor, nn

from layerlab import Monitor, build
from layerlab.loading.model import LoadedModel
from layerlab.measures.runner import readings
from layerlab.plugins import resolve

VOCAB, BLOCK = 64, 16
COLUMNS = {
    "score": ("attention", "logit_max"),
    "entropy": ("attention", "entropy"),
    "sink_mass": ("attention", "sink_mass"),
    "attention_norm": ("spectrum", "norm"),
    "querykey_norm": ("querykey", "norm"),
    "relative_residual": ("diversity", "relative_residual"),
    "stream_norm": ("stream", "norm"),
    "growth": ("stream", "growth"),
}


def batch(seed: int, rows: int = 4, tokens: int = BLOCK) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (rows, tokens), generator=generator)


def loss_of(model: Any, tokens: Tensor, **options: Any) -> Tensor:
    return model(input_ids=tokens, labels=tokens, use_cache=False, **options).loss


def read_once(
    model: Any, tokens: Tensor, monitor: Monitor | None = None, **options: Any
) -> Monitor:
    """What a monitor, by default a new one of this model, reads of one forward and backward."""
    monitor = monitor or Monitor(model)
    loss_of(model, tokens, **options).backward()
    monitor.step()
    return monitor


def trained(model: Any, monitor: Any = None, updates: int = 4, **options: Any) -> Any:
    """A few updates by AdamW, with whatever the forward pass draws."""
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for update in range(updates):
        loss = loss_of(model, batch(update), **options)
        optimizer.zero_grad()
        loss.backward()
        if monitor is not None:
            monitor.step(loss)
        optimizer.step()
    return model


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def values(monitor: Any, measure: str, update: int = 0) -> dict[tuple[Any, Any], float]:
    """Of one reading, by layer and head."""
    return {
        (row["layer"], row["head"]): row["value"]
        for row in monitor.rows
        if row["measure"] == measure and row["update"] == update
    }


def ours(name: str = "llama") -> Any:
    return build(name, width=16, layers=2, heads=2, vocab=VOCAB, context=BLOCK).train()


def expected(model: Any, tokens: torch.Tensor) -> dict[str, dict[tuple[Any, Any], float]]:
    """What the measures say about one sequence, by the monitor's names."""
    subject = LoadedModel(name="m", source="memory", model=model, tokenizer=None)
    found = readings(subject, [tokens], resolve(sorted({name for name, _ in COLUMNS.values()})))
    assert not found.refused
    return {
        name: {
            (row["layer"], row.get("head")): row[column]
            for row in found.rows[measure]
            if row.get("place", "stream") == "stream"
        }
        for name, (measure, column) in COLUMNS.items()
    }
