"""Prompts of questions: the wording of the benchmark's own code, or of OpenCompass's.

Header, prompt and choice are joined without anything between them. So a choice carries the blank
that stands before it in English and none in Chinese, where "答案：" and " A" would be tokens that
no text has. A prompt of one scoring may differ from that of another: `mean_nll` compares whole
texts, and for some benchmarks these are texts of different length.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from layerlab.evaluation.benchmarks.items import LETTERS, Item
from layerlab.evaluation.benchmarks.spec import Benchmark, Scoring, Subtask

# Tasks of AGIEval that are asked in English; the others are Chinese.
ENGLISH = ("aqua", "gaokao-english", "logiqa-en", "lsat", "math", "sat")


@dataclass(frozen=True, kw_only=True)
class TaskPrompt:
    """A question as a model reads it.

    Attributes:
        header: stands once, before the examples.
        text: the question; the choices go on where it ends.
        choices: what may follow; none where the model writes its reply.
        target: what follows it in an example, the end of the example included.
    """

    header: str = ""
    text: str
    choices: tuple[str, ...] = ()
    target: str = ""


@dataclass(frozen=True, kw_only=True)
class Manner:
    """The way in which questions are put.

    Attributes:
        scoring: how an answer is scored.
        cot: whether examples reason before they answer, and the model is to do so too.
        chat: whether an answer is a turn of its own, which no blank begins.
    """

    scoring: Scoring = "choice_ll"
    cot: bool = False
    chat: bool = False


def build_prompt(
    question: Item, benchmark: Benchmark, subtask: Subtask, manner: Manner | None = None
) -> TaskPrompt:
    r"""Put a question into words.

    Example:
        >>> from layerlab.evaluation.benchmarks.catalog import find_benchmark
        >>> one = Item(location="x", text="几？", options=tuple("1234"), right=(1,))
        >>> benchmark = find_benchmark("financeiq")
        >>> prompt = build_prompt(one, benchmark, benchmark.subjects[0])
        >>> prompt.text
        '题目：几？\nA. 1\nB. 2\nC. 3\nD. 4\n答案是：'
        >>> prompt.choices, prompt.target
        (('A', 'B', 'C', 'D'), 'B')
    """
    return _WORDINGS[benchmark.name](question, subtask, manner or Manner())


def _of_ceval(question: Item, subtask: Subtask, manner: Manner) -> TaskPrompt:
    start = "答案：让我们一步一步思考，\n" if manner.cot else "答案："
    steps = f"{question.explanation}\n所以答案是" if manner.cot else ""
    return TaskPrompt(
        header=f"以下是中国关于{subtask.chinese}考试的单项选择题，请选出其中的正确答案。\n\n",
        text=f"{question.text}\n{_list(question)}\n{start}",
        choices=tuple(LETTERS[: len(question.options)]),
        target=f"{steps}{question.letters}" + "。" * manner.cot,
    )


def _of_cmmlu(question: Item, subtask: Subtask, manner: Manner) -> TaskPrompt:
    return _letter(
        f"题目：{question.text}\n{_list(question)}\n答案是：",
        question,
        header=f"以下是关于{subtask.chinese}的单项选择题，请直接给出正确答案的选项。\n\n",
    )


def _of_mmlu(question: Item, subtask: Subtask, manner: Manner) -> TaskPrompt:
    name = subtask.name.replace("_", " ")
    return _letter(
        f"{question.text}\n{_list(question)}\nAnswer:",
        question,
        header=f"The following are multiple choice questions (with answers) about {name}.\n\n",
        blank=" ",
    )


def _of_agieval(question: Item, subtask: Subtask, manner: Manner) -> TaskPrompt:
    last = LETTERS[len(question.options) - 1]
    if not subtask.file.startswith(ENGLISH):
        asked = f"{question.passage}问题：{question.text}"
        if not question.options:
            return TaskPrompt(text=f"{asked}\n答案：", target=question.reply)
        options = " ".join(question.options)
        return _letter(f"{asked} 选项：{options}\n答案：从A到{last}, 我们应选择", question)
    asked = f"{question.passage}Q: {question.text}"
    if not question.options:
        return TaskPrompt(text=f"{asked}\nA: The answer is", target=f" {question.reply}")
    options = " ".join(question.options)
    return _letter(
        f"{asked} Answer Choices: {options}\nA: Among A through {last}, the answer is",
        question,
        blank=" ",
    )


def _of_boolq(question: Item, subtask: Subtask, manner: Manner) -> TaskPrompt:
    asked = f"{question.passage}\nQuestion: {question.text}?\n"
    if manner.scoring == "mean_nll":
        return _whole(tuple(f"{asked}{option}" for option in question.options), question)
    return _space(f"{asked}Answer:", question)


def _of_ax_b(question: Item, subtask: Subtask, manner: Manner) -> TaskPrompt:
    if manner.scoring == "mean_nll":
        labels = ("entailment", "not_entailment")
        texts = tuple(f"{question.passage}?{label}, {question.text}" for label in labels)
        return _whole(texts, question)
    return _space(
        f"{question.passage}\nQuestion: {question.text} True or False?\nAnswer:", question
    )


def _of_piqa(question: Item, subtask: Subtask, manner: Manner) -> TaskPrompt:
    if manner.scoring == "mean_nll":
        start = f"The following makes sense: \nQ: {question.text}\nA: "
        return _whole(tuple(f"{start}{option}\n" for option in question.options), question)
    return _space(f"Question: {question.text}\nAnswer:", question)


def _of_csl(question: Item, subtask: Subtask, manner: Manner) -> TaskPrompt:
    """Put a question of CSL; `mean_nll` compares the abstract alone with the keywords added."""
    abstract = f"摘要：{question.passage}"
    if manner.scoring == "mean_nll":
        return _whole((abstract, f"{abstract}\n关键词：{question.text}"), question)
    return _letter(
        "摘要是对论文内容不加注释和评论的简短陈述，要求扼要地说明研究工作的目的、"
        "研究方法和最终结论等。\n关键词是一篇学术论文的核心词汇，一般由一系列名词组成。"
        "关键词在全文中应有较高出现频率，且能起到帮助文献检索的作用。\n"
        f"{abstract}\n关键词：{question.text}\n请问上述关键词是否匹配摘要且符合要求？\n"
        f"{_list(question)}\n请从”A“，”B“中进行选择。\n答：",
        question,
    )


def _of_eprstmt(question: Item, subtask: Subtask, manner: Manner) -> TaskPrompt:
    asked = f'内容： "{question.text}"。情绪分类：'
    labels = tuple(f"{option}。" for option in question.options)
    if manner.scoring == "mean_nll":
        return _whole(tuple(f"{asked}\n{label}" for label in labels), question)
    return TaskPrompt(text=asked, choices=labels, target=labels[question.right[0]])


def _of_xsum(question: Item, subtask: Subtask, manner: Manner) -> TaskPrompt:
    ask = "Based on the previous text, provide a brief single summary:"
    return TaskPrompt(text=f"Document：{question.text}\n{ask}", target=f" {question.reply}")


def _of_lcsts(question: Item, subtask: Subtask, manner: Manner) -> TaskPrompt:
    return TaskPrompt(
        text=f"阅读以下文章，并给出简短的摘要：{question.text}\n摘要如下：", target=question.reply
    )


def _list(question: Item) -> str:
    return "\n".join(
        f"{letter}. {option}" for letter, option in zip(LETTERS, question.options, strict=False)
    )


def _letter(text: str, question: Item, header: str = "", blank: str = "") -> TaskPrompt:
    """Return a question whose choices are letters, each behind a blank where there is one."""
    choices = tuple(f"{blank}{letter}" for letter in LETTERS[: len(question.options)])
    return TaskPrompt(
        header=header, text=text, choices=choices, target=f"{blank}{question.letters}"
    )


def _space(text: str, question: Item) -> TaskPrompt:
    choices = tuple(f" {option}" for option in question.options)
    return TaskPrompt(text=text, choices=choices, target=choices[question.right[0]])


def _whole(texts: tuple[str, ...], question: Item) -> TaskPrompt:
    """Return whole texts as choices, with nothing before them."""
    return TaskPrompt(text="", choices=texts, target=texts[question.right[0]])


_WORDINGS: Mapping[str, Callable[[Item, Subtask, Manner], TaskPrompt]] = {
    **dict.fromkeys(("ceval", "fineval"), _of_ceval),
    **dict.fromkeys(("cmmlu", "financeiq"), _of_cmmlu),
    "mmlu": _of_mmlu,
    "agieval": _of_agieval,
    "boolq": _of_boolq,
    "ax-b": _of_ax_b,
    "piqa": _of_piqa,
    "csl": _of_csl,
    "eprstmt": _of_eprstmt,
    "xsum": _of_xsum,
    "lcsts": _of_lcsts,
}
