"""Folders of WAV files by class, read as log-mel spectrograms.

  CLASS/*.wav              the class of a file is its folder
  SPEAKER/CLASS/*.wav      each speaker, or other source, is a user

SciPy reads the files and transforms them; no other package is needed. The triangular
filters are those of HTK's mel scale, as in torchaudio's `MelSpectrogram`.
"""

import collections
import io
import os
import pathlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from moon_jax.core import files, machine_memory, paths
from moon_jax.core.errors import KnobError, printable
from moon_jax.core.flags import flag
from moon_jax.core.paths import expand
from moon_jax.core.types import Dataset
from moon_jax.data import drawn_test, picture_folders, split_names
from moon_jax.data.data_errors import DataError, listed, one_line
from moon_jax.data.dataset import arrays_dataset
from moon_jax.data.drawn_test import TestDraw
from moon_jax.data.example_forms import Reading
from moon_jax.data.federated import users
from moon_jax.data.split_names import TEST, TRAIN, VALIDATION

ENDING = '.wav'
WINDOW_SECONDS, HOP_SECONDS = 0.025, 0.010
# Added to the energy of a band before the logarithm: that of a sample is at most 1.
SILENCE = 1e-6
# Of Google's Speech Commands: minutes of noise, to be mixed with the words.
_NOISE_FOLDER = '_background_noise_'
_MOST_RATE = 1_000_000  # samples in a second
_UNKNOWN_BYTES = 0x7FFF0000  # and more stand for an unknown length


class Clip(NamedTuple):
  """A WAV file that is not yet read.

  Attributes:
    path: path of the file.
    label: name of its class.
    speaker: its user; '' if the folders have no users.
  """

  path: pathlib.Path
  label: str
  speaker: str = ''


class Sound(NamedTuple):
  """A WAV file.

  Attributes:
    samples: [M] in [-1, 1], float32 if this holds them exactly, otherwise float64.
    rate: samples in a second.
  """

  samples: np.ndarray
  rate: int


def load_audiofolder(
  path: str,
  seconds: float | str = 'auto',
  mel_bands: int = 40,
  stereo: str = 'refused',
  *,
  reading: Reading,
  test_draw: TestDraw,
) -> Dataset:
  """Loads WAV files as spectrograms [T, bands], float32; classes are in order of name.

  An example is the logarithm of the energy in each mel band, in windows of 25 ms, a new
  one every 10 ms. A line of the output tells the sample rate, the length and how many
  files are cut or filled up with silence; another one, which files are left out.

  Args:
    path: folder with CLASS/*.wav or SPEAKER/CLASS/*.wav; or with train/ and test/ (or
      names with these words), each with such folders.
    seconds: length to which files are cut, or filled up with silence, at their end;
      'auto': that of the longest training file.
    mel_bands: number of bands.
    stereo: what is taken of two channels: 'mean', 'left' or 'right'; 'refused': such
      files are refused.
    reading: as in `npz.load_npz`. Its axes are 'TC' or '': signals; or 'HW': pictures
      of T x bands pixels, which keep their numbers.
    test_draw: which files of each class (and speaker) are drawn for the test; none if
      there is a test folder.

  Raises:
    DataError: it is no such folder, a file cannot be read, or sample rates differ.
  """
  data_flag = flag('data.path', path)
  reading = _of_spectrograms(reading)
  root = expand(path).absolute()
  with one_line(f'{data_flag} must be a folder of WAV files by class'):
    splits = _splits(data_flag, root, test_draw)
    left_out = _left_out(root, splits)
  sounds = _read_all(data_flag, root, splits, stereo)
  rate = sounds[TRAIN][0].rate
  num_samples = _num_samples(data_flag, sounds[TRAIN], seconds)
  num_frames = frames_of(num_samples, rate)
  num_sounds = sum(map(len, sounds.values()))
  machine_memory.require_room(
    'data.seconds',
    seconds,
    num_sounds * num_frames * mel_bands * np.dtype(np.float32).itemsize,
    f'{num_sounds} spectrograms of {num_frames} windows and {mel_bands} bands',
  )
  print(
    f'{data_flag}: {_files(num_sounds)} spectrograms of {num_frames} windows '
    f'and {mel_bands} bands, at {rate} Hz; {_changes(sounds, num_samples)}.',
    file=sys.stderr,
  )
  if left_out:
    print(f'{data_flag}: not used: {left_out}.', file=sys.stderr)
  class_names = sorted({clip.label for clip in splits[TRAIN]})
  arrays, array_names = [], []
  for split, clips in splits.items():
    arrays += [
      spectrograms(sounds[split], num_frames, mel_bands),
      _class_numbers(data_flag, split, clips, class_names),
    ]
    array_names += [f'the sounds of {split}', f'the classes of {split}']
  dataset = arrays_dataset(
    data_flag,
    root.name,
    arrays,
    reading=reading,
    num_classes=len(class_names),
    class_names=class_names,
    array_names=array_names,
  )._replace(sample_rate=rate)
  if not splits[TRAIN][0].speaker:
    return dataset
  return users.named(
    data_flag,
    dataset,
    train_users=np.array([clip.speaker for clip in splits[TRAIN]]),
    test_users=np.array([clip.speaker for clip in splits[TEST]]),
  )


