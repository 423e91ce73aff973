"""A noisy weight is a pair of values while a block is open: every use of it from Python is seen here.

A function of pairs, parameters and tensors without samples is taken at both values and is a pair again. A function of
pairs and of tensors with samples is taken by halves, each at its own value, and is a plain tensor again. Which
dimension has the samples, the dry run has seen (``OnePass.layout``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function

from .layers import FAST, Half, batch_norm_seen, embedding, refuse

if TYPE_CHECKING:
    from .block import OnePass


class Seen:
    """Hands every function of torch that it is given to to dispatch()."""

    @classmethod
    def __torch_function__(cls, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(f, args, kwargs or {})

    def _stays(self, *_: Any) -> NoReturn:
        refuse("a noisy weight cannot be copied or saved: leave the block first")

    __deepcopy__ = __reduce_ex__ = _stays


class Pair(Seen):
    """Two values, at w + n and at w − n: a plain object, so that no C++ code can quietly take one of them.

    Those of a weight (``w`` is not None) lie in a buffer ``two`` of shape (2, …), and all others in a tuple.
    ``origin`` are the names of the weights it was made of; ``turned`` says that it is the weight's transpose.
    """

    def __init__(
        self, owner: OnePass, origin: tuple[str, ...], two: Any, w: Tensor | None = None, turned: bool = False
    ) -> None:
        self.owner, self.origin, self.two, self.w, self.turned = owner, origin, two, w, turned
        self.block = owner.block
        self.layer: Any = None  # the batch-norm whose weight it is
        self.used = False  # in this block
        self._cast: tuple[Any, ...] = ()

    def value(self, sign: int) -> Any:
        if self.w is None:
            return self.two[sign]
        value = Half.apply(self.w, self.two[sign], self.owner.token())  # type: ignore[no-untyped-call]
        return value.mT if self.turned else value

    def cast(self, dtype: torch.dtype) -> Any:
        """Both values of a weight in another type, made once a block."""
        if torch.compiler.is_compiling() or self.owner.log is not None:
            return self.two.to(dtype)
        if self._cast[:2] != (self.owner.block, dtype):
            self._cast = self.owner.block, dtype, self.two.to(dtype)
        return self._cast[2]

    @property
    def shape(self) -> torch.Size:
        if self.two[0] is None:  # of a batch-norm without a weight
            return torch.Size()
        shape = self.two[0].shape if self.w is None else self.two.shape[1:]
        return torch.Size([*shape[:-2], shape[-1], shape[-2]]) if self.turned else shape

    def transposed(self) -> Pair:
        return Pair(self.owner, self.origin, self.two, self.w, not self.turned)

    def weighted(self) -> Any:
        """The mean by the halves' shares of the samples: what a penalty counts as."""
        share = self.owner.share()
        return share * self.value(0) + (1 - share) * self.value(1)


class Noisy(Seen, nn.Parameter):
    """The class of a selected parameter while a block is open; ``_pair`` has its values."""

    _pair: Pair


class _Spy:
    """Tells under which name torch hands a method on: ``Tensor.__add__`` as ``Tensor.add``."""

    @classmethod
    def __torch_function__(cls, f: Any, *rest: Any) -> Any:
        return f


