"""The documentation that every Python brings: the topics of `help()`, as documents to train on."""

from collections.abc import Iterable, Iterator

# Letters of a paragraph that may stand in several documents.
HEADING = 60


def topics() -> list[str]:
    """Return the topics of Python's documentation by their names, each paragraph once.

    They are documents in reStructuredText.

    Topics quote whole others, and what is held out would be known from the rest.
    """
    from pydoc_data.topics import topics as found

    return list(_drop_repeated(found[name] for name in sorted(found)))


def _drop_repeated(documents: Iterable[str]) -> Iterator[str]:
    """Yield each document without the paragraphs that stood before; headings may come again."""
    seen = set[str]()
    for document in documents:
        own = []
        for paragraph in document.split("\n\n"):
            text = " ".join(paragraph.split())
            if text not in seen:
                own.append(paragraph)
            if len(text) > HEADING:
                seen.add(text)
        if any(len(paragraph) > HEADING for paragraph in own):
            yield "\n\n".join(own)
