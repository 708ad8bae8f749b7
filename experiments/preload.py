"""Heavy modules that every worker needs, imported once by the process that workers are forked from."""

import cv2  # noqa: F401
import matplotlib.colors  # noqa: F401
import PIL.Image  # noqa: F401
import scipy.spatial  # noqa: F401
import skimage.color  # noqa: F401

import rekey.certificate  # noqa: F401
