"""Time per token of causal language models: the prompt and the steps after it, apart.

Contestants take turns, so that a machine that slows down slows all of them, and on a CPU their
weights move to another place in memory before each turn: where they lie alone moves times by
several per cent.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from layerlab.errors import UserError
from layerlab.latency.candidates import Candidate, load_candidate
from layerlab.latency.config import LatencyConfig
from layerlab.latency.memory import cache_bytes, check_room, growth, weight_bytes
from layerlab.latency.paired_ratio import Ratio, Spread, paired_ratio, spread
from layerlab.latency.parameter_matching import MatchedPair, MatchVerdict, judge, published_times
from layerlab.system.hardware import machine, stopwatch, versions, with_threads
from layerlab.system.model_cache import cache_of, read_on

SCHEMA = 1
Ids = Int[Tensor, "batch token"]


@dataclass(frozen=True)
class Generation:
    """One prompt and what followed.

    Attributes:
        tokens: new ones.
        prefill: seconds until the first of them.
        decode: seconds for all the others.
        cache: what the model kept.
    """

    tokens: Ids
    prefill: float
    decode: float
    cache: Any


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The times of one candidate.

    Attributes:
        name: as it was named.
        random: whether its weights were drawn: times do not depend on them.
        parameters: all of them; what is tied counts once.
        weights: bytes of them.
        cache: bytes of the full cache.
        peak: bytes of the weights and of all that a pass adds at its worst; None where unknown.
        prefill: ms per token of a prompt; a batch of prompts is one.
        decode: ms per step, which gives every sequence of the batch a token.
    """

    name: str
    random: bool
    parameters: int
    weights: int
    cache: int
    peak: int | None
    prefill: Spread
    decode: Spread

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and texts."""
        return {
            **vars(self),
            "prefill": self.prefill.to_dict(),
            "decode": self.decode.to_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class Latency:
    """The times of all candidates.

    Attributes:
        setting: that they share.
        timed: each of them, in the order in which they were named.
        pair: whose accounting is judged; None where models of one's own were timed.
    """

    setting: LatencyConfig
    timed: tuple[Timing, ...]
    pair: MatchedPair | None = None

    @property
    def prefill(self) -> Ratio | None:
        """Return the prefill time of the first over that of the second, where there are two."""
        return self._ratio("prefill")

    @property
    def decode(self) -> Ratio | None:
        """Return the decoding time of the first over that of the second, where there are two."""
        return self._ratio("decode")

    @property
    def verdict(self) -> MatchVerdict | None:
        """Return the verdict on the claim of the source, under one accounting."""
        return judge(self.pair, self.decode) if self.pair and self.decode else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, numbers and texts."""
        pair, verdict = self.pair, self.verdict
        return {
            "schema": SCHEMA,
            "setting": self.setting.to_dict(),
            "machine": machine(self.setting.device, self.setting.threads),
            "versions": versions(),
            "timed": [one.to_dict() for one in self.timed],
            "ratio": {
                name: None if one is None else one.to_dict()
                for name, one in (("prefill", self.prefill), ("decode", self.decode))
            },
            "accounting": None
            if pair is None
            else {
                "name": pair.accounting,
                "about": pair.about,
                "note": pair.note,
                "predicted": pair.predicted,
                "off_percent": pair.off,
                "published": published_times(pair.shape),
            },
            "verdict": None if verdict is None else vars(verdict),
        }

    def _ratio(self, what: str) -> Ratio | None:
        if len(self.timed) != 2:
            return None
        above, below = (getattr(one, what).values for one in self.timed)
        return paired_ratio(above, below)


def measure_latency(
    candidates: Sequence[Candidate],
    setting: LatencyConfig,
    *,
    pair: MatchedPair | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Latency:
    """Measure the time that models take, in turns.

    Args:
        pair: whose candidates they are.
        note: is told of each repetition.

    Raises:
        UserError: one cannot be loaded, they do not fit into memory, or one keeps no cache.
    """
    check_room(candidates, setting)
    with with_threads(setting.threads):
        players = [_TimedModel(one, setting) for one in candidates]
        for number in range(setting.repetitions):
            note(f"repetition {number + 1} of {setting.repetitions}")
            turn = number % len(players)
            for player in players[turn:] + players[:turn]:
                player.play()
    found = tuple(player.timing() for player in players)
    return Latency(setting=setting, timed=found, pair=pair)


def generate(model: Any, prompt: Ids, new: int, clock: Callable[[], float]) -> Generation:
    """Read a prompt and add the likeliest tokens, as `generate` does.

    Args:
        new: tokens; the first comes of the prompt itself.
        clock: in seconds.

    Raises:
        UserError: the model keeps no cache.
    """
    short = "logits_to_keep" in inspect.signature(model.forward).parameters
    last = {"logits_to_keep": 1} if short else {}
    with torch.inference_mode():
        start = clock()
        out = model(input_ids=prompt, use_cache=True, **last)
        found = [out.logits[:, -1:].argmax(-1)]
        middle = clock()
        cache = cache_of(out)
        if cache is None:
            raise UserError(
                f"{type(model).__name__} keeps no cache of keys and values, without which a step "
                "is not timed; name a model that has one"
            )
        for _ in range(new - 1):
            out = read_on(model, found[-1], cache, **last)
            found.append(out.logits.argmax(-1))
        end = clock()
    return Generation(torch.cat(found, 1), middle - start, end - middle, cache)


class _TimedModel:
    """A candidate with its times."""

    def __init__(self, one: Candidate, setting: LatencyConfig) -> None:
        """Load a model, warm it up, and measure its memory."""
        self.one, self.setting = one, setting
        self.model = load_candidate(one, setting)
        self.clock = stopwatch(setting.device, setting.threads)
        rows = len(self.model.get_input_embeddings().weight)
        drawn = torch.Generator().manual_seed(setting.seed)
        ids = torch.randint(0, rows, (setting.batch, setting.context), generator=drawn)
        self.prompt = ids.to(setting.device)
        self.prefill: list[float] = []
        self.decode: list[float] = []
        self.cache = cache_bytes(self._pass().cache)
        self.growth = growth(self._pass, setting.device)

    def play(self) -> None:
        """Time one repetition, after steps that nobody times."""
        _move(self.model)
        generate(self.model, self.prompt, 2, self.clock)
        found = self._pass()
        self.prefill.append(1000 * found.prefill / self.setting.context)
        self.decode.append(1000 * found.decode / (self.setting.new - 1))

    def timing(self) -> Timing:
        """Return the measured times and sizes."""
        weights = weight_bytes(self.model)
        return Timing(
            name=self.one.name,
            random=self.one.random,
            parameters=sum(weight.numel() for weight in self.model.parameters()),
            weights=weights,
            cache=self.cache,
            peak=None if self.growth is None else weights + self.growth,
            prefill=spread(self.prefill),
            decode=spread(self.decode),
        )

    def _pass(self) -> Generation:
        return generate(self.model, self.prompt, self.setting.new, self.clock)


def _move(model: Any) -> None:
    """Move the weights of a CPU to another place in memory."""
    for weight in model.parameters():
        if weight.device.type == "cpu":
            weight.data = weight.data.clone()
