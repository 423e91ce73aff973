"""Data sets: images, texts and speech by name, folders of your own, and Datasets that a function of yours returns."""

from ssgd.lab.data.images import ImageSet, digit_images, digits
from ssgd.lab.data.registry import NAMES, Options, Source, load

__all__ = ["NAMES", "ImageSet", "Options", "Source", "digit_images", "digits", "load"]
