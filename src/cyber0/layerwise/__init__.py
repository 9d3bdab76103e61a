"""Measure how the losses of large models change along a direction, one layer at a time."""

from cyber0.layerwise.measure import LayerwiseEstimate, Measure, Precision, in_precision, measure_of
from cyber0.layerwise.protocols import is_layerwise
from cyber0.layerwise.walk import Batch, Walk

__all__ = ["Batch", "LayerwiseEstimate", "Measure", "Precision", "Walk", "in_precision", "is_layerwise", "measure_of"]
