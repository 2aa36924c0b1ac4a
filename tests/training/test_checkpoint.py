import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from interlace.training.checkpoint import RunFolder, RunFolderError


def save(folder: RunFolder, name: str, keep: int = 2) -> None:
    folder.save(name, lambda p: (p / "weights").write_text(name), {"step": name}, keep)


def test_latest_names_the_newest_and_old_ones_are_removed(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.latest() is None
    for name in ("0-a-000001", "0-a-000002", "0-a-000003-end", "1-b-000001", "1-b-000002", "1-b-000003"):
        save(folder, name)
    path, progress = folder.latest()
    assert path.name == "1-b-000003" and progress == {"step": "1-b-000003"}
    kept = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert kept == ["0-a-000003-end", "1-b-000002", "1-b-000003"]


def test_the_last_two_are_kept_when_there_are_only_two(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    save(folder, "0-a-000001")
    save(folder, "0-a-000002")
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_none_is_removed_before_there_are_more_than_the_kept(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    for i in range(4):
        save(folder, f"0-a-{i:06d}", keep=5)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 4


def test_a_checkpoint_from_before_a_kill_is_written_again(tmp_path) -> None:
    """It was complete but not yet the latest; its place in the metrics is that of the killed run."""
    folder = RunFolder(tmp_path)
    save(folder, "0-a-000001")
    save(folder, "0-a-000002")
    (tmp_path / "latest.json").write_text(json.dumps({"checkpoint": "0-a-000001"}))
    folder.save("0-a-000002", lambda p: (p / "weights").write_text("again"), {"metrics_bytes": 7}, 2)
    path, progress = folder.latest()
    assert (path / "weights").read_text() == "again" and progress == {"metrics_bytes": 7}


def test_what_a_kill_left_half_written_is_removed(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    save(folder, "0-a-000001")
    (tmp_path / "checkpoints" / ".0-a-000002.xyz").mkdir()
    (tmp_path / "checkpoints" / ".0-a-000002.xyz" / "half").touch()
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / ".train-000000.jsonl.draft").touch()
    folder.sweep()
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["0-a-000001"]
    assert list((tmp_path / "samples").iterdir()) == []


def test_metrics_beyond_the_checkpoint_are_forgotten(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    folder.log({"step": 1})
    size = folder.metrics.stat().st_size
    folder.log({"step": 2})
    folder.truncate_metrics(size)
    folder.log({"step": 2, "again": True})
    assert [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()] == [1, 2]


def test_a_second_run_in_the_folder_is_refused(tmp_path) -> None:
    refused = pytest.raises(RunFolderError, match="in use")
    with RunFolder(tmp_path).locked(), refused, RunFolder(tmp_path).locked():
        pass


def test_a_broken_checkpoint_is_named(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    save(folder, "0-a-000001")
    (tmp_path / "checkpoints" / "0-a-000001" / "progress.json").unlink()
    with pytest.raises(RunFolderError, match="0-a-000001"):
        folder.latest()


def _save_for_ever(path: str) -> None:
    folder = RunFolder(path)
    for i in range(10**6):
        folder.save(f"0-a-{i:06d}", lambda p, i=i: _write(p, i), {"step": i}, 2)


def _write(folder: Path, i: int) -> None:
    for part in range(5):
        (folder / f"part{part}").write_bytes(str(i).encode() * 20000)


def test_a_kill_at_any_moment_leaves_a_complete_checkpoint(tmp_path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["interlace.training.checkpoint"])
    for delay in (0.0, 0.013, 0.03, 0.051, 0.08):
        folder = RunFolder(tmp_path / str(delay))
        worker = context.Process(target=_save_for_ever, args=(str(folder.path),))
        worker.start()
        while folder.latest() is None:
            time.sleep(0.01)
        time.sleep(delay)
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        path, progress = folder.latest()
        parts = {(path / f"part{p}").read_bytes() for p in range(5)}
        assert parts == {str(progress["step"]).encode() * 20000}
