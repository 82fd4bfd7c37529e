"""A record beside runs of its model: what each explains, emulated and by torch itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from layerlab.errors import NotApplicable
from layerlab.numerics.profiles.profile import KEPT, NumericsProfile
from layerlab.numerics.profiles.real_runs import read_real
from layerlab.numerics.profiles.token_differences import rms
from layerlab.numerics.profiles.token_scores import TokenScores
from layerlab.numerics.recorded.mistakes import changing, find_rounded, round_down
from layerlab.numerics.recorded.recorded_gap import HALF, Cause, ProfileFit
from layerlab.numerics.recorded.rounding_limits import LEAST
from layerlab.numerics.recorded.slight_mistakes import estimate

EXACT = NumericsProfile(name="float32", format=KEPT)
# What a real run explains to this share is what was recorded: the rest are digits left out.
SAME = 0.99
# What `from_pretrained` loads in bf16, and a cast of the whole model as well.
CAST = ("eager", "sdpa", "cached", "compile")
CLOSEST = 2  # profiles that are also run for real with a mistake
# What engines store in fewer digits than the model has, and how.
QUANTIZED = (
    *(("cache", name) for name in ("fp8_e4m3", "fp8_e5m2")),
    *(("weights", f"fp8_e4m3:{scaled}") for scaled in ("channel", "tensor", "group128")),
    ("weights", "int8:channel"),
    *(("weights", f"int4:{scaled}") for scaled in ("group128:asymmetric", "group128:full")),
    *(("weights", name) for name in ("int4:group32:full", "mxfp4", "nvfp4")),
)
# Share that stored digits explain beyond what profiles do; quantized results have none.
STORED = 0.25


@dataclass(frozen=True)
class HeldRecord:
    """A record and what it is held against.

    Attributes:
        scores: read profiles.
        candidates: these profiles.
        whole: what was recorded of each token; NaN where nothing was.
        exact: log-probabilities in float32.
        runs: log-probabilities of the runs that torch itself has done, by their kind.
    """

    scores: TokenScores
    candidates: Sequence[NumericsProfile]
    whole: Tensor
    exact: Tensor
    runs: dict[str, Tensor] = field(default_factory=dict)

    @property
    def known(self) -> Tensor:
        """Return which tokens are compared."""
        return ~self.whole.isnan()

    @property
    def error(self) -> Tensor:
        """Return the recorded difference from float32."""
        return (self.whole - self.exact)[self.known]

    def measure(self, difference: Tensor) -> float:
        """Return the RMS of a difference over the tokens that are compared."""
        return rms(difference[self.known])

    def explain(self, read: Tensor) -> float:
        """Return the share of the recorded difference that a run explains; all of none."""
        total = float(self.error.square().sum())
        left = float((self.whole - read)[self.known].square().sum())
        return 1 - left / total if total else float(not left)

    def fit(self, emulated: Sequence[Tensor], starts: Sequence[int]) -> list[ProfileFit]:
        """Return what each profile explains, emulated and run for real.

        Args:
            emulated: log-probabilities under each profile.
            starts: of what was recorded; none if nothing is run for real.
        """

        def run(profile: NumericsProfile) -> float:
            if profile.runs not in self.runs:
                self.runs[profile.runs] = self._run(profile, starts)
            return self.explain(self.runs[profile.runs])

        rows = [
            ProfileFit(
                name=profile.name,
                emulated=self.explain(read),
                rms=self.measure(read - self.exact),
            )
            for profile, read in zip(self.candidates, emulated, strict=True)
        ]
        return _run_all(rows, self.candidates, run) if starts else rows

    def find_made(self, given: Tensor, most: float) -> Tensor:
        """Return which tokens some run by torch itself has made.

        Args:
            given: all that was recorded.
            most: that a token may differ from such a run.
        """
        made = [(given - one).abs() <= most for one in self.runs.values()]
        return torch.stack([torch.zeros_like(self.known), *made]).any(0)

    def _run(self, profile: NumericsProfile, starts: Sequence[int]) -> Tensor:
        scores = self.scores
        scores.step(f"{profile.name} by torch itself")
        return read_real(scores.model, scores.pieces, profile, scores.call, starts)

    def try_rounded(
        self, best: float, profiles: Sequence[Tensor], starts: Sequence[int]
    ) -> list[Cause]:
        """Try a model that was cast whole, by the digits of all profiles, and by what it changes.

        Args:
            best: the largest share that a run of the model as it is explains; in float32, none.
            profiles: what emulations of it read.
            starts: of what was recorded; none if nothing is run for real.
        """
        name, buffers = find_rounded(self.scores.model)
        if not buffers or int(self.known.sum()) < LEAST:
            return []
        with changing(buffers, round_down):
            wrong, *emulated = self.scores.read_each((EXACT, *self.candidates))
            rows = [
                ProfileFit(name=one.name, emulated=self.explain(read), rms=0.0)
                for one, read in zip(self.candidates, emulated, strict=True)
            ]
            nearest = sorted(zip(rows, self.candidates, strict=True), key=lambda one: -one[0].share)
            tried = [(row, one) for row, one in nearest if starts and one.runs in CAST][:CLOSEST]
            rows += _run_all(
                [row for row, _ in tried],
                [one for _, one in tried],
                lambda profile: self.explain(self._run(profile, starts)),
            )
        whole, left = (
            (1 - one) ** 0.5 * rms(self.error) for one in (best, max(one.share for one in rows))
        )
        # Of a few tokens that find other experts most of a difference is made, by chance also half.
        most = (
            HALF * whole if not self.scores.choices.total else (1 - SAME) ** 0.5 * rms(self.error)
        )
        if left <= most:
            return [Cause(name=name, left=left, whole=whole, sure=True)]
        direction = (wrong - self.exact)[self.known]
        part, strays = estimate(self.error, direction)
        drift = max(abs(estimate((one - self.exact)[self.known], direction)[0]) for one in profiles)
        if part - strays - drift <= 0 or part + strays + drift < 1:
            return []
        left = rms(self.error - part * direction)
        return [Cause(name=name, left=left, whole=rms(self.error), sure=True)]

    def try_quantized(self, best: float, base: NumericsProfile) -> list[Cause]:
        """Try weights and caches of fewer digits.

        Args:
            best: the largest share that a run of the model as it is explains; in float32, none.
            base: profile of all else: what a cache holds is rounded to bf16 before.
        """
        if int(self.known.sum()) < LEAST:
            return []
        tried = [
            replace(base, operations={**base.operations, operation: name})
            for operation, name in QUANTIZED
        ]
        found = []
        for read, (operation, name) in zip(self.scores.read_each(tried), QUANTIZED, strict=True):
            part, strays = estimate(self.error, (read - self.exact)[self.known])
            cause = Cause(
                name=f"{operation} quantized to {name}",
                left=self.measure(self.whole - read),
                whole=rms(self.error),
                sure=part > strays and self.explain(read) >= best + STORED,
                is_quantized=True,
            )
            found.append(cause)
        return found


def _run_all(
    rows: Sequence[ProfileFit],
    profiles: Sequence[NumericsProfile],
    run: Callable[[NumericsProfile], float],
) -> list[ProfileFit]:
    """Run profiles for real, those that fit best first, until one is what was recorded."""
    found, same = [], ""
    for row, profile in sorted(zip(rows, profiles, strict=True), key=lambda one: -one[0].emulated):
        if same and profile.runs:
            found.append(replace(row, missing=f"{same} is what was recorded"))
            continue
        try:
            found.append(replace(row, real=run(profile)))
        except NotApplicable as reason:
            found.append(replace(row, missing=str(reason)))
        else:
            same = row.name if found[-1].share > SAME else ""
    return found
