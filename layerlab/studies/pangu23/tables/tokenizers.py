"""The tokenizer table of pangu23, made again: Chinese law, and vocabularies of its own sizes.

The texts are of the data folder. The fast mode, and a machine without them, judge what was counted
before, if anything was; Python's code under small vocabularies is counted everywhere, beside it.

Predicted: entries of the domain are worth 5 to 10 % on its text, and more than as many of any text.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlab.errors import UserError
from layerlab.known_options import study_options
from layerlab.records.kept import read_kept, write_kept
from layerlab.studies.engine.pictures import Gap, gaps
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import TABLES
from layerlab.studies.engine.statistics import Interval, bootstrap, table
from layerlab.studies.engine.study import EXACT, Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import below, decide
from layerlab.studies.pangu23.tables.law_vocabularies import (
    BASE,
    EQUAL,
    EXTENDED,
    KINDS,
    LARGER,
    QUESTIONS,
    STATUTES,
    LawCounts,
    check_counts,
    count_law,
    describe_texts,
    hash_texts,
    locate_counts,
    rate_rows,
    sizes,
)
from layerlab.studies.support.stored_readings import hash_readings

# Beside law the domain is Python's code, the rest of the world its documentation; both come with
# Python.
LEARNED = ("asyncio", "concurrent.futures", "ctypes", "importlib", "multiprocessing")
# Of other authors and years, and no file of them is learned from; there are no draws but these.
READ = (
    *("argparse", "ast", "bdb", "calendar", "cmd", "configparser", "copy", "csv"),
    *("datetime", "decimal", "difflib", "dis", "doctest", "fractions", "ftplib", "gzip"),
    *("imaplib", "inspect", "locale", "mailbox", "optparse", "pdb", "shutil", "tarfile"),
)
# Of the rate: a twentieth less is clearly less; the source has 0.934.
CLEAR = 0.95
# So much more is still on a par, and so much less still no gain.
PAR = 0.02
UNCOUNTED = (
    "Law was not counted: its texts are not at hand, or this is the fast mode, and no counts lie "
    "among the runs."
)


def code(name: str) -> str:
    """Return the source of a standard-library module, or of all modules of a package."""
    found = find_spec(name)
    file = None if found is None or found.origin is None else Path(found.origin)
    if file is None or file.suffix != ".py" or not file.is_file():
        raise UserError(
            f"this Python has no source of {name}; expected an installation with its library: "
            "type python -m venv with another Python"
        )
    files = sorted(file.parent.glob("*.py")) if file.name == "__init__.py" else [file]
    return "\n".join(one.read_text("utf-8") for one in files)


def vocabularies(base: int) -> dict[str, Any]:
    """Train the four tokenizers of code: general ones of three sizes, and one extended to it."""
    from layerlab.data.sources import open_source
    from layerlab.recipes.training_sections import Source
    from layerlab.tokenization.load import train_tokenizer
    from layerlab.tokenization.vocabulary.extend import extend

    general = [piece.text for piece in open_source(Source(text="python-docs")).pieces()]
    found = {
        kind: train_tokenizer(general, size)
        for kind, size in sizes(base).items()
        if kind != EXTENDED
    }
    added = sizes(base)[EXTENDED] - base
    found[EXTENDED] = extend(found[BASE], [code(name) for name in LEARNED], added)
    return {kind: found[kind] for kind in KINDS}


def count_tokens(draw: Sampler, entries: int, characters: int) -> dict[str, Tensor]:
    """Count tokens and characters of held-out files under each tokenizer."""
    from layerlab.tokenization.compression import compression

    tokenizers = vocabularies(entries)
    texts = [code(name)[:characters] for name in READ[: draw.count]]
    tokens = [[compression(tokenizers[kind], [text]).tokens for kind in KINDS] for text in texts]
    return {
        "tokens": torch.tensor(tokens, dtype=torch.float64),
        "characters": torch.tensor([len(text) for text in texts], dtype=torch.float64),
    }


def run(context: StudyContext) -> Outcome:
    """Count, judge and draw."""
    # One batch, so that the vocabularies are made once.
    (found,) = context.sample(count_tokens, [context.options], batch=context.draws)
    tokens, characters = found["tokens"], found["characters"]
    law, remarks = read_law(context)
    rows, printed = published_rows()
    rows += rate_rows(law) if law else []
    rows += [
        {"tokenizer": kind, "entries": size, "rate": rate, "of": "code, trained here"}
        for (kind, size), rate in zip(
            sizes(context.options["entries"]).items(),
            tokens.sum(0) / characters.sum(),
            strict=True,
        )
    ]
    if not context.fast:
        more, notes = at_hand()
        rows, printed = rows + more, [*printed, *notes]
    counted = {name: counts(law, name) for name in (QUESTIONS, STATUTES)} if law else {}
    beside = ratio(tokens, EXTENDED, BASE, context.seed)
    return Outcome(
        verdicts=(
            judge_lower(counted.get(QUESTIONS), context.seed),
            judge_statutes(counted.get(STATUTES), context.seed),
            judge_on_par(counted.get(QUESTIONS), context.seed),
            judge_of_domain(counted.get(QUESTIONS), context.seed),
            judge_monotone(),
        ),
        frames={"rates": table(rows)},
        pictures=(plot({**counted, "code": tokens}, context.seed),),
        remarks=(
            *remarks,
            f"On Python's code, under byte-pair encodings of its documentation of "
            f"{context.options['entries']:,} entries and in proportion, entries of the domain "
            f"leave {beside} of the tokens of {len(tokens)} files, up to "
            f"{context.options['characters']:,} characters of each: {', '.join(LEARNED)} are "
            "learned from. No verdict rests on it.",
            *printed,
        ),
    )


def read_law(context: StudyContext) -> tuple[LawCounts | None, list[str]]:
    """Count the tokens of law, where its texts are at hand; else return what was counted before."""
    file, remarks = locate_counts(context.runs), list[str]()
    if not context.fast:
        try:
            write_kept(file, count_law())
        except UserError as error:
            remarks = [f"Law was not counted anew: {error}."]
    found = read_kept(file, check_counts)
    return found, [*remarks, describe_texts(found) if found else UNCOUNTED]


def counts(law: LawCounts, name: str) -> np.ndarray:
    """Return the tokens of each text under each vocabulary."""
    return np.array(law["tokens"][name], dtype=float).T


def plot(counted: dict[str, np.ndarray], seed: int) -> Picture:
    """Draw how many tokens each vocabulary leaves of those of the base."""
    return gaps(
        "ratios",
        "Tokens beside those of the base vocabulary (95 % over texts)",
        [
            Gap(name=f"{name}: {kind}", middle=one.value, low=one.low, high=one.high)
            for name, tokens in counted.items()
            for kind in KINDS[1:]
            for one in [ratio(tokens, kind, BASE, seed)]
        ],
        x="tokens, over those of the base",
    )


def published_rows() -> tuple[list[dict[str, Any]], list[str]]:
    """Return the source's own table."""
    from layerlab.tokenization.published_rates import ABOUT, TABLE

    rows = [
        {"tokenizer": one.tokenizer, "entries": one.entries, "rate": one.rate, "of": "printed"}
        for one in TABLE
    ]
    return rows, [f"{ABOUT[:1].upper()}{ABOUT[1:]}."]


