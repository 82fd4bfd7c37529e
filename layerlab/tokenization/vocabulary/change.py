"""From a tokenizer and a corpus to a folder with the changed tokenizer, verified."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from layerlab.console.progress import ProgressCallback
from layerlab.data.documents import DocumentStore, store_documents
from layerlab.data.sources import PLAIN, open_source, to_source
from layerlab.errors import UserError
from layerlab.system.files import OnlyOwn, check_folder, write_folder
from layerlab.system.write_errors import temporary_folder
from layerlab.tokenization.convert import load_or_convert
from layerlab.tokenization.published_rates import (
    add_published,
    measure_rates,
    questions,
    tokenizers_here,
)
from layerlab.tokenization.request import JEC_QA, WHAT, parse_size
from layerlab.tokenization.vocabulary.extend import extend
from layerlab.tokenization.vocabulary.prune import prune
from layerlab.tokenization.vocabulary.verify import VocabularyCheck, verify
from layerlab.validation import expand_home
from layerlab.version import VERSION

# The page is written by whoever shows the check.
PROOF, KEPT = "proof.json", "kept.json"
SCHEMA = 1
# What a set is called of which every line is a text of its own.
BY_LINE = ", by line"
_LINE = re.compile(r"[^\n]*\n+|[^\n]+")

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class VocabularyRequest:
    """The change that is asked for.

    Attributes:
        tokenizer: a folder, a file or a name of the Hub.
        size: "+1600" adds entries, "8000" leaves so many.
        corpus: what is learned or counted on; as the sources of training.
        against: texts that it is also checked on; `jec-qa` is that of the data folder.
        terms: a file with an expression on each line.
        field: of a row that holds the text.
    """

    tokenizer: str
    size: str
    corpus: tuple[str, ...]
    against: tuple[str, ...] = ()
    terms: Path | None = None
    field: str = "text"


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The texts that a tokenizer is changed and verified on; each is read once.

    Attributes:
        learned: what is learned or counted on.
        proved: sets of texts by their names.
        jec_qa: whether it is proved on the questions of JEC-QA as well, beside the source's table.
        terms: expressions that should take few tokens.
    """

    learned: Iterable[str]
    proved: Mapping[str, Iterable[str]]
    jec_qa: bool = False
    terms: Sequence[str] = ()


@dataclass(frozen=True)
class VocabularyChange:
    """A tokenizer made of another, and the check of its vocabulary.

    Attributes:
        kept: where entries were removed, the old id of each new one.
    """

    words: PreTrainedTokenizerFast
    check: VocabularyCheck
    kept: tuple[int, ...] | None


def change(
    asked: VocabularyRequest,
    out: Path,
    say: Tell,
    page: Callable[[Path], object] = lambda folder: None,
    tell: ProgressCallback | None = None,
) -> VocabularyChange:
    """Extend or prune a tokenizer, prove the result, and write both to a folder.

    Each document is a text of the check; of a file of plain text, which has no other boundary,
    each line is one.

    Args:
        say: is told what is done.
        page: writes a page of it into the folder.
        tell: is told the share of it that is done.

    Raises:
        UserError: the tokenizer, a text or the size is none that can be used.
    """
    before = check_folder(out, WHAT, OnlyOwn())
    parse_size(asked.size)
    terms = _terms(asked.terms)
    base = load_or_convert(asked.tokenizer)
    others = [name for name in asked.against if name != JEC_QA]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(temporary_folder()))
        stores: dict[str, DocumentStore] = {}
        labels: dict[str, str] = {}
        for number, name in enumerate(dict.fromkeys((*asked.corpus, *others))):
            say(f"reading {name}")
            given = open_source(to_source(name, asked.field))
            for note in given.notes:
                say(note)
            file = folder / str(number)
            stores[name] = stack.enter_context(store_documents(given.pieces(), file, name, None))
            label = name if given.name == name else f"{given.name} in place of {name}"
            labels[name] = f"{label}{BY_LINE}" if _whole(name) else label
        learned = chain.from_iterable(_texts(stores[name]) for name in asked.corpus)
        size = sum(stores[name].size for name in asked.corpus)
        texts = Texts(
            learned=_watch(learned, size, "counting words", tell),
            proved={
                labels[name]: _watch(
                    _lines(store) if _whole(name) else _texts(store),
                    store.size,
                    f"proving it on {name}",
                    tell,
                )
                for name, store in stores.items()
            },
            jec_qa=JEC_QA in asked.against,
            terms=terms,
        )
        changed = remake(base, asked.size, texts, say, tell)

    def fill(folder: Path) -> None:
        _fill(folder, asked, changed)
        page(folder)

    write_folder(out, fill, WHAT, OnlyOwn(), before)
    return changed


