"""Texts: files and what is wrong with them, batches that read on, every word counted once."""

import os

import pytest
import torch

from ssgd.lab.data import load
from ssgd.lab.data.text import PARTS, Text, TextSource, fake_text, text

LINES = {
    "train": "the cat saw the <unk>\nthe dog ran\n",
    "valid": "the cat ran\n",
    "test": "a dog\nsaw the bird\n",
}


@pytest.fixture
def folder(tmp_path):
    for part, lines in LINES.items():
        (tmp_path / f"my.{part}.txt").write_text(lines)
    (tmp_path / "my.test.txt").write_text("dog\nsaw the cat\n")
    return tmp_path


def counting(words, steps_back=35, **options):
    """A text whose words are 0, 1, 2, …, in each of its parts; ``<eos>`` comes after them in the vocabulary."""
    numbers = torch.arange(words)
    vocabulary = (*map(str, range(words)), "<eos>")
    return TextSource(Text("counting", vocabulary, numbers, numbers, numbers), steps_back=steps_back, **options)


# --- files ----------------------------------------------------------------------------------------------------------


def test_words_become_numbers_in_order_of_first_use(folder):
    found = text(folder)
    assert found.vocabulary == ("<eos>", "the", "cat", "saw", "<unk>", "dog", "ran")
    assert found.train.tolist() == [1, 2, 3, 1, 4, 0, 1, 5, 6, 0]
    assert found.valid.tolist() == [1, 2, 6, 0] and found.test.tolist() == [5, 0, 3, 1, 2, 0]
    assert (found.name, found.skipped) == (folder.name, [])


def test_characters_are_words_of_their_own(folder):
    found = text(folder, characters=True)
    assert found.vocabulary[:6] == ("<eos>", "t", "h", "e", " ", "c")
    assert "".join(found.vocabulary[n] if n else "\n" for n in found.train) == LINES["train"]


def test_a_missing_file_says_what_is_needed(folder, tmp_path):
    (folder / "my.valid.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no file of the kind \*\.valid\.txt: a text has three files"):
        text(folder)
    with pytest.raises(FileNotFoundError, match=r"ptb has no file .*train\.txt: get LDC's Penn Treebank as Mikolov"):
        load("ptb", tmp_path / "nowhere", device="cpu", dtype=torch.float32)


def test_two_files_for_one_part_are_refused(folder):
    (folder / "other.train.txt").write_text("the\n")
    with pytest.raises(
        ValueError, match=r"more than one train file, my\.train\.txt, other\.train\.txt: leave only one"
    ):
        text(folder)


@pytest.mark.parametrize("part", LINES)
@pytest.mark.parametrize(("lines", "bad"), [("", "raise"), ("", "skip"), ("\n \n", "skip")])
def test_a_file_without_words_is_named(folder, part, lines, bad):
    (folder / f"my.{part}.txt").write_text(lines)
    with pytest.raises(ValueError, match=rf"my\.{part}\.txt has no words in it"):
        text(folder, bad=bad)


def test_an_empty_line_is_named_or_skipped_and_counted(folder):
    whole = text(folder).train
    (folder / "my.train.txt").write_text(LINES["train"].replace("\n", "\n \n", 1) + "\n")
    with pytest.raises(ValueError, match=r"my\.train\.txt:2: an empty line: delete it \(bad='skip'"):
        text(folder)
    found = text(folder, bad="skip")
    assert torch.equal(found.train, whole)
    assert [(one.place, one.kind) for one in TextSource(found).skipped] == [
        (f"{folder}/my.train.txt:{line}", "empty line") for line in (2, 4)
    ]


def test_an_unknown_word_is_named_or_replaced_and_counted(folder):
    (folder / "my.test.txt").write_text(LINES["test"])
    with pytest.raises(
        ValueError, match=r"my\.test\.txt:1: 'a' is not among the words of .*my\.train\.txt: write <unk> there"
    ):
        text(folder)
    found = text(folder, bad="skip")
    assert found.test.tolist() == [4, 5, 0, 3, 1, 4, 0]
    assert [(one.place.rpartition("/")[2], one.kind) for one in TextSource(found).skipped] == [
        ("my.test.txt:1", "unknown word"),
        ("my.test.txt:2", "unknown word"),
    ]
    with pytest.raises(ValueError, match="bad must be one of 'raise', 'skip', not 'drop'"):
        text(folder, bad="drop")


def test_without_unk_nothing_can_be_replaced_by_it(folder):
    (folder / "my.train.txt").write_text("the cat\n")
    with pytest.raises(ValueError, match=r"my\.valid\.txt:1: 'ran' cannot be read as <unk>, since"):
        text(folder, bad="skip")


@pytest.mark.parametrize("bad", ["raise", "skip"])
def test_a_file_that_is_no_text_is_named(folder, bad):
    (folder / "my.valid.txt").write_bytes(b"the cat\nthe \xff cat\n")
    with pytest.raises(ValueError, match=r"my\.valid\.txt:2 is not text in UTF-8"):
        text(folder, bad=bad)


def test_a_byte_order_mark_is_no_part_of_the_first_word(folder):
    plain = text(folder)
    (folder / "my.train.txt").write_text(LINES["train"], encoding="utf-8-sig")
    assert text(folder).vocabulary == plain.vocabulary


# --- batches --------------------------------------------------------------------------------------------------------


def test_a_row_reads_on_from_step_to_step():
    source = counting(103, steps_back=5)
    steps = [source.epoch(0, 0).batch(step, 4) for step in range(source.steps(4))]
    assert source.steps(4) == 5 and all(x.shape == y.shape == (4, 5) for x, y in steps)
    read, told = (torch.cat(parts, 1) for parts in zip(*steps, strict=True))
    for row in range(4):
        assert told[row].tolist() == list(range(25 * row, 25 * (row + 1)))
        assert read[row].tolist() == [
            word - 1 if word else 103 for word in told[row].tolist()
        ]  # the first follows <eos>


