"""Decodes pictures: PNG, JPEG and the like."""

import io
from collections.abc import Iterable

import numpy as np

from moon_jax.data.example_forms import Reading

FORMATS = ('PNG', 'JPEG', 'WEBP', 'BMP', 'PPM', 'TIFF')  # Pillow may try no others
DEEP = 'I;16'  # Pillow's mode of grey pictures of 16 bits
_TOO_DEEP = 'the image has more than 8 bits in each channel'
_DEEP_MODES = ('I;16', 'I;16L', 'I;16B', 'I;16N')
_PNG = b'\x89PNG'
_PNG_DEPTH, _PNG_KIND = slice(24, 25), slice(25, 26)  # bytes of its header
# Tags of TIFF: bits of each channel, and what 0 stands for.
_TIFF_BITS, _TIFF_INTERPRETATION = 258, 262
_WHITE_IS_ZERO = 0
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
    mode: Pillow's name of the channels to convert to, e.g. 'L', 'RGB', 'RGBA'; or DEEP,
      which only a grey picture of 16 bits has, and to which none is converted.
    shape: shape that the array must have; None: any.
    upright: whether the picture is turned as its EXIF data say.
    side: pixels of each side after resizing, bilinearly; 0: not resized.

  Returns:
    [H, W, C] uint8, or uint16 if the mode is DEEP.

  Raises:
    Exception: of any class, if the bytes are no such picture.
  """
  from PIL import Image, ImageOps

  image = _opened(encoded)
  is_deep = _is_deep(image)  # before it is turned, which forgets its format
  if upright:
    image = ImageOps.exif_transpose(image)
  if (mode == DEEP) != is_deep:
    raise ValueError(
      'the image has 8 bits in each channel, and others have 16; save all alike'
      if mode == DEEP
      else f'{_TOO_DEEP}, and others have 8; save all alike'
    )
  if mode == DEEP:
    pixels = _deep_pixels(image, side)
    return _of_shape(pixels, shape)
  if image.mode == 'P':  # converted to RGB at once, Pillow warns of transparency
    image = image.convert('RGBA')
  if image.mode != mode:
    image = image.convert(mode)
  if side:
    image = image.resize((side, side), Image.Resampling.BILINEAR)
  return _of_shape(np.atleast_3d(image), shape)


def _of_shape(pixels, shape):
  if shape and pixels.shape != shape:
    raise ValueError(f'the image has shape {pixels.shape}, not {shape}; resize all')
  return pixels


def _is_deep(image):
  """Whether a picture is grey and has 16 bits."""
  return image.mode in _DEEP_MODES or (image.format == 'PNG' and image.mode == 'I')


def _deep_pixels(image, side):
  """[H, W, 1] uint16; resized in float32, which holds 16 bits."""
  from PIL import Image

  pixels = np.asarray(image).astype(np.uint16)
  if side:
    resized = Image.fromarray(pixels.astype(np.float32)).resize(
      (side, side), Image.Resampling.BILINEAR
    )
    pixels = np.rint(np.asarray(resized)).clip(0, 65535).astype(np.uint16)
  return pixels[..., None]


def reading_of(pixels: np.ndarray, reading: Reading) -> Reading:
  """How pictures are read: those of 16 bits keep their numbers unless a knob is set."""
  if pixels.dtype == np.uint16 and not reading.range and reading.normalize == 'auto':
    return reading._replace(normalize='per_channel')
  return reading


def common_mode(pictures: Iterable[bytes]) -> str:
  """The mode to convert pictures to: 'L', 'RGBA' or DEEP if all have it, else 'RGB'."""
  modes = set()
  for encoded in pictures:
    try:
      image = _opened(encoded)
    except Exception:  # decoding names the picture
      continue
    mode = DEEP if _is_deep(image) else image.mode
    modes.add('L' if mode in _GREY_MODES else mode)
    if modes not in ({'L'}, {'RGBA'}, {DEEP}):
      return 'RGB'
  return modes.pop() if modes else 'RGB'


def _opened(encoded):
  from PIL import Image, UnidentifiedImageError

  is_deep_png = encoded[:4] == _PNG and encoded[_PNG_DEPTH] == b'\x10'
  if is_deep_png and encoded[_PNG_KIND] != b'\0':  # Pillow would drop 8 bits
    raise ValueError(f'{_TOO_DEEP}; 16 bits are read of grey pictures')
  try:
    image = Image.open(io.BytesIO(encoded), formats=FORMATS)
  except UnidentifiedImageError:
    raise ValueError(f'the image is none of {", ".join(FORMATS)}') from None
  if image.mode[0] in 'IF' and not _is_deep(image):
    raise ValueError(_TOO_DEEP)
  if image.format == 'TIFF':
    _require_plain_tiff(image)
  return image


def _require_plain_tiff(image):
  """Raises ValueError if Pillow would read less of a TIFF, or other numbers."""
  tags = image.tag_v2
  if np.max(tags.get(_TIFF_BITS, 1)) > 8 and not _is_deep(image):
    raise ValueError(f'{_TOO_DEEP}; 16 bits are read of grey pictures')
  if _is_deep(image) and tags.get(_TIFF_INTERPRETATION) == _WHITE_IS_ZERO:
    raise ValueError('the image has 16 bits, and 0 is white in it; save it inverted')
  if image.n_frames > 1:
    size = image.size
    image.seek(1)
    is_stack = image.size == size  # a smaller one is a preview
    image.seek(0)
    if is_stack:
      raise ValueError(f'the image has {image.n_frames} pages; save each as an image')
