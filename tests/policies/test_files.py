import os

import pytest

from interlace.policies.files import save_whole


def write(text):
    return lambda directory: (directory / "a.txt").write_text(text)


def test_a_directory_is_created_and_replaced_whole(tmp_path):
    place = tmp_path / "deep" / "model"
    save_whole(place, write("one"))
    (place / "stale.txt").write_text("left over")
    save_whole(place, write("two"))
    assert [(f.name, f.read_text()) for f in place.iterdir()] == [("a.txt", "two")]
    assert [f.name for f in place.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("existing", [True, False])
def test_a_failure_while_writing_changes_nothing(existing, tmp_path):
    place = tmp_path / "model"
    if existing:
        save_whole(place, write("one"))

    def half(directory):
        (directory / "a.txt").write_text("tw")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        save_whole(place, half)
    assert [f.name for f in tmp_path.iterdir()] == (["model"] if existing else [])
    assert not existing or (place / "a.txt").read_text() == "one"


def test_the_result_has_the_permissions_of_any_new_directory(tmp_path):
    (tmp_path / "plain").mkdir()
    save_whole(tmp_path / "model", write("x"))
    assert os.stat(tmp_path / "model").st_mode == os.stat(tmp_path / "plain").st_mode
