"""Event files: runs that go on in a second one, and scalars that are tensors."""

from pathlib import Path

import numpy as np
import pytest

from tests.logs.written import ROWS, check, read
from tests.support.refused import refuses


def test_a_resumed_run_has_two_event_files_and_is_one(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    wrong = [{"step": 30, "loss": 9.0}]
    for number, rows in enumerate([[*ROWS[:2], *wrong], ROWS[2:]]):
        with SummaryWriter(str(tmp_path / "plain"), filename_suffix=f".{number}") as writer:
            for row in rows:
                writer.add_scalar("loss", row["loss"], row["step"])
    files = sorted((tmp_path / "plain").iterdir(), key=lambda one: one.suffix)
    # Files of one second have equal times in their names.
    for number, file in enumerate(files):
        file.rename(file.with_name(f"events.out.tfevents.{number}.host"))
    (found,) = read(tmp_path)
    check(found, "plain", None)
    (found,) = read(*sorted((tmp_path / "plain").iterdir()))
    check(found, "plain", None)


def test_two_runs_in_a_folder_of_event_files_are_refused(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    for number, (first, rows) in enumerate([(10, ROWS), (5, ROWS[:2])]):
        with SummaryWriter(str(tmp_path), filename_suffix=f".{number}") as writer:
            writer.add_scalar("width", 64, 0)  # each time that it starts
            writer.add_scalar("other", 64, first)
            for row in rows:
                writer.add_scalar("loss", row["loss"], row["step"] - 10)
    for number, file in enumerate(sorted(tmp_path.iterdir())):
        file.rename(file.with_name(f"events.out.tfevents.{number}.host"))
    said = r"tfevents.0.host and .*1.host beside it both have 'loss' from .* 0 and 0: .* two runs"
    refuses(said, read, tmp_path)


def write_scalars(folder: Path, points: list[tuple[int, float]]) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step, loss in points:
            writer.add_scalar("eval/loss", loss, step)


def test_readings_of_one_tag_at_one_step_are_not_merged(tmp_path):
    """As of two texts, each evaluated under the same name; and as of no steps at all."""
    for name, steps in (("twice-s1", (10, 10, 20, 20)), ("none-s1", (0, 0, 0))):
        write_scalars(tmp_path / name, [(step, 3 - at / 9) for at, step in enumerate(steps)])
        refuses("at its first step, .*: they are of several runs; name", read, tmp_path / name)
    write_scalars(tmp_path / "mixed-s1", [(5, 4.0), (10, 3.5), (10, 9.0), (20, 3.25), (20, 8.0)])
    refuses(
        "two readings of .* at one step, .*: they are of two kinds", read, tmp_path / "mixed-s1"
    )


def test_scalars_of_several_texts_lie_in_folders_of_their_own(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "wide-s1")) as writer:
        for row in ROWS:
            writer.add_scalars("loss", {"train": 9.5, "val": row["loss"]}, row["step"])
    said = "holds no scalars; those of add_scalars lie below it, in loss_train, loss_val: give the"
    refuses(said, read, tmp_path / "wide-s1")
    name = r"(?P<arm>\w+)-s(?P<seed>\d)"
    (found,) = read(tmp_path / "wide-s1" / "loss_val", name=name)
    check(found, "wide", "1")


def test_a_run_that_goes_back_in_one_file_has_its_last_readings(tmp_path):
    write_scalars(tmp_path / "wide-s1", [(10, 3.5), (20, 9.0), (30, 9.0), (20, 3.25), (30, 3.125)])
    (found,) = read(tmp_path / "wide-s1")
    check(found, "wide", "1")
    assert found.again == 2


@pytest.mark.parametrize("kind", ["HALF", "FLOAT", "DOUBLE", "INT64"])
@pytest.mark.parametrize("packed", [True, False])
def test_scalars_of_tensorboard_may_be_tensors(kind, packed, tmp_path):
    from tensorboard.compat.proto import summary_pb2, types_pb2
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.tensorflow_stub import dtypes
    from torch.utils.tensorboard import FileWriter

    dtype = getattr(types_pb2, f"DT_{kind}")
    field = {"FLOAT": "float_val", "DOUBLE": "double_val", "INT64": "int64_val"}
    writer = FileWriter(str(tmp_path))
    for step, loss in ((10, 3.0), (20, 2.0)):
        value = np.array(loss, dtypes.as_dtype(dtype).as_numpy_dtype)
        if packed:
            tensor = TensorProto(dtype=dtype, tensor_content=value.tobytes())
        elif kind in field:
            tensor = TensorProto(dtype=dtype, **{field[kind]: [value.item()]})
        else:
            tensor = TensorProto(dtype=dtype, half_val=[int(value.view(np.uint16))])
        wide = TensorProto(dtype=dtype, tensor_content=value.tobytes())
        wide.tensor_shape.dim.add(size=10**12)
        given = [("val/loss", tensor), ("curve", wide)]
        values = [summary_pb2.Summary.Value(tag=tag, tensor=one) for tag, one in given]
        writer.add_summary(summary_pb2.Summary(value=values), step)
    writer.close()
    (found,) = read(tmp_path)
    assert (found.loss_name, found.losses.tolist()) == ("val/loss", [3.0, 2.0])


def test_a_scalar_of_tensorboard_without_a_number_is_one_line(tmp_path):
    from tensorboard.compat.proto import summary_pb2, types_pb2
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from torch.utils.tensorboard import FileWriter

    writer = FileWriter(str(tmp_path))
    tensor = TensorProto(dtype=types_pb2.DT_FLOAT, tensor_content=b"abc")
    value = summary_pb2.Summary.Value(tag="val/loss", tensor=tensor)
    writer.add_summary(summary_pb2.Summary(value=[value]), 1)
    writer.close()
    refuses("has 'val/loss' without a number in it; expected one", read, tmp_path)
