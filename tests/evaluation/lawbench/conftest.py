"""Two rows for each of LawBench's tasks, of our own making, in its wordings."""

import json
from pathlib import Path

import pytest

ANSWERS = {
    "1-1": ("答案:本法自公布之日起施行。", "答案:合同当事人应当诚信。"),
    "1-2": ("正确答案：B。", "正确答案：D。"),
    "2-1": ("指控事实清楚。", "证据确实充分。"),
    "2-2": ("争议焦点类别：利息。", "争议焦点类别：赔偿。"),
    "2-3": ("类别:准予离婚、支付抚养费。", "类别:法定离婚。"),
    "2-4": ("劳动纠纷", "公司法"),
    "2-5": ("回答:二万元", "回答:甲公司,乙公司"),
    "2-6": ("受害人:张三;时间:五月初", ""),
    "2-7": ("甲公司被罚。", "乙公司胜诉。"),
    "2-8": ("[正确答案]E<eoa>", "[正确答案]A<eoa>"),
    "2-9": ("赔偿", "支付/给付;欺骗"),
    "2-10": ("退给", "查扣;退给"),
    "3-1": ("法条:刑法第264条", "法条:刑法第25、266条"),
    "3-2": ("根据合同法第一条。", "根据公司法第二条。"),
    "3-3": ("罪名:盗窃", "罪名:诈骗;抢劫"),
    "3-4": ("刑期:4个月", "刑期:无期"),
    "3-5": ("刑期:18个月", "刑期:死刑"),
    "3-6": ("正确答案:C。", "正确答案:A。"),
    "3-7": ("上文涉及到的犯罪金额:8500.0元。", "上文涉及到的犯罪金额:300.0元。"),
    "3-8": ("回答:可以起诉。", "回答:应当协商。"),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with all twenty tasks, zero-shot and one-shot."""
    for split, instruction in (("zero_shot", "请回答。"), ("one_shot", "请回答。例子：甲。")):
        folder = tmp_path / "lawbench" / split
        folder.mkdir(parents=True)
        for number, answers in ANSWERS.items():
            rows = [
                {"instruction": instruction, "question": f"指控实施清楚。{place}", "answer": answer}
                for place, answer in enumerate(answers)
            ]
            (folder / f"{number}.json").write_text(json.dumps(rows, ensure_ascii=False), "utf-8")
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    return tmp_path
