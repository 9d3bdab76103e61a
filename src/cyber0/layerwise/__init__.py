"""Large models: how losses change along a direction, measured a layer at a time."""

from cyber0.layerwise.measure import LayerwiseEstimate, Measure, Precision, is_layerwise, measure_of, prepared
from cyber0.layerwise.walk import Batch, Walk

__all__ = ["Batch", "LayerwiseEstimate", "Measure", "Precision", "Walk", "is_layerwise", "measure_of", "prepared"]