def _of_spectrograms(reading: Reading) -> Reading:
  """The reading of spectrograms: signals, unless they are to be pictures.

  Raises:
    KnobError: the axes are neither.
  """
  if reading.axes not in ('', 'TC', 'HW'):
    raise KnobError('data.axes', reading.axes, 'must be TC or HW for sounds.')
  if reading.axes == 'HW' and reading.normalize == 'auto':
    return reading._replace(normalize='per_channel')
  return reading._replace(axes=reading.axes or 'TC')


def _read_all(data_flag, root, splits, stereo) -> dict[str, list[Sound]]:
  """Split -> its sounds, all of the rate of the first."""
  first = _read(data_flag, root, splits[TRAIN][0], stereo)
  return {
    split: [_at_rate(data_flag, root, clip, stereo, first.rate) for clip in clips]
    for split, clips in splits.items()
  }


def _num_samples(
  data_flag: str, training_sounds: Sequence[Sound], seconds: float | str
) -> int:
  """The length of each sound, in samples.

  Raises:
    DataError: it is shorter than a window.
  """
  rate = training_sounds[0].rate
  if seconds == 'auto':
    num_samples = max(len(sound.samples) for sound in training_sounds)
  else:
    num_samples = round(seconds * rate)
  if frames_of(num_samples, rate) < 1:
    raise DataError(
      f'{data_flag}: {num_samples / rate:g} seconds are no window of '
      f'{WINDOW_SECONDS} seconds; {flag("data.seconds", 1.0)} makes files longer.'
    )
  return num_samples


def _changes(sounds: Mapping[str, Sequence[Sound]], num_samples: int) -> str:
  """How many files get another length, for the line of the output."""
  lengths = [len(sound.samples) for split in sounds.values() for sound in split]
  seconds_kept = f'{num_samples / sounds[TRAIN][0].rate:g} s'
  num_cut = sum(length > num_samples for length in lengths)
  num_filled = sum(length < num_samples for length in lengths)
  changes = []
  if num_cut:
    changes.append(f'{_files(num_cut)} cut to {seconds_kept}')
  if num_filled:
    changes.append(f'{_files(num_filled)} filled up with silence to {seconds_kept}')
  return ', '.join(changes) or f'all last {seconds_kept}'


def _class_numbers(data_flag, split, clips, class_names) -> np.ndarray:
  """[M] the classes of the files.

  Raises:
    DataError: training has no such class.
  """
  numbers = {name: number for number, name in enumerate(class_names)}
  untrained_classes = sorted({clip.label for clip in clips} - numbers.keys())
  if untrained_classes:
    raise DataError(
      f'{data_flag}: the {split} set has a class {untrained_classes[0]!r}, which '
      'training has not; remove its files, or add files of it to training.'
    )
  return np.array([numbers[clip.label] for clip in clips])


def _left_out(root: pathlib.Path, splits: Mapping[str, Sequence[Clip]]) -> str:
  """How many files are not read, by their endings; '' if all are.

  Hidden files do not count.
  """
  used_paths = {clip.path for clips in splits.values() for clip in clips}
  unused_names = []
  for path in paths.below(root, follow=True):
    name = path.relative_to(root)
    is_hidden = any(part.startswith('.') for part in name.parts)
    if not (path in used_paths or is_hidden or path.is_dir()):
      unused_names.append(name)
  if not unused_names:
    return ''
  counts = collections.Counter(name.suffix.lower() for name in unused_names)
  kinds = [
    f'{count:,} {suffix or "without an ending"}'
    for suffix, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
  ]
  noun = 'file' if len(unused_names) == 1 else 'files'
  return (
    f'{len(unused_names):,} {noun} ({listed(kinds)}), such as '
    f'{printable(str(min(unused_names)))!r}'
  )


def _files(number: int) -> str:
  """'1 file is', '2 files are'."""
  return '1 file is' if number == 1 else f'{number:,} files are'


def frames_of(num_samples: int, rate: int) -> int:
  """T, the windows that lie in so many samples."""
  window, hop = _window_and_hop(rate)
  return 1 + (num_samples - window) // hop


def seconds_of(num_frames: int, rate: int) -> float:
  """The shortest length of a sound with so many windows."""
  window, hop = _window_and_hop(rate)
  return (window + (num_frames - 1) * hop) / rate


