"""Checkpoints: bit-exact, proved whole, and passed over where they are not."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from layerlab import UserError, build
from layerlab.records.checkpoint_names import latest
from layerlab.system.rng import random_state
from layerlab.training.checkpoints.checkpoint import (
    CheckpointManager,
    CheckpointState,
    check_weights,
    load,
    save,
)
from tests.support import mounted
from tests.support.forked import python
from tests.support.refused import refuses

SIZES = {"width": 16, "layers": 2, "heads": 2, "vocab": 64, "context": 16}


def stepped(model: PreTrainedModel, optimizer: torch.optim.Optimizer, seed: int) -> None:
    ids = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()


def trained(
    updates: int = 2, **options: object
) -> tuple[PreTrainedModel, torch.optim.Optimizer, CheckpointState]:
    model = build("llama", **SIZES, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    for update in range(updates):
        stepped(model, optimizer, update)
    counters = {"update": updates, "seconds": 0.1 + 0.2, "step0": None}
    weights = dict(model.state_dict())
    return (
        model,
        optimizer,
        CheckpointState(weights, optimizer.state_dict(), counters, random_state()),
    )


def at(state: CheckpointState, update: int) -> CheckpointState:
    return CheckpointState(
        state.weights, state.optimizer, {"update": update}, state.random, state.extra
    )


def same(left: object, right: object) -> bool:
    """Equal to the bit, through all that a state holds."""
    if isinstance(left, torch.Tensor):
        assert isinstance(right, torch.Tensor)
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        assert isinstance(right, dict)
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        assert isinstance(right, list | tuple)
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


def loaded(folder: Path) -> CheckpointState:
    state, notes = load(folder)
    assert state is not None and notes == []
    return state


def test_everything_comes_back_to_the_bit(tmp_path):
    extra = {"scale": torch.tensor(2.0**16), "tracker": {"growth": (1, 0.1 + 0.2, None, True)}}
    state = trained()[2]
    state = CheckpointState(state.weights, state.optimizer, state.counters, state.random, extra)
    path = save(tmp_path, state, 2)
    assert path == latest(tmp_path) == tmp_path / "step-00000002"
    assert same(vars(loaded(tmp_path)), vars(state))


def test_a_run_goes_on_as_if_it_had_not_stopped(tmp_path):
    model, optimizer, state = trained()
    save(tmp_path, state, 2)
    stepped(model, optimizer, 2)
    again = build("llama", **SIZES, seed=5)
    other = torch.optim.AdamW(again.parameters(), lr=0.5, fused=True)
    found = loaded(tmp_path)
    again.load_state_dict(found.weights)
    other.load_state_dict(found.optimizer)
    stepped(again, other, 2)
    assert same(dict(again.state_dict()), dict(model.state_dict()))
    assert same(other.state_dict(), optimizer.state_dict())
    assert all(one["step"].item() == 3 for one in other.state_dict()["state"].values())


def test_tied_tensors_are_kept_once_and_tied_again(tmp_path):
    _, _, untied = trained(head="untied")
    _, _, state = trained(head="tied")
    sizes = [
        (save(tmp_path / name, one, 2) / "model.safetensors").stat().st_size
        for name, one in (("untied", untied), ("tied", state))
    ]
    assert sizes[0] - sizes[1] >= 64 * 16 * 4
    found = loaded(tmp_path / "tied").weights
    assert found["lm_head.weight"] is found["model.embed_tokens.weight"]
    model = build("llama", **SIZES, head="tied")
    model.load_state_dict(found)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_views_of_one_memory_stay_two_tensors(tmp_path):
    _, _, state = trained()
    both = torch.arange(12.0).reshape(3, 4)
    state.weights.update({"both": both, "first": both[:2], "turned": both.T})
    save(tmp_path, state, 2)
    assert same(loaded(tmp_path).weights, state.weights)


def test_only_the_newest_are_kept(tmp_path):
    state = trained()[2]
    for update in (1, 2, 3, 4):
        save(tmp_path, at(state, update), 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]


def cut(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def flipped(path: Path) -> None:
    file = path / "optimizer.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def halved(path: Path) -> None:
    (path / "optimizer.pt").unlink()


def stateless(path: Path) -> None:
    (path / "state.json").unlink()


def unreadable(path: Path) -> None:
    (path / "state.json").write_text('{"schema": 1, "coun', encoding="utf-8")


def counted(path: Path) -> None:
    body = json.loads((path / "state.json").read_text("utf-8"))
    body["counters"]["update"] += 1
    (path / "state.json").write_text(json.dumps(body), encoding="utf-8")


DAMAGES = {
    cut: "model.safetensors is not what was written",
    flipped: "optimizer.pt is not what was written",
    halved: "optimizer.pt is missing",
    stateless: "state.json is missing",
    unreadable: "state.json cannot be read",
    counted: "state.json is not what was written",
}


@pytest.mark.few(2)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, damage):
    state = trained()[2]
    for update in (1, 2):
        save(tmp_path, at(state, update), 2)
    damage(tmp_path / "step-00000002")
    found, notes = load(tmp_path)
    assert found is not None and found.counters == {"update": 1}
    assert notes == [
        f"checkpoint step-00000002 is damaged ({DAMAGES[damage]}); the one before it is used"
    ]
    # The run comes by there again, at other intervals too, and what was damaged is gone.
    save(tmp_path, at(state, 2), 2)
    assert loaded(tmp_path).counters == {"update": 2}
    damage(tmp_path / "step-00000002")
    save(tmp_path, at(state, 1), 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_training_starts_anew_where_none_is_whole_and_says_so(tmp_path):
    assert load(tmp_path) == (None, []) and latest(tmp_path) is None
    assert load(tmp_path / "absent") == (None, [])
    save(tmp_path, trained()[2], 2)
    cut(tmp_path / "step-00000002")
    found, (note,) = load(tmp_path)
    assert found is None
    assert note.endswith("no other is left: training starts anew")


def test_what_a_killed_process_left_half_written_is_not_read_and_goes(tmp_path):
    state = trained()[2]
    save(tmp_path, state, 2)
    half = tmp_path / ".step-00000003.0a1b2c3d.partial"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    assert loaded(tmp_path).counters["update"] == 2
    save(tmp_path, at(state, 3), 2)
    assert not half.exists()


def test_pickled_code_is_never_run(tmp_path):
    """Even under a right hash: what is read with `weights_only=True` alone cannot call."""

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "exploded",)  # type: ignore[return-value]

    with pytest.raises(TypeError, match="cannot hold a Bomb"):
        save(tmp_path, at(CheckpointState({}, {"bomb": Bomb()}, {}, {}), 1), 2)
    path = save(tmp_path, trained()[2], 2)
    with (path / "optimizer.pt").open("wb") as file:
        torch.save({"optimizer": Bomb(), "random": {}, "extra": {}}, file)
    from layerlab.training.checkpoints.checkpoint import _seal, hash_file

    body = json.loads((path / "state.json").read_text("utf-8"))
    del body["self"]
    body["sha256"]["optimizer.pt"] = hash_file(path / "optimizer.pt")
    (path / "state.json").write_text(json.dumps({**body, "self": _seal(body)}), encoding="utf-8")
    found, (note,) = load(tmp_path)
    assert found is None and "Weights only load failed" in note
    assert not (tmp_path / "exploded").exists()


def test_numpy_numbers_are_kept_as_plain_ones(tmp_path):
    state = trained()[2]
    state.optimizer["param_groups"][0]["lr"] = np.float64(0.1)
    save(tmp_path, state, 2)
    kept = loaded(tmp_path).optimizer["param_groups"][0]["lr"]
    assert type(kept) is float and kept == 0.1


@pytest.mark.parametrize(
    ("options", "sizes", "text"),
    [
        ({"norm": "layer"}, {}, "norm.bias is absent there and 16 (float32) here"),
        ({}, {"vocab": 96}, "model.embed_tokens.weight is 64 x 16 (float32) there and 96 x 16"),
        ({}, {"layers": 1}, "model.layers.1."),
    ],
)
def test_a_checkpoint_of_another_variant_is_refused(options, sizes, text):
    other = build("llama", **{**SIZES, **sizes}, **options)
    with pytest.raises(UserError, match="the checkpoint of update 2 is of another model") as error:
        check_weights(other.state_dict(), trained()[2])
    assert text in str(error.value) and "\n" not in str(error.value)
    check_weights(build("llama", **SIZES, seed=3).state_dict(), trained()[2])


FULL = """
import resource, sys
from pathlib import Path
from layerlab import UserError
from layerlab.training.checkpoints.checkpoint import CheckpointManager, CheckpointState, load
import torch

