"""Decoupled collaboration: a network taken apart by class groups, trained in parts, harvested into one.

decouple ──▶ Grouped ──submodel──▶ trained by devices ──harvest──▶ Grouped ──calibrate──▶ assemble ──▶ save
"""

from potluck.model.decoupled.batches import balanced, counts_of
from potluck.model.decoupled.calibration import Calibration, calibrate
from potluck.model.decoupled.decouple import Variant, decouple
from potluck.model.decoupled.files import load, save
from potluck.model.decoupled.grouped import Assembled, Grouped, Plan, Submodel
from potluck.model.decoupled.harvest import Contribution, Harvest, harvest
from potluck.model.decoupled.line import costs, straighten
from potluck.model.decoupled.losses import GroupLoss
from potluck.model.decoupled.places import places
from potluck.model.decoupled.statistics import ClassStatistics, describe_classes, draw, pool
from potluck.model.decoupled.training import features_of, fit

__all__ = [
    "Assembled",
    "Calibration",
    "ClassStatistics",
    "Contribution",
    "GroupLoss",
    "Grouped",
    "Harvest",
    "Plan",
    "Submodel",
    "Variant",
    "balanced",
    "calibrate",
    "costs",
    "counts_of",
    "decouple",
    "describe_classes",
    "draw",
    "features_of",
    "fit",
    "harvest",
    "load",
    "places",
    "pool",
    "save",
    "straighten",
]
