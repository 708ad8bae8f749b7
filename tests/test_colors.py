"""Names of measured colors."""

import numpy as np
import pytest

from rekey.colors import COLORS, name_shares, to_lab

# One everyday sRGB value per name, taken from no table that the code uses.
EVERYDAY = {"red": (190, 25, 35), "blue": (30, 80, 190), "yellow": (245, 215, 40), "green": (40, 130, 60),
            "black": (20, 20, 22), "white": (245, 245, 243), "orange": (240, 130, 25), "purple": (110, 50, 150),
            "pink": (245, 150, 180), "brown": (105, 65, 35), "gray": (128, 130, 129)}


@pytest.mark.parametrize("name, rgb", EVERYDAY.items())
def test_everyday_colors_get_their_names(name, rgb):
    shares = name_shares(to_lab(np.array([[rgb]], np.uint8)))
    assert shares.shape == (1, 11)
    assert COLORS[shares.argmax()] == name
    assert shares.sum() == pytest.approx(1, abs=1e-5)
