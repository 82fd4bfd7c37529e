"""Clusters of questions: of one document, or one question that is asked in two tasks."""

from collections.abc import Sequence

import numpy as np

from layerlab.evaluation.paired.pair_questions import QuestionPairs

QUESTION = "question"


def find_clusters(pairs: Sequence[QuestionPairs]) -> np.ndarray | None:
    """Return the number of the cluster of each question over all tasks; None where all are alone.

    Questions of one cluster are linked: by what they are about, or as the same question.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    marks: dict[tuple[str, str], int] = {}
    links: list[tuple[int, int]] = []
    count = 0
    for one in pairs:
        for place, (_, answer) in enumerate(one.answers):
            digest = answer.documents.get(one.document) if one.document else None
            own = [(one.document or "", digest)] if digest is not None else []
            own += [(QUESTION, one.asked[place])] if one.asked else []
            links += [(count, marks.setdefault(mark, len(marks))) for mark in own]
            count += 1
    if len(links) == len(marks):  # each mark is of one question
        return None
    rows, columns = np.array(links).T
    size = count + len(marks)
    graph = coo_array((np.ones(len(links)), (rows, columns + count)), shape=(size, size))
    found = connected_components(graph, directed=False)[1][:count]
    return np.unique(found, return_inverse=True)[1]


def count_again(pairs: Sequence[QuestionPairs]) -> int:
    """Return how many questions are asked again, in one task or in another one."""
    asked = [digest for one in pairs for digest in one.asked]
    return len(asked) - len(set(asked))
