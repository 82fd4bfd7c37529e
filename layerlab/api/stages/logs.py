"""Judges runs by their logs: what of `layerlab.judge` needs the parts that train."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layerlab.experiments.analysis.comparison import Comparison
from layerlab.experiments.analysis.warnings import disclose_added_seeds
from layerlab.experiments.check_page import check_page_folder
from layerlab.experiments.judge_logs import JudgeRequest, check_request, judge_logs
from layerlab.experiments.log_values import JudgedStep
from layerlab.logs.read import find_logs, read_logs
from layerlab.logs.training_log import LogColumns
from layerlab.records.run_files import COMPARISON
from layerlab.report.pages.comparison import save_comparison


def judge_runs(
    logs: Sequence[str],
    columns: LogColumns,
    *,
    judged: Mapping[str, Any],
    asked: Mapping[str, Any],
    folder: Path | None,
    lang: str,
    command: str,
) -> Comparison:
    """Judge runs by their logs, and write what was asked for.

    Args:
        logs: files and folders.
        judged: which readings count, as `JudgedStep` has it.
        asked: the rest of a `JudgeRequest`.
        folder: folder of the page; None where none is written.
        command: that judges the same again.

    Raises:
        UserError: as `layerlab.judge`.
    """
    if folder is not None:
        check_page_folder(folder, logs=True)
    request = JudgeRequest(judged=JudgedStep(**judged), **asked)
    check_request(request)
    comparison = judge_logs(list(read_logs(find_logs(logs, columns.name), columns)), request)
    if folder is None:
        return comparison
    content = disclose_added_seeds({**comparison.content, "command": command}, folder / COMPARISON)
    save_comparison(content, folder, lang)
    return Comparison(content)
