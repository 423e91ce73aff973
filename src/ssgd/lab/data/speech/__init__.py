"""Speech: lists of utterances, features, batches, CTC, decoding and error rates."""

from ssgd.lab.data.faults import Faults
from ssgd.lab.data.speech.alphabet import Alphabet, normalised
from ssgd.lab.data.speech.ctc import ctc_objective
from ssgd.lab.data.speech.decoding import beam_search, greedy
from ssgd.lab.data.speech.filterbank import LogMel, log_mel
from ssgd.lab.data.speech.load import NAMES, is_speech, load_speech
from ssgd.lab.data.speech.rates import cer, character_errors, wer, word_errors
from ssgd.lab.data.speech.source import Corpus, SpeechSource
from ssgd.lab.data.speech.spec_augment import SpecAugment
from ssgd.lab.data.speech.utterances import Clip, Utterance

__all__ = [
    "NAMES",
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
    "is_speech",
    "load_speech",
    "log_mel",
    "normalised",
    "wer",
    "word_errors",
]
