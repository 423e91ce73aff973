"""Which weights get noise."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.utils import parametrize

NAMED = {"transformers.pytorch_utils.Conv1D": nn.Linear}  # GPT-2's dense layers, known without the package
KINDS: dict[str, tuple[type[nn.Module], ...]] = {
    "conv": (nn.modules.conv._ConvNd,),
    "dense": (nn.Linear, nn.Bilinear, nn.MultiheadAttention),
    "recurrent": (nn.RNNBase, nn.RNNCellBase),
    "embedding": (nn.Embedding, nn.EmbeddingBag),
}


def select(
    model: nn.Module,
    kinds: str | Iterable[str] | None = None,
    *,
    names: str | Iterable[str] | None = None,
    where: Callable[[str, Tensor], bool] | None = None,
) -> list[nn.Parameter]:
    """The weights of ``model`` to perturb: those that pass every test given.

    Args:
        kinds: any of ``"conv"``, ``"dense"``, ``"recurrent"``, ``"embedding"``.
        names: shell patterns over full parameter names, such as ``"layer4.*"``.
        where: a predicate ``where(name, parameter)``. Given alone it decides alone; otherwise the tensors considered
            are those that :class:`ssgd.SSGD` perturbs by default: two or more dimensions, no weight-norm magnitudes.
    """
    wanted_kinds = _strings(kinds)
    patterns = _strings(names)
    if unknown := [k for k in wanted_kinds or () if k not in KINDS]:
        raise ValueError(f"no kind of layer called {unknown[0]!r}: use {', '.join(KINDS)}")
    classes = None if wanted_kinds is None else tuple(c for kind in wanted_kinds for c in KINDS[kind])

    skip = magnitudes(list(model.parameters()), model)
    chosen: dict[int, nn.Parameter] = {}
    for module_name, module in model.named_modules():
        if classes is not None and not issubclass(_class(_owner(model, module_name)), classes):
            continue
        for own_name, parameter in module.named_parameters(recurse=False):
            name = f"{module_name}.{own_name}".lstrip(".")
            by_rule = parameter.dim() >= 2 and id(parameter) not in skip
            if not parameter.requires_grad or not (by_rule or (where and classes is None and patterns is None)):
                continue
            if patterns is not None and not any(fnmatchcase(name, pattern) for pattern in patterns):
                continue
            if where is None or where(name, parameter):
                chosen[id(parameter)] = parameter
    if not chosen:
        raise ValueError(
            f"select() found no trainable weight in {type(model).__name__} with kinds={kinds!r}, names={names!r}"
            f"{'' if where is None else ' and the predicate given'}; list(model.named_parameters()) shows what there is"
        )
    return list(chosen.values())


def trainable(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Every tensor that is trained."""
    return [p for p in parameters if p.requires_grad]


def default_selection(parameters: Sequence[Tensor], skip: Container[int]) -> list[Tensor]:
    """Trainable tensors of two or more dimensions, without the ids in ``skip``: weight-norm's magnitudes."""
    return [p for p in parameters if p.requires_grad and p.dim() >= 2 and id(p) not in skip]


def magnitudes(parameters: Sequence[Tensor], model: nn.Module | None = None) -> set[int]:
    """The ids of weight-norm's magnitudes: by the model where it is known, else by their look."""
    if model is not None:
        return {id(p) for module in model.modules() for p in _magnitudes_of(module)}
    found = set()
    for this, following in pairwise(parameters):  # (k, 1, …, 1), all positive, before the direction (k, …) it scales
        column = this.dim() >= 2 and this.shape[0] > 1 and this.numel() == this.shape[0] and not this.is_complex()
        direction = following.dim() == this.dim() and following.shape[:1] == this.shape[:1]
        if column and direction and following.numel() > this.numel() and bool((this > 0).all()):
            found.add(id(this))
    return found


def _magnitudes_of(module: nn.Module) -> list[Tensor]:
    """Return the magnitudes of this module: of torch's parametrisation, or of the older weight_norm()."""
    if isinstance(module, parametrize.ParametrizationList):
        is_weight_norm = type(module[0]).__name__ == "_WeightNorm"
        return [p for name, p in module.named_parameters(recurse=False) if is_weight_norm and name == "original0"]
    own = dict(module.named_parameters(recurse=False))
    return [p for name, p in own.items() if name.endswith("_g") and f"{name[:-2]}_v" in own]


def _strings(value: str | Iterable[str] | None) -> tuple[str, ...] | None:
    return None if value is None else (value,) if isinstance(value, str) else tuple(value)


def _class(module: nn.Module) -> type[nn.Module]:
    """Its own, or the one of torch's that it stands for."""
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(module).__mro__)
    return next((NAMED[name] for name in names if name in NAMED), type(module))


def _owner(model: nn.Module, name: str) -> nn.Module:
    """The module of that name; the layer itself, ``conv``, for its ``conv.parametrizations.weight``."""
    return model.get_submodule(name.partition("parametrizations.")[0].rstrip("."))
