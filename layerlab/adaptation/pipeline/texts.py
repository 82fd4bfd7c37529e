"""The texts of an adaptation: read once, cleaned, and split into training and held-out text."""

from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, count, islice
from pathlib import Path

from layerlab.adaptation.pipeline.plan import describe_base, rules_of, sources
from layerlab.adaptation.sft.conversations import Conversation, conversations
from layerlab.console.progress import ProgressCallback
from layerlab.data.cleaning.benchmark_questions import questions
from layerlab.data.cleaning.clean import TEXT, clean, limit_text
from layerlab.data.cleaning.contamination import contamination
from layerlab.data.documents import DocumentStore, store_documents
from layerlab.data.places import find_text
from layerlab.data.shared_files import describe_shared
from layerlab.data.sources import open_source
from layerlab.errors import UserError
from layerlab.recipes.adaptation import AdaptationRecipe
from layerlab.recipes.adaptation_sections import RowsSection
from layerlab.recipes.training_sections import Source
from layerlab.records.json_values import Json
from layerlab.system.write_errors import temporary_folder

# Questions of a benchmark that a report lists.
LISTED = 50


def clean_texts(recipe: AdaptationRecipe, folder: Path, tell: ProgressCallback) -> Json:
    """Clean every text into a file of documents, in a folder by its kind and number.

    Args:
        tell: is told what is read, and the share of the texts that is done.

    Raises:
        UserError: a text cannot be read, or nothing is left of it.
    """
    reports: list[Json] = []
    every = list(sources(recipe))
    for kind, number, source in every:
        share = len(reports) / len(every)
        tell(f"reading {source.text}", share)
        out = folder / f"{kind}-{number}"
        found = clean(source, out, rules_of(recipe, kind), partial(_tell_read, tell, share))
        reports.append({"kind": kind, "place": out.name, "text": source.text, **found.to_dict()})
    reports[-1]["notes"] += describe_shared([source for _, _, source in every])
    reports[-1]["notes"] += describe_base(recipe)
    return {"sources": reports}


def _tell_read(tell: ProgressCallback, share: float, message: str, _: float) -> None:
    tell(message, share)


def materials(recipe: AdaptationRecipe, folder: Path, kind: str) -> list[Source]:
    """Return the cleaned texts of a kind, as sources of training."""
    return [
        Source(
            text=str(folder / f"{kind}-{number}" / TEXT),
            weight=source.weight,
            special_tokens=source.special_tokens,
        )
        for one, number, source in sources(recipe)
        if one == kind
    ]


@contextmanager
def halves(
    recipe: AdaptationRecipe, folder: Path
) -> Iterator[dict[tuple[str, str], tuple[DocumentStore, DocumentStore]]]:
    """Split each text into training and held-out text, by its kind and name.

    It is cut where continued pretraining cuts it.
    """
    found: dict[tuple[str, str], tuple[DocumentStore, DocumentStore]] = {}
    with temporary_folder() as scratch, ExitStack() as stack:
        for kind, number, source in sources(recipe):
            file = folder / f"{kind}-{number}" / TEXT
            pieces = open_source(Source(text=str(file))).pieces()
            store = store_documents(pieces, Path(scratch) / f"{kind}-{number}", source.text, None)
            cut = stack.enter_context(store).split(recipe.data.validation_fraction, source.text)
            place = Path(source.text)
            found[kind, _free(place.stem if place.suffix else source.text, kind, found)] = cut
        yield found


def texts_of(store: DocumentStore) -> Iterator[str]:
    """Return the pieces of a text."""
    return (piece.text for piece in store.pieces())


def read_held_out(recipe: AdaptationRecipe, folder: Path, kind: str, limit: int) -> list[str]:
    """Read held-out documents of a kind, up to so many bytes from each text.

    At least a part of one.
    """
    found: list[str] = []
    with halves(recipe, folder) as parts:
        for (own, _), (_, store) in parts.items():
            if own == kind:
                found += _limit(store, limit)
    return found


def rows_of(section: RowsSection) -> list[Conversation]:
    """Return the conversations of a source.

    Raises:
        UserError: there are none, or one is bad.
    """
    given = conversations(str(find_text(section.path)), ignore=section.ignore)
    return list(islice(given, section.limit))


def contamination_of(recipe: AdaptationRecipe, folder: Path) -> Json:
    """Look for the questions of benchmarks in all training text and rows.

    The texts of the base are searched too.
    """
    assert recipe.clean is not None
    there, left_out = [], []
    for name in recipe.clean.benchmarks:
        try:
            there.append(find_text(name))
        except UserError as error:
            left_out.append({"what": f"the search for {name}", "why": str(error)})
    if not there:
        return {"benchmarks": {}, "matches": [], "left_out": left_out}
    with halves(recipe, folder) as parts:
        before = recipe.training()
        given = (
            limit_text(open_source(one).pieces(), one.limit)
            for one in (before.data.sources if before else ())
        )
        learned = chain(
            chain.from_iterable(given),
            chain.from_iterable(texts.pieces() for texts, _ in parts.values()),
        )
        dialogues = (
            "\n".join(turn.text for turn in row.turns)
            for section in (recipe.sft.sources if recipe.sft else ())
            for row in rows_of(section)
        )
        found = contamination(chain(learned, dialogues), questions(*there)).to_dict()
    matches = list(found["matches"])
    return {**found, "matches": matches[:LISTED], "touched": len(matches), "left_out": left_out}


def _limit(store: DocumentStore, limit: int) -> Iterator[str]:
    done = 0
    for document in store.documents():
        text = "".join(document)
        rest = limit - done
        if rest <= 0:
            return
        yield text.encode()[:rest].decode(errors="ignore")
        done += len(text.encode())


def _free(name: str, kind: str, taken: Container[tuple[str, str]]) -> str:
    """Return the name, with a number if another text of its kind has the same."""
    names = chain([name], (f"{name} {number}" for number in count(2)))
    return next(one for one in names if (kind, one) not in taken)
