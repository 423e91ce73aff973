"""Speech: lists of utterances, features, batches, CTC, decoding and error rates."""

from ssgd.data.faults import Faults
from ssgd.data.speech.alphabet import Alphabet, normalised
from ssgd.data.speech.ctc import ctc_objective
from ssgd.data.speech.decoding import beam_search, greedy
from ssgd.data.speech.filterbank import LogMel, log_mel
from ssgd.data.speech.load import NAMES, is_speech, load_speech
from ssgd.data.speech.rates import cer, character_errors, wer, word_errors
from ssgd.data.speech.source import Corpus, SpeechSource
from ssgd.data.speech.spec_augment import SpecAugment
from ssgd.data.speech.utterances import Clip, Utterance

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