def spectrograms(sounds: Sequence[Sound], num_frames: int, bands: int) -> np.ndarray:
  """[M, num_frames, bands] float32, the log-mel spectrograms of sounds of one rate.

  Args:
    sounds: M sounds, which are cut or filled up with silence at their end.
    num_frames: windows of each.
    bands: mel bands.
  """
  import scipy.fft
  import scipy.signal

  rate = sounds[0].rate
  window, hop = _window_and_hop(rate)
  shape = scipy.signal.get_window('hann', window)  # periodic, as in speech recognition
  fft_size = scipy.fft.next_fast_len(window, real=True)
  filters = mel_filters(rate, fft_size, bands)
  num_samples = window + (num_frames - 1) * hop
  starts = hop * np.arange(num_frames)[:, None] + np.arange(window)
  log_energies = np.empty((len(sounds), num_frames, bands), np.float32)
  for row, sound in enumerate(sounds):
    samples = np.zeros(num_samples)
    first_samples = sound.samples[:num_samples]
    samples[: len(first_samples)] = first_samples
    spectrum = scipy.fft.rfft(samples[starts] * shape, fft_size)
    log_energies[row] = np.log(np.square(np.abs(spectrum)) @ filters + SILENCE)
  return log_energies


def mel_filters(rate: int, fft_size: int, bands: int) -> np.ndarray:
  """[fft_size // 2 + 1, bands], triangles on HTK's mel scale from 0 Hz to rate / 2.

  Mel(f) = 2595 log10(1 + f / 700); the peaks are 1.
  """
  top = 2595 * np.log10(1 + rate / 2 / 700)
  corners = 700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1)
  frequencies = np.arange(fft_size // 2 + 1)[:, None] * rate / fft_size
  low, peak, high = corners[:-2], corners[1:-1], corners[2:]
  rising = (frequencies - low) / (peak - low)
  falling = (high - frequencies) / (high - peak)
  return np.maximum(np.minimum(rising, falling), 0)


def read_sound(content: bytes, stereo: str) -> Sound:
  """Reads the bytes of a WAV file.

  Args:
    content: the file.
    stereo: see `load_audiofolder`.

  Raises:
    Exception: of any class, if it is no such file, or has channels that are refused.
  """
  from scipy.io import wavfile

  with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # of chunks with a title or a date
    try:
      rate, samples = wavfile.read(io.BytesIO(content))
    except (UnboundLocalError, ZeroDivisionError):  # SciPy's, of such a file
      raise ValueError("it lacks a whole chunk 'fmt ' or 'data'") from None
  _require_all_bytes(content)
  if not 0 < rate <= _MOST_RATE:
    raise ValueError(f'its sample rate is {rate} Hz')
  is_small = samples.dtype.itemsize <= 2 or samples.dtype == np.float32
  if samples.dtype == np.uint8:
    samples = (samples.astype(np.float64) - 128) / 128
  elif samples.dtype.kind == 'i':
    samples = samples / -float(np.iinfo(samples.dtype).min)
  samples = samples.astype(np.float32 if is_small else np.float64)
  if samples.ndim == 2:
    samples = _of_channels(samples, stereo)
  if not samples.size:
    raise ValueError('it has no samples')
  if not np.isfinite(samples).all():
    raise ValueError('some of its samples are NaN or infinite')
  return Sound(samples, int(rate))


def _require_all_bytes(content):
  """Raises ValueError if a file is shorter than its header says, as a torn copy is."""
  order = 'big' if content[:4] == b'RIFX' else 'little'
  declared = int.from_bytes(content[4:8], order) + 8
  # A program that writes into a pipe does not know the length. Some count the header.
  if len(content) + 8 < declared < _UNKNOWN_BYTES:
    raise ValueError(f'it has {len(content)} of {declared} bytes')


def _of_channels(samples, stereo):
  """[M, channels] -> [M]."""
  num_channels = samples.shape[1]
  if num_channels == 1:
    return samples[:, 0]
  if stereo == 'refused' or (stereo != 'mean' and num_channels != 2):
    choices = ' or '.join(flag('data.stereo', word) for word in ('mean', 'left'))
    raise ValueError(f'it has {num_channels} channels; {choices} takes one')
  if stereo == 'mean':
    return samples.mean(1, dtype=np.float64)
  return samples[:, ('left', 'right').index(stereo)]


def _window_and_hop(rate):
  return max(round(WINDOW_SECONDS * rate), 2), max(round(HOP_SECONDS * rate), 1)


def _read(data_flag, root, clip, stereo):
  name = printable(str(clip.path.relative_to(root)))
  with one_line(f'{data_flag}: {name!r} cannot be used'):
    return read_sound(files.contents(clip.path), stereo)


def _at_rate(data_flag, root, clip, stereo, rate):
  sound = _read(data_flag, root, clip, stereo)
  if sound.rate != rate:
    name = printable(str(clip.path.relative_to(root)))
    raise DataError(
      f'{data_flag}: {name!r} has {sound.rate} samples in a second, and others {rate}; '
      'convert all files to one rate.'
    )
  return sound


# --- which files there are ------------------------------------------------------------


def _splits(data_flag, root, test_draw) -> dict[str, list[Clip]]:
  """TRAIN, TEST and perhaps VALIDATION -> their files, class by class."""
  inner = _folders(root)
  roles = split_names.roles(folder.name for folder in inner)
  by_role = {}
  for folder in inner:
    by_role.setdefault(roles[folder.name], []).append(folder)
  is_divided = TRAIN in by_role and {TEST, VALIDATION} & by_role.keys()
  if not is_divided:
    clips = _tree(data_flag, _lone_training_folder(inner, roles) or root)
    if not test_draw.test_fraction:
      raise DataError(
        f'{data_flag} has no folders train and test; '
        f'{flag("data.test_fraction", 0.2)} draws a fifth of each class for the test.'
      )
    kinds = [(clip.label, clip.speaker) for clip in clips]
    is_test = drawn_test.is_test(kinds, test_draw)
    return {
      TRAIN: [clips[row] for row in np.flatnonzero(~is_test)],
      TEST: [clips[row] for row in np.flatnonzero(is_test)],
    }
  if test_draw.test_fraction:
    raise DataError(
      f'{data_flag} is divided already: drop {flag("data.test_fraction")}.'
    )
  for role in (TRAIN, TEST, VALIDATION):
    if len(by_role.get(role, ())) > 1:
      names = listed(folder.name for folder in by_role[role])
      raise DataError(
        f'{data_flag}: {names} would each be the {role} split; keep one of them.'
      )
  folder_by_role = {role: folders[0] for role, folders in by_role.items() if role}
  if TEST not in folder_by_role:
    folder_by_role[TEST] = folder_by_role.pop(VALIDATION)
  splits = {
    role: _tree(data_flag, folder_by_role[role])
    for role in (TRAIN, TEST, VALIDATION)
    if role in folder_by_role
  }
  if len({bool(clips[0].speaker) for clips in splits.values()}) > 1:
    raise DataError(
      f'{data_flag}: some splits have CLASS/*{ENDING} and others SPEAKER/CLASS/*'
      f'{ENDING}; arrange all alike.'
    )
  return splits


def _lone_training_folder(inner, roles):
  """The folder train/ of an undivided tree; None if it may be a class or a speaker."""
  with_sounds = [folder for folder in inner if _has_sounds(folder, depth=2)]
  if [roles[folder.name] for folder in with_sounds] != [TRAIN]:
    return None
  return None if wav_files(with_sounds[0]) else with_sounds[0]


def _has_sounds(folder, depth):
  """Whether the folder, or one in so many levels below it, holds WAV files."""
  if wav_files(folder):
    return True
  return depth > 0 and any(_has_sounds(inner, depth - 1) for inner in _folders(folder))


def _tree(data_flag, folder) -> list[Clip]:
  """CLASS/*.wav or SPEAKER/CLASS/*.wav; the files of a class stand together."""
  clips = []
  for outer in _folders(folder):
    clips += [Clip(path, outer.name) for path in wav_files(outer)]
    for inner in _folders(outer):
      clips += [Clip(path, inner.name, outer.name) for path in wav_files(inner)]
  if not clips:
    raise DataError(
      f'{data_flag}: {folder.name!r} has no files CLASS/*{ENDING} or '
      f'SPEAKER/CLASS/*{ENDING}; it holds {listed(os.listdir(folder))}.'
    )
  if len({bool(clip.speaker) for clip in clips}) > 1:
    raise DataError(
      f'{data_flag}: of the folders in {folder.name!r} some hold {ENDING} files and '
      'others folders of them; keep one kind.'
    )
  return sorted(clips, key=lambda clip: (clip.label, clip.speaker))  # stable


def wav_files(folder: pathlib.Path) -> list[pathlib.Path]:
  """The WAV files inside, by their names, in order."""
  return [
    path
    for path in sorted(folder.iterdir())
    if path.suffix.lower() == ENDING and not path.name.startswith('.')
  ]


def _folders(folder):
  return [
    path for path in picture_folders.folders(folder) if may_hold_sounds(path.name)
  ]


def may_hold_sounds(folder_name: str) -> bool:
  """Whether a folder is none of .git, the noise of Speech Commands, and the like."""
  return picture_folders.may_hold_data(folder_name) and folder_name != _NOISE_FOLDER
