"""Whatever is written goes through system/files.py, or is named here with why it may not."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "layerlab"
MODES = set("wax+")
FLAGS = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND")
# Calls that make, change, move or remove a file or a folder, or start what may.
WRITES = {
    *("write_text", "write_bytes", "touch", "mkdir", "makedirs", "rename", "renames", "unlink"),
    *("rmdir", "removedirs", "rmtree", "copyfile", "copy2", "copytree", "move"),
    *("symlink_to", "hardlink_to", "symlink", "chmod", "mkfifo", "truncate", "mkdtemp", "mkstemp"),
    *("NamedTemporaryFile", "FileLock", "FileHandler", "SummaryWriter", "ParquetWriter", "Popen"),
    *("save_pretrained", "save_file", "save_model", "write_html", "write_image", "savefig"),
    *("write_fig_from_object_sync", "savez", "savez_compressed", "tofile", "write_table"),
    *("extractall", "make_archive", "to_pickle", "to_feather", "to_excel", "push_to_hub"),
}
# Of these modules any; of others only these functions.
OF_MODULES = {
    "os": {"remove", "replace", "link", "write", "system", "popen"},
    "shutil": {"copy"},
    "torch": {"save"},
    "np": {"save"},
    "subprocess": {"run", "call", "check_call", "check_output"},
    "sqlite3": {"connect"},
}
# Functions that fill a folder which nobody else knows, and which takes its name as a whole.
FILLS = {"fill", "_fill", "fill_for_good"}
REASONS = {
    "adaptation/pipeline/overhead.py measure_rates": "a temporary folder",
    "adaptation/pretraining/replay.py mix_texts": "a temporary folder",
    "adaptation/trainer/own_folder.py BeginCallback._write": "its own list of checkpoints",
    "api/adapt.py _carry": "makes the folder of a stage",
    "corpus/stored.py lock_in_turn": "half of what lies in the cache, under its lock",
    "corpus/stored.py open_tokenizer": "a temporary folder",
    "corpus/shards.py WriterProcess.start": "starts the writer of shards in the cache",
    "corpus/stored.py write_contents": "called by what fills a corpus",
    "corpus/tokenize.py Writer.__init__": "called by what fills a corpus",
    "corpus/write_shards.py ShardWriter._write_tokens": "called by what fills a shard",
    "data/documents.py store_documents": "a temporary folder, or what fills a corpus",
    "evaluation/harness/cache.py AnswerLog._write": "appends to the answers of a locked evaluation",
    "evaluation/harness/cache.py ResultCache.save": "answers of its own, kept as a whole by then",
    "experiments/estimate/startup.py _measure": "starts Python, which writes nothing",
    "experiments/executors/process.py RunProcess.__init__": "appends to the log of a locked run",
    "experiments/executors/process.py open_log": "an empty log of a locked run",
    "experiments/executors/score_command.py run_command": "files without a name",
    "experiments/executors/worker_pool.py Worker.__init__": "appends to the log of a locked run",
    "experiments/executors/slurm.py Cluster._submit": "links of submitit in a folder of its own",
    "experiments/executors/slurm.py Queue._ask": "asks the queue, which writes nothing",
    "latency/memory.py growth": "of /proc",
    "ledger/chain.py append_line": "appends to a ledger under its lock",
    "ledger/chain.py begin_chain": "takes back the ledger that it has written",
    "ledger/chain.py _replace_end": "called by what appends to a ledger",
    "loading/packed/cache.py copy_files": "called by what fills a folder",
    "loading/packed/cache.py _make_room": "models that are made again where they are named",
    "loading/packed/cache.py unpack_once": "what a killed process left, under its lock",
    "loading/packed/folder.py _write": "called by what fills a folder",
    "loading/packed/gguf.py _unpack": "called by what fills a folder",
    "model/config.py LabConfig.save_pretrained": "checked: over no file that was edited, no link",
    "numerics/formats/kernel.py _keep": "a damaged library of its own in the cache",
    "numerics/formats/kernel.py _build": "in the cache, under the hash of what is written",
    "numerics/formats/kernel.py _workshop": "a folder of a name that is drawn at random",
    "numerics/formats/kernel.py _compile": "into that folder",
    "records/checkpoint_names.py remove_checkpoints": "an empty folder",
    "records/checkpoint_names.py set_aside": "checkpoints that are to be removed, whole",
    "records/checkpoint_names.py remove_partials": "what is left of its own, in a locked folder",
    "records/events.py EventLog._cut": "the journal of a locked run, back to its checkpoint",
    "records/events.py EventLog._append": "the journal of a locked run",
    "measures/kept_readings.py KeptReadings.discard": "what it has kept in the cache",
    "measures/kept_readings.py _tidy": "what was kept a month ago, in the cache",
    "records/parquet/folded_runs.py fold_runs": "into memory",
    "report/figures/export.py draw": "called by what fills a folder",
    "report/results/report.py Report._draw": "called by what fills a folder",
    "report/views/tables.py write_tables": "called by what fills a folder",
    "studies/engine/runner.py _remove_batches": "batches of its own, by their names",
    "studies/engine/sampling.py _write": "into memory",
    "system/untrusted/limits.py _work": "standard error of a process of its own",
    "system/hardware.py _check_headers": "torch's own folder, as torch makes it",
    "system/hardware.py keep_compiled_code": "what a killed linker left, under its lock",
    "system/hardware.py reset_peak_memory": "to /proc: writes no file",
    "system/locks.py lock_folder": "an empty file that is removed by whoever made it",
    "console/ending.py _give_up_output": "standard output that nobody reads",
    "tokenization/convert.py _convert": "a temporary folder",
    "training/checkpoints/trackers.py Trackers.__init__": "appends to a file of a locked run",
    "training/checkpoints/trackers.py trackers": "makes their folder",
    "training/worker.py _serve": "appends to the log of a locked run",
    "variants/template.py _place": "links a whole file to a name that nothing has",
}
# Here all others write; the second names what is half-written.
MECHANISM = {"system/files.py", "system/write_errors.py"}


def _writes(call: ast.Call) -> bool:
    """Whether a call writes, as far as its text tells."""
    home = call.func.value if isinstance(call.func, ast.Attribute) else None
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    if name == "open":
        texts = [one.value for one in ast.walk(call) if isinstance(one, ast.Constant)]
        modes = [one for one in texts if isinstance(one, str) and len(one) <= 4]
        flagged = any(flag in ast.unparse(call) for flag in FLAGS)
        return flagged or any(MODES & set(one) and set(one) <= set("rwabtx+") for one in modes)
    if name in ("to_csv", "to_parquet", "to_json"):  # without a file they return a text
        return bool(call.args) or any(one.arg in ("path", "path_or_buf") for one in call.keywords)
    module = home.id if isinstance(home, ast.Name) else ""
    if name == "replace" and home is not None and module != "os":  # of a text it takes two
        return len(call.args) == 1 and not call.keywords
    if name == "touch" and home is None:  # a function of ours
        return False
    return name in WRITES or name in OF_MODULES.get(module, ())


def writers(source: str) -> Iterator[str]:
    """Give the functions of a file that write, outside of those that fill a folder."""

    def visit(node: ast.AST, inside: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = (*inside, node.name)
        if isinstance(node, ast.Call) and not FILLS & set(inside) and _writes(node):
            yield ".".join(inside)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    yield from visit(ast.parse(source), ())


@pytest.mark.full
def test_everything_is_written_through_one_mechanism_or_is_named_here():
    files = ((path.relative_to(PACKAGE).as_posix(), path) for path in PACKAGE.rglob("*.py"))
    found = {
        f"{name} {one}"
        for name, path in files
        if name not in MECHANISM
        for one in writers(path.read_text("utf-8"))
    }
    assert found - set(REASONS) == set(), "write with layerlab.system.files, or say why not"
    assert set(REASONS) - found == set(), "these write nothing any more"


def test_what_writes_otherwise_would_be_found():
    for line in (
        'Path("a").write_text("x")',
        'open(file, "w")',
        'file.open("ab")',
        'file.open(mode="r+b")',
        "os.open(file, os.O_WRONLY | os.O_CREAT)",
        "partial.replace(target)",
        "os.replace(a, b)",
        "frame.to_csv(file, index=False)",
        "model.save_pretrained(out)",
        "torch.save(x, file)",
        "shutil.rmtree(out)",
        "subprocess.run(words)",
    ):
        assert list(writers(f"def work():\n    {line}\n")) == ["work"], line
        assert not list(writers(f"def fill(folder):\n    {line}\n"))
    for line in (
        'text.replace("a", "b")',
        'file.open("rb")',
        "frame.to_csv(index=False)",
        "model.open(hidden, flow)",
        "work.run(x)",
    ):
        assert not list(writers(f"def work():\n    {line}\n")), line
