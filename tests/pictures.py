"""Pictures of the documentation, which are drawn from committed records."""

from hashlib import sha256
from pathlib import Path

import matplotlib.ft2font
import numpy as np
from PIL import Image


def check_picture(shown: Path, drawn: Path, records: Path) -> None:
    """Assert that a picture is of these records and, with the same matplotlib, as drawn now."""
    with Image.open(shown) as image, Image.open(drawn) as now:
        assert image.info.get('Source') == sha256(records.read_bytes()).hexdigest(), (
            f'{shown}: --redraw'
        )
        # Other builds of FreeType draw other pixels.
        bundled = matplotlib.ft2font.__freetype_build_type__ == 'local'
        if bundled and image.info['Software'] == now.info['Software']:
            assert np.array_equal(np.asarray(image), np.asarray(now)), f'{shown}: --redraw'
