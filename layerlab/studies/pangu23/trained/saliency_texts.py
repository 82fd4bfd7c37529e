"""Texts that end in a name that came before, and where a tokenizer has the name in them."""

from itertools import product
from typing import TYPE_CHECKING

import torch

from layerlab.errors import NotApplicable
from layerlab.studies.engine.sampling import Sampler

if TYPE_CHECKING:
    from layerlab.loading.model import LoadedModel
    from layerlab.measures.support.saliency.prompt import Prompt

# All cut into several tokens by the tokenizer of these models, as "che|ster" is.
NAMES = (
    *("Harriet", "Ottoline", "Winifred", "Barnaby", "Leopold", "Rosalind"),
    *("Thaddeus", "Geraldine", "Cuthbert", "Philippa", "Augustin", "Marigold"),
)
STORIES = (
    "The lamp was kept by {name}. At dusk {name} lit it, and at dawn they thanked {name}",
    "We wrote to {name} twice. No word came from {name}, so we rang the house of {name}",
    "The key is with {name}. Ask {name} for it, and give it back to {name}",
    "A parcel came for {name}. Nobody here was called {name}. It was sent on to {name}",
    "First sang {name}, then the choir, and then {name} again: the prize went to {name}",
    "The goat of {name} ate the hat that {name} had bought. How they laughed at {name}",
)


def texts(draw: Sampler) -> list[tuple[str, str]]:
    """Return different texts that end in a name, each with its name."""
    every = list(product(STORIES, NAMES))
    chosen = torch.randperm(len(every), generator=draw.generator)[: draw.count].tolist()
    return [(every[one][0].format(name=every[one][1]), every[one][1]) for one in chosen]


def case(subject: "LoadedModel", text: str, name: str) -> tuple["Prompt", list[int], int]:
    """Return the prompt, where the name stood before, and where it begins for the last time.

    Raises:
        NotApplicable: the model cannot read so much, or its tokenizer cuts the name otherwise.
        UserError: the model has no entry for a token.
    """
    from layerlab.loading.inputs import check_ids
    from layerlab.measures.support.saliency.prompt import Prompt, tokenize_unfinished

    # With what its tokenizer sets in front of a text: some models make little of one without it.
    ids, before = (
        tokenize_unfinished(subject, one).tolist() for one in (text, text.removesuffix(f" {name}"))
    )
    if subject.context is not None and subject.context < len(ids):
        raise NotApplicable(f"its context is {subject.context} tokens, and a text has {len(ids)}")
    check_ids(torch.tensor(ids), subject, "a text of the study")
    last, word = len(before), ids[len(before) :]
    starts = [at for at in range(last) if word and ids[at : at + len(word)] == word]
    if ids[:last] != before or not starts:
        raise NotApplicable(f"its tokenizer cuts the name {name} otherwise when it comes back")
    places = [at + step for at in starts for step in range(len(word))]
    asked = Prompt(tokens=torch.tensor(ids[:-1]), position=len(ids) - 2, target=(ids[-1],))
    return asked, places, last
