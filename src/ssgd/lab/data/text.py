"""Texts of words, a sentence a line: the Penn Treebank in Mikolov's files, your own, and a generated one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ssgd.lab.data import batches
from ssgd.lab.data.download import data_folder
from ssgd.lab.data.faults import Faults, Skipped, Unusable, utf8_lines
from ssgd.lab.data.preprocess import END, UNKNOWN, Words

PARTS = ("train", "valid", "test")
LAYOUT = "a text has three files, such as my.train.txt, my.valid.txt and my.test.txt, with a sentence a line"
TREEBANK = (
    "get LDC's Penn Treebank as Mikolov prepared it (ptb.train.txt, ptb.valid.txt, ptb.test.txt) under its licence"
)


@dataclass(frozen=True)
class Text:
    """Three parts as numbers of words, each sentence with an ``<eos>`` at its end, and the faults of the files."""

    name: str
    vocabulary: tuple[str, ...]
    train: Tensor
    valid: Tensor
    test: Tensor
    skipped: Sequence[Skipped] = ()
    characters: bool = False  # whether a word is a single character


def text(
    folder: str | Path, name: str | None = None, bad: str = "raise", read_test: bool = True, characters: bool = False
) -> Text:
    """Reads the three files in ``folder`` with ``train``, ``valid`` and ``test`` between the dots of their names.

    Without ``read_test`` the test file is left alone, and the test part is the validation part.

    The vocabulary is that of the training file, with ``<eos>``, in order of first use. A word of the others that is not
    in it and a line without words are named with file and line; with ``bad="skip"`` the one is read as ``<unk>``, the
    other left out, and both are in ``skipped``. With ``characters`` a word is a single character, spaces too.
    """
    faults = Faults(bad)
    files = [_file(Path(folder), part) for part in (PARTS if read_test else PARTS[:2])]
    reader = _Reader(faults, characters)
    train, valid, *test = (reader.read(file) for file in files)
    name = Path(folder).resolve().name if name is None else name
    return Text(name, tuple(reader.numbers), train, valid, test[0] if test else valid, faults.skipped, characters)


def load_text(name: str, wanted: batches.Options) -> TextSource:
    """Loads ``"ptb"``, its characters, ``"fake-text"`` or the folder of that path."""
    characters = name == "ptb-characters"
    if name == "fake-text":
        found = fake_text()
    else:
        folder = data_folder(wanted.folder) / "ptb" if name == "ptb" or characters else Path(name).expanduser()
        found = text(folder, bad=wanted.bad, read_test=not wanted.held_out, characters=characters)
    tested = slice(wanted.test_limit)
    train, valid = found.train[: wanted.train_limit], found.valid[tested]
    test = valid if wanted.held_out else found.test[tested]
    shown = replace(found, train=train, valid=valid, test=test)
    return TextSource(shown, wanted.device, 128 if characters else 35, windows=characters)


def is_text(folder: Path) -> bool:
    """Whether the folder has a training text in it; a folder of images may have its lists beside train/."""
    return not (folder / "train").is_dir() and bool(_files(folder, "train"))


def fake_text(words: int = 30, train: int = 6000, test: int = 1000) -> Text:
    """Makes a chain in which each word has three likely successors, for trying a training out, without files."""
    numbers = torch.Generator().manual_seed(0)
    likely = torch.rand(words, words, generator=numbers).argsort(1)[:, :3]
    chances = torch.full((words, words), 0.1 / words).scatter_(1, likely, 0.3)
    sums = chances.cumsum(1)
    tokens, word = [], 0
    for drawn in torch.rand(train + 2 * test, generator=numbers).tolist():
        word = min(int(torch.searchsorted(sums[word], drawn)), words - 1)
        tokens.append(word)
    parts = torch.split(torch.tensor(tokens), [train, test, test])
    return Text("fake-text", (END, UNKNOWN, *(f"w{i}" for i in range(2, words))), parts[0], parts[1], parts[2])


class TextSource(batches.Source):
    """Batches of a text, ``steps_back`` words at a time: every word is predicted from those before it.

    The training part is read in order, or in ``windows`` of random order.
    """

    kind = "language"
    test_size = 20

    def __init__(
        self, text: Text, device: torch.device | str = "cpu", steps_back: int = 35, windows: bool = False
    ) -> None:
        self.vocabulary, end = text.vocabulary, text.vocabulary.index(END)
        kinds = {"train": Windows if windows else Reading, "valid": Reading, "test": Reading}
        parts = {part: kind(getattr(text, part).to(device), end, steps_back) for part, kind in kinds.items()}
        preprocess = Words(text.vocabulary, text.characters)
        super().__init__(text.name, len(text.vocabulary), 1, parts, text.skipped, preprocess)


class Reading:
    """A part of a text on the device: its words, and for each of them the word before, ``<eos>`` for the first.

    A batch reads on in ``size`` places of the text at once, and all epochs are the same.
    """

    def __init__(self, words: Tensor, end: int, steps_back: int) -> None:
        self._next, self._steps_back = words, steps_back
        self._words = torch.cat([words.new_tensor([end]), words[:-1]])

    def first(self, count: int) -> Reading:
        return type(self)(self._next[:count], int(self._words[0]), self._steps_back)

    def steps(self, size: int) -> int:
        if size < 1:
            raise ValueError(f"a batch needs at least 1 place in the text, not {size}")
        steps = len(self._next) // size // self._steps_back
        if steps < 1:
            raise ValueError(
                f"a batch of {size} times {self._steps_back} words cannot be filled from {len(self._next)} words of"
                " training text: make the batch smaller"
            )
        return steps

    def epoch(self, seed: int, number: int) -> Reading:
        return self

    def batch(self, step: int, size: int, rank: int = 0, ranks: int = 1) -> tuple[Tensor, Tensor]:
        """Returns words and those that follow them, [places, steps_back]; rank r reads in the r-th of equal parts."""
        part = batches.part_of_batch(size * self.steps(size), step, size, rank, ranks)
        places = slice(part.start - step * size, part.stop - step * size)
        length = len(self._next) // size
        now = slice(step * self._steps_back, (step + 1) * self._steps_back)
        x, y = (words[: size * length].view(size, length)[places, now] for words in (self._words, self._next))
        return x, y

    def in_order(self, size: int, rank: int, ranks: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields rank ``rank``'s share of ``size`` places that cover all words; the first ones may be a word longer."""
        shares = list(batches.in_order(size, size, rank, ranks))
        return (batch for share in shares for batch in self._windows(size, share))

    def _windows(self, size: int, share: slice) -> Iterator[tuple[Tensor, Tensor]]:
        length, longer = divmod(len(self._next), size)
        places = torch.arange(share.start, share.stop, device=self._next.device)
        starts = (places * length + places.clamp_max(longer))[:, None]
        for first in range(0, length, self._steps_back):
            here = starts + torch.arange(first, min(first + self._steps_back, length), device=starts.device)
            yield self._words[here], self._next[here]
        if longer > share.start:
            here = starts[: longer - share.start] + length
            yield self._words[here], self._next[here]


