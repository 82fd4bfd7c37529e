"""How often a campaign of ideas fools itself, and what it finds.

Type python bench/judging/ledger.py. Campaigns are simulated with the levels of the ledger. Runs
have noise of standard deviation 1 beside their seed, which all runs of a seed share. Each idea has
five runs, on the seeds at which the baseline ran once for all ideas; whichever looks better is
confirmed once, on ten fresh seeds of its own. Beside it stands whoever keeps the best of all ideas,
and a single test that was planned of one idea, at 5 %, with as many runs. At most 5 % of campaigns
in which nothing works may adopt anything; of 20 effects of two standard deviations among 500 ideas
60 % of what the single test finds are to be adopted, at a rate of false ones below 10 %.

    --campaigns N   simulated (default 2000)
    --ideas N       of a campaign (default 500)
"""

# ruff: noqa: E402
import sys

# Files beside this one share names with modules of the standard library.
del sys.path[0]

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from scipy.special import stdtr

from layerlab.experiments.statistics.online_levels import fallback_level, lord_level, weigh
from layerlab.ledger.campaign import SCREEN, CampaignTerms

FIRST, FRESH = 5, 10  # seeds
EFFECT, REAL = 2.0, 20
AT_ONCE = 100  # campaigns that are held in memory


@dataclass(frozen=True)
class Outcome:
    """What came of campaigns, as means over them; errors are Monte-Carlo errors of one sd.

    Attributes:
        any: share of campaigns that adopted anything.
        wrong: share that adopted anything that does not work.
        false: rate of those among the adopted.
        found: share of the ideas that work which was adopted.
        confirmed: confirmations of a campaign.
        best: share in which the first runs of an idea have p below 5 %, so that whoever looks at
            them alone adopts it.
        boast: gain that the best of the first runs seems to have, in standard deviations.
        planned: share of the ideas that work which a single test finds.
    """

    any: float
    wrong: float
    false: float
    found: float
    confirmed: float
    best: float
    boast: float
    planned: float


def p_of(differences: np.ndarray) -> np.ndarray:
    """One-sided p of paired differences along the last axis, that they are no gain."""
    n = differences.shape[-1]
    error = differences.std(-1, ddof=1) / math.sqrt(n)
    return stdtr(n - 1, differences.mean(-1) / error)


def campaigns(count: int, ideas: int, real: int, terms: CampaignTerms, seed: int = 0) -> Outcome:
    """Simulate campaigns."""
    rng = np.random.default_rng(seed)
    parts = []
    for start in range(0, count, AT_ONCE):
        size = min(AT_ONCE, count - start)
        works = np.zeros((size, ideas), bool)
        works[:, :real] = True
        works = rng.permuted(works, axis=1)
        gains = EFFECT * works[..., None]
        base = rng.standard_normal((size, 1, FIRST))
        first = rng.standard_normal((size, ideas, FIRST)) - gains - base
        fresh = rng.standard_normal((size, ideas, FRESH)) - gains
        fresh -= rng.standard_normal((size, ideas, FRESH))
        p, later = p_of(first), p_of(fresh)
        for one in range(size):
            chosen = np.flatnonzero(p[one] <= SCREEN)
            adopted = chosen[confirm(later[one, chosen], terms)]
            wrong = int(np.sum(~works[one, adopted]))
            best = int(np.argmin(first[one].mean(-1)))
            both = np.concatenate([first[one, works[one]], fresh[one, works[one]]], axis=-1)
            parts.append(
                (
                    bool(len(adopted)),
                    bool(wrong),
                    wrong / max(1, len(adopted)),
                    (len(adopted) - wrong) / real if real else 0.0,
                    len(chosen),
                    p[one].min() < 0.05,
                    -first[one, best].mean(),
                    np.mean(p_of(both) < 0.05) if real else 0.0,
                )
            )
    return Outcome(*np.mean(np.array(parts, float), axis=0).tolist())


WEIGHTS = [0.0, *map(weigh, range(1, 1001))]


def confirm(p: np.ndarray, terms: CampaignTerms) -> np.ndarray:
    """Which confirmations, in their order, reach their level."""
    adopted = np.zeros(len(p), bool)
    found: list[int] = []
    kept = 0.0
    for number, one in enumerate(p, start=1):
        if terms.never:
            level = fallback_level(number, kept, alpha=terms.alpha, weights=WEIGHTS.__getitem__)
        else:
            level = lord_level(
                number, found, rate=terms.fdr, first=terms.alpha, weights=WEIGHTS.__getitem__
            )
        kept = 0.0
        if one <= level:
            adopted[number - 1], kept = True, level
            found.append(number)
    return adopted


def main() -> None:
    """Print what came of campaigns in which nothing works, and of those with some that do."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--campaigns", type=int, default=2000)
    options.add_argument("--ideas", type=int, default=500)
    given = options.parse_args()
    print(f"{given.campaigns} campaigns of {given.ideas} ideas")
    for never in (False, True):
        terms = CampaignTerms(baseline="plain", never=never)
        print(f"\n{'online fallback (--never)' if never else 'LORD++'}")
        none = campaigns(given.campaigns, given.ideas, 0, terms)
        error = 2 * math.sqrt(none.any * (1 - none.any) / given.campaigns)
        print(
            f"  nothing works: {none.any:.2%} adopt anything (2 errors: {error:.2%}; at most 5 % "
            f"asked for), after {none.confirmed:.1f} confirmations"
        )
        print(
            f"    the best of {given.ideas} would be adopted for a gain of {none.boast:.2f} sd, "
            f"which is none; in {none.best:.1%} of them the first runs of one have p < 5 %"
        )
        some = campaigns(given.campaigns, given.ideas, REAL, terms)
        print(
            f"  {REAL} of them gain {EFFECT:g} sd: {some.found:.1%} of these are adopted, "
            f"{some.found / some.planned:.1%} of the {some.planned:.1%} that a single planned test "
            f"of {FIRST + FRESH} seeds finds (60 % asked for)"
        )
        print(
            f"    rate of false ones among the adopted: {some.false:.2%} (below 10 % asked for); "
            f"any false one in {some.wrong:.1%}; {some.confirmed:.1f} confirmations"
        )


if __name__ == "__main__":
    main()
