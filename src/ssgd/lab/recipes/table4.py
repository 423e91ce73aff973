"""Table 4 and figure 6: speech recognition by SGCN and CTC, Adam against S-SGD Adam.

The paper trains on WSJ si-284, which is licensed (``data=wsj``); the same nets run on AN4 and on connected digits. Its
65 epochs or so are read off figure 6. The rest is ours: Adam's rate and its drop, a warm-up because the first gradients
are the largest, the batch, TF32, and on the small corpora the number of epochs. On AN4 the net leaves the plateau at
which CTC says nothing after six, the errors on the validation part stop falling before 30, and beyond it Adam, with
little left to go by, was seen to jump away. The net has no dropout, and masks (``spec_augment=true``) are off, since
the paper has none.
"""

from __future__ import annotations

from ..train.recipe import Recipe
from .cifar import DISTRIBUTION

LEVEL = 0.5  # not stated for speech
PLACES = {"wsj": "50-15", "an4": "30-15", "connected-digits": "24-12"}


def table4(data: str, units: int, method: str = "sgd", level: float | None = None) -> Recipe:
    """The base is Adam whatever the method: ``sgd`` in a name means the base alone."""
    label = "adam" if method == "sgd" else f"{method}-adam"
    return Recipe(
        name=f"table4/{data}/sgcn-{units}/{label}",
        model=f"sgcn-{units}",
        data=data,
        augment=False,
        method=method,
        level=level,
        distribution=DISTRIBUTION,
        phases=PLACES[data],
        lr=(1e-3, 1e-4),
        warm_up=1,
        optimizer="adam",
        weight_decay=0.0,
        clip=400.0,
        batch=32 if data == "wsj" else 16,
        precision="tf32",
    )


def utterances() -> Recipe:
    """A tiny net on sounds that are made up on the spot: CTC in seconds."""
    return Recipe(
        name="utterances",
        model="sgcn-small",
        data="fake-speech",
        augment=False,
        phases="15-5",
        lr=(3e-3, 3e-4),
        optimizer="adam",
        weight_decay=0.0,
        batch=12,
        precision="fp32",
    )
