"""Any sequence of calls, right or wrong, against an oracle that knows what the weights and gradients must be.

The oracle keeps its own copy of w and its own base optimizer. It reads the weights at each point, checks that they are
where the method puts them, and takes the gradients there by torch.autograd.grad through a forward of its own; so it
does not depend on the random stream. ``make fuzz`` runs many more sequences than the tests do.
"""

from __future__ import annotations

import copy
import gc
import itertools
import os
import re
import warnings
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import nn

from . import fuzz_adaptor as api
from .problems import vectors

ASKED = os.environ.get("SSGD_FUZZ")
SEQUENCES = int(ASKED or 320)  # over all methods
COUNTS: Counter[str] = Counter()
REFUSED: Counter[str] = Counter()

LEVELS = st.sampled_from([0.0, 0.1, 0.3])
ERRORS = st.sampled_from([ValueError, KeyboardInterrupt])
BATCHES = [vectors(samples=n, seed=n) for n in (4, 3, 6)]
DATA = st.integers(0, len(BATCHES) - 1)
EVENTS = ["none"] * 3 + [
    *("break", "raise", "skip", "begin", "enter", "backward", "step", "closure", "zero_grad", "model.zero_grad"),
    *("save", "load", "add_group", "set_level", "copy", "evaluate", "touch"),
]

LOOP = {
    "way": st.sampled_from(["points", "split"]),
    "data": DATA,
    "event": st.sampled_from(EVENTS),
    "where": st.sampled_from(["between", "before backward", "after backward", "after"]),
    "at": st.sampled_from([0, 1, 0, 1, 2, 3]),
    "error": ERRORS,
    "level": LEVELS,
    "then": st.sampled_from(["step", "zero_grad", "nothing", "enter"]),
}


