"""Plain-text tables."""

import pytest

from ssgd.lab.columns import in_columns


def test_columns_are_as_wide_as_their_longest_cell_and_lines_end_with_their_last_word():
    rows = [("name", "n", "what"), ("a", "1,000", "±"), ("longer", "–", "")]
    assert in_columns(rows) == "name    n      what\na       1,000  ±\nlonger  –"


def test_rows_of_different_length_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        in_columns([("one", "two"), ("one",)])
