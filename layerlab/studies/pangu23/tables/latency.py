"""Time of a decoding step here, of PanGu-pi and of Llama, beside the printed milliseconds.

Other studies count what the source prints; this one times twins at a smaller width, or on a GPU at
the source's own. Times belong to a machine, so the fast mode takes none: it judges what an earlier
measurement left, if one did.

Planned before it is run: `PLANNED` repetitions, all taken, none left out, judged once when the last
is in. A first measurement was of 12 and its words changed when it was repeated, so 30 were taken:
that number was set after a look, and so is whatever was not measured as planned.

Predicted: three layers less are worth what their weights are, and the modules cost more than 4 %.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from layerlab.known_options import study_options
from layerlab.records.kept import read_kept, write_kept
from layerlab.studies.engine.pictures import Gap, gap, gaps
from layerlab.studies.engine.sampling import StudyContext, digest
from layerlab.studies.engine.statistics import Interval, table
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import below, within
from layerlab.studies.support import small_models
from layerlab.studies.support.stored_readings import check_shapes, find_readings, hash_readings

FEWER, SAME = "fewer layers", "one depth"
# Milliseconds, as printed: of 7B, and of the 1B with both modules and with none.
PRINTED = {FEWER: (43.00, 47.60), SAME: (7.86, 7.56)}
PLACES = {FEWER: "pangu23, section 5.3", SAME: "pangu23, Table 4"}
# 10 % faster, as the source says of its printed 0.903: 1.1 tokens in the time of one.
FASTER = 1 / 1.1
# The printed 1.040 and a hundredth: what rounding and another processor may add.
COST = 1.05
# Of what the weights that a token reads predict; here a step does more than read them.
NEAR = 0.05
DEPTH, HEAD, VOCAB, SHAPE = 12, 128, 32_000, 2048
CONTEXT, NEW = 32, 16
UNTIMED = "No times were at hand, and the fast mode takes none."
PLANNED = 40
Measured = Mapping[str, Any]


def matched_models(width: int) -> dict[str, tuple[Any, Any, float]]:
    """Return PanGu-pi and Llama of each comparison, with the quotient of the weights they read.

    Models of the 1B are no wider than the 1B.
    """
    from layerlab.latency.candidates import build_candidate
    from layerlab.latency.parameter_matching import pair, read_weights

    wide = min(width, SHAPE)
    sizes = f"width={wide},layers={DEPTH},heads={wide // HEAD},vocab={VOCAB * wide // SHAPE}"
    same = [build_candidate(f"{name}:{sizes}") for name in ("pangu-pi", small_models.PLAIN)]
    counts = [one.account() for one in same]
    assert counts[0] is not None and counts[1] is not None
    fewer = pair("fewer-layers", shape="7b", width=width)
    return {
        FEWER: (fewer.pangu, fewer.llama, fewer.predicted),
        SAME: (same[0], same[1], read_weights(counts[0]) / read_weights(counts[1])),
    }


def measure_times(width: int, device: str, repetitions: int) -> dict[str, Any]:
    """Measure the times of both comparisons.

    On a CPU it is the processor time of one thread, which other threads do not lengthen.
    """
    from layerlab.latency import measure
    from layerlab.latency.config import latency_config

    chosen = latency_config(
        device=device, threads=1, context=CONTEXT, new=NEW, repetitions=repetitions, batch=1
    )
    found = {}
    for name, (pangu, llama, predicted) in matched_models(width).items():
        one = measure.measure_latency([pangu, llama], chosen).to_dict()
        found[name] = {
            "ratio": one["ratio"]["decode"],
            "predicted": predicted,
            "milliseconds": [part["decode"]["median"] for part in one["timed"]],
            "names": [part["name"] for part in one["timed"]],
            "machine": one["machine"],
            "versions": one["versions"],
            "setting": one["setting"],
        }
    return found


def locate_times(runs: Path, width: int, device: str = "cpu") -> Path:
    """Return the file of the measured times."""
    kind = "" if device == "cpu" else f"{device}-"
    key = digest([width, CONTEXT, NEW, DEPTH])[:8]
    return find_readings(runs) / f"latency-{kind}{key}.json"


def run(context: StudyContext) -> Outcome:
    """Time, judge and draw."""
    width, device = context.options["width"], context.options["device"]
    file = locate_times(context.runs, width, device)
    if not context.fast:
        write_kept(file, measure_times(width, device, context.draws))
    found = read_kept(file, check_times)
    notes = [describe_times(found), *check_plan(found)] if found else [UNTIMED]
    verdicts = (judge_quicker(found), judge_costs(found), judge_explained(found))
    return Outcome(
        verdicts=tuple(judge_replicated(one, found) for one in verdicts),
        frames={"steps": table(rows(found))},
        pictures=(plot(found),),
        remarks=(
            f"A step is a token at batch 1 behind a prompt of {CONTEXT} tokens, in float32 on a "
            f"CPU and bfloat16 on a GPU. Models have weights at random and the layers of the "
            f"source's: 29 and 32 of its 7B at a width of {width}, {DEPTH} of its 1B at "
            f"{min(width, SHAPE)}; vocabularies keep their share of the width. "
            "Models take turns, the interval is that of the median of their quotients.",
            "The source names an Ascend 910A, and neither precision, batch nor prompt. What holds "
            "here is said of this machine.",
            "Other work on a machine does not lengthen processor time, but takes its caches and "
            "its memory: intervals are wider for it.",
            f"Planned before it was run: {PLANNED} repetitions, judged once, when the last is in. "
            "Before that plan the number was raised, from 12 to 30, after a first result.",
            *notes,
        ),
    )


def check_times(found: Measured) -> None:
    """Check that stored times are those of both comparisons.

    Raises:
        ValueError, TypeError, KeyError: they are not.
    """
    for name in PRINTED:
        check_shapes(found[name], {"predicted": (), "milliseconds": (2,)})
        check_shapes(found[name]["ratio"], dict.fromkeys(("median", "low", "high", "pairs"), ()))
    describe_times(found)


def describe_times(found: Measured) -> str:
    """Describe where the times come from."""
    one = found[FEWER]
    machine = one["machine"]
    where = f"{machine['processor']} with {machine['threads']} thread, in processor time"
    if machine["device"] != "cpu":
        where = f"{machine['device']} in bfloat16, in wall time"
    return (
        f"Timed on {where}, {one['ratio']['pairs']} repetitions; torch {one['versions']['torch']}, "
        f"transformers {one['versions']['transformers']}."
    )


def check_plan(found: Measured) -> list[str]:
    """Warn the reader where the planned number of repetitions was not kept."""
    pairs = found[FEWER]["ratio"]["pairs"]
    if pairs == PLANNED:
        return []
    return [
        f"These are {pairs} repetitions and not the {PLANNED} of the plan. Measurements of 12 came "
        "to other words when they were repeated, and their number was raised after that: the words "
        "are marked for it."
    ]


def judge_replicated(verdict: StudyVerdict, found: Measured | None) -> StudyVerdict:
    """Mark a verdict with its repetitions, and where their number was not planned."""
    if found is None:
        return verdict
    pairs = found[FEWER]["ratio"]["pairs"]
    return replace(verdict, unit=f"{pairs} repetitions", looked=bool(check_plan(found)))


def quotient(found: Measured, name: str) -> Interval:
    """Return the time of a step of PanGu-pi over that of a step of Llama.

    It has no interval where there are few pairs.
    """
    ratio = found[name]["ratio"]
    low, high = ratio["low"], ratio["high"]
    if low is None or high is None:
        low, high = 0.0, float("inf")
    return Interval(ratio["median"], low, high)


def printed_ratio(name: str) -> float:
    """Return the quotient that the source printed."""
    pangu, llama = PRINTED[name]
    return pangu / llama


def judge_untimed(claim: str, name: str, source: str) -> StudyVerdict:
    """Leave a claim undecided where nothing was timed."""
    return StudyVerdict(
        claim=claim,
        word="not decided",
        number=printed_ratio(name),
        said=f"no times were at hand; the source prints a quotient of {printed_ratio(name):.3f}",
        source=source,
    )


def steps(found: Measured, name: str) -> str:
    """Describe both times in words."""
    pangu, llama = found[name]["milliseconds"]
    return f"a step takes {pangu:.3g} against {llama:.3g} ms"


def judge_quicker(found: Measured | None) -> StudyVerdict:
    """Judge the time of a step with the layers of the source's 7B."""
    if found is None:
        return judge_untimed(STUDY.claim, FEWER, "")
    ratio = quotient(found, FEWER)
    return StudyVerdict(
        claim=STUDY.claim,
        word=below(ratio, FASTER),
        number=ratio.value,
        said=f"{steps(found, FEWER)}, {ratio} times as long; the source prints "
        f"{printed_ratio(FEWER):.3f}, and at most {FASTER:.3f} was asked for",
    )


