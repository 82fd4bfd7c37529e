"""lm-eval as the engine: tasks are read and scored by it, the model is handed over in memory.

What is ours: whole examples are dropped where a prompt does not fit (`shots`), the beginning that
prompts share is run once (`prefix`), a choice may be scored by the mean over all its tokens, no
choice depends on what else is asked, perplexities are of a text's own tokens, and nothing of the
engine's own talk reaches a terminal. For the rest, where every prompt fits, scores are those of
`lm-eval run --include_path` on the same tasks.
"""

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from layerlab.evaluation.harness.cache import AnswerLog, LoggedAnswers
from layerlab.evaluation.harness.model_checks import (
    find_unended,
    first_rows,
    list_appended,
    list_ends,
    max_length,
    prepare_tokenizer,
    record_logits,
    split_joined,
)
from layerlab.evaluation.harness.options import AUTO
from layerlab.evaluation.harness.prefix_cache import Ask, Forward, RowKey, split_batches, split_cuts
from layerlab.evaluation.harness.settle import (
    APART,
    COARSE,
    close_rows,
    is_turnable,
    trim_row,
    unit_roundoff,
)
from layerlab.evaluation.lm_eval_tasks.chat_prompts import render_chat
from layerlab.evaluation.lm_eval_tasks.engine import HFLM, utils
from layerlab.evaluation.metrics.mark import answer_limit, marked_length
from layerlab.loading.batching import Side
from layerlab.loading.generation import ignore_settings
from layerlab.loading.inputs import check_ids
from layerlab.loading.model import LoadedModel
from layerlab.system.hardware import CatchOutOfMemory, release_memory
from layerlab.system.logs import hush

# Logits that a batch may hold.
LOGITS = 1 << 27
# Tokens by which rows of one batch, which are sorted by length, are expected to differ.
WIDTH = 64
MEAN_NLL = "mean_nll"
NamedRows = defaultdict[str, set[tuple[int, ...]]]


