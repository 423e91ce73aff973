"""S-SGD and what it is compared with, behind one interface."""

from .averaging import Averaging
from .dropconnect import dropconnect, remove_dropconnect
from .dropout import dropout_on_dense
from .entropy_sgd import EntropySGD
from .momentum_sam import MomentumSAM
from .nso import NSO
from .one_sided import OneSided
from .plain import Plain
from .registry import METHODS, Method, Setting, get
from .rwp import RWP
from .sam import SAM
from .sam_at_intervals import SAMAtIntervals

__all__ = [
    "METHODS",
    "NSO",
    "RWP",
    "SAM",
    "Averaging",
    "EntropySGD",
    "Method",
    "MomentumSAM",
    "OneSided",
    "Plain",
    "SAMAtIntervals",
    "Setting",
    "dropconnect",
    "dropout_on_dense",
    "get",
    "remove_dropconnect",
]