class Windows(Reading):
    """Every window of ``steps_back`` words once an epoch, in random order: for nets that begin anew with each."""

    _starts: Tensor

    def steps(self, size: int) -> int:
        return batches.whole_batches(len(self._next) // self._steps_back, size)

    def epoch(self, seed: int, number: int) -> Windows:
        drawn = copy(self)
        windows = len(self._next) // self._steps_back
        order = torch.randperm(windows, generator=batches.generator(seed, number))
        drawn._starts = order.to(self._next.device) * self._steps_back
        return drawn

    def batch(self, step: int, size: int, rank: int = 0, ranks: int = 1) -> tuple[Tensor, Tensor]:
        """Returns words and those that follow them, [windows, steps_back]."""
        starts = self._starts[batches.part_of_batch(len(self._starts), step, size, rank, ranks)]
        here = starts[:, None] + torch.arange(self._steps_back, device=starts.device)
        return self._words[here], self._next[here]


class _Reader:
    """Turns files into numbers. The first file read is the training text: it makes the vocabulary."""

    def __init__(self, faults: Faults, characters: bool) -> None:
        self._words: Callable[[str], Sequence[str]] = str.strip if characters else str.split
        self.numbers = {END: 0}
        self._faults = faults
        self._first: Path | None = None

    def read(self, file: Path) -> Tensor:
        found: list[int] = []
        for place, line in utf8_lines(file):
            if words := self._words(line):
                found += [self._number(word, place) for word in words]
                found.append(0)
            else:
                self._faults.add(place, Unusable("empty line", "an empty line: delete it"))
        if not found:
            raise ValueError(f"{file} has no words in it: {LAYOUT}")
        self._first = self._first or file
        return torch.tensor(found)

    def _number(self, word: str, place: str) -> int:
        if self._first is None:
            return self.numbers.setdefault(word, len(self.numbers))
        if word in self.numbers:
            return self.numbers[word]
        sentence = f"{word!r} is not among the words of {self._first}: write {UNKNOWN} there, as which it is read"
        self._faults.add(place, Unusable("unknown word", sentence))
        if UNKNOWN not in self.numbers:
            raise ValueError(
                f"{place}: {word!r} cannot be read as {UNKNOWN}, since {self._first} has none: "
                f"replace its rare words by {UNKNOWN}"
            )
        return self.numbers[UNKNOWN]


def _file(folder: Path, part: str) -> Path:
    found = _files(folder, part)
    if not found:
        what = TREEBANK if folder.name == "ptb" else LAYOUT
        raise FileNotFoundError(f"{folder} has no file of the kind *.{part}.txt: {what}, and put it there")
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ValueError(f"{folder} has more than one {part} file, {names}: leave only one there")
    return found[0]


def _files(folder: Path, part: str) -> list[Path]:
    there = sorted(folder.iterdir()) if folder.is_dir() else []
    return [file for file in there if part in file.stem.split(".") and file.suffix and file.is_file()]
