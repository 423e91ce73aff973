"""Alphabet, CTC, decoding and error rates."""

import itertools
import math
import random

import pytest
import torch
from torch import nn

from ssgd.lab.data.faults import Unusable
from ssgd.lab.data.speech.ctc import (
    Alphabet,
    beam_search,
    cer,
    character_errors,
    ctc_objective,
    distance,
    frames_needed,
    greedy,
    normalised,
    wer,
    word_errors,
)

# --- alphabet -------------------------------------------------------------------------------------------------------


def test_characters_and_back():
    alphabet = Alphabet()
    assert len(alphabet) == 29 and alphabet.encoded(" 'AZ") == [2, 3, 28]  # no space at the ends
    assert alphabet.decoded(alphabet.encoded("it's  a – “two-part” test.")) == "IT'S A TWO PART TEST"
    assert alphabet.decoded([3, 0, 3, 1, 4]) == "AA B"


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        ("", "empty transcript", "the transcript is empty"),
        (" . ", "empty transcript", "the transcript is empty"),
        ("in 1992 & ÉTÉ", "unknown character", r"'&129É' in 'IN 1992 & ÉTÉ' is not in the alphabet"),
    ],
)
def test_transcripts_that_cannot_be_written(text, kind, sentence):
    with pytest.raises(Unusable, match=sentence) as fault:
        Alphabet().encoded(text)
    assert fault.value.kind == kind


def test_what_is_normalised():
    assert normalised("  Don’t—stop, now!\n") == "DON'T STOP NOW"


# --- CTC ------------------------------------------------------------------------------------------------------------


def collapsed(path):
    return tuple(character for character, _ in itertools.groupby(path) if character)


def totals(frames):
    """The probability of every text, from all paths there are: the oracle."""
    found = {}
    for path in itertools.product(range(len(frames[0])), repeat=len(frames)):
        p = math.prod(frame[character] for frame, character in zip(frames, path, strict=True))
        found[collapsed(path)] = found.get(collapsed(path), 0.0) + p
    return found


def random_frames(seed, frames=5, classes=3):
    numbers = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(frames, classes, generator=numbers)).double().softmax(1)


class Fixed(nn.Module):
    """Gives what it was given as log-probabilities."""

    def forward(self, x, lengths):
        return x.permute(2, 0, 1), lengths


def test_the_loss_is_the_mean_of_exact_negative_log_likelihoods():
    frames = [random_frames(0), random_frames(1)]
    targets = torch.tensor([[1, 2, 1], [2, 0, 0]])
    loss = ctc_objective(
        Fixed(), torch.stack(frames).log().transpose(1, 2), torch.tensor([5, 4]), targets, torch.tensor([3, 1])
    )
    expected = [-math.log(totals(frames[0].tolist())[1, 2, 1]), -math.log(totals(frames[1][:4].tolist())[(2,)])]
    assert loss.item() == pytest.approx(sum(expected) / 2, rel=1e-6)


def test_a_transcript_that_cannot_be_emitted_has_no_gradient():
    x = random_frames(0)[None].log().transpose(1, 2).repeat(2, 1, 1).requires_grad_()
    loss = ctc_objective(Fixed(), x, torch.tensor([3, 5]), torch.tensor([[1, 1, 2], [1, 1, 2]]), torch.tensor([3, 3]))
    loss.backward()
    assert loss.isfinite() and not x.grad[0].any() and x.grad[1].any()


def test_frames_that_a_transcript_needs():
    for target in itertools.chain.from_iterable(itertools.product((1, 2), repeat=n) for n in (1, 2, 3, 4)):
        shortest = next(
            n for n in range(1, 9) if any(collapsed(path) == target for path in itertools.product(range(3), repeat=n))
        )
        assert frames_needed(target) == shortest


# --- decoding -------------------------------------------------------------------------------------------------------


def test_greedy_takes_the_best_path():
    paths = [[1, 1, 0, 1, 2, 2], [0, 0, 2, 0, 1, 1]]
    log_probs = nn.functional.one_hot(torch.tensor(paths), 3).float().transpose(0, 1)
    assert greedy(log_probs, torch.tensor([6, 4])) == [[1, 1, 2], [2]]


