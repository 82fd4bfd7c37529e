"""Scores of an output by kind of task, given the meaning of its reference answer."""

import re
from collections.abc import Mapping, Sequence

from layerlab.evaluation.metrics.character_f1 import character_f1
from layerlab.evaluation.metrics.chinese_numerals import with_digits
from layerlab.evaluation.metrics.edit_f import edit_count, edit_f
from layerlab.evaluation.metrics.label_match import labels_in, only_label, set_f1
from layerlab.evaluation.metrics.mark import Mark
from layerlab.evaluation.metrics.rouge import rouge
from layerlab.evaluation.metrics.segmentation import Segmentation
from layerlab.evaluation.metrics.soft_f1 import soft_f1, soft_f1_in_order

_UNSAID = {"无", "未提及"}
_ENTITY = re.compile(r"\s*([^\n ]*)")


def text(output: str, gold: str, *, segment: Segmentation) -> Mark:
    """Score an output by ROUGE-L over words; an empty one shares none of them.

    Source: fei23, which reads an empty output as one word that jieba finds nowhere.
    Differs: an empty output counts as an abstention here; the source counts none in these tasks.
    """
    if not output.strip():
        return Mark(0.0, abstained=True)
    return Mark(rouge(output, gold, segment=segment))


def score_characters(output: str, gold: str) -> Mark:
    """Score an output by F1 over characters; an empty output is an abstention.

    Source: fei23.
    """
    return Mark(character_f1(output, gold), not output.strip())


def score_choice(output: str, gold: str, *, options: Sequence[str]) -> Mark:
    """Score 1 if the gold option is the only one that occurs, else 0.

    Source: fei23.
    """
    return only_label(output, options, gold)


def score_label_set(output: str, gold: frozenset[str], *, options: Sequence[str]) -> Mark:
    """Score an output by the F1 of the labels that occur in it.

    Source: fei23.
    """
    found = labels_in(output, options)
    return Mark(set_f1(found, gold), not found)


def score_entities(output: str, gold: Mapping[str, str], *, types: Sequence[str]) -> Mark:
    """Score an output by the soft F1 of its entities, matched by type.

    Source: fei23.
    """
    found = entities_in(output, types)
    return Mark(soft_f1(found, gold), bool(gold) and not found)


def entities_in(output: str, types: Sequence[str]) -> dict[str, str]:
    """Return the text behind each type and colon, up to a space or line end; the last one wins.

    Nothing is read from the last two characters of an output, and entities that are said to be
    absent are left out. A semicolon ends no entity, so that an answer on one line runs on.

    Source: fei23.

    Example:
        >>> entities_in("受害人：严某某 时间:无", ["受害人", "时间"])
        {'受害人': '严某某'}
    """
    found = {}
    for name in types:
        # The last one wins, so the first from behind: none is read in vain but a short _UNSAID.
        for end in reversed([one.end() for one in re.finditer(re.escape(name), output)]):
            if len(output) - end > 2 and output[end] in ":：":
                entity = _ENTITY.match(output, end + 1)[1].strip()  # type: ignore[index]
                if entity not in _UNSAID:
                    found[name] = entity
                    break
    return found


def score_triggers(output: str, gold: Sequence[str]) -> Mark:
    """Score an output by the soft F1 of its words in order, between semicolons.

    Source: fei23.
    """
    return Mark(soft_f1_in_order(output.split(";"), gold), not output.strip())


def score_articles(output: str, gold: frozenset[int]) -> Mark:
    """Score an output by the F1 of the numbers of its articles.

    Source: fei23.
    """
    found = articles_in(output)
    return Mark(set_f1(found, gold), not found)


def articles_in(output: str) -> set[int]:
    """Return the first number of each part between enumeration commas, without its paragraph (款).

    Source: fei23.

    Example:
        >>> articles_in("刑法第二百六十四条、第67条第3款")
        {264}
    """
    found = set()
    for part in output.split("、"):
        part = _replace_numbered("款", "", part.replace("万元", "元"))
        part = with_digits(_replace_numbered("条", r"\1", part))
        if number := re.search(r"\d+", part):
            found.add(int(number[0][:4000]))
    return found


def _replace_numbered(end: str, kept: str, text: str) -> str:
    """Replace what stands from each 第 to the next `end` of its line.

    Behind the last `end` of a line none is looked for, so the time grows as the text does.
    """
    numbered = re.compile(f"第(.*?){end}")
    lines = (line.rpartition(end) for line in text.split("\n"))
    return "\n".join(numbered.sub(kept, head + mark) + tail for head, mark, tail in lines)


def score_correction(output: str, gold: str, *, source: str) -> Mark:
    """Score the corrections of one sentence by an approximate F0.5.

    Source: fei23.
    Differs: of difflib's edits, where the source has an aligner of its own. It takes one F of the
    sums over all sentences, as `corpus.corpus_f`; this is what one sentence is worth alone.
    """
    return Mark(edit_f(edit_count(source, output, gold)), not output.strip())