def judge_costs(found: Measured | None) -> StudyVerdict:
    """Judge the time of a step with the same layers in both models."""
    claim = "At one depth both modules of PanGu-pi cost 4 % of a step."
    if found is None:
        return judge_untimed(claim, SAME, PLACES[SAME])
    ratio = quotient(found, SAME)
    return StudyVerdict(
        claim=claim,
        word=below(ratio, COST),
        number=ratio.value,
        said=f"{steps(found, SAME)}, {ratio} times as long; the source prints "
        f"{printed_ratio(SAME):.3f}, and at most {COST:g} was asked for",
        source=PLACES[SAME],
    )


def judge_explained(found: Measured | None) -> StudyVerdict:
    """Judge whether the weights that a token reads explain the time of a step."""
    claim = "The time of a step is that of the weights it reads, so that layers alone explain it."
    source = "Own, on pangu23, section 5.3"
    if found is None:
        return judge_untimed(claim, FEWER, source)
    ratio, predicted = quotient(found, FEWER), found[FEWER]["predicted"]
    beside = Interval(*(one / predicted for one in (ratio.value, ratio.low, ratio.high)))
    return StudyVerdict(
        claim=claim,
        word=within(beside, 1 - NEAR, 1 + NEAR),
        number=beside.value,
        said=f"the quotient of the weights is {predicted:.3f}, that of the times {ratio}: "
        f"{beside} times as much; within {NEAR:.0%} was asked for",
        source=source,
    )


