"""Lines of UTF-8, and files that are something else."""

import pytest

from ssgd.lab.data.faults import utf8_lines


def test_every_line_with_its_place_and_without_its_end(tmp_path):
    file = tmp_path / "list.txt"
    file.write_bytes("naïve\r\n\n a\u2028b \nlast".encode())
    assert list(utf8_lines(file)) == [
        (f"{file}:{number}", line) for number, line in enumerate(["naïve", "", " a\u2028b ", "last"], 1)
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    file = tmp_path / "list.txt"
    file.write_text("one\ntwo", encoding="utf-8-sig")
    assert [line for _, line in utf8_lines(file)] == ["one", "two"]


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"\xff\xfeo\0n\0e\0", 1), (b"one\ntwo\nna\xefve\n", 3), (b"one\n" * 9000 + b"\xc3", 9001)],
)
def test_what_is_not_utf8_is_named_with_file_and_line(tmp_path, content, line):
    file = tmp_path / "list.txt"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"list\.txt:{line} is not text in UTF-8: convert the file, .*by iconv"):
        list(utf8_lines(file))