@pytest.mark.parametrize("seed", range(8))
def test_a_wide_beam_finds_the_most_likely_text(seed):
    frames = random_frames(seed)
    log_probs, all_texts = frames.log()[:, None], totals(frames.tolist())
    assert tuple(beam_search(log_probs, torch.tensor([5]), width=200)[0]) == max(all_texts, key=all_texts.get)
    best = max(all_texts, key=lambda text: math.log(all_texts[text]) + 0.7 * len(text))
    assert tuple(beam_search(log_probs, torch.tensor([5]), width=200, bonus=0.7)[0]) == best


@pytest.mark.parametrize("seed", range(4))
def test_a_scorer_of_your_own(seed):
    def scorer(prefix, character):
        return -3.0 if character in prefix else 0.5 * character

    def total(text):
        return sum(scorer(text[:i], text[i]) for i in range(len(text)))

    frames = random_frames(seed)
    all_texts = totals(frames.tolist())
    best = max(all_texts, key=lambda text: math.log(all_texts[text]) + total(text))
    assert tuple(beam_search(frames.log()[:, None], torch.tensor([5]), width=200, scorer=scorer)[0]) == best


def test_a_beam_is_better_than_the_best_path_where_paths_add_up():
    frames = torch.tensor([[0.4, 0.35, 0.25], [0.4, 0.35, 0.25]]).log()[:, None]
    assert greedy(frames, torch.tensor([2])) == [[]]
    assert beam_search(frames, torch.tensor([2])) == [[1]]  # 0.35² + 2 · 0.35 · 0.4 against 0.4²
    with pytest.raises(ValueError, match="width of at least 1, not 0"):
        beam_search(frames, torch.tensor([2]), width=0)


def test_beams_end_with_their_utterance():
    log_probs = nn.functional.one_hot(torch.tensor([[1, 0, 2], [1, 0, 2]]), 3).float().mul(9).log_softmax(2)
    assert beam_search(log_probs.transpose(0, 1), torch.tensor([3, 2])) == [[1, 2], [1]]


# --- error rates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "heard", "edits"), [("", "", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("ab", "ba", 2)]
)
def test_edit_distance(said, heard, edits):
    assert distance(said, heard) == edits


def sentences(seed, count=40):
    numbers = random.Random(seed)
    return [
        " ".join("".join(numbers.choices("ABC", k=numbers.randint(1, 4))) for _ in range(numbers.randint(1, 6)))
        for _ in range(count)
    ]


@pytest.mark.parametrize("errors", [character_errors, word_errors])
def test_the_counts_are_those_of_jiwer(errors):
    jiwer = pytest.importorskip("jiwer", reason="needs jiwer")
    references, hypotheses = sentences(0), [*sentences(1, 39), ""]
    process = jiwer.process_words if errors is word_errors else jiwer.process_characters
    theirs = process(references, hypotheses)
    wrong = theirs.substitutions + theirs.deletions + theirs.insertions
    said = theirs.hits + theirs.substitutions + theirs.deletions
    assert errors(references, hypotheses) == (wrong, said)


@pytest.mark.parametrize("between", [" ", "  ", "\t", " \t ", "\n", "\u00a0"])
def test_words_are_separated_by_any_white_space(between):
    assert word_errors([f"ONE{between}TWO"], ["ONE TWO"]) == (0, 2)
    assert word_errors(["ONE TWO"], [f"{between}ONE{between}TOO{between}"]) == (1, 2)


def test_rates_are_over_all_that_was_said():
    references, hypotheses = ["ONE TWO", "A"], ["ONE TOO", "A B C"]
    assert wer(references, hypotheses) == pytest.approx((1 + 2) / 3)
    assert cer(references, hypotheses) == pytest.approx((1 + 4) / 8)
    assert word_errors([], []) == (0, 0)


def test_references_must_be_there():
    with pytest.raises(ValueError, match="2 references cannot be compared with 1"):
        wer(["A", "B"], ["A"])
    with pytest.raises(ValueError, match="a reference is empty"):
        cer(["A", " "], ["A", "B"])
    with pytest.raises(ValueError, match="at least one reference"):
        wer([], [])
