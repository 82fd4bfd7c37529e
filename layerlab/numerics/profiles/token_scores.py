"""The log-probabilities of one text under many profiles, with few logits in memory at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from layerlab.errors import UserError
from layerlab.numerics.profiles.classify import OperationIndex, OperationResult
from layerlab.numerics.profiles.expert_choices import ExpertChoices
from layerlab.numerics.profiles.lane_values import change_each
from layerlab.numerics.profiles.lanes import Lane, SideBySide
from layerlab.numerics.profiles.profile import NumericsProfile, differences
from layerlab.numerics.profiles.rules import find_carrier
from layerlab.system.hooks import replacing_forward, temporary_hooks

RunModel = Callable[[nn.Module, Tensor], Any]
NoteRun = Callable[[str], None]
# Is given the tokens that were predicted, and the logits of the first two runs, a row a token.
LookAtLogits = Callable[[Tensor, Sequence[Tensor]], None]
# Tokens of the run that only counts the operations of modules.
PROBE = 2
# Bytes of logits of all runs that are computed at once; rounding and normalizing them takes up to
# three times as much beside.
LOGITS = 2**27
# What is computed token by token comes out the same however many tokens there are, but for the
# order of sums, and a few digits of bf16 that it turns.
SAME = 2.0**-5


class _Stopped(Exception):
    """The model has run as far as it is to run."""


def ignore(what: str) -> None:
    """Take note of nothing."""


class TokenScores:
    """Reads log-probabilities; the operations of the model are looked up once.

    All runs go through the blocks together; what they leave goes through the head a few tokens at
    a time. A model whose head is not apart from its blocks is run at once.

    Attributes:
        choices: among experts, of the first two runs of the last reading.
        rerouted: tokens at which these change, of all texts.
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
        self.choices, self.rerouted = ExpertChoices(), torch.zeros(0, dtype=torch.bool)
        self.forwards = 0.0
        self._profiles: list[NumericsProfile] = []
        self._first: tuple[Lane, list[Tensor]] | None = None
        self._base: Any = None
        probe = SideBySide(model, [Lane(profile=NumericsProfile(name="probe"))] * 2, self.index)
        short = pieces[0][:PROBE]
        parts = [one for one in model.modules() if one is not model]
        handles = [one.register_forward_hook(self._note_features) for one in parts]
        with temporary_hooks(handles), probe.running():
            (logits,) = set(probe.values(call(model, short)))
        self._entries = logits.shape[-1]
        if self._base is not None and not self._ends_with_head(probe, short, logits):
            self._base = None

    def _note_features(self, module: nn.Module, args: Any, output: Any) -> None:
        """Remember the last part of the model that gives features, which the head reads."""
        if isinstance(getattr(output, "last_hidden_state", None), Tensor):
            self._base = module

    def _ends_with_head(self, probe: SideBySide, ids: Tensor, logits: Tensor) -> bool:
        """Return whether what follows the blocks is done token by token."""
        try:
            output, streams = self._read_blocks(probe, ids)
            with probe.running():
                read = [
                    self._read_head(probe, ids, output, streams, slice(at, at + 1))[0]
                    for at in range(len(ids))
                ]
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return False
        found = torch.cat(read, dim=1)
        most = SAME * logits.abs().max()
        return found.shape == logits.shape and bool((found - logits).abs().max() <= most)

    def take_texts(self, pieces: Sequence[Tensor]) -> Self:
        """Return what reads other texts with the same model, which is not looked into again."""
        other = copy(self)
        other.pieces, other.choices, other.forwards = pieces, ExpertChoices(), 0.0
        other._profiles, other._first = [], None
        return other

    def list_results(self, lanes: Sequence[Lane]) -> set[OperationResult]:
        """Return what one of two profiles rounds in this model."""
        blocks, head = self._try_out(lanes)
        return blocks.rounded | head.rounded

    def count_passes(self, lanes: Sequence[Lane]) -> float:
        """Return how many forward passes a reading takes."""
        return _count(*self._try_out(lanes))

    def _try_out(self, lanes: Sequence[Lane]) -> tuple[SideBySide, SideBySide]:
        """Run no more than a few tokens."""
        blocks, head = self._prepare(lanes, lanes)
        for _, values in self._walk(blocks, head, self.pieces[0][:PROBE], None):
            head.round_all(values, "log_softmax")
        return blocks, head

    def read(self, lanes: Sequence[Lane], look: LookAtLogits | None = None) -> list[Tensor]:
        """Return the log-probabilities of all tokens but the first of each text, in every run.

        Raises:
            UserError: under one of their profiles they are not finite.
        """
        return self._read(lanes, lanes, look, None)

    def read_each(
        self, profiles: Sequence[NumericsProfile], look: LookAtLogits | None = None
    ) -> list[Tensor]:
        """Return the log-probabilities under each profile, which finds its own experts.

        Profiles that round alike are read once.

        Args:
            look: as `read` takes it.

        Raises:
            UserError: as `read`.
        """
        found = self.read([Lane(profile=one) for one in profiles], look)
        if not self.choices.total:
            return found
        read = [(profiles[0], found[0])]
        for profile in profiles[1:]:
            if all(differences(one, profile) for one, _ in read):
                read.append((profile, self.read_alone(Lane(profile=profile))))
        return [
            next(values for one, values in read if not differences(one, profile))
            for profile in profiles
        ]

    def read_alone(self, lane: Lane, look: LookAtLogits | None = None) -> Tensor:
        """Return log-probabilities of a run that finds its own experts.

        Args:
            look: sees its logits beside those of the first run of the last reading.
        """
        assert self._first is not None, "something was read before"
        first, streams = self._first
        kept = self.choices, self.rerouted
        found = self._read([lane] * 2, [first, lane], look, streams)[1]
        self.choices, self.rerouted = kept
        return found

    def _read(
        self,
        lanes: Sequence[Lane],
        behind: Sequence[Lane],
        look: LookAtLogits | None,
        first: Sequence[Tensor] | None,
    ) -> list[Tensor]:
        """Run the blocks, and what lies behind them.

        Args:
            lanes: through the blocks.
            behind: through the head.
            look: as `read` takes it.
            first: what goes through the head in the first run, by text, in place of what it left.
        """
        blocks, head = self._prepare(lanes, behind)
        found: list[list[Tensor]] = [[] for _ in lanes]
        self.choices, rerouted = ExpertChoices(), []
        kept = []
        for number, ids in enumerate(self.pieces):
            self.step(f"{len(lanes)} runs side by side")
            walk = self._walk(blocks, head, ids, None if first is None else first[number])
            kept.append(next(walk)[1][0])
            rerouted.append(self.choices.add(blocks.choices.values(), len(ids)))
            for part, logits in walk:
                # What is computed of the logits is no part of the model.
                with _disable_current_modes():
                    targets = ids[1:][part]
                    if look is not None:
                        look(targets, [one[0] for one in logits[:2]])
                    values = head.round_all(_score(logits, targets), "log_softmax")
                for rows, value in zip(found, values, strict=True):
                    rows.append(value)
        self._first, self.rerouted = (behind[0], kept), torch.cat(rerouted)
        self.forwards += (blocks.computed + head.computed) / max(blocks.products + head.products, 1)
        read = [torch.cat(one).double() for one in found]
        for lane, scored in zip(lanes, read, strict=True):
            _check_finite(lane, scored)
        return read

    def _prepare(
        self, lanes: Sequence[Lane], behind: Sequence[Lane]
    ) -> tuple[SideBySide, SideBySide]:
        # Every reading in what the widest needs, so that the same profile gives the same digits.
        self._profiles += [one.profile for one in lanes if one.profile is not None]
        make = partial(SideBySide, self.model, index=self.index, wide=find_carrier(self._profiles))
        return make(lanes=lanes), make(lanes=behind, behind=True)

    def _walk(
        self, blocks: SideBySide, head: SideBySide, ids: Tensor, first: Tensor | None
    ) -> Iterator[tuple[slice, list[Tensor]]]:
        """Yield what leaves the blocks in every run, and then the logits of some tokens each time.

        Args:
            first: what leaves them in the first run, if it is not to be what does.
        """
        output, streams = self._read_blocks(blocks, ids)
        # Of the last token nothing is predicted.
        streams = change_each(lambda one: one[:, :-1], streams)
        if first is not None:
            streams[0] = first
        count = len(ids) - 1
        yield slice(count), streams
        size = self._entries * streams[0].element_size() * len(set(map(id, streams)))
        rows = max(LOGITS // size, 1)
        with head.running():
            for start in range(0, count, rows):
                part = slice(start, min(start + rows, count))
                yield part, self._read_head(head, ids, output, streams, part)

    def _read_blocks(self, run: SideBySide, ids: Tensor) -> tuple[Any, list[Tensor]]:
        """Return the output of the model's blocks, and its features in every run.

        These are the logits where the head is not apart.
        """
        if self._base is None:
            with run.running():
                return None, run.values(self.call(self.model, ids))
        output: Any = None
        forward = self._base.forward

        def stop(*args: Any, **options: Any) -> Any:
            nonlocal output
            output = forward(*args, **options)
            raise _Stopped

        with run.running(), replacing_forward(self._base, stop), suppress(_Stopped):
            self.call(self.model, ids)
        return output, run.values(output.last_hidden_state)

    def _read_head(
        self, run: SideBySide, ids: Tensor, output: Any, streams: Sequence[Tensor], part: slice
    ) -> list[Tensor]:
        """Return the logits of some tokens in every run."""
        with _disable_current_modes():
            cut = change_each(lambda one: one[:, part], streams)
        if output is None:
            return cut
        run.restart()
        output.last_hidden_state = run.carry(cut, output.last_hidden_state.dtype)
        with replacing_forward(self._base, lambda *args, **options: output):
            return run.values(self.call(self.model, ids))


def _count(*parts: SideBySide) -> float:
    """Return how many forward passes of one run all runs together took."""
    computed, products = sum(one.computed for one in parts), sum(one.products for one in parts)
    return computed / max(products, 1)


def _check_finite(lane: Lane, values: Tensor) -> None:
    lost = int((~values.isfinite()).sum())
    if lost and lane.profile is not None:
        raise UserError(
            f"under {lane.profile.name} the log-probabilities of {lost} of {len(values)} tokens are"
            " not finite: the model overflows, or holds NaN; look with layerlab inspect MODEL"
        )


def _score(logits: Sequence[Tensor], targets: Tensor) -> list[Tensor]:
    """Return the log-probability of each token that was predicted, in every run."""

    def score(one: Tensor) -> Tensor:
        rows = one[0]
        largest = rows.amax(-1, keepdim=True)
        total = (rows - largest).exp_().sum(-1).double().log()
        return (rows.gather(-1, targets[:, None]) - largest)[:, 0].double() - total

    return change_each(score, logits)
