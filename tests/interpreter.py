"""Triton's interpreter runs kernels on a CPU. It has to be chosen before Triton is loaded."""

import os
import sys
from importlib.util import find_spec

import torch


def why_not(elsewhere):
    """Chooses the interpreter; or the reason why it cannot be had, with what runs the kernels where there is a GPU."""
    if find_spec("triton") is None:
        return "needs Triton: pip install triton"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return ""
    if torch.cuda.is_available():
        return f"{elsewhere} runs the kernels here; TRITON_INTERPRET=1 interprets them"
    if "triton" in sys.modules:
        return "Triton was loaded before its interpreter could be chosen: run this file alone"
    os.environ["TRITON_INTERPRET"] = "1"
    return ""