def test_all_epochs_are_the_same_and_ranks_have_rows_of_their_own():
    source = counting(120, steps_back=5)
    x, y = source.epoch(0, 0).batch(3, 6)
    assert torch.equal(x, source.epoch(7, 9).batch(3, 6)[0])
    parts = [source.epoch(0, 0).batch(3, 6, rank, 3) for rank in range(3)]
    assert torch.equal(x, torch.cat([x for x, _ in parts])) and torch.equal(y, torch.cat([y for _, y in parts]))


def test_windows_come_once_an_epoch_in_an_order_of_seed_and_epoch():
    source = counting(103, steps_back=5, windows=True)
    assert source.steps(6) == 20 // 6

    def told(seed, number):
        epoch = source.epoch(seed, number)
        x, y = (torch.cat(parts) for parts in zip(*(epoch.batch(step, 4) for step in range(5)), strict=True))
        assert torch.equal(x, torch.where(y > 0, y - 1, 103))
        return y.tolist()

    windows = [list(range(first, first + 5)) for first in range(0, 100, 5)]
    assert told(0, 0) != windows and sorted(told(0, 0)) == windows
    assert told(0, 0) == told(0, 0) and told(0, 0) != told(0, 1) and told(0, 0) != told(1, 0)
    parts = [source.epoch(0, 0).batch(1, 6, rank, 3)[1] for rank in range(3)]
    assert torch.equal(source.epoch(0, 0).batch(1, 6)[1], torch.cat(parts))
    assert source.first(20).epoch(0, 0).batch(0, 4)[1].max() == 19
    with pytest.raises(ValueError, match="a batch of 21 cannot be filled from 20 training samples"):
        source.steps(21)


@pytest.mark.parametrize("words", [3, 99, 100, 107])
@pytest.mark.parametrize("ranks", [1, 3, 6])
def test_every_word_is_evaluated_once_and_in_order(words, ranks):
    source = counting(words, steps_back=10)
    for part in ("test", "valid", "train"):
        seen = []
        for rank in range(ranks):
            rows: dict[int, list[int]] = {}
            for x, y in source.in_order(part, 5, rank, ranks):
                assert torch.equal(x, torch.where(y > 0, y - 1, words)) and x.shape[1] <= 10
                for row, told in enumerate(y.tolist()):
                    rows.setdefault(row, []).extend(told)
            seen += [word for row in sorted(rows) for word in rows[row]]
        assert seen == list(range(words))


def test_what_cannot_be_is_a_sentence():
    source = counting(100)
    with pytest.raises(ValueError, match=r"a batch of 3 times 35 words cannot be filled from 100 words"):
        source.steps(3)
    with pytest.raises(ValueError, match="at least 1 place in the text, not 0"):
        source.steps(0)
    with pytest.raises(ValueError, match="step 1 is not in this epoch"):
        source.epoch(0, 0).batch(1, 2)
    with pytest.raises(ValueError, match="a batch of 2 cannot be divided evenly among 4 ranks"):
        source.epoch(0, 0).batch(0, 2, 0, 4)


# --- by name --------------------------------------------------------------------------------------------------------


def test_texts_by_name_and_path(folder, monkeypatch):
    def loaded(name, **options):
        return load(name, device="cpu", dtype=torch.float32, **options)

    source = loaded("fake-text", train_limit=700, test_limit=30)
    assert (source.name, source.kind, source.classes, source.channels) == ("fake-text", "language", 30, 1)
    assert [sum(y.numel() for _, y in source.in_order(part)) for part in PARTS] == [700, 30, 30]
    assert loaded(str(folder)).vocabulary == text(folder).vocabulary
    (folder / "ptb").mkdir()
    for part in LINES:
        (folder / "ptb" / f"ptb.{part}.txt").write_text("the end\n\n")
    monkeypatch.setenv("SSGD_DATA", str(folder))
    assert loaded("ptb", bad="skip").classes == 3
    held_out = loaded("fake-text", held_out=1)  # whatever the number
    assert all(
        torch.equal(a, b) for a, b in zip(*(held_out.parts[p].batch(0, 1) for p in ("test", "valid")), strict=True)
    )


def test_the_generated_text_can_be_learned():
    found = fake_text()
    counts = torch.ones(30, 30).index_put_((found.train[:-1], found.train[1:]), torch.tensor(1.0), accumulate=True)
    chances = counts / counts.sum(1, keepdim=True)
    perplexity = chances[found.test[:-1], found.test[1:]].log().mean().neg().exp()
    assert perplexity < 7 and torch.equal(found.test, fake_text().test)


@pytest.mark.skipif(
    not os.path.isdir(os.path.join(os.environ.get("SSGD_DATA", "nowhere"), "ptb")),
    reason="needs the real Penn Treebank: set SSGD_DATA to the folder that has ptb/",
)
def test_the_real_penn_treebank():
    found = text(os.path.join(os.environ["SSGD_DATA"], "ptb"))
    assert len(found.vocabulary) == 10_000
    assert [len(part) for part in (found.train, found.valid, found.test)] == [929_589, 73_760, 82_430]
    assert TextSource(found).steps(20) == 1327  # as Zaremba's
    characters = load("ptb-characters", os.environ["SSGD_DATA"], device="cpu", dtype=torch.float32)
    assert (characters.classes, characters.steps(16)) == (50, 5_017_482 // 128 // 16)