class Net(nn.Module):
    """A layer for each parameter group; those after the second may come later."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        shapes = [(5, 4), (4, 3), *[(4, 4)] * (layers - 2)]
        torch.manual_seed(layers)
        self.layers = nn.ModuleList(nn.Linear(*shape, dtype=torch.float64) for shape in shapes)

    def forward(self, x):
        first, last, *more = self.layers
        h = first(x).tanh()
        for layer in more:
            h = h + layer(h).tanh()
        return last(h)


def forward(values, x):
    """The same of a list of weights and biases."""
    (first, last, *more) = zip(values[::2], values[1::2], strict=True)
    h = F.linear(x, *first).tanh()
    for layer in more:
        h = h + F.linear(h, *layer).tanh()
    return F.linear(h, *last)


def gradient(values, batch):
    values = [v.detach().requires_grad_() for v in values]
    return list(torch.autograd.grad(F.cross_entropy(forward(values, batch[0]), batch[1]), values))


def added(a, b, share=1.0):
    """a + share · b, where None stands for no gradient."""
    a = a + [None] * (len(b) - len(a))  # a group may have been added
    b = b + [None] * (len(a) - len(b))
    return [p if q is None else q * share if p is None else p + q * share for p, q in zip(a, b, strict=True)]


def cleared(gradients, to_none):
    return [None if g is None or to_none else torch.zeros_like(g) for g in gradients]


def copies(tensors):
    return [None if t is None else t.detach().clone() for t in tensors]


def bitwise(a, b):
    return len(a) == len(b) and all(
        (p is None) == (q is None) and (p is None or torch.equal(p, q)) for p, q in zip(a, b, strict=True)
    )


def close(a, b):
    return len(a) == len(b) and all(
        (p is None) == (q is None) and (p is None or torch.allclose(p, q, rtol=1e-10, atol=1e-12))
        for p, q in zip(a, b, strict=True)
    )


@dataclass
class Batch:
    """A batch on its way through its points. A block of one_pass() is one point, whose gradient sees two."""

    signs: tuple[int, ...]
    shares: tuple[float, ...]
    levels: list[float]  # of each group, when it began
    iterator: Any = None
    point: Any = None  # the last one that the iterator gave
    part: Any = None  # its part of the batch
    index: int = 0  # the number of that point
    done: int = 0  # points left
    inside: bool = False
    cut: bool = False
    changed: bool = False  # gradients changed between two points
    uncertain: bool = False  # what follows a fault may be refused
    bare: bool = False  # no gradient when the last point was left
    before: list[list] = field(default_factory=list)  # what the gradients may have been when the first was entered
    gradients: list[list[list]] = field(default_factory=list)  # what that of each point may be
    arrived: list[bool] = field(default_factory=list)
    seen: list[list] = field(default_factory=list)  # the weights at each point
    block: Any = None  # of one_pass()
    of_samples: list[int] | None = None  # the signs given to one_pass()
    minus: list = field(default_factory=list)  # w − n; w + n is in ``seen``

    @property
    def complete(self):
        return self.done == len(self.signs)

    @property
    def half_way(self):
        return not self.cut and (self.inside or 0 < self.done < len(self.signs))

    @property
    def manager(self):
        return self.point if self.block is None else self.block

    @property
    def lacks_the_last(self):
        """Whether the last point is left without a gradient, and another was not."""
        return self.index + 1 == len(self.signs) and any(self.arrived) and not self.arrived[-1]

    def means(self):
        """All that the gradient may be in the end."""
        found = []
        for start, *parts in itertools.product(self.before, *self.gradients):
            total = start
            for share, part in zip(self.shares, parts, strict=True):
                if share:
                    total = added(total, part, share)
            found.append(total)
        return found


class Fuzz(RuleBasedStateMachine):
    """One optimizer in the hands of somebody who makes every mistake there is."""

    method: api.Method

    # --- the oracle -------------------------------------------------------------------------------------------------

    @initialize(base=st.sampled_from(sorted(api.BASES)), level=LEVELS)
    def start(self, base, level):
        self.make_base, self.level = api.BASES[base], level
        self.checkpoints: list[dict[str, Any]] = []
        self.build(2)
        COUNTS["sequences"] += 1

    def build(self, layers):
        self.model = Net(layers)
        self.opt = self.method.build(self.make_base(self.groups_of(self.parameters())), self.level, self.model)
        self.w = [nn.Parameter(p.detach().clone()) for p in self.parameters()]
        self.base = self.make_base(self.groups_of(self.w))
        self.levels = [self.level] * layers
        self.begin_again()

    def begin_again(self):
        """No batch is open, and no gradient is there."""
        self.batch: Batch | None = None
        self.old: list[Batch] = []
        self.may_be = [[None] * len(self.w)]  # what p.grad may be; after a look at it, what it is
        self.forget_noise()

    def forget_noise(self):
        self.noise, self.last_noise = {}, {}  # weights at the points of this step, and of the one before

    @staticmethod
    def groups_of(parameters):
        return [{"params": [w, b]} for w, b in zip(parameters[::2], parameters[1::2], strict=True)]

    def parameters(self):
        return list(self.model.parameters())

    @property
    def grads(self):
        return self.may_be[0]

    @property
    def inside(self):
        return self.batch is not None and self.batch.inside

    @property
    def half_way(self):
        return self.batch is not None and self.batch.half_way

    @property
    def noisy(self):
        return any(self.levels) and self.method.level is not None

    @property
    def in_block(self):
        return self.inside and self.batch.block is not None

    def values(self):
        """The weights as they lie in memory, of which a block of one_pass() would show two values."""
        return self.memory if self.in_block else self.parameters()

    @invariant()
    def weights_and_gradients_are_the_oracles(self):
        COUNTS["steps"] += 1
        where = self.batch.seen[-1] if self.inside and not self.in_block else self.w
        assert bitwise(self.values(), where), "weights"
        if not self.in_block:
            assert all(type(p) is nn.Parameter for p in self.parameters()), "classes"
            assert not any(m._forward_pre_hooks for m in self.model.modules()), "hooks"
        if not self.half_way:
            now = [p.grad for p in self.parameters()]
            assert any(close(now, g) for g in self.may_be), f"gradients\n{now}\nand not one of\n{self.may_be}"
            self.may_be = [copies(now)]

    def attempt(self, expected, call, *arguments):
        """Calls; (whether it was not refused, what it returned). A refused call changes neither weights nor gradients.

        ``expected`` is "works", "refused" or "either"; "fails": refused, and what it does besides is looked at after.
        """
        there, weights = self.values(), copies(self.values())
        grads = copies([p.grad for p in self.parameters()])
        result, refusal = None, None
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            try:
                result = call(*arguments)
            except (RuntimeError, ValueError, TypeError) as error:
                if expected == "works":
                    raise
                refusal = error
        sentences = [str(w.message) for w in given]
        assert all(re.search(api.MAY_WARN, sentence) for sentence in sentences), sentences
        if refusal is None:
            assert expected in ("works", "either"), "this should have been refused"
        else:
            self.check_sentence(refusal)
            if expected != "fails":
                assert bitwise(there, weights), "a refused call changed weights"
                assert bitwise([p.grad for p in self.parameters()], grads), "a refused call changed gradients"
        return refusal is None, result

    def check_sentence(self, refusal):
        assert api.is_documented(refusal), repr(refusal)
        REFUSED[re.sub(r"\d+", "N", str(refusal)).splitlines()[0][:110]] += 1

    def came_late(self):
        """Whether gradients came when all points had been left, and none before: "refused", "works" or "either"."""
        b = self.batch
        if b is None or not b.complete or not b.bare or all(g is None for g in self.grads):
            return "works"
        if any(b.arrived):  # where all were cleared inside a point, they may be forgotten
            return "either" if b.uncertain else "works"
        if self.noisy != (any(b.levels) and self.method.level is not None):
            return "either"
        return "refused" if self.noisy else "works"

    def end_batch(self, ends_step=True):
        if self.batch is not None:
            if ends_step:
                self.last_noise, self.noise = self.noise, {}
            self.old.append(self.batch)
        self.batch = None

    def began(self, way, data, first=None):
        """A new batch, whose first point is there."""
        if self.batch is not None:
            self.end_batch(ends_step=self.batch.cut or all(g is None for g in self.grads))
        size = len(data[0])
        shares = self.method.half_shares or (((size + 1) // 2) / size, (size // 2) / size)
        signs, shares = (self.method.halves, shares) if way == "split" else (self.method.signs, self.method.shares)
        if not self.noisy and self.method.level is not None:
            signs, shares = (0,), (1.0,)
        self.batch = Batch(signs, shares, list(self.levels))
        if first is not None:
            self.given(first)

    def given(self, pair):
        b = self.batch
        b.point, b.part = pair
        assert api.sign(b.point) == b.signs[b.index]

    def entered(self):
        b = self.batch
        b.inside = True
        if b.index == 0:
            b.before = self.may_be
        elif b.changed:  # and not refused: what was cleared between the points may be forgotten, or not
            b.before = b.before + [cleared(g, True) for g in b.before] + [cleared(g, False) for g in b.before]
        b.changed = False
        b.gradients.append([[None] * len(self.w)])
        b.arrived.append(False)
        if b.block is None:
            b.seen.append(copies(self.parameters()))
        self.check_point()

    def check_point(self):
        b, v = self.batch, self.batch.seen[-1]
        sign = b.signs[b.index]
        w = [p.detach() for p in self.w]
        n = [p - q for p, q in zip(v, w, strict=True)]
        slopes = b.gradients[0] if self.method.noise == "climb" and b.index else []  # it may have been cleared
        norms = [sum(g.square().sum() for g in slope if g is not None) ** 0.5 for slope in slopes]
        for i, (noise, weight) in enumerate(zip(n, w, strict=True)):
            group = i // 2
            began = b.levels[group] if group < len(b.levels) else 0.0  # a group added since may do without noise
            levels = {began, self.levels[group]} if began else {0.0, self.levels[group]}
            if sign == 0 or (i % 2 and not self.method.every_tensor) or levels == {0.0}:
                assert bitwise([v[i]], [weight]), "moved, and should not"
            elif sign < 0:
                plus = b.seen[b.index - 1][i] if i < len(b.seen[b.index - 1]) else weight
                torch.testing.assert_close(noise, weight - plus, rtol=0, atol=1e-15 * (weight.abs() + plus.abs()).max())
            elif self.method.noise == "norm":
                ratio = (noise.norm() / weight.norm()).item()
                assert any(abs(ratio - level) < 1e-9 for level in levels), (ratio, levels)
            elif self.method.noise == "climb":
                climbs = [
                    level * slope[i] / (norm + 1e-12) if norm and slope[i] is not None else noise * 0
                    for slope, norm in zip(slopes, norms, strict=True)
                    for level in levels
                ]
                assert any(torch.allclose(noise, c, rtol=1e-9, atol=1e-12) for c in climbs), (noise, climbs)
            else:
                assert 0.0 in levels or noise.norm() > 0
        if sign > 0 and self.method.noise != "climb":
            self.check_draw(b, v, w)

    def check_draw(self, b, v, w):
        """All batches of a step see one noise; its draws differ, and so do steps."""
        same = (tuple(b.levels), tuple(self.levels), b.signs if b.block is None else self.method.signs)
        moved = not bitwise(v, w)
        if b.index in self.noise and self.noise[b.index][0] == same:
            assert close(self.noise[b.index][1], v), "another noise in the same step"
        if moved and self.last_noise.get(b.index, (None,))[0] == same:
            assert not close(self.last_noise[b.index][1], v), "the last step's noise again"
        assert not moved or not any(bitwise(v, before) for before in b.seen[:-1]), "the same noise twice in a batch"
        self.noise[b.index] = same, v

    def left(self):
        b = self.batch
        b.inside = False
        b.done += 1
        if b.complete:
            self.may_be = b.means()
            b.bare = all(g is None for g in self.grads)

    def cut(self):
        """An exception has ended the batch: its gradients are dropped, with all that was there before."""
        self.batch.inside, self.batch.cut = False, True
        self.may_be = [[None] * len(self.w)]

    # --- one call at a time -----------------------------------------------------------------------------------------

    def first_point(self, way, data):
        iterator = api.passes(self.opt, way, *data)
        return iterator, next(iterator)

    def may_begin(self, way, data):
        if way == "split" and not self.method.halves:
            return "refused"
        return "refused" if self.half_way else self.came_late()

    @rule(way=st.sampled_from(["points", "points", "split"]), data=DATA)
    def begin(self, way, data):
        if way == "split" and self.method.halves is None:
            return
        data = BATCHES[data]
        works, found = self.attempt(self.may_begin(way, data), self.first_point, way, data)
        if works:
            self.began(way, data, found[1])
            self.batch.iterator = found[0]

    def may_enter(self):
        b = self.batch
        if b.inside or b.cut or b.index < b.done:
            return "refused"
        if b.index and b.changed:
            return "either" if b.uncertain else "refused"
        return "either" if b.iterator is None and b.index > 0 else "works"  # it may not outlive its iterator

    @precondition(lambda self: self.batch is not None and self.batch.point is not None)
    @rule()
    def enter(self):
        if self.attempt(self.may_enter(), self.batch.point.__enter__)[0]:
            self.entered()

    @precondition(lambda self: self.inside)
    @rule()
    def leave(self):
        b = self.batch
        expected = "either" if b.uncertain else "fails" if b.lacks_the_last else "works"
        if expected == "either":
            works, found = self.leave_after_a_fault()
        else:
            works, found = self.attempt(expected, b.manager.__exit__, None, None, None)
        if works:
            assert not found
            self.left()
        else:
            self.cut()

    def leave_after_a_fault(self):
        try:
            return True, self.batch.manager.__exit__(None, None, None)
        except RuntimeError as error:
            self.check_sentence(error)
            return False, None

    @precondition(lambda self: self.inside)
    @rule(error=ERRORS)
    def fail(self, error):
        error = error("inside a point")
        assert not self.batch.manager.__exit__(type(error), error, None)
        self.cut()

    @precondition(lambda self: self.batch is not None and self.batch.iterator is not None)
    @rule()
    def advance(self):
        b = self.batch
        if b.inside:
            self.attempt("fails", next, b.iterator)
            error = RuntimeError("as the one that next() has raised")
            assert not b.point.__exit__(type(error), error, None)
            self.cut()
            b.iterator = None
        elif b.done <= b.index:
            works, found = self.attempt("either" if b.cut else "refused", partial(next, b.iterator, "end"))
            assert not works or found == "end"
            b.iterator = None
        elif b.done == len(b.signs):
            assert next(b.iterator, None) is None
            b.iterator = None
        else:
            b.index += 1
            self.given(next(b.iterator))

    @precondition(lambda self: self.batch is not None and self.batch.iterator is not None and not self.inside)
    @rule()
    def drop(self):
        self.batch.iterator = None

    @precondition(lambda self: self.inside and self.batch.iterator is not None)
    @rule()
    def drop_inside(self):
        """The weights go home at once. What has become of the batch is not said, so it is dropped."""
        self.batch.iterator = None
        assert bitwise(self.parameters(), self.w)
        self.leave_after_a_fault()
        assert bitwise(self.parameters(), self.w)
        self.cut()
        self.opt.zero_grad()
        self.end_batch()

    @precondition(lambda self: self.old)
    @rule(what=st.sampled_from(["enter", "advance", "drop"]))
    def touch_an_old_one(self, what):
        b = self.old.pop()
        if what == "enter" and b.point is not None:
            self.attempt("refused", b.point.__enter__)
        elif what == "advance" and b.iterator is not None:
            works, found = self.attempt("either", partial(next, b.iterator, None))
            if works and found is not None:
                self.attempt("refused", found[0].__enter__)

    @rule(data=DATA)
    def backward(self, data):
        b = self.batch
        batch = b.part if self.inside and not self.in_block else BATCHES[data]
        if self.in_block and b.of_samples is not None and len(b.of_samples) != len(batch[0]):
            self.attempt("refused", self.model, batch[0])
            return
        F.cross_entropy(self.model(batch[0]), batch[1]).backward()
        if self.inside:
            new = self.gradient_in_the_block(batch) if self.in_block else gradient(b.seen[-1], batch)
            b.gradients[-1] = [added(g, new) for g in b.gradients[-1]]
            b.arrived[-1] = True
        elif self.half_way:
            b.changed, b.uncertain = True, False
        else:
            self.may_be = [added(self.grads, gradient(self.w, batch))]

    @rule()
    @torch.no_grad()
    def evaluate(self):
        refused = self.in_block and any(self.batch.levels)
        self.model.eval()
        works, found = self.attempt("refused" if refused else "works", self.model, BATCHES[0][0])
        self.model.train()
        if not works:
            return
        torch.testing.assert_close(found, forward(self.batch.seen[-1] if self.inside else self.w, BATCHES[0][0]))

    def step_the_oracle(self, grads):
        for p, g in zip(self.w, grads, strict=True):
            p.grad = None if g is None else g.clone()
        self.base.step()
        self.end_batch()

    @rule()
    def step(self):
        plain = self.batch is None or (self.batch.done == 0 and not self.batch.cut and not self.inside)
        unseen = plain and self.noisy and any(g is not None and g.any() for g in self.grads)
        refused = unseen or self.half_way or (self.batch is not None and self.batch.cut)
        if self.attempt("refused" if refused else self.came_late(), self.opt.step)[0]:
            self.step_the_oracle(self.grads)

    @rule(to_none=st.booleans())
    def zero_grad(self, to_none):
        there = [p.grad for p in self.parameters()]
        half_way = self.half_way
        if self.attempt("refused" if self.inside else "works", self.opt.zero_grad, to_none)[0]:
            now = [p.grad for p in self.parameters()]
            assert all(g is None or not g.any() for g in now)
            self.may_be = [copies(now) if half_way else cleared(there, to_none)]
            self.end_batch()

    @rule(to_none=st.booleans())
    def zero_grad_of_the_model(self, to_none):
        """Inside a point it may clear what this point has given, and what was there before; of no other point."""
        b = self.batch
        there = [p.grad for p in self.parameters()]
        self.model.zero_grad(to_none)
        if self.in_block:
            b.uncertain = True
            b.before = [cleared(g, to_none) for g in b.before]
            b.gradients[-1] = [cleared(g, to_none) for g in b.gradients[-1]]
        elif self.inside:
            b.uncertain = True
            b.before = b.before + [cleared(g, to_none) for g in b.before]
            b.gradients[-1] = b.gradients[-1] + [cleared(g, to_none) for g in b.gradients[-1]]
        elif self.half_way:
            if any(g is not None for g in there):
                b.changed = b.uncertain = True
        else:
            self.may_be = [cleared(self.grads, to_none)]

    @rule()
    def save(self):
        works, found = self.attempt("refused" if self.inside else "works", self.opt.state_dict)
        if works:
            saved = {"opt": found, "base": self.base.state_dict(), "w": self.w, "levels": self.levels}
            self.checkpoints.append(copy.deepcopy(saved))

    @precondition(lambda self: self.checkpoints)
    @rule(which=st.integers(0, 9), weights=st.booleans())
    def load(self, which, weights):
        saved = copy.deepcopy(self.checkpoints[which % len(self.checkpoints)])
        half_way = self.half_way
        fits = len(saved["levels"]) == len(self.levels)
        may = half_way and "load_state_dict" in api.MAY_BE_REFUSED_HALF_WAY
        expected = "refused" if self.inside or not fits else "either" if may else "works"
        if self.attempt(expected, self.opt.load_state_dict, saved["opt"])[0]:
            self.base.load_state_dict(saved["base"])
            self.levels = saved["levels"]
            if half_way:  # no half of a gradient stays
                before = self.batch.before
                self.may_be = before + [cleared(g, how) for g in before for how in (True, False)]
            self.end_batch()
            self.forget_noise()
            if weights:
                self.set_weights(saved["w"])

    def set_weights(self, values):
        with torch.no_grad():
            for p, q, v in zip(self.parameters(), self.w, values, strict=True):
                p.copy_(v)
                q.copy_(v)

    @precondition(lambda self: self.checkpoints)
    @rule(which=st.integers(0, 9))
    def resume(self, which):
        """The checkpoint into a model and an optimizer of a new process."""
        saved = copy.deepcopy(self.checkpoints[which % len(self.checkpoints)])
        self.build(len(saved["levels"]))
        self.set_weights(saved["w"])
        self.opt.load_state_dict(saved["opt"])
        self.base.load_state_dict(saved["base"])
        self.levels = saved["levels"]

    @precondition(lambda self: len(self.levels) < 4)
    @rule(level=LEVELS)
    def add_group(self, level):
        layer = Net(len(self.levels) + 1).layers[-1]
        new = list(layer.parameters())
        b = self.batch
        open_batch = b is not None and not b.cut and not b.complete
        may = open_batch and "add_param_group" in api.MAY_BE_REFUSED_HALF_WAY
        expected = "refused" if self.inside else "either" if may else "works"
        if self.attempt(expected, api.add_group, self.opt, self.method, new, level)[0]:
            self.model.layers.append(layer)
            twin = [nn.Parameter(p.detach().clone()) for p in new]
            self.w += twin
            self.base.add_param_group({"params": twin})
            self.levels.append(level if self.method.level else self.level)
            self.may_be = [[*g, None, None] for g in self.may_be]

    @rule(stay=st.booleans())
    def copy(self, stay):
        works, found = self.attempt("refused" if self.inside else "works", copy.deepcopy, (self.model, self.opt))
        if works and not stay:
            self.model, self.opt = found
            self.begin_again()
        elif works:  # what becomes of the copy is nothing to this one
            found[1].zero_grad()
            model, opt = found
            for point, batch in api.passes(opt, "points", *BATCHES[0]):
                with point:
                    F.cross_entropy(model(batch[0]), batch[1]).backward()
            opt.step()

    @precondition(lambda self: self.method.level is not None)
    @rule(group=st.integers(0, 3), level=LEVELS)
    def set_level(self, group, level):
        group %= len(self.levels)
        api.set_level(self.opt, self.method, group, level)
        self.levels[group] = level

    # --- whole loops ------------------------------------------------------------------------------------------------

    @rule(**LOOP)
    def loop(self, way, data, event, where, at, error, level, then):
        """A loop as one writes it, with one event in it."""
        if way == "split" and not self.method.halves:
            return
        data = BATCHES[data]
        if self.may_begin(way, data) != "works":
            return
        self.began(way, data)
        b = self.batch
        b.iterator = ()  # the loop holds it
        allowed = False  # whether the next thing may be refused

        def stops(here):
            if here != where or b.index != at:
                return False
            if event == "raise":
                raise error("on purpose")
            if event not in ("none", "break", "skip"):
                self.meanwhile(event, level)
            return event == "break"

        try:
            for index, pair in enumerate(api.passes(self.opt, way, *data)):
                b.index = index
                b.point, b.part = pair
                assert api.sign(b.point) == b.signs[b.index]
                if stops("between"):
                    break
                may = self.may_enter() if self.batch is b else "refused"
                allowed = may != "works"
                with b.point:
                    allowed = False
                    assert may != "refused"
                    self.entered()
                    if stops("before backward"):
                        allowed = b.lacks_the_last
                        break
                    if event != "skip" or at not in (b.index, 3):  # 3: no backward() at all
                        self.backward(0)
                    if stops("after backward"):
                        allowed = b.lacks_the_last
                        break
                    allowed = b.uncertain or b.lacks_the_last
                self.left()
                allowed = False
                self.weights_and_gradients_are_the_oracles()
                if stops("after"):
                    break
        except (error, RuntimeError) as raised:
            if "on purpose" not in str(raised):
                assert allowed, repr(raised)
                self.check_sentence(raised)
            if b.inside:
                self.cut()
        b.iterator = None
        if b.inside:  # a break there leaves the point as its end does
            assert not b.lacks_the_last
            self.left()
        self.weights_and_gradients_are_the_oracles()
        if then == "step":
            self.step()
        elif then == "zero_grad":
            self.zero_grad(True)
        elif self.batch is b and then == "enter":
            self.enter()

    @rule(**LOOP)
    def another_loop(self, **how):
        """So that a sequence has more loops than it has of any other call."""
        self.loop(**how)

    @rule(**LOOP)
    def one_more_loop(self, **how):
        self.loop(**how)

    def meanwhile(self, event, level):
        """One of the single calls, in the middle of a loop."""
        if event == "add_group" and len(self.levels) < 4:
            self.add_group(level)
        elif event == "load" and self.checkpoints:
            self.load(len(self.checkpoints) - 1, False)
        elif event == "model.zero_grad":
            self.zero_grad_of_the_model(level > 0)
        elif event == "set_level" and self.method.level is not None:
            self.set_level(int(level * 10), level)
        elif event == "touch" and self.old:
            self.touch_an_old_one("drop" if level else "enter")
        elif event in ("begin", "copy", "zero_grad", "backward"):
            arguments = {"begin": ("points", 0), "copy": (True,), "zero_grad": (level > 0,), "backward": (0,)}
            getattr(self, event)(*arguments[event])
        elif event == "enter" and self.batch.point is None:
            self.open(0, False)
        elif event in ("enter", "step", "save", "evaluate"):
            getattr(self, event)()
        elif event == "closure" and (self.inside or self.half_way):
            self.closure(0, "opt", None, ValueError)

    @rule(
        data=DATA,
        clears=st.sampled_from(["opt", "opt, in place", "model", "model, in place", "never"]),
        fails=st.sampled_from([None, None, 0, 1, 3]),
        error=ERRORS,
    )
    def closure(self, data, clears, fails, error):
        data, starts = BATCHES[data], self.may_begin("points", BATCHES[data])
        grads, losses = self.grads, []
        points = len(self.method.signs) if self.noisy or not self.method.level else 1
        fits = starts == "works" and fails is not None and fails < points

        def closure():
            who = self.opt if clears.startswith("opt") else self.model
            if clears != "never":
                who.zero_grad(set_to_none="in place" not in clears)
            if not losses:
                self.began("points", data)
                self.may_be = [grads if clears == "never" else cleared(grads, "in place" not in clears)]
            self.batch.index, self.batch.part = len(losses), data
            self.entered()
            self.backward(0)
            losses.append(F.cross_entropy(forward(self.batch.seen[-1], data[0]), data[1]))
            if fits and fails == len(losses) - 1:
                raise error("on purpose")
            loss = F.cross_entropy(self.model(data[0]), data[1])
            self.left()
            return loss

        if fits:
            with pytest.raises(error, match="on purpose"):
                self.opt.step(closure)
            self.cut()
            return
        works, loss = self.attempt(starts, self.opt.step, closure)
        if works:
            torch.testing.assert_close(loss, sum(losses) / len(losses))
            now = [p.grad for p in self.parameters()]
            assert any(close(now, g) for g in self.may_be), f"gradients\n{now}\nand not one of\n{self.may_be}"
            self.may_be = [copies(now)]
            self.step_the_oracle(self.grads)


def gradient_of_both(plus, minus, signs, batch):
    """Of the mean loss over a batch whose samples see w + n or w − n, as their signs say."""
    total, samples = [None] * len(plus), torch.tensor(signs)
    for sign, values in ((1, plus), (-1, minus)):
        these = samples == sign
        part = gradient(values, [a[these] for a in batch])
        total = added(total, part, these.sum().item() / len(signs))
    return total


class FuzzOfOnePass(Fuzz):
    """The same with blocks of one_pass() between the other calls, in which every one of those may come too."""

    def begin_again(self):
        super().begin_again()
        self.kept: list[Any] = []  # (block, batch, loss) of forwards whose backward() is to come

    def gradient_in_the_block(self, batch):
        b, size = self.batch, len(batch[0])
        if not any(b.levels):
            return gradient(self.w, batch)
        halves = [1] * ((size + 1) // 2) + [-1] * (size // 2)
        return gradient_of_both(b.seen[-1], b.minus, b.of_samples or halves, batch)

    def opened(self, block, signs, twin):
        """The noise is that of a copy of the optimizer that takes the same step's batch in another way."""
        self.began("points", BATCHES[0])
        b = self.batch
        b.signs, b.shares, b.block = ((1,) if self.noisy else (0,)), (1.0,), block
        b.of_samples = signs if self.noisy else None
        b.seen.append(copies(self.w))
        if self.noisy:
            plus, minus = api.both_values(*twin, api.step_of(self.opt))
            b.seen[-1], b.minus = plus, minus
            assert close(minus, [2 * w.detach() - p for w, p in zip(self.w, plus, strict=True)])
        self.entered()

    def prepared(self, data, alternate):
        """(a block, signs, a copy of model and optimizer; None inside)."""
        signs = [(1, -1)[i % 2] for i in range(len(BATCHES[data][0]))] if alternate else None
        if not self.in_block:
            self.memory = [p.detach() for p in self.parameters()]
        twin = None if self.inside else copy.deepcopy((self.model, self.opt))
        return api.one_pass(self.opt, signs), signs, twin

    @rule(data=DATA, alternate=st.booleans())
    def open(self, data, alternate):
        expected = self.may_begin("points", BATCHES[data])
        block, signs, twin = self.prepared(data, alternate)
        if self.attempt(expected, block.__enter__)[0]:
            self.opened(block, signs, twin)

    @precondition(lambda self: self.in_block)
    @rule()
    def drop_the_block(self):
        """As a generator does that is dropped inside."""
        self.batch.block = None
        self.cut()

    @rule()
    def one_sample(self):
        x = BATCHES[0][0][:1]
        refused = self.in_block and any(self.batch.levels)
        self.attempt("refused" if refused else "works", self.model, x)

    @precondition(lambda self: self.in_block)
    @rule(what=st.sampled_from(["copy", "state_dict"]))
    def take_out(self, what):
        refused = any(self.batch.levels)
        call = self.model.state_dict if what == "state_dict" else partial(copy.deepcopy, self.model)
        self.attempt("refused" if refused else "works", call)

    @rule()
    def dry_run(self):
        works, found = self.attempt("refused" if self.inside else "works", self.opt.dry_run, self.model, BATCHES[0][0])
        if works:
            named = [f"layers.{i}.weight" for i, level in enumerate(self.levels) if level]
            assert found == dict.fromkeys(named, "fast")

    @precondition(lambda self: self.in_block and any(self.batch.levels) and self.batch.of_samples is None)
    @rule(data=DATA)
    def forward_alone(self, data):
        loss = F.cross_entropy(self.model(BATCHES[data][0]), BATCHES[data][1])
        self.kept.append((self.batch, BATCHES[data], loss))

    @precondition(lambda self: self.kept and (self.in_block or not self.half_way))
    @rule()
    def backward_of_what_was_kept(self):
        """After its block it is refused, where layers above may have had their gradients already."""
        block, batch, loss = self.kept.pop()
        b = self.batch
        if b is block and self.inside:
            loss.backward()
            new = self.gradient_in_the_block(batch)
            b.gradients[-1] = [added(g, new) for g in b.gradients[-1]]
            b.arrived[-1] = True
            return
        self.attempt("fails", loss.backward)
        if self.inside:
            error = RuntimeError("as the one that backward() has raised")
            assert not b.manager.__exit__(type(error), error, None)
            self.cut()
        else:
            self.opt.zero_grad()
            self.may_be = [[None] * len(self.w)]
            self.end_batch()

    @rule(
        data=DATA,
        alternate=st.booleans(),
        event=LOOP["event"],
        where=st.sampled_from(["before backward", "after backward", "after"]),
        error=ERRORS,
        level=LEVELS,
        then=st.sampled_from(["step", "step", "zero_grad", "nothing"]),
    )
    def block(self, data, alternate, event, where, error, level, then):
        """A block as one writes it, with one event in it."""
        if self.may_begin("points", BATCHES[data]) != "works":
            return
        block, signs, twin = self.prepared(data, alternate)
        allowed = False

        def happens(here):
            if here == where and event == "raise":
                raise error("on purpose")
            if here == where and event not in ("none", "break", "skip"):
                self.meanwhile(event, level)

        try:
            with block:
                self.opened(block, signs, twin)
                happens("before backward")
                if event != "skip":
                    self.backward(data)
                elif any(self.batch.levels) and signs is None:
                    self.forward_alone(data)
                happens("after backward")
                allowed = self.batch.uncertain
            self.left()
            self.weights_and_gradients_are_the_oracles()
            if event == "skip" and level and self.kept:
                self.backward_of_what_was_kept()
            happens("after")
        except (error, RuntimeError) as raised:
            if "on purpose" not in str(raised):
                assert allowed, repr(raised)
                self.check_sentence(raised)
            if self.inside:
                self.cut()
        self.weights_and_gradients_are_the_oracles()
        if then == "step":
            self.step()
        elif then == "zero_grad":
            self.zero_grad(True)

    @rule(data=DATA, more=DATA, alternate=st.booleans())
    def blocks(self, data, more, alternate):
        """Two, accumulated, with an evaluation between them, and a step."""
        for these in (data, more):
            self.block(these, alternate, "evaluate", "after", ValueError, 0.0, "nothing")
        self.step()
        if not self.inside:
            self.zero_grad(True)