def rows(found: Measured | None) -> list[dict[str, Any]]:
    """Return the printed times beside the measured ones."""
    made = []
    for name in PRINTED:
        row: dict[str, Any] = {"comparison": name, "printed": printed_ratio(name)}
        if found is not None:
            one, ratio = found[name], quotient(found, name)
            row |= {
                "measured": ratio.value,
                "low": ratio.low,
                "high": ratio.high,
                "weights": one["predicted"],
                "PanGu-pi ms": one["milliseconds"][0],
                "Llama ms": one["milliseconds"][1],
            }
        made.append(row)
    return made


def plot(found: Measured | None) -> Picture:
    """Plot the quotients one below the other."""
    entries = []
    for name in PRINTED:
        entries.append(Gap(name=f"{name}: printed", middle=printed_ratio(name)))
        if found is not None:
            ratio = quotient(found, name)
            entries += [
                gap(f"{name}: measured", ratio),
                Gap(name=f"{name}: weights", middle=found[name]["predicted"]),
            ]
    return gaps(
        "quotient",
        "Time of a step of PanGu-pi over one of Llama (median, 95 % interval)",
        entries,
        x="PanGu-pi over Llama",
    )


def inputs(runs: Path) -> list[str]:
    """Return hashes of the stored times."""
    return hash_readings(runs, "latency-*.json")


STUDY = Study(
    name="latency-measured",
    title="Latency of decoding, measured",
    source="pangu23, section 5.3",
    claim="With 29 layers in place of 32 PanGu-pi decodes 10 % faster than Llama.",
    cost="11 minutes",
    draws=PLANNED,
    fast={"draws": PLANNED},
    scale="models of width {width} with random weights, on {device}",
    unit="repetitions",
    run=run,
    **study_options("latency-measured"),
    inputs=inputs,
)