def at_hand() -> tuple[list[dict[str, Any]], list[str]]:
    """Return the data folder's tokenizers, rated on the source's questions.

    Where one cannot be had, a remark says why.
    """
    from layerlab.tokenization import published_rates

    try:
        texts = published_rates.questions()
    except UserError:
        return [], ["JEC-QA is not at hand: nothing was measured on it."]
    tokenizers, left = published_rates.tokenizers_here()
    found = published_rates.measure_rates(tokenizers, texts)
    rows = [
        {"tokenizer": one.tokenizer, "entries": one.entries, "rate": one.rate, "of": "JEC-QA"}
        for one in found
    ]
    printed = {name.lower(): rate for name, rate in rates().items()}
    remarks = [
        f"{one.tokenizer} takes {one.rate:.3f} tokens per character of the JEC-QA in AGIEval, "
        f"where {printed[one.tokenizer]:.3f} is printed: {one.rate / printed[one.tokenizer]:.3f} "
        "of it. The unit that is not stated may be this one; the texts are not quite the same."
        for one in found
        if one.tokenizer in printed
    ]
    return rows, remarks + [f"Not read: {', '.join(left)}."] * bool(left)


def ratio(tokens: np.ndarray, upper: str, lower: str, seed: int) -> Interval:
    """Return the tokens of all files under one tokenizer over those under another."""
    pair = tokens[:, [KINDS.index(upper), KINDS.index(lower)]]

    def number(values: np.ndarray) -> float:
        above, below = values.sum(0)
        return float(above / below)

    return bootstrap(pair, number, seed)


def judge_uncounted(claim: str, source: str = "") -> StudyVerdict:
    """Leave a claim undecided where no law was counted."""
    printed = rates()
    number = printed["YunShan"] / printed["PanGu"]
    return StudyVerdict(
        claim=claim,
        word="not decided",
        number=number,
        said=f"no law was counted; the source prints a quotient of {number:.3f}",
        source=source,
    )


