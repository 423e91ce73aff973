"""Models as people write them: right, or refused with a sentence, and never silently wrong."""

import warnings

import pytest

from .one_pass_cases import check, layers, transformers

REFUSED = {
    "spectral_norm",
    "x.repeat(2,1)",
    "batch statistics",
    "two uses of a table",
    "arange(B) as positions",
    "w.data",
    "(S,B,E) flattened",
    "adaptive softmax",
    "loss times weight",
}


def outcomes(cases):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {str(case): (case.name, *check(case)) for case in cases}


def test_layers():
    for label, (name, found, what) in outcomes(layers(sizes=(7,))).items():
        assert found == ("refused" if name in REFUSED else "right"), f"{label}: {what}"
        assert found == "right" or ("one_pass(): " in what and "use split()" in what), what


def test_hugging_face():
    pytest.importorskip("transformers")
    for label, (_, found, what) in outcomes(transformers(sizes=(7,), attentions=("sdpa",))).items():
        assert found == ("refused" if label == "CLIP sdpa every B=7" else "right"), f"{label}: {what}"
