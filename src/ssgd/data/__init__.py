"""Data sets, one file a family."""

from ssgd.data.digits import DigitSplit, digits

__all__ = ["DigitSplit", "digits"]
