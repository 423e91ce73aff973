"""The paper's models, one file a family."""

from .resnet import cifar_resnet

__all__ = ["cifar_resnet"]