folder, wide = Path(sys.argv[1]), resource.getrlimit(resource.RLIMIT_FSIZE)
keeper = CheckpointManager(folder, 2)
def state(update):
    weights = {"weight": torch.full((50_000,), float(update))}
    return CheckpointState(weights, {"moment": torch.ones(50_000)}, {"update": update}, {})
def allowed(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, wide[1]))
print(keeper.save(state(1)))
allowed(int(sys.argv[2]))
print(keeper.save(state(2)))
allowed(wide[0])
print(keeper.save(state(3)))
print(keeper.save(state(4)))
allowed(int(sys.argv[2]))
print(keeper.save(state(5)))
try:
    keeper.save(state(6))
except UserError as error:
    print(error)
allowed(wide[0])
found, notes = load(folder)
print(found.counters, notes, sorted(path.name for path in folder.iterdir()))
"""


# The first limit is hit by the weights, which safetensors writes, the second by torch, later on.
@pytest.mark.parametrize("limit", [100_000, 201_000])
def test_a_disk_without_room_costs_no_checkpoint(tmp_path, limit):
    ended = python("-c", FULL, tmp_path / "checkpoints", str(limit))
    assert ended.stderr == ""
    first, second, third, fourth, fifth, sixth, left = ended.stdout.splitlines()
    assert first == fourth == "None"
    reason = "no more could be written, for want of room or by a limit (ulimit -f)"
    assert second.startswith("no checkpoint of update 2 (cannot write ") and reason in second
    assert "training goes on, the newest is of update 1; make room" in second
    assert third == "checkpoints can be written again"
    assert "the newest is of update 4" in fifth
    assert sixth.startswith("two checkpoints in a row could not be written (") and reason in sixth
    assert sixth.endswith("then type the same command, which goes on from update 4")
    assert left == "{'update': 4} [] ['step-00000003', 'step-00000004']"


def test_a_real_disk_without_room(tmp_path):
    """On a file system of 300 kB, where this process may mount one."""
    with mounted.disk(tmp_path, "300k"):
        state = trained()[2]
        keeper = CheckpointManager(tmp_path / "checkpoints", 3)
        assert [keeper.save(at(state, update)) for update in (1, 2)] == [None, None]
        note = keeper.save(at(state, 3))
        assert note is not None and "no space is left on the device" in note
        refuses("two checkpoints in a row could not be written", keeper.save, at(state, 4))
        assert loaded(keeper.folder).counters == {"update": 2}
        assert len(list(keeper.folder.iterdir())) == 2
