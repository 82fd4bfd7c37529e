"""Held-out answers cost what each token does, and a data set is known by all that is in it."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from layerlab.adaptation.sft.dataset import answer_loss, prepare_dataset
from layerlab.adaptation.sft.encode import Example
from layerlab.adaptation.sft.packing import Collator
from layerlab.loading.batching import Batching
from layerlab.recipes.adaptation_sections import SftSection
from tests.adaptation.spoken import speaker, talk


def test_held_out_answers_cost_what_each_of_their_tokens_does(tiny):
    """Token by token, each in a pass of its own; the first id of a vocabulary is one of them."""
    model = tiny("llama", initializer_range=0.5).double()
    texts = [([1, 0, 5, 0, 9], [2, 3]), ([7, 7, 0], [1, 2]), ([4, 0], [1])]
    examples, nats = list[Example](), list[float]()
    for ids, learned in texts:
        answer = np.isin(np.arange(len(ids)), learned)
        examples.append(Example(np.array(ids, np.int32), answer, (len(ids),)))
        for place in learned:
            with torch.no_grad():
                logits = model(torch.tensor([ids[:place]])).logits[0, -1]
            nats.append(-float(logits.log_softmax(-1)[ids[place]]))
    given: dict[str, Any] = {"batching": Batching(), "precision": nullcontext}
    found = answer_loss(model, examples, Collator(0), **given)
    assert found == pytest.approx(sum(nats) / len(nats), rel=1e-6)


def test_a_data_set_is_known_by_its_tokens_labels_and_order():
    rows = [talk(f"say {number}", f"it is {number}") for number in range(6)]
    section = SftSection(batch_size=2, packing=False, validation_fraction=0.2, tokens=80)
    found = prepare_dataset(speaker(), {"law": rows}, section, 64)
    (source,) = found.sources
    (held,) = source.held

    def change(part: str, one: Example) -> Any:
        if part == "held":
            return replace(source, held=[one])
        return replace(source, examples=[one, *source.examples[1:]])

    first = source.examples[0]
    others = [
        replace(found, rows=found.rows[::-1]),
        *(
            replace(found, sources=[change(part, other)])
            for part, one in (("held", held), ("examples", first))
            for other in (replace(one, ids=one.ids + 1), replace(one, answer=~one.answer))
        ),
    ]
    assert len({found.digest, *(one.digest for one in others)}) == 1 + len(others)


@pytest.mark.parametrize("tokens", [None, 40])
def test_tokens_come_before_epochs(tokens):
    rows = [talk(f"say {number}", f"it is {number}") for number in range(6)]
    section = SftSection(batch_size=1, packing=False, validation_fraction=0, tokens=tokens)
    found = prepare_dataset(speaker(), {"law": rows}, section, 64)
    (source,) = found.sources
    read = sum(len(source.examples[one].ids) for row in found.rows for _, one in row)
    wanted = tokens or section.num_train_epochs * sum(source.lengths)
    assert abs(read - wanted) <= max(source.lengths)
