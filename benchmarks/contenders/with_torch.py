"""This package in a process that has torch loaded, which changes how memory is given back."""

import torch  # noqa: F401 (it is there: that is the point)
from budgets import FLOOR, OURS
from contender import Contender

from . import uniform

ours = Contender(OURS, uniform.ours.how)
floor = Contender(FLOOR, uniform.floor.how)
ours.does("sample_torch_loaded")(uniform.sample)
floor.does("sample_torch_loaded")(uniform.sample_floor)
