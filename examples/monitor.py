"""Watch a model in a loop of your own, and hear of trouble before the loss shows it.

    python examples/monitor.py

The learning rate rises until training fails. The first alarm comes long before the loss doubles.
"""

import torch

import layerlab
from layerlab.training.monitor.alerts import Alert

UPDATES, VOCAB, CONTEXT = 120, 64, 32


def text(rows: int, generator: torch.Generator) -> torch.Tensor:
    """Tokens of which each is likely to be one more than the one before."""
    start = torch.randint(0, VOCAB, (rows, 1), generator=generator)
    steps = 1 + (torch.rand(rows, CONTEXT, generator=generator) < 0.1)
    return (start + steps.cumsum(1)) % VOCAB


def main() -> None:
    told: list[Alert] = []
    model = layerlab.build("llama", width=32, layers=2, heads=2, vocab=VOCAB, context=CONTEXT)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = layerlab.Monitor(model, every=10, on_alarm=told.append)
    generator, losses = torch.Generator().manual_seed(0), list[float]()
    for update in range(UPDATES):
        optimizer.param_groups[0]["lr"] = 1e-4 * 1.1**update
        tokens = text(8, generator)
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        monitor.step(loss, norm)
        optimizer.step()
        losses.append(loss.item())
    scores = monitor.frame().query("measure == 'score'").groupby("update")["value"].max()
    print("largest score:", {int(update): round(value, 1) for update, value in scores.items()})
    print("first alarm:", told[0])
    late = next((n for n, one in enumerate(losses) if one > 2 * losses[0]), None)
    print("the loss is twice its first value at update", late)


if __name__ == "__main__":
    main()