def remake(
    base: PreTrainedTokenizerFast,
    size: str,
    texts: Texts,
    say: Tell = lambda text: None,
    tell: ProgressCallback | None = None,
) -> VocabularyChange:
    """Extend or prune a tokenizer, and prove the result.

    Args:
        size: "+1600" adds entries, "8000" leaves so many.
        say: is told what is done.
        tell: is told the share of merges that is learned.

    Raises:
        UserError: the tokenizer, a text or the size is none that can be used.
    """
    added, number = parse_size(size)
    exam = questions() if texts.jec_qa else []
    say("extending it" if added else "pruning it")
    kept = coverage = None
    if added:
        learn = partial(tell or _ignore, "learning merges")
        tokenizer = extend(base, texts.learned, number, tell=learn)
    else:
        pruned = prune(base, texts.learned, number)
        tokenizer, kept, coverage = pruned.tokenizer, pruned.kept, pruned.coverage
    say("proving it")
    sets = {**texts.proved, **({JEC_QA: exam} if exam else {})}
    check = verify(base, tokenizer, sets, terms=texts.terms, coverage=coverage)
    if exam:
        check = replace(check, published=_beside(base, tokenizer, exam))
    return VocabularyChange(tokenizer, check, kept)


def _texts(store: DocumentStore) -> Iterator[str]:
    return (piece.text for piece in store.pieces())


def _watch(
    texts: Iterable[str], size: int, what: str, tell: ProgressCallback | None
) -> Iterator[str]:
    """Yield texts of so many bytes, and tell each hundredth of them that is done."""
    done = last_percent = 0
    for text in texts:
        yield text
        done += len(text.encode())
        if (part := 100 * done // size) > last_percent:
            last_percent = part
            (tell or _ignore)(what, part / 100)


def _ignore(what: str, share: float) -> None:
    pass


def _whole(name: str) -> bool:
    """Return whether a name is that of one plain-text file, where only one document begins."""
    return name.lower().endswith(PLAIN) and expand_home(name).is_file()


def _lines(store: DocumentStore) -> Iterator[str]:
    """Yield the lines of a text, each with its end and the empty ones behind it."""
    rest = ""
    for text in _texts(store):
        *lines, rest = _LINE.findall(rest + text) or [""]
        yield from lines
    if rest:
        yield rest


def _terms(path: Path | None) -> list[str]:
    if path is None:
        return []
    given = open_source(to_source(str(path)))
    lines = "".join(piece.text for piece in given.pieces()).splitlines()
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise UserError(f"{path} holds no terms; write one on each line")
    return found


def _beside(
    base: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast, exam: list[str]
) -> dict[str, object]:
    found, left = tokenizers_here()
    return add_published(measure_rates({**found, "this base": base, "this one": new}, exam), left)


def _fill(folder: Path, asked: VocabularyRequest, changed: VocabularyChange) -> None:
    changed.words.save_pretrained(folder)
    given = {**asdict(asked), "terms": None if asked.terms is None else str(asked.terms)}
    head = {"schema": SCHEMA, "layerlab": VERSION, "asked": given}
    content = {**head, **changed.check.to_dict()}
    text = json.dumps(content, ensure_ascii=False, indent=1)
    (folder / PROOF).write_text(text + "\n", encoding="utf-8")
    if changed.kept is not None:
        (folder / KEPT).write_text(json.dumps(changed.kept) + "\n", encoding="utf-8")
