"""WAV files become log-mel spectrograms of one sample rate, or are refused."""

import csv

import numpy as np
import pytest
from scipy.io import wavfile

import moon_jax
from moon_jax.core.errors import ExitCode, KnobError
from moon_jax.data import audiofolder, layouts
from moon_jax.data.data_errors import DataError
from moon_jax.predict.command import main as predict
from tests.data.federations import load
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures('quick_runs')

RATE = 4000


def tone(hertz, seconds=0.1, seed=0):
  steps = np.arange(round(seconds * RATE)) / RATE
  noise = np.random.default_rng(seed).standard_normal(len(steps))
  return 0.4 * np.sin(2 * np.pi * hertz * steps) + 0.01 * noise


def write(path, samples, rate=RATE, dtype=np.int16):
  path.parent.mkdir(parents=True, exist_ok=True)
  if dtype == np.uint8:
    samples = np.rint(samples * 127 + 128)
  elif np.dtype(dtype).kind == 'i':
    samples = np.rint(samples * np.iinfo(dtype).max)
  wavfile.write(path, rate, samples.astype(dtype))


def folder_of(root, speakers=('ann', 'bob')):
  for speaker in speakers:
    for row in range(12):
      label = ('low', 'high')[row % 2]
      sound = tone((300, 1500)[row % 2], seed=row)
      write(root / speaker / label / f'{row:02}.wav', sound)
  return {
    'data.source': 'audiofolder',
    'data.path': str(root),
    'data.test_fraction': 0.25,
    'data.mel_bands': 12,
  }