def _forwarded(name: str) -> Any:
    """A tensor's method or attribute, for pairs."""
    what = getattr(Tensor, name)
    if name.startswith("__"):
        with suppress(TypeError, RuntimeError, AttributeError, ValueError):
            what = what(torch.ones(1), _Spy())

    def call(f: Any, self: Pair, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return dispatch(f, (self, *args), kwargs)
        return handle_torch_function(f, (self,), self, *args, **kwargs)

    if callable(what):
        return lambda self, *args, **kwargs: call(what, self, *args, **kwargs)
    return property(lambda self: call(what.__get__, self))


_OF_OBJECTS = {f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge", "format", "repr")}
_OWN = {"__dict__", "__weakref__", "__torch_dispatch__"}
for _name in (set(dir(Tensor)) - set(dir(object)) - set(dir(Pair)) | _OF_OBJECTS) - _OWN:
    setattr(Pair, _name, _forwarded(_name))


PLAIN = frozenset((type(None), bool, int, float, str, torch.dtype, torch.device))


def mapped(g: Callable[[Any], Any], a: Any) -> Any:
    """g of every tensor and pair in nested lists, tuples and dictionaries; a noisy weight is its pair."""
    kind = type(a)
    if kind is Noisy:
        return g(a._pair)
    if kind is Tensor or kind is Pair:
        return g(a)
    if kind in PLAIN:  # before isinstance(), which takes long for a Tensor
        return a
    if isinstance(a, Tensor):
        return g(a)
    if kind is list:
        return [mapped(g, v) for v in a]
    if isinstance(a, tuple):
        parts = [mapped(g, v) for v in a]
        return kind(*parts) if hasattr(a, "_fields") else tuple(parts)
    if isinstance(a, dict):
        return {k: mapped(g, v) for k, v in a.items()}
    return a


def tensors(*trees: Any) -> list[Any]:
    """All tensors and pairs, in order."""
    found: list[Any] = []
    mapped(found.append, trees)
    return found


def shapes(found: Sequence[Any]) -> list[tuple[int, ...]]:
    return [tuple(a.shape) for a in found]


def _getters(names: str) -> set[Any]:
    return {getattr(Tensor, name).__get__ for name in names.split()}


T: Any = Tensor
RANDOM = {torch.rand, torch.randn, torch.rand_like, torch.randn_like, torch.randint, torch.bernoulli}
RANDOM |= {T.normal_, T.uniform_, T.bernoulli_}
ADDED = {torch.add, T.add, T.add_, torch.sub, T.sub, T.sub_, T.__rsub__, torch.stack}  # a penalty to the loss
LIKE = {T.to, T.type_as}  # take no values from another tensor
TURNS = {torch.t, T.t, *_getters("T mT")}
MEANT = {T.backward, T.item, T.__float__, T.__format__, T.__repr__, torch.autograd.grad, torch.autograd.backward}
HARMLESS = _getters(
    "shape dtype device layout requires_grad grad ndim is_leaf is_cuda is_sparse is_nested is_quantized"
)
HARMLESS |= _getters("is_meta is_cpu grad_fn _backward_hooks") | {T.grad.__set__, T.grad.__delete__, T.size, T.dim}
HARMLESS |= {T.numel, T.stride, T.is_contiguous, T.is_floating_point, T.is_complex, T.element_size, T.__len__}
HARMLESS |= {T.register_hook, T.register_post_accumulate_grad_hook}
IN_PLACE = {getattr(T, name) for name in dir(T) if name.endswith("_") and name[-2] != "_"} | {T.__setitem__}
IN_PLACE |= {getattr(T, f"__i{name}__") for name in "add sub mul truediv floordiv mod pow and or xor".split()}  # noqa: SIM905
IN_PLACE |= {T.__ilshift__, T.__irshift__}
UNSAFE = {
    T.data.__get__: "data",
    T.data.__set__: "data",
    T.requires_grad.__set__: "requires_grad",
    T.requires_grad_: "requires_grad_()",
    T.numpy: "numpy()",
    T.data_ptr: "data_ptr(), as kernels of one's own take it,",
    T.untyped_storage: "untyped_storage()",
}


class Call:
    """A function of pairs, and of anything else, while a block is open."""

    def __init__(self, f: Any, args: Any, kwargs: Any) -> None:
        self.f = f
        self.args, self.kwargs = mapped(lambda a: a, (args, kwargs))
        self.found = tensors(self.args, self.kwargs)
        self.pairs = [a for a in self.found if type(a) is Pair]
        self.owner: OnePass = self.pairs[0].owner
        self.names = tuple(sorted({name for a in self.pairs for name in a.origin}))  # of the weights
        name = getattr(f, "__name__", str(f))
        self.title = getattr(getattr(f, "__self__", None), "__name__", name) if name in ("__get__", "__set__") else name

    def refuse(self, why: str) -> NoReturn:
        refuse(f"{self.title} {why}", self.names)

    def given(self, value: Callable[[Pair], Any]) -> Any:
        """The function of a value in place of each pair."""
        args, kwargs = mapped(lambda a: value(a) if type(a) is Pair else a, (self.args, self.kwargs))
        return self.f(*args, **kwargs)

    def pair(self) -> Any:
        """A pair of what comes of both values, in whatever structure."""
        return self._joined(self.given(lambda a: a.value(0)), self.given(lambda a: a.value(1)))

    def _joined(self, plus: Any, minus: Any) -> Any:
        if isinstance(plus, Tensor):
            return Pair(self.owner, self.names, (plus, minus))
        if isinstance(plus, list | tuple):
            parts = [self._joined(p, m) for p, m in zip(plus, minus, strict=True)]
            return type(plus)(*parts) if hasattr(plus, "_fields") else type(plus)(parts)
        if plus != minus:
            self.refuse("is not the same at w + n and at w − n")
        return plus

    def fast(self, dims: list[Any]) -> Any:
        """The layer's own way, where the weight itself meets samples in their first dimension; else None."""
        at_x, is_norm = FAST[self.f][1], self.f is F.batch_norm
        if len(self.found) <= at_x + 1 or len(self.args) <= at_x or self.args[at_x] is not self.found[at_x]:
            return None
        x, weight = self.found[at_x], self.pairs[0] if is_norm else self.found[at_x + 1]
        if type(x) is Pair or type(weight) is not Pair or (x.dim() < 2 and self.f is not F.embedding):
            return None
        if weight.layer is None if is_norm else weight.w is None or weight.two.dim() < 3 or weight.two.is_complex():
            return None
        if dims[at_x] != 0 or any(d is not None for i, d in enumerate(dims) if i != at_x):
            return None
        if any(a.w is None or a.two.dim() != 2 for a in self.pairs if a is not weight):
            return None
        return by_layer(self.owner, self.names, self.f, self.args, self.kwargs)

    def by_halves(self, dims: list[Any], returned: list[Any]) -> Any:
        """At w + n for the first half of the samples and at w − n for the others, put together."""
        owner = self.owner
        parts: list[Any] = []
        for a, d in zip(self.found, dims, strict=True):
            both = (a.value(0), a.value(1)) if type(a) is Pair else (a, a)
            if d is None:
                parts.append(both.__getitem__)
            elif type(a) is Pair or self.f in IN_PLACE:  # a view for a write is taken when the write before it is done
                cut = owner.cut(a, d, self.names)
                ends = (d, 0, cut), (d, cut, a.shape[d] - cut)
                parts.append(lambda sign, both=both, d=d, ends=ends: owner.sort(both[sign], d).narrow(*ends[sign]))
            else:
                cut = owner.cut(a, d, self.names)
                parts.append(torch.split(owner.sort(a, d), [cut, a.shape[d] - cut], d).__getitem__)
        halves = []
        for sign in (0, 1):
            order = iter(parts)
            args, kwargs = mapped(lambda a: next(order)(sign), (self.args, self.kwargs))  # noqa: B023
            halves.append(self.f(*args, **kwargs))
        if self.f in IN_PLACE:
            return self.args[0]
        joined = zip(*map(tensors, halves), returned, strict=True)
        whole = iter([owner.sort(torch.cat(both, d), d, back=True) for *both, d in joined])
        return mapped(lambda a: next(whole), halves[0])


def kind_of(f: Any, args: Sequence[Any], kwargs: Any) -> tuple[Any, ...]:
    """All that the choice of a layer's own way depends on; empty where that is more than can be said in no time."""
    kind: list[Any] = [f, len(args), *kwargs]
    for a in (*args, *kwargs.values()):
        what = type(a)
        if what is Tensor or what is nn.Parameter:
            kind += what, a.dim()
        elif what is Pair:
            kind += what, a.origin, a.w is None, a.layer is None
        elif what in PLAIN or what is tuple:
            kind.append(a if what is tuple else what)
        else:
            return ()
    return tuple(kind)


def by_layer(owner: OnePass, names: Any, f: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """The layer's own way, or None where it has none for these numbers."""
    fast, at_x = FAST[f]
    x = args[at_x]
    at = owner.cut(x, 0, names), owner.token()
    y = fast(at, *args[:at_x], owner.sort(x, 0), *args[at_x + 1 :], **kwargs)
    return None if y is None else owner.sort(y, 0, back=True)


def _again(f: Any, args: Any, kwargs: Any) -> Any:
    """The layer's own way, if it was found for a call of this kind since the last dry run; else None."""
    args = [a._pair if type(a) is Noisy else a for a in args]
    kwargs = {name: a._pair if type(a) is Noisy else a for name, a in kwargs.items()}
    pairs = [a for a in (*args, *kwargs.values()) if type(a) is Pair]
    names = pairs[0].owner.known.get(kind_of(f, args, kwargs)) if pairs else None
    if names is None:
        return None
    _check_place(f, pairs, names)
    return by_layer(pairs[0].owner, names, f, args, kwargs)


def dispatch(f: Any, args: Any, kwargs: Any) -> Any:
    """f of pairs, noisy weights and anything else."""
    compiling = torch.compiler.is_dynamo_compiling()
    # the compiler's own look at a tensor is not a use
    if f in HARMLESS or (not compiling and torch._guards.TracingContext.try_get() is not None):
        args = [a.value(0) if type(a) is Pair else a for a in args]
        return _undispatched(f, *args, **kwargs)
    if f in FAST and not compiling and (y := _again(f, args, kwargs)) is not None:
        return y
    call = Call(f, args, kwargs)
    owner, first = call.owner, call.args[0] if call.args else None
    _check_place(f, call.pairs, call.names)
    if f is F.batch_norm and owner.log is not None:
        call.f = batch_norm_seen
    if (sign := owner.sign) is not None:
        return call.given(lambda a: a.value(sign))
    if f in UNSAFE or kwargs.get("out") is not None:
        what = UNSAFE.get(f, f"{call.title} with out=")
        why = f"{what} of a noisy weight is not served: use split(), or leave the weight out by perturb="
        refuse(why, call.names)
    if f in TURNS and type(first) is Pair and first.w is not None and first.two.dim() == 3:
        return first.transposed()
    if f is T.__iter__:
        return iter(dispatch(T.unbind, args, {}))
    if f in MEANT:  # the mean of a pair; a weight itself, whose gradient is asked for
        return _undispatched(call.given, lambda a: a.weighted() if a.w is None else a.w)
    numbers = f in ADDED and len(call.found) == 2 and all(a.dim() == 0 for a in call.found)
    if numbers and any(type(a) is not Pair and a.requires_grad for a in call.found):  # meets the loss
        return call.given(Pair.weighted)
    return _served(call, f, first)


def _undispatched(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """f, without a look at what its arguments are. One call from end to end, so that Ctrl-C cannot part it."""
    if torch.compiler.is_compiling():  # which knows the context alone
        with torch._C.DisableTorchFunctionSubclass():
            return f(*args, **kwargs)
    return torch._C._disabled_torch_function_impl(f, (), args, kwargs)


def _served(call: Call, f: Any, first: Any) -> Any:
    """f as a layer, as a pair, or by halves."""
    owner = call.owner
    dims, returned = owner.layout(f, call)
    alone = f in LIKE or all(d is None for d, a in zip(dims, call.found, strict=True) if type(a) is not Pair)
    y = None
    if f is F.embedding and alone:
        embedding(None, *call.args, **call.kwargs)
    elif not alone and call.f in FAST:
        y = call.fast(dims)
    if owner.log is not None:
        kind = "pair" if y is None and call.f is f else "fast"
        owner.kinds.update({name: max(kind, owner.kinds.get(name, "")) for name in call.names})
    elif y is not None and not torch.compiler.is_dynamo_compiling() and (site := kind_of(f, call.args, call.kwargs)):
        owner.known[site] = call.names
    if y is not None:
        return y
    to_pair = type(first) is Pair
    if f in IN_PLACE and (
        (to_pair and (first.w is not None or not alone))
        or (not to_pair and (alone or f is T.__setitem__ or owner.order is not None))
    ):
        call.refuse("writes to a noisy weight, or both of its values to one place: write before the block")
    if alone:
        return call.pair()
    if "?" in dims or "?" in returned or None in returned:
        why = "mixes the samples, orders them otherwise, or has not one dimension of them: use split()"
        call.refuse(f"of {shapes(call.found)} {why}")
    return call.by_halves(dims, returned)


def _check_place(f: Any, pairs: Sequence[Pair], names: tuple[str, ...]) -> None:
    """Whether pairs may be used here; they then are."""
    for a in pairs:
        a.used = True
    if torch.compiler.is_dynamo_compiling():
        return
    block = pairs[0].owner.block
    if block is None or any([a.block is not block for a in pairs]):
        refuse("a value of noisy weights was kept from an earlier block: compute it anew in each", names)
    if torch._C._functorch.peek_interpreter_stack() is not None:
        refuse("vmap and torch.func are not served: use points() or split()", names)
    if f is T.detach and sys._getframe(3).f_code.co_name == "_save_to_state_dict":
        refuse("state_dict() inside the block: leave it first", names)
