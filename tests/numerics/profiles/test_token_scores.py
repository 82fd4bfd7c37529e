"""Log-probabilities read a few tokens at a time: what they are, and what memory that takes."""

import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import GPT2Config, GPT2LMHeadModel

from layerlab.numerics.emulation.emulated_tensor import EmulatedTensor
from layerlab.numerics.profiles import token_scores
from layerlab.numerics.profiles.classify import OperationIndex
from layerlab.numerics.profiles.gap import find_gap
from layerlab.numerics.profiles.lanes import Lane, SideBySide
from layerlab.numerics.profiles.profile import load_profile
from layerlab.numerics.profiles.token_scores import TokenScores
from tests.families.recipe import build

EAGER, SDPA = load_profile("torch-eager"), load_profile("torch-sdpa")
PAIR = [Lane(profile=EAGER), Lane(profile=SDPA)]
IDS = torch.arange(5, 29)
WIDTH, TOKENS, FEW, MANY = 32, 96, 300, 20_000


def call(model: nn.Module, ids: Tensor) -> Any:
    return model(input_ids=ids[None], use_cache=False).logits


def read_whole(model: nn.Module) -> list[Tensor]:
    """Score logits that are all computed at once."""
    index = OperationIndex(model)
    for _ in range(2):  # the first run counts the operations of norms
        run = SideBySide(model, PAIR, index)
        with run.running():
            logits = run.values(call(model, IDS))
    return [one[0, :-1].log_softmax(-1).gather(-1, IDS[1:, None])[:, 0].double() for one in logits]


@pytest.mark.full
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "cohere", "mixtral"])
@pytest.mark.parametrize("size", [1, 2**27])
def test_tokens_in_turns_are_all_of_them_at_once(family, size, monkeypatch):
    monkeypatch.setattr(token_scores, "LOGITS", size)
    model = build(family)
    seen: list[tuple[Tensor, Sequence[Tensor]]] = []
    scores = TokenScores(model, [IDS], call)
    read = scores.read(PAIR, lambda targets, logits: seen.append((targets, logits)))
    # Products of one token and of many sum in another order, which turns digits of bf16.
    for one, other in zip(read, read_whole(model), strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)
    assert len(seen) == (len(IDS) - 1 if size == 1 else 1)
    assert torch.equal(torch.cat([targets for targets, _ in seen]), IDS[1:])
    assert all(len(logits) == 2 and len(logits[0]) == len(targets) for targets, logits in seen)


def test_of_experts_both_runs_are_seen_beside_each_other():
    model = build("mixtral")
    scores = TokenScores(model, [IDS], call)
    mine = scores.read(PAIR)[0]
    found: list[Tensor] = []

    def look(targets: Tensor, logits: Sequence[Tensor]) -> None:
        known = [one.double().log_softmax(-1) for one in logits]
        found.extend(one.gather(-1, targets[:, None])[:, 0] for one in known)

    theirs = scores.read_alone(PAIR[1], look)
    torch.testing.assert_close(found[0], mine, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1], theirs, rtol=1e-5, atol=1e-5)
    assert not torch.equal(mine, theirs)


class LivingBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are alive, and remembers the most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._holders: Counter[int] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, Tensor) and not isinstance(one, EmulatedTensor):
                self._hold(one)
        self.most = max(self.most, self.now)
        return result

    def _hold(self, one: Tensor) -> None:
        storage = one.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        self.now += 0 if self._holders[key] else size
        self._holders[key] += 1
        weakref.finalize(one, self._let_go, key, size)

    def _let_go(self, key: int, size: int) -> None:
        self._holders[key] -= 1
        self.now -= 0 if self._holders[key] else size


def count_bytes(entries: int) -> int:
    """Return the most bytes that are alive at once while a question is answered."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=entries, n_embd=WIDTH, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config).eval()
    with LivingBytes() as counter:
        find_gap(model, [torch.randint(0, entries, (TOKENS,))], EAGER, SDPA, call=call)
    return counter.most


@pytest.mark.full
def test_logits_of_all_runs_are_never_held_at_once(monkeypatch):
    monkeypatch.setattr(token_scores, "LOGITS", 2**22)
    added = count_bytes(MANY) - count_bytes(FEW)
    table = 4 * MANY * WIDTH
    # The table in the formats of both and as it is stored, and four of what is computed at once.
    assert added <= 3 * table + 4 * 2**22
    assert added < 5 * 4 * MANY * TOKENS, "the logits of a few runs, where there are two dozen"
