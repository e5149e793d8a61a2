"""Predictive compute-performance curves: read them, fit them, compare recipes by them (ScaleRL, Eq. 1).

R_C = R_0 + (A − R_0) / (1 + (C_mid / C)^B)

from strop.lab.scaling import FitSettings, fit, read_curve

found = fit(read_curve("runs/scalerl"), FitSettings(fit_until=8000))
"""

from strop.lab.scaling.compare import CurveComparison, compare, joint_refit, refit
from strop.lab.scaling.curves import Curve, read_curve
from strop.lab.scaling.fitting import Fit, FitSettings, HeldBack, Prediction, fit
from strop.lab.scaling.sigmoid import Sigmoid
from strop.lab.scaling.support import PowerLaw, fit_power_law

__all__ = [
    "CurveComparison", "Curve", "Fit", "FitSettings", "HeldBack", "PowerLaw", "Prediction", "Sigmoid", "compare", "fit",
    "fit_power_law", "joint_refit", "read_curve", "refit",
]  # fmt: skip