def plainly(samples, bands):
  """The definition, window by window and frequency by frequency, in float64."""
  window, hop = RATE // 40, RATE // 100

  def mel(hertz):
    return 2595 * np.log10(1 + hertz / 700)

  edges = [
    700 * (10 ** (m / 2595) - 1) for m in np.linspace(0, mel(RATE / 2), bands + 2)
  ]
  shape = [0.5 - 0.5 * np.cos(2 * np.pi * n / window) for n in range(window)]
  rows = []
  for start in range(0, len(samples) - window + 1, hop):
    piece = samples[start : start + window] * shape
    energies = []
    for bin_ in range(window // 2 + 1):
      turns = np.exp(-2j * np.pi * bin_ * np.arange(window) / window)
      energies.append(abs(np.sum(piece * turns)) ** 2)
    row = []
    for low, peak, high in zip(edges, edges[1:], edges[2:], strict=False):
      total = 0.0
      for bin_, energy in enumerate(energies):
        hertz = bin_ * RATE / window
        if low < hertz <= peak:
          total += energy * (hertz - low) / (peak - low)
        elif peak < hertz < high:
          total += energy * (high - hertz) / (high - peak)
      row.append(np.log(total + 1e-6))
    rows.append(row)
  return np.array(rows)


@pytest.mark.parametrize('dtype', [np.uint8, np.int16, np.int32, np.float32])
def test_a_spectrogram_is_that_of_its_definition(dtype, tmp_path):
  write(tmp_path / 'it.wav', tone(700), dtype=dtype)
  sound = audiofolder.read_sound((tmp_path / 'it.wav').read_bytes(), 'refused')
  assert sound.rate == RATE
  assert abs(sound.samples - tone(700)).max() < (0.01 if dtype == np.uint8 else 1e-4)
  frames = audiofolder.frames_of(len(sound.samples), RATE)
  computed = audiofolder.spectrograms([sound], frames, bands=10)[0]
  np.testing.assert_allclose(computed, plainly(sound.samples, 10), rtol=1e-4, atol=1e-4)


def test_speakers_are_users_and_folders_classes(tmp_path, capsys):
  knobs = folder_of(tmp_path)
  write(tmp_path / 'ann/low/00.wav', tone(300, seconds=0.05))
  for name in ('ann/low/b.mp3', 'ann/low/c.MP3', 'list.txt', 'README', '.hidden'):
    (tmp_path / name).touch()
  write(tmp_path / '_background_noise_/tap.wav', tone(50, seconds=1.0))
  data = load(knobs)
  assert data.train_images.shape == (16, 8, 12)
  assert data.class_names == ('high', 'low')
  assert data.clients.tolist() == ['ann', 'bob']
  assert data.sample_rate == RATE
  assert data.form.kind == 'signal'
  highest_band = data.train_images.mean(1).argmax(1)
  np.testing.assert_array_equal(highest_band > 6, data.train_labels == 0)
  messages = capsys.readouterr().err
  assert 'Hz; 1 file is filled up with silence to 0.1 s.' in messages
  left_out = (
    'not used: 5 files (2 .mp3, 1 without an ending, 1 .txt, 1 .wav), such as '
    "'README'.\n"
  )
  assert left_out in messages
  shorter = load(knobs, seconds=0.05)
  assert shorter.train_images.shape[1] == 3
  pictures = load(knobs, axes='HW')
  assert (pictures.form.kind, pictures.train_images.shape) == (
    'picture',
    (16, 8, 12, 1),
  )
  np.testing.assert_array_equal(pictures.train_images[..., 0], data.train_images)
  assert layouts.source_of(str(tmp_path))[0] == 'audiofolder'


def test_a_divided_folder_without_speakers(tmp_path):
  for split in ('train', 'test'):
    for label, hertz in (('low', 300), ('high', 1500)):
      write(tmp_path / split / label / 'a.wav', tone(hertz))
  knobs = {'data.source': 'audiofolder', 'data.path': str(tmp_path)}
  data = load(knobs)
  assert (len(data.train_labels), len(data.test_labels)) == (2, 2)
  assert data.clients is None
  with refused(DataError, 'is divided already'):
    load(knobs, test_fraction=0.2)


def test_a_training_folder_alone_is_no_speaker(tmp_path):
  knobs = folder_of(tmp_path, speakers=('train',))
  (tmp_path / 'docs').mkdir()
  data = load(knobs)
  assert (data.class_names, data.clients) == (('high', 'low'), None)


def wav_without_data(path):
  """The file, whose first chunk claims to take all of it."""
  content = bytearray(path.read_bytes())
  content[16:20] = (2**16).to_bytes(4, 'little')
  return content


@pytest.mark.parametrize(
  ('spoil', 'words'),
  [
    (lambda p: write(p, tone(300), rate=8000), "'ann/low/00.wav' has 8000 .* 4000"),
    (lambda p: write(p, np.stack([tone(300)] * 2, 1)), "2 channels; .*stereo='mean'"),
    (lambda p: p.write_bytes(wav_without_data(p)), "lacks a whole chunk 'fmt ' or"),
    (lambda p: p.write_bytes(b'RIFF'), "'ann/low/00.wav' cannot be used"),
    (lambda p: p.write_bytes(p.read_bytes()[:500]), 'it has 500 of 844 bytes'),
    (lambda p: write(p, np.full(400, np.nan), dtype=np.float32), 'NaN'),
  ],
)
def test_a_file_that_deviates_is_named(spoil, words, tmp_path):
  knobs = folder_of(tmp_path)
  spoil(tmp_path / 'ann/low/00.wav')
  if 'ann/low/00.wav' in words and '8000' in words:
    # The first file decides; so the one that deviates is not the first of its class.
    spoil(tmp_path / 'bob/high/01.wav')
    write(tmp_path / 'ann/low/00.wav', tone(300))
    words = words.replace('ann/low/00', 'bob/high/01')
  with refused(DataError, words):
    load(knobs)


def test_a_file_that_came_out_of_a_pipe_does_not_know_its_length(tmp_path):
  write(tmp_path / 'a.wav', tone(300))
  content = bytearray((tmp_path / 'a.wav').read_bytes())
  samples = audiofolder.read_sound(bytes(content), 'refused').samples
  content[4:8] = content[40:44] = b'\xff\xff\xff\xff'
  read = audiofolder.read_sound(bytes(content), 'refused').samples
  np.testing.assert_array_equal(read, samples)


def test_sounds_that_the_memory_cannot_hold_are_refused(tmp_path):
  with refused(KnobError, 'data.seconds=1000000000.0 needs .* GiB for 24 spectrograms'):
    load(folder_of(tmp_path), seconds=1e9)


def test_two_channels_are_taken_as_the_knob_says(tmp_path):
  left, right = tone(300), tone(1500)
  write(tmp_path / 'it.wav', np.stack([left, right], 1))
  content = (tmp_path / 'it.wav').read_bytes()
  for stereo, samples in (
    ('left', left),
    ('right', right),
    ('mean', (left + right) / 2),
  ):
    read = audiofolder.read_sound(content, stereo).samples
    np.testing.assert_allclose(read, samples, atol=1e-4)


def test_predictions_are_read_as_in_training(tmp_path, capsys):
  knobs = folder_of(tmp_path / 'set') | {
    'partition.name': 'natural',
    'partition.min_size': 1,
    'model': 'mlp',
    'algorithm': 'fedavg',
    'num_rounds': 3,
    'optimizer.learning_rate': 0.1,
    'logger': '',
    'execution.devices': 1,
  }
  run = tmp_path / 'run'
  finished_run = moon_jax.run(moon_jax.load_config('configs/base.py', knobs), run)
  assert finished_run.summary['test_accuracy'] > 0.9
  # Longer and shorter sounds than in training.
  write(tmp_path / 'new/low/a.wav', tone(300, seconds=0.2))
  write(tmp_path / 'new/high/b.wav', tone(1500, seconds=0.08))
  words = [f'--workdir={run}', f'--output={tmp_path}/out.csv']
  assert predict([*words, f'--input={tmp_path}/new']) == ExitCode.DONE
  with open(tmp_path / 'out.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  assert [(row['name'], row['predicted']) for row in rows] == [
    ('high/b.wav', 'high'),
    ('low/a.wav', 'low'),
  ]
  input_flags = [f'--input={tmp_path}/set', '--source=audiofolder']
  assert predict([*words, *input_flags]) == ExitCode.DONE
  assert 'accuracy 1.0000' in capsys.readouterr().out
  write(tmp_path / 'new/low/A.WAV', tone(300), rate=8000)
  assert predict([*words, f'--input={tmp_path}/new/low/A.WAV']) == ExitCode.USAGE
  assert 'has 8000 samples in a second' in capsys.readouterr().err
