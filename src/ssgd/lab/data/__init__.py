"""Data sets, one file a family."""

from ssgd.lab.data.digits import DigitSplit, digit_images, digits
from ssgd.lab.data.images import ImageSet
from ssgd.lab.data.registry import NAMES, Source, load

__all__ = ["NAMES", "DigitSplit", "ImageSet", "Source", "digit_images", "digits", "load"]
