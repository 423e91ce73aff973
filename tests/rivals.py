"""What the tests of several methods share: gradients elsewhere, and a walk that is watched."""

import torch
import torch.nn.functional as F

from .problems import weights


def gradient(model, values, x, y):
    """∇L at other weights, the model left as it was."""
    kept = weights(model)
    with torch.no_grad():
        for p, v in zip(model.parameters(), values, strict=True):
            p.copy_(v)
    found = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    with torch.no_grad():
        for p, v in zip(model.parameters(), kept, strict=True):
            p.copy_(v)
    return found


def take(opt, model, x, y):
    """Run points(); return the weights at each point and leave the gradient."""
    at = []
    for point in opt.points():
        with point:
            at.append(weights(model))
            F.cross_entropy(model(x), y).backward()
    return at


def take_halves(opt, model, x, y):
    """Run split(); return the weights at each point and leave the gradient."""
    at = []
    for point, (xb, yb) in opt.split(x, y):
        with point:
            at.append(weights(model))
            F.cross_entropy(model(xb), yb).backward()
    return at


def assert_gradients(model, expected):
    for p, e in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, e, rtol=1e-9, atol=1e-12)
