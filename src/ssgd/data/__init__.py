"""Data sets, one file a family."""

from ssgd.data.digits import DigitSplit, digit_images, digits
from ssgd.data.images import ImageSet
from ssgd.data.registry import NAMES, Source, load

__all__ = ["NAMES", "DigitSplit", "ImageSet", "Source", "digit_images", "digits", "load"]