@pytest.fixture(scope="module", autouse=True)
def report():
    yield
    if ASKED:
        print(f"\n{COUNTS['sequences']} sequences, {COUNTS['steps']} steps, {REFUSED.total()} refusals:")
        for sentence, count in REFUSED.most_common():
            print(f"{count:8d}  {sentence}")


@pytest.mark.parametrize("method", api.METHODS)
def test_any_sequence_of_calls(method):
    kind = FuzzOfOnePass if api.METHODS[method].one_pass else Fuzz
    machine = type("Fuzz", (kind,), {"method": api.METHODS[method]})
    if not ASKED:
        seed(method)(machine)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max(1, SEQUENCES // len(api.METHODS)),
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


# --- faults there once were -------------------------------------------------------------------------------------------


def start(method="ssgd", level=0.3):
    model = Net(2)
    opt = api.METHODS[method].build(api.BASES["momentum"](model.parameters()), level, model)
    return model, opt, api.passes(opt, "points", *BATCHES[0])


def run_backward(model):
    F.cross_entropy(model(BATCHES[0][0]), BATCHES[0][1]).backward()


def refused(call):
    try:
        call()
    except RuntimeError:
        return True
    return False


@pytest.mark.parametrize("when", ["before", "after"])
def test_clearing_by_the_model_inside_a_point_loses_no_other_points_gradient(when):
    """Of the point's own gradient it may lose what had come."""
    model, _, passes = start()
    parts = []

    def loop():
        for point, _ in passes:
            with point:
                parts.append([g / 2 for g in gradient(model.parameters(), BATCHES[0])])
                if when == "before" and len(parts) == 2:
                    model.zero_grad()
                run_backward(model)
                if when == "after" and len(parts) == 2:
                    model.zero_grad()

    if not refused(loop):
        now = [p.grad for p in model.parameters()]
        assert close(now, added(*parts)) or (when == "after" and close(now, parts[0]))


def test_loading_after_half_a_pair_leaves_no_half_of_a_gradient():
    model, opt, passes = start()
    saved = opt.state_dict()
    with next(passes)[0]:
        run_backward(model)
    if not refused(lambda: opt.load_state_dict(saved)):
        assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_a_group_added_half_way_gets_a_mean_too():
    model, opt, passes = start()
    new = nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    with next(passes)[0]:
        run_backward(model)
    if not refused(lambda: api.add_group(opt, api.METHODS["ssgd"], [new], 0.0)):
        with next(passes)[0]:
            run_backward(model)
            new.sum().backward()
        assert bitwise([new.grad], [torch.full_like(new, 0.5)])


def test_a_point_that_outlives_its_iterator_is_the_mirror_of_the_first():
    model, _, passes = start()
    w = copies(model.parameters())
    with next(passes)[0]:
        plus = copies(model.parameters())
        run_backward(model)
    point, _ = next(passes)
    del passes

    def enter():
        with point:
            minus = copies(model.parameters())
            run_backward(model)
            assert close(minus, [2 * p - q for p, q in zip(w, plus, strict=True)])

    refused(enter)


def test_a_block_inside_a_block_is_refused_by_what_it_is():
    model, opt, _ = start("one-pass")
    with opt.one_pass():
        with pytest.raises(RuntimeError, match=r"one_pass\(\) inside a point"), opt.one_pass():
            pass
        run_backward(model)
    opt.step()


def test_a_backward_after_a_block_without_one_is_refused_by_the_step():
    model, opt, _ = start("one-pass")
    with opt.one_pass():
        pass
    run_backward(model)
    with pytest.raises(RuntimeError, match=r"a backward\(\) ran after its point was left"):
        opt.step()
    opt.zero_grad()
    with opt.one_pass():
        model(BATCHES[0][0])
    with pytest.warns(UserWarning, match="without a gradient"):
        opt.step()


def test_gradients_cleared_inside_a_block_have_not_come_past_the_layers():
    model, opt, _ = start("one-pass")
    with opt.one_pass():
        run_backward(model)
    with opt.one_pass():
        model.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_nothing_is_collected_during_a_dry_run():
    """A loop dropped inside a point puts its weights back then, which was taken for calls of the model's."""
    model, opt, _ = start("one-pass")
    seen, forward_of_it = [], model.layers[0].forward
    model.layers[0].forward = lambda x: seen.append(gc.isenabled()) or forward_of_it(x)
    with opt.one_pass():
        run_backward(model)
    assert seen == [False] * 3 + [True]
