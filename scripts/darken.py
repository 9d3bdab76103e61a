"""Makes docs/liars-dark.png of docs/liars.png, for a README on a dark page: light and dark change places, hues stay.

The paper becomes transparent. Pages of the site do the same to all figures, by docs/stylesheets/extra.css.
"""

from pathlib import Path

import numpy as np
from PIL import Image

DOCS = Path(__file__).parents[1] / "docs"


def darkened(figure: Image.Image) -> Image.Image:
    """Return a figure drawn on white as one that is drawn on nothing, for a dark page."""
    luma, blue, red = figure.convert("RGB").convert("YCbCr").split()
    turned = Image.merge("YCbCr", (luma.point([255 - value for value in range(256)]), blue, red)).convert("RGB")
    light = np.asarray(turned, dtype=np.float64)
    opacity = light.max(axis=2, keepdims=True)
    colours = 255 * light / np.maximum(opacity, 1)
    return Image.fromarray(np.concatenate([colours, opacity], axis=2).round().astype(np.uint8))


if __name__ == "__main__":
    darkened(Image.open(DOCS / "liars.png")).save(DOCS / "liars-dark.png", optimize=True)
