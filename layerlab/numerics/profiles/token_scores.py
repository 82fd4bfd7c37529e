"""The log-probabilities of one text under many profiles."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.errors import UserError
from layerlab.numerics.profiles.classify import OperationIndex
from layerlab.numerics.profiles.expert_choices import ExpertChoices
from layerlab.numerics.profiles.lanes import Lane, OperationResult, SideBySide
from layerlab.numerics.profiles.profile import NumericsProfile

RunModel = Callable[[nn.Module, Tensor], Any]
NoteRun = Callable[[str], None]
# Tokens of the run that only counts the operations of modules.
PROBE = 2
LOGITS = 2**31  # bytes of logits that are held at once; further runs go in turns


def ignore(what: str) -> None:
    """Take note of nothing."""


class TokenScores:
    """Reads log-probabilities; the operations of the model are looked up once.

    Attributes:
        logits: those of each text in the first two runs of the last reading.
        choices: among experts, of the first two runs of the last reading.
        forwards: forward passes so far, by products.

    Args:
        model: the model; it is not changed.
        pieces: token ids of each text.
        call: runs the model on the ids of one text.
        step: is told of each run.
    """

    def __init__(
        self, model: nn.Module, pieces: Sequence[Tensor], call: RunModel, step: NoteRun = ignore
    ) -> None:
        self.model, self.pieces, self.call, self.step = model, pieces, call, step
        self.index = OperationIndex(model)
        self.logits: tuple[list[Tensor], list[Tensor]] = ([], [])
        self.choices = ExpertChoices()
        self.forwards = 0.0
        probe = [Lane(profile=NumericsProfile(name="probe"))] * 2
        with SideBySide(model, probe, self.index).running():
            found = call(model, pieces[0][:PROBE])
        size = 4 * found.shape[-1] * max(map(len, pieces))
        self._most = max(LOGITS // size, 3)

    def read(self, lanes: Sequence[Lane]) -> list[Tensor]:
        """Return the log-probabilities of all tokens but the first of each text, in every run.

        Runs whose logits would not fit into memory beside each other go in turns, each time beside
        the first two.

        Raises:
            UserError: under one of their profiles they are not finite.
        """
        first, rest = list(lanes[:2]), list(lanes[2:])
        size = self._most - 2
        groups = [rest[start : start + size] for start in range(0, len(rest), size)] or [[]]
        read = [self._read([*first, *group], number) for number, group in enumerate(groups)]
        return [*read[0][:2], *(one for found in read for one in found[2:])]

    def _read(self, lanes: Sequence[Lane], turn: int) -> list[Tensor]:
        run = SideBySide(self.model, lanes, self.index)
        found: list[list[Tensor]] = [[] for _ in lanes]
        if not turn:
            self.logits = ([], [])
        choices = ExpertChoices()
        for ids in self.pieces:
            self.step(f"{len(lanes)} runs side by side")
            with run.running():
                logits = run.values(self.call(self.model, ids))
            choices.add(run.choices)
            values = run.round_all(_score(logits, ids), OperationResult("log_softmax", run.layers))
            for kept, value in zip(found, values, strict=True):
                kept.append(value)
            if not turn:
                for kept, value in zip(self.logits, logits[:2], strict=True):
                    kept.append(value[0, :-1])
        if not turn:
            self.choices = choices
        self.forwards += run.forwards
        read = [torch.cat(one).double() for one in found]
        for lane, scored in zip(lanes, read, strict=True):
            _check_finite(lane, scored)
        return read


def _check_finite(lane: Lane, values: Tensor) -> None:
    lost = int((~values.isfinite()).sum())
    if lost and lane.profile is not None:
        raise UserError(
            f"under {lane.profile.name} the log-probabilities of {lost} of {len(values)} tokens are"
            " not finite: the model overflows, or holds NaN; look with layerlab inspect MODEL"
        )


def _score(logits: Sequence[Tensor], ids: Tensor) -> list[Tensor]:
    """Return the log-probability of each token but the first, in every run."""
    known: dict[int, Tensor] = {}
    targets = ids[1:, None]
    for one in logits:
        if id(one) not in known:
            rows = one[0, :-1]
            largest = rows.amax(-1, keepdim=True)
            total = (rows - largest).exp_().sum(-1).double().log()
            known[id(one)] = (rows.gather(-1, targets) - largest)[:, 0].double() - total
    return [known[id(one)] for one in logits]