class HarnessModel(HFLM):
    """A loaded model as lm-eval sees it.

    Args:
        scoring: "mean_nll" scores a choice by the mean over all tokens of prompt and choice;
            anything else leaves that to the task.
        batch: prompts that are run at once; "auto": as many as memory allows.
        share: whether what prompts begin with alike may be run once, and numbers are those of the
            model's own format.

    Attributes:
        unfit: questions that do not fit into the context and are not asked.
        unsound: questions at which a logit was no finite number.
        overlong: questions whose written answer is not marked to its end.
        near: questions whose written answer another batch could turn; None where none could.
        unit: unit roundoff of the arithmetic; that of bfloat16 where it is emulated.
        notes: what became of the batch, a line each.
        log: of the answers, batch by batch.
    """

    def __init__(
        self, subject: LoadedModel, *, batch: int | str, scoring: str, share: bool = True
    ) -> None:
        self.automatic = batch == AUTO
        self.rows = first_rows(subject, share) if self.automatic else int(batch)
        with hush():
            super().__init__(
                pretrained=subject.model,
                tokenizer=prepare_tokenizer(subject),
                backend="causal",
                batch_size=self.rows,
                max_length=max_length(subject),
            )
        self._device = subject.device  # weights that wait elsewhere lie on none
        self.scoring = scoring
        self._subject = subject
        several = share and self.rows > 1
        longest = subject.batching("right").padded if several else 0
        self.forward = Forward(subject.model, share=several, longest=longest)
        self.unfit: set[int | None] = set()
        self.unsound: set[int | None] = set()
        self.overlong: set[int | None] = set()
        self.near: set[int | None] | None = None
        dtype = subject.model.dtype if share else torch.bfloat16
        self.unit = unit_roundoff(dtype)
        self.step: Callable[[int], None] = lambda rows: None
        self.notes: list[str] = []
        self.log = AnswerLog()
        self._apart, self._coarse = APART.get(dtype, 0.0), dtype in COARSE
        self._greedy = False  # whether texts are asked for that only the likeliest tokens make
        # Rows of the batch that is asked, and of all, that are "close", "broken" or "near".
        self._noted, self._named = NamedRows(set), NamedRows(set)
        self._rendered, self._need = False, 1
        self._appended = list_appended(self.tokenizer)
        self._ends = [self.eot_token_id, *list_ends(subject.model)]
        self._encoded = functools.lru_cache(maxsize=8192)(self._encode_open)

    def tok_encode(self, string: str, *args: Any, **options: Any) -> list[int]:
        """Return the token ids of a text, found once for a prompt that several choices share."""
        if args or options:
            return list(super().tok_encode(string, *args, **options))
        return list(self._encoded(string))

    def _encode_open(self, string: str) -> list[int]:
        """Return the token ids of a text that goes on, without what would end it."""
        found, after = list(super().tok_encode(string)), len(self._appended)
        if not after or found[-after:] != self._appended:
            return found
        bare = super().tok_encode(string, add_special_tokens=False)
        return found if len(found) == len(bare) else found[:-after]

    def apply_chat_template(self, chat_history: Any, *args: Any, **options: Any) -> str:
        """Write a conversation as the model's template has it, once its cost has been checked.

        Raises:
            UserError: the template refuses it, takes too much, or does not write it whole.
        """
        render = functools.partial(super().apply_chat_template, chat_history, *args, **options)
        text = render_chat(render, chat_history, first=not self._rendered)
        self._rendered = True
        return text

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        before, after = super()._encode_pair(context, continuation)
        if after:
            return before, after
        return split_joined(before, self.tok_encode(context + continuation), self.prefix_token_id)

    def _whole(self, arguments: tuple[Any, ...]) -> tuple[list[int], list[int]]:
        """Split prompt and choice, as one text, into a first token to condition on and the rest."""
        tokens = self.tok_encode("".join(arguments))
        return (tokens[:1], tokens[1:]) if len(tokens) > 1 else ([self.prefix_token_id], tokens)

    def fits(self, kind: str, arguments: tuple[Any, ...]) -> bool:
        """Return whether a request fits into the context with nothing cut."""
        if kind == "generate_until":
            length = len(self.tok_encode(arguments[0])) + answer_limit(arguments[1])
            return length <= self.max_length
        if kind != "loglikelihood":  # read in windows, however long it is
            return True
        return sum(map(len, self._pair(arguments))) <= self.max_length + 1

    def _pair(self, arguments: tuple[Any, ...]) -> tuple[list[int], list[int]]:
        """Split a request into what it is conditioned on and what is scored."""
        if self.scoring == MEAN_NLL:
            return self._whole(arguments)
        if arguments[0]:
            return self._encode_pair(*arguments)
        before, after = [self.prefix_token_id], self.tok_encode(arguments[1], False)
        return (after[:1], after[1:]) if after[:1] == before else (before, after)

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = True
    ) -> list[tuple[float, bool]]:
        """Return log-likelihoods of continuations, or of whole texts as means per token."""
        asked = self._possible(requests)
        counts = Counter(one.doc_id for one in asked)
        self._greedy, self._named = 1 in counts.values(), NamedRows(set)
        scored = self._settle(asked, self._likelihoods(asked))
        self.unsound = {
            one.doc_id for one, (sum_, _) in zip(asked, scored, strict=True) if math.isnan(sum_)
        }
        found = iter(scored)
        return [(-math.inf, False) if one.doc_id in self.unfit else next(found) for one in requests]

    def _likelihoods(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        if self.scoring == MEAN_NLL:
            return self._means(requests)
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return found

    def _settle(
        self, requests: Sequence[Any], scored: Sequence[tuple[float, bool]]
    ) -> list[tuple[float, bool]]:
        """Ask again by itself each question whose outcome another batch could turn."""
        found = list(scored)
        if self.rows == 1:
            return found
        questions: dict[int | None, list[int]] = {}
        for index, one in enumerate(requests):
            questions.setdefault(one.doc_id, []).append(index)
        rows, share = self.rows, self.forward.share
        self.rows, self.forward.share = 1, False
        for places in questions.values():
            own = [requests[index] for index in places]
            if self._is_open(own, [found[index][0] for index in places]):
                for index, value in zip(places, self._likelihoods(own), strict=True):
                    found[index] = value
        self.rows, self.forward.share = rows, share
        return found

    def _is_open(self, requests: Sequence[Any], sums: Sequence[float]) -> bool:
        """Return whether rounding could turn which option, or which text, is the likeliest."""
        if len(requests) > 1:
            return is_turnable(sums, [one.args for one in requests], self._apart)
        return not self._greedy or trim_row(self._tokens(requests[0])) in self._named["close"]

    def _tokens(self, request: Any) -> list[int]:
        """Return what the model reads of a request: all but its last token."""
        before, after = self._pair(request.args)
        return [*before, *after][-(self.max_length + 1) :][:-1]

    def _means(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        documents = [(one.args, *self._whole(one.args)) for one in requests]
        totals = self._loglikelihood_tokens(documents)
        # By all tokens, the first included, as OpenCompass does.
        return [
            (total / (len(first) + len(rest)), greedy)
            for (_, first, rest), (total, greedy) in zip(documents, totals, strict=True)
        ]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = True
    ) -> list[float]:
        """Return log-likelihoods of whole texts, each of its own tokens after one token before it.

        lm-eval's own also counts what the tokenizer puts before a text, as P(BOS | BOS).
        """
        windows = [
            (index, utils.make_disjoint_window(pair))
            for index, one in enumerate(requests)
            for pair in utils.get_rolling_token_windows(
                self.tok_encode(one.args[0], add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
        ]
        found = [0.0] * len(requests)
        scored = self._loglikelihood_tokens([(None, *pair) for _, pair in windows])
        for (index, _), (sum_, _) in zip(windows, scored, strict=True):
            found[index] += sum_
        self.unsound = {
            one.doc_id for one, sum_ in zip(requests, found, strict=True) if math.isnan(sum_)
        }
        return found

    def tok_batch_encode(
        self, strings: Sequence[str], padding_side: Side = "left", **options: Any
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens of prompts that fit, each as it is read by itself, and their mask."""
        rows = {"input_ids": [self.tok_encode(one) for one in strings]}
        found = self.tokenizer.pad(rows, padding_side=padding_side, return_tensors="pt")
        return found["input_ids"], found["attention_mask"]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[str]:
        """Generate continuations, each up to a stop or to the limit of its task."""
        asked = self._possible(requests)
        prompts = [tuple(self.tok_encode(one.args[0])) for one in asked]
        limits = [answer_limit(one.args[1]) for one in asked]
        parts = self._split("left", [*map(len, prompts)], max(limits, default=0))
        write = functools.partial(super().generate_until, disable_tqdm=True)
        self._named = NamedRows(set)
        written = self._fit(
            self.rows, write, asked, parts, lambda at: (-len(prompts[at]), asked[at].args[0], at)
        )
        self.unsound, near = (
            {one.doc_id for one, own in zip(asked, prompts, strict=True) if own in rows}
            for rows in (self._named["broken"], self._named["near"])
        )
        self.near = near if self._coarse and self.rows > 1 else None
        sized = list(zip(asked, written, map(marked_length, limits), strict=True))
        self.overlong = {one.doc_id for one, text, size in sized if len(text) > size}
        found = iter([text[:size] for _, text, size in sized])
        return ["" if one.doc_id in self.unfit else next(found) for one in requests]

    def _possible(self, requests: Sequence[Any]) -> list[Any]:
        """Return the requests of questions that fit; the others are remembered and not asked."""
        misfits = [one for one in requests if not self.fits(one.request_type, one.args)]
        self.unfit, self.overlong, self.near = {one.doc_id for one in misfits}, set(), None
        return [one for one in requests if one.doc_id not in self.unfit]

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: Any = True, **options: Any) -> Any:
        for _, before, after in requests:
            check_ids(torch.tensor([*before, *after]), self._subject, "a question")
        self._need = max((len(after) for _, _, after in requests), default=1)
        sizes = [len(before) + len(after) for _, before, after in requests]
        rows = LOGITS // (min(max(sizes, default=1), self._need + WIDTH) * self.vocab_size)
        # The last token is not read, and what the context does not hold is cut off.
        lengths = [min(size - 1, self.max_length) for size in sizes]
        parts = [
            each
            for part in self._split("right", lengths)
            for each in split_cuts([one[1:] for one in requests], part)
        ]
        ask = functools.partial(super()._loglikelihood_tokens, disable_tqdm=True, **options)

        def row(at: int) -> tuple[Any, ...]:
            _, before, after = requests[at]
            return -sizes[at], (*before, *after[:-1])

        return [*map(tuple, self._fit(max(1, rows), ask, requests, parts, row))]

    def _split(self, side: Side, lengths: Sequence[int], new: int = 0) -> list[list[int]]:
        """Return which requests may share a batch."""
        if self.rows == 1:
            return [[*range(len(lengths))]]
        return self._subject.batching(side).split(lengths, new=new)

    def _fit(
        self, most: int, ask: Ask, requests: Sequence[Any], parts: list[list[int]], row: RowKey
    ) -> list[Any]:
        """Ask in batches of as many rows as fit: the longest come first, so little is lost."""
        while True:
            self.batch_size_per_gpu = rows = min(self.rows, most)
            with CatchOutOfMemory(bears=self.automatic and rows > 1):
                found: dict[int, Any] = {}
                for batch in split_batches(reversed(parts), row, rows):
                    answers = self._ask(ask, [requests[index] for index in batch])
                    found.update(zip(batch, answers, strict=True))
                    self.step(len({*map(row, batch)}))
                return [found[index] for index in range(len(requests))]
            release_memory()
            self.rows, self._named = rows // 2, NamedRows(set)
            self.notes.append(
                f"memory ran out with {rows} prompts at once, and from then on {self.rows} were run"
            )

    def _ask(self, ask: Ask, batch: list[Any]) -> list[Any]:
        """Ask a batch, where the log does not hold its answers."""

        def answer() -> LoggedAnswers:
            self._noted = NamedRows(set)
            return ask(batch), {name: [*one] for name, one in self._noted.items()}

        answers, named = self.log.answer([getattr(one, "args", one) for one in batch], answer)
        for name, rows in named.items():
            self._named[name].update(map(tuple, rows))
        return answers

    def _model_call(self, inps: Any, attn_mask: Any = None, labels: Any = None) -> Any:
        found = self.forward(inps, self._need)
        if self._greedy and len(inps) > 1:
            rows = close_rows(found, self._apart).tolist()
            self._noted["close"] |= {
                trim_row(one) for one, near in zip(inps.tolist(), rows, strict=True) if near
            }
        return found

    def _write_alone(
        self, found: Tensor, close: Tensor | None, context: Tensor, **options: Any
    ) -> Tensor:
        """Write again by itself each answer in which another batch could choose another token."""
        again: list[int] = []
        if close is not None and len(context) > 1 and not options.get("do_sample"):
            again = close.nonzero().flatten().tolist()
        new = options["max_length"] - context.shape[1]
        for row in again:
            own = context[row][options["attention_mask"][row].bool()][None]
            mask = torch.ones_like(own)
            asked = {**options, "attention_mask": mask, "max_length": own.shape[1] + new}
            text = self._write(own, **asked)[0][0, own.shape[1] :]
            wide = max(0, context.shape[1] + len(text) - found.shape[1])
            found = pad(found, (0, wide), value=self.eot_token_id)
            found[row, context.shape[1] :] = self.eot_token_id
            found[row, context.shape[1] : context.shape[1] + len(text)] = text
        return found

    def _write(self, context: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        """Write answers, and return which another batch could turn; none is one behind a NaN."""
        with record_logits(self.model, self._apart, options.get("num_beams") or 1) as noted:
            found = super()._model_generate(context, **options)
        written = found[:, context.shape[1] :]
        ends = torch.isin(written, torch.tensor(self._ends, device=found.device))
        # A batch goes on until all its rows have ended.
        written[(ends.cumsum(1) - ends.long()) > 0] = self.eot_token_id
        if not noted[0]:
            return found, None
        rule = {"ends": self._ends, "stop": options["stop"], "decode": self.tok_decode}
        broken, close = (find_unended(written, one[0], **rule) for one in noted)
        close &= ~broken
        for name, rows in (("broken", broken), ("near", close)):
            kept = zip(context[rows], options["attention_mask"][rows].bool(), strict=True)
            self._noted[name].update(tuple(own[mask].tolist()) for own, mask in kept)
        written[broken] = self.eot_token_id
        return found, None if self._coarse else close

    def _model_generate(self, context: Any, **options: Any) -> Any:
        check_ids(context, self._subject, "a question")
        with ignore_settings(self.model):
            found, close = self._write(context, **options)
            return self._write_alone(found, close, context, **options)
