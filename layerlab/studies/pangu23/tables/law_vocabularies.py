"""Vocabularies of the sizes of the source's table, and the tokens of Chinese law under each.

No text at hand is enough to learn 100,883 entries of Chinese and English from. So the general
vocabulary is InternLM's, learned by others from a large text of both, and cut down to the size of
PanGu's: what goes is used by none of the texts here, those of the domain among them, so that it is
no worse on law than it was. One learned from the little that is here stands beside it.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.studies.engine.sampling import digest
from layerlab.studies.support.stored_readings import check_shapes, find_readings

BASE, EXTENDED, EQUAL, LARGER = "base", "extended", "as large as extended", "larger"
KINDS = (BASE, EXTENDED, EQUAL, LARGER)
PRINTED = {BASE: "PanGu", EXTENDED: "YunShan", LARGER: "Baichuan2"}
# Whose vocabulary is cut down, in the data folder.
BORROWED = "internlm"
# Learned from: the domain every other statute, what is general an encyclopedia and a corpus.
DOMAIN, GENERAL = "law-zh", ("wiki-zh", "brown")
QUESTIONS, STATUTES = "JEC-QA", "statutes"
OWN, OWN_EXTENDED = "learned here", "learned here, extended"
# With another number the counts are others.
COUNTS = 1
LawCounts = Mapping[str, Any]


def locate_counts(runs: Path) -> Path:
    """Return the file of the counted tokens."""
    return find_readings(runs) / f"law-vocabularies-{digest([COUNTS, sizes()])[:8]}.json"


def hash_texts() -> str:
    """Return a hash of the texts and tokenizers of the data folder, there or not, that count."""
    from layerlab.data.fingerprint import hash_files
    from layerlab.data.places import data_folder
    from layerlab.recipes.paths import KEPT
    from layerlab.tokenization.published_rates import ARCHIVE, TOKENIZERS

    home = data_folder()
    named = [home / one for one in (ARCHIVE, *(KEPT[name] for name in (DOMAIN, *GENERAL)))]
    files = [*named, *sorted((home / TOKENIZERS).rglob("*"))]
    there = [(one, one.relative_to(home).as_posix()) for one in files if one.is_file()]
    return hash_files(there, full=False)


def sizes(base: int | None = None) -> dict[str, int]:
    """Return the entries of every vocabulary, in the proportions of the source's table.

    Args:
        base: entries of the smallest; the source's where it is left out.
    """
    from layerlab.tokenization.published_rates import TABLE

    printed = {row.tokenizer: row.entries for row in TABLE}
    share = 1 if base is None else base / printed[PRINTED[BASE]]
    grown = {kind: share * printed[name] for kind, name in PRINTED.items()}
    return {kind: round(grown[EXTENDED if kind == EQUAL else kind]) for kind in KINDS}


def grow(base: Any, wanted: Mapping[str, int], domain: Sequence[str], general: Any) -> Any:
    """Return the base, grown on the domain, and on general text to two sizes."""
    from layerlab.tokenization.vocabulary.extend import extend

    texts = {EXTENDED: domain, EQUAL: general, LARGER: general}
    return {
        BASE: base,
        **{kind: extend(base, text, wanted[kind] - len(base)) for kind, text in texts.items()},
    }


def count_law() -> dict[str, Any]:
    """Count the tokens of each question and of each statute that nothing was learned from.

    Raises:
        UserError: a text or the tokenizer is not in the data folder.
    """
    from layerlab.tokenization.published_rates import questions, tokenizers_here
    from layerlab.tokenization.train import train_fallback_bpe
    from layerlab.tokenization.vocabulary.extend import extend
    from layerlab.tokenization.vocabulary.prune import prune

    statutes = _read([DOMAIN])
    learned, held = statutes[::2], statutes[1::2]
    general = _read(GENERAL)
    borrowed = tokenizers_here()[0].get(BORROWED)
    if borrowed is None:
        raise UserError(
            f"the tokenizer {BORROWED} is not here: LAYERLAB_DATA names no folder with "
            f"tokenizers/{BORROWED}"
        )
    wanted = sizes()
    cut = prune(borrowed, [*general, *learned], wanted[BASE])
    own = train_fallback_bpe(general, vocab=wanted[BASE])
    tokenizers = grow(cut.tokenizer, wanted, learned, general)
    others = {OWN: own, OWN_EXTENDED: extend(own, learned, wanted[EXTENDED] - wanted[BASE])}
    texts = {QUESTIONS: questions(), STATUTES: held}
    return {
        "entries": {kind: len(one) for kind, one in {**tokenizers, **others}.items()},
        "tokens": {
            name: [_count(tokenizers[kind], some) for kind in KINDS] for name, some in texts.items()
        },
        "characters": {name: list(map(len, some)) for name, some in texts.items()},
        "others": {
            kind: {name: sum(_count(one, some)) for name, some in texts.items()}
            for kind, one in {BORROWED: borrowed, **others}.items()
        },
        "borrowed": len(borrowed),
        "chinese": sum(map(_is_chinese, own.get_vocab())),
        "learned": [len(learned), sum(map(len, learned))],
        "general": sum(map(len, general)),
    }


def check_counts(found: LawCounts) -> None:
    """Check that stored counts are those of all vocabularies and texts.

    Raises:
        ValueError, TypeError, KeyError: they are not.
    """
    for name in (QUESTIONS, STATUTES):
        check_shapes(found["tokens"], {name: (len(KINDS), None)})
        check_shapes(found["characters"], {name: (None,)})
    check_shapes(found["entries"], dict.fromkeys((*KINDS, OWN, OWN_EXTENDED), ()))
    describe_texts(found)


def rate_rows(found: LawCounts) -> list[dict[str, Any]]:
    """Return the rates of all vocabularies on both kinds of text."""
    rows = []
    for name in (QUESTIONS, STATUTES):
        characters = sum(found["characters"][name])
        counts = dict(zip(KINDS, map(sum, found["tokens"][name]), strict=True))
        counts |= {kind: one[name] for kind, one in found["others"].items() if kind != BORROWED}
        rows += [
            {
                "tokenizer": kind,
                "entries": found["entries"][kind],
                "rate": tokens / characters,
                "of": f"{name}, {'from little text' if kind in (OWN, OWN_EXTENDED) else BORROWED}",
            }
            for kind, tokens in counts.items()
        ]
    return rows


def describe_texts(found: LawCounts) -> str:
    """Describe what was learned from what, and how far that is from the source."""
    files, size = found["learned"]
    entries, others = found["entries"], found["others"]
    question, own = (sum(found["characters"][QUESTIONS]), others[OWN][QUESTIONS])
    grown = others[OWN_EXTENDED][QUESTIONS]
    return (
        f"The base is InternLM's vocabulary of {found['borrowed']:,} entries, without those that "
        f"no text here uses; {entries[EXTENDED] - entries[BASE]:,} entries are learned from "
        f"{files} statutes of {size:,} characters, and those of general vocabularies from "
        f"{found['general']:,} characters of Wikipedia and the Brown corpus. These are too few to "
        f"learn a general vocabulary from: {entries[OWN]:,} entries learned from them, of which "
        f"{found['chinese']:,} are Chinese, take {own / question:.3f} tokens per character of "
        f"{QUESTIONS}, and {grown / question:.3f} after the statutes. A vocabulary that knows "
        "little gains much: no verdict rests on these."
    )


def _read(names: Iterable[str]) -> list[str]:
    """Return the documents of texts of the data folder."""
    from layerlab.data.sources import open_source, to_source

    found = []
    for name in names:
        text = open_source(to_source(name))
        if text.name != name:
            raise UserError(text.notes[0])
        found += [piece.text for piece in text.pieces()]
    return found


def _count(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    from layerlab.tokenization.load import engine

    return [
        len(one) for one in engine(tokenizer).encode_batch_fast(texts, add_special_tokens=False)
    ]


def _is_chinese(token: str) -> bool:
    return any("\u4e00" <= letter <= "\u9fff" for letter in token)
