"""Speech: utterances, features, batches, CTC, decoding and error rates."""

from ssgd.lab.data.faults import Faults
from ssgd.lab.data.speech.ctc import (
    Alphabet,
    beam_search,
    cer,
    character_errors,
    ctc_objective,
    greedy,
    normalised,
    wer,
    word_errors,
)
from ssgd.lab.data.speech.features import LogMel, SpecAugment, log_mel
from ssgd.lab.data.speech.source import SpeechSource
from ssgd.lab.data.speech.utterances import Clip, Corpus, Utterance

__all__ = [
    "Alphabet",
    "Clip",
    "Corpus",
    "Faults",
    "LogMel",
    "SpecAugment",
    "SpeechSource",
    "Utterance",
    "beam_search",
    "cer",
    "character_errors",
    "ctc_objective",
    "greedy",
    "log_mel",
    "normalised",
    "wer",
    "word_errors",
]
