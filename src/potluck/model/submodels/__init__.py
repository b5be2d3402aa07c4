"""Sub-models by width: fewer channels of the same network, trained at the speed of a smaller one."""

from potluck.model.submodels.calibration import calibrate
from potluck.model.submodels.parts import Carver, Choice, Pulled, Submodel, Whole
from potluck.model.submodels.selection import Selection, Subsets
from potluck.model.submodels.small import Small, Smalls, small_model
from potluck.model.submodels.width import ChannelSet, Width, width
from potluck.model.submodels.workshop import Loan, Workshop

__all__ = [
    "Carver",
    "ChannelSet",
    "Choice",
    "Loan",
    "Pulled",
    "Selection",
    "Small",
    "Smalls",
    "Submodel",
    "Subsets",
    "Whole",
    "Width",
    "Workshop",
    "calibrate",
    "small_model",
    "width",
]
