"""A checkpoint in which a bit was flipped, or that was cut, is named and never trained on."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from remote_runs import save

from rljob_api.spec.infrastructure import RemoteStorage
from rljob_runtime.errors import CheckpointDamaged, CheckpointError
from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.checksums import SUMS_FILE, check_files, write_rank_sums
from rljob_runtime.record.remote import open_remote
from rljob_runtime.worker.trained_model import read_optimizer

FILES = ("model/model.safetensors", "optimizer.pt", "state.json")


def flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    file.write_bytes(content)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that two ranks wrote."""
    store = CheckpointStore(folder=tmp_path_factory.mktemp("checkpoints"), keep=2)

    def leave(draft: Path) -> None:
        for rank, name in enumerate(("model/model.safetensors", "optimizer.pt")):
            write_rank_sums(draft, [draft / name], rank=rank)

    return save(store, 3, leave)


def test_a_whole_one_passes_and_ranks_compare_every_file_once(checkpoint: Path) -> None:
    assert check_files(checkpoint) == 3
    assert sorted(check_files(checkpoint, share=(rank, 2)) for rank in range(2)) == [1, 2]
    assert check_files(checkpoint, within="model/") == 1
    assert sorted(file.name for file in checkpoint.iterdir()) == [
        "checksums.json", "model", "optimizer.pt", "state.json",
    ]  # fmt: skip


@given(name=st.sampled_from([*FILES, SUMS_FILE]), bit=st.integers(0, 1 << 20))
def test_any_flipped_bit_is_found(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, name: str, bit: int
) -> None:
    damaged = tmp_path_factory.mktemp("damaged") / "step-000003"
    shutil.copytree(checkpoint, damaged)
    flip(damaged / name, bit)

    if name == SUMS_FILE and _same_sums(damaged, checkpoint):
        return  # a space that is another one
    with pytest.raises(CheckpointDamaged, match=r"step-000003/.* is damaged: .*earlier checkpoint"):
        check_files(damaged)


def _same_sums(one: Path, other: Path) -> bool:
    try:
        return bool(
            json.loads((one / SUMS_FILE).read_text()) == json.loads((other / SUMS_FILE).read_text())
        )
    except ValueError:
        return False


def test_a_file_that_was_cut_or_is_missing_is_named(checkpoint: Path, tmp_path: Path) -> None:
    for spoil in (
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.unlink(),
    ):
        damaged = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        shutil.copytree(checkpoint, damaged)
        spoil(damaged / "optimizer.pt")

        with pytest.raises(CheckpointDamaged, match=r"optimizer\.pt is damaged"):
            check_files(damaged)


def test_one_of_before_checksums_passes(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "old")
    (tmp_path / "old" / SUMS_FILE).unlink()

    assert check_files(tmp_path / "old") == 0


def test_a_torn_file_of_an_old_one_is_named_by_whoever_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "step-000003" / "optimizer.pt"
    file.parent.mkdir()
    torch.save({"step": torch.tensor(3)}, file)
    whole = file.read_bytes()

    assert read_optimizer(file) == ({"step": torch.tensor(3)}, {})
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"step-000003/optimizer\.pt: cannot be read"):
            read_optimizer(file)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("bit", [0, 77])
def test_a_bit_that_flips_in_a_remote_copy_is_found_when_it_was_fetched(
    checkpoint: Path, disk: RemoteStorage, tmp_path: Path, name: str, bit: int
) -> None:
    remote = open_remote(disk, "run")
    remote.put_checkpoint(3, checkpoint)
    flip(Path(remote.root) / "checkpoints/step-000003" / name, bit)

    fetched = remote.fetch_checkpoint(3, CheckpointStore(folder=tmp_path / "fetched", keep=1))

    with pytest.raises(CheckpointDamaged, match=f"{name} is damaged"):
        check_files(fetched)
