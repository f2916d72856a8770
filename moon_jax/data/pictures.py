"""Decodes pictures: PNG, JPEG and the like."""

import io
from collections.abc import Iterable

import numpy as np

FORMATS = ('PNG', 'JPEG', 'WEBP', 'BMP', 'PPM', 'TIFF')  # Pillow may try no others
_TOO_DEEP = 'the image has more than 8 bits in each channel'
_GREY_MODES = ('1', 'L', 'LA')


def decode_picture(
  encoded: bytes,
  mode: str,
  shape: tuple | None = None,
  *,
  upright: bool = False,
  side: int = 0,
) -> np.ndarray:
  """Decodes a picture.

  Args:
    encoded: the bytes of the picture, in one of FORMATS.
    mode: Pillow's name of the channels to convert to, e.g. 'L', 'RGB', 'RGBA'.
    shape: shape that the array must have; None: any.
    upright: whether the picture is turned as its EXIF data say.
    side: pixels of each side after resizing, bilinearly; 0: not resized.

  Returns:
    [H, W, C].

  Raises:
    Exception: of any class, if the bytes are no such picture.
  """
  from PIL import Image, ImageOps

  image = _opened(encoded)
  if upright:
    image = ImageOps.exif_transpose(image)
  if image.mode == 'P':  # converted to RGB at once, Pillow warns of transparency
    image = image.convert('RGBA')
  if image.mode != mode:
    image = image.convert(mode)
  if side:
    image = image.resize((side, side), Image.Resampling.BILINEAR)
  pixels = np.atleast_3d(image)
  if shape and pixels.shape != shape:
    raise ValueError(f'the image has shape {pixels.shape}, not {shape}; resize all')
  return pixels


def common_mode(pictures: Iterable[bytes]) -> str:
  """The mode to convert pictures to: 'L' or 'RGBA' if all have it, otherwise 'RGB'."""
  modes = set()
  for encoded in pictures:
    try:
      mode = _opened(encoded).mode
    except Exception:  # decoding names the picture
      continue
    modes.add('L' if mode in _GREY_MODES else mode)
    if modes not in ({'L'}, {'RGBA'}):
      return 'RGB'
  return modes.pop() if modes else 'RGB'


def _opened(encoded):
  from PIL import Image, UnidentifiedImageError

  if encoded[:1] + encoded[24:25] == b'\x89\x10':  # PNG's first byte, and its depth
    raise ValueError(_TOO_DEEP)
  try:
    image = Image.open(io.BytesIO(encoded), formats=FORMATS)
  except UnidentifiedImageError:
    raise ValueError(f'the image is none of {", ".join(FORMATS)}') from None
  if image.mode[0] in 'IF':
    raise ValueError(_TOO_DEEP)
  return image