def judge_lower(tokens: np.ndarray | None, seed: int) -> StudyVerdict:
    """Judge whether the extension shortens the questions of the source's table."""
    if tokens is None:
        return judge_uncounted(STUDY.claim)
    found, printed = ratio(tokens, EXTENDED, BASE, seed), rates()
    return StudyVerdict(
        claim=STUDY.claim,
        word=below(found, CLEAR, 1),
        number=found.value,
        said=f"entries of the domain, 9.5 % more, leave {found} of the tokens of JEC-QA; the "
        f"source prints {printed['YunShan'] / printed['PanGu']:.3f}, and below {CLEAR:g} was asked "
        "for",
        unit=f"{len(tokens):,} questions",
    )


def judge_statutes(tokens: np.ndarray | None, seed: int) -> StudyVerdict:
    """Judge whether it shortens text of the kind that it was learned from."""
    claim, source = "It is lower on statutes that nothing was learned from.", "pangu23, section 6.2"
    if tokens is None:
        return judge_uncounted(claim, source)
    found = ratio(tokens, EXTENDED, BASE, seed)
    return StudyVerdict(
        claim=claim,
        word=below(found, CLEAR, 1),
        number=found.value,
        said=f"they take {found} of the tokens; below {CLEAR:g} was asked for",
        source=source,
        unit=f"{len(tokens):,} statutes",
    )


def judge_on_par(tokens: np.ndarray | None, seed: int) -> StudyVerdict:
    """Judge whether a larger general vocabulary is no better."""
    claim = "A vocabulary with entries of the domain is on a par with a larger one without."
    source = "pangu23, section 6.2"
    if tokens is None:
        return judge_uncounted(claim, source)
    found, printed = ratio(tokens, EXTENDED, LARGER, seed), rates()
    asked = 1 + PAR
    return StudyVerdict(
        claim=claim,
        word=below(found, asked),
        number=found.value,
        said=f"it takes {found} of the tokens that a vocabulary of 1.14 times its own size takes, "
        "the base grown on general text; the source prints "
        f"{printed['YunShan'] / printed['Baichuan2']:.3f} beside Baichuan2, and below {asked:g} "
        "was asked for",
        source=source,
        unit=f"{len(tokens):,} questions",
    )


def judge_of_domain(tokens: np.ndarray | None, seed: int) -> StudyVerdict:
    """Judge whether any other entries would have done as well."""
    claim = "The gain comes from the domain, and not from the number of entries."
    source = "Own, on pangu23, section 6.2"
    if tokens is None:
        return judge_uncounted(claim, source)
    found, size = (
        ratio(tokens, EXTENDED, EQUAL, seed),
        ratio(tokens, EQUAL, BASE, seed),
    )
    asked = 1 - PAR
    return StudyVerdict(
        claim=claim,
        word=below(found, asked, 1),
        number=found.value,
        said=f"it takes {found} of the tokens that the base takes after growing as much on general "
        f"text, which leaves {size} of those of the base; below {asked:g} was asked for",
        source=source,
        unit=f"{len(tokens):,} questions",
    )


def rates() -> dict[str, float]:
    """Return the rates as printed."""
    from layerlab.tokenization.published_rates import TABLE

    return {row.tokenizer: row.rate for row in TABLE}


def judge_monotone() -> StudyVerdict:
    """Judge whether size alone determines the order."""
    from layerlab.tokenization.published_rates import TABLE

    pairs = [(one, other) for one in TABLE for other in TABLE if one.entries < other.entries]
    against = [(one, other) for one, other in pairs if one.rate < other.rate]
    exceptions = ", ".join(
        f"{one.tokenizer} with {one.entries:,} entries has {one.rate:.3f}, {other.tokenizer} with "
        f"{other.entries:,} {other.rate:.3f}"
        for one, other in against
    )
    return StudyVerdict(
        scale=TABLES,
        claim="In the source's own table the larger vocabulary always has the lower rate.",
        word=decide(fails=bool(against)),
        number=float(len(against)),
        said=f"{len(against)} of {len(pairs)} pairs are the other way round: {exceptions}",
        source="Own, on pangu23, Table 7",
        unit=EXACT,
    )


STUDY = Study(
    name="tokenizer-table",
    title="Entries of a domain in a vocabulary",
    source="pangu23, section 6.2, Table 7",
    claim="A vocabulary that is extended on a domain has a clearly lower compression rate on the "
    "domain's text.",
    cost="5 minutes",
    draws=len(READ),
    most=len(READ),
    scale="tokenizers alone, no model",
    unit="files of code",
    run=run,
    inputs=lambda runs: [*hash_readings(runs, locate_counts(runs).name), hash_texts()],
    fast={"entries": 1024, "characters": 12_000},
    **study_options("tokenizer-table"),
)
