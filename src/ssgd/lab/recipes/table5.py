"""Table 5 and figures A2 and A3: word-level language models on the Penn Treebank.

The large LSTM follows Zaremba et al. (arXiv:1409.2329): plain SGD at rate 1, divided by 1.15 in every epoch after the
14th, gradients clipped at norm 10. The small one's recipe is nowhere public: ours is the one of four tried that is
best on the validation part among those with the paper's test perplexity for SGD.
"""

from __future__ import annotations

from typing import Any

from ..train.recipe import Recipe
from .cifar import DISTRIBUTION

PHASES = {"large": ("55", "55S", "29-26S", "46-9S"), "small": ("50", "50S", "10-40S", "30-20S")}
LEVELS = {"large": (0.8, 0.9, 1.0), "small": (0.6, 0.7, 0.8)}
SWEEP = {"large": (0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.2, 1.4), "small": (0.2, 0.4, 0.6, 0.7, 0.8, 1.0)}
COURSES: dict[str, dict[str, Any]] = {
    "large": {"decay": 1.15, "decay_after": 14, "clip": 10.0},
    "small": {"decay": 1.15, "decay_after": 10, "clip": 5.0, "dropout": 0.4},
}


def table5(size: str, level: float | None = None, phases: str | None = None) -> Recipe:
    """SGD, or S-SGD at that level in all epochs or in the marked phases."""
    phases = phases or PHASES[size][0]
    label = "sgd" if level is None else f"ssgd-{level:g}" + (f"/{phases}" if "-" in phases else "")
    return Recipe(
        name=f"table5/{size}/{label}",
        model=f"lstm-{size}",
        data="ptb",
        augment=False,
        method="sgd" if level is None else "ssgd",
        level=level,
        distribution=DISTRIBUTION,
        phases=phases,
        lr=(1.0,),
        **COURSES[size],
        momentum=0.0,
        weight_decay=0.0,
        batch=20,
        precision="tf32",
    )
