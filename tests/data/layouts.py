"""One small set of labelled images, written as other projects leave theirs.

Each function (folder, found) -> knobs, as in `federations`, whose federation it takes;
users are lost where a layout has none.
"""

import gzip
import json
import pickle
import struct

import numpy as np
from PIL import Image
from scipy import io as matlab

from tests.data import federations
from tests.data.federations import datasets

NAMES = ('ant', 'bee', 'cat', 'dog')
SIDE = 32


def together(found, side=8, channels=1):
  """split -> images [M, side, side, C] and labels of everybody.

  Images are repeated to the side; colours differ by a fixed amount.
  """
  splits = {}
  for split, users in found.items():
    images, labels, _ = federations.mixed(users)
    times = side // images.shape[1]
    images = images.repeat(times, 1).repeat(times, 2)[..., None]
    splits[split] = images + 10 * np.arange(channels, dtype=np.uint8), labels
  return splits


def knobs(source, path, **more):
  return {'data.source': source, 'data.path': str(path)} | {
    f'data.{name}': value for name, value in more.items()
  }


# --- npz ------------------------------------------------------------------------------


def _npz(folder, found, names, column=False):
  arrays = [array for pair in together(found).values() for array in pair]
  if column:
    arrays[1::2] = (labels[:, None] for labels in arrays[1::2])
  np.savez(folder / 'set.npz', **dict(zip(names, arrays, strict=True)))
  return knobs('npz', folder / 'set.npz')


def keras(folder, found):
  return _npz(folder, found, ('x_train', 'y_train', 'x_test', 'y_test'))


def medmnist(folder, found):
  names = ('train_images', 'train_labels', 'test_images', 'test_labels')
  return _npz(folder, found, names, column=True)


# --- images in folders ----------------------------------------------------------------


def save(path, image, **more):
  path.parent.mkdir(parents=True, exist_ok=True)
  Image.fromarray(image.squeeze()).save(path, **more)


def imagefolder(folder, found, test='test', inside=''):
  for split, (images, labels) in together(found, channels=3).items():
    place = folder / 'set' / (test if split == 'test' else 'train')
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
      save(place / NAMES[label] / inside / f'{i}.png', image)
  return knobs('imagefolder', folder / 'set')


def tiny_imagenet(folder, found):
  """train/CLASS/images/*, val/images/* with annotations, test/images/* without."""
  given = imagefolder(folder, {'train': found['train']}, inside='images')
  lines, (images, labels) = [], together(found, channels=3)['test']
  for i, (image, label) in enumerate(zip(images, labels, strict=True)):
    save(folder / f'set/val/images/val_{i}.png', image)
    save(folder / f'set/test/images/test_{i}.png', image)
    lines.append(f'val_{i}.png\t{NAMES[label]}\t0\t0\t7\t7\n')
  (folder / 'set/val/val_annotations.txt').write_text(''.join(lines))
  for name in NAMES:
    (folder / f'set/train/{name}/{name}_boxes.txt').write_text('0\t0\t7\t7\n')
  return given


def domainnet(folder, found):
  """DOMAIN/CLASS/* and lists of both splits; the domains are the users."""
  for split, users in found.items():
    for user, (images, labels) in users.items():
      domain, lines = user.replace('\x1b', ''), []
      for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        name = f'{domain}/{NAMES[label]}/{split}_{i}.png'
        save(folder / 'set' / name, image)
        lines.append(f'{name} {label}\n')
      (folder / f'set/{domain}_{split}.txt').write_text(''.join(lines))
  return knobs('imagefolder', folder / 'set')


# --- torchvision ----------------------------------------------------------------------


def idx(array):
  sizes = struct.pack(f'>{array.ndim}i', *array.shape)
  return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def mnist(folder, found, inside='MNIST', name='mnist', start=''):
  raw = folder / 'set' / inside / 'raw'
  raw.mkdir(parents=True)
  parts = {'train': 'train', 'test': 'test' if start else 't10k'}
  for split, (images, labels) in together(found).items():
    images, stem = images[..., 0], f'{start}{parts[split]}'
    if start:  # EMNIST's lie on their side, and its letters count from 1
      images, labels = images.transpose(0, 2, 1), labels + ('letters' in start)
    (raw / f'{stem}-images-idx3-ubyte').write_bytes(idx(images))
    zipped = gzip.compress(idx(labels.astype(np.uint8)))
    (raw / f'{stem}-labels-idx1-ubyte.gz').write_bytes(zipped)
  return knobs('torchvision', folder / 'set', name=name)


def fashion_mnist(folder, found):
  return mnist(folder, found, 'FashionMNIST', 'FashionMNIST')


def emnist(folder, found, split='balanced'):
  return mnist(folder, found, 'EMNIST', f'emnist/{split}', f'emnist-{split}-')


def emnist_letters(folder, found):
  return emnist(folder, found, 'letters')


def batches(found):
  """CIFAR's rows of pixels and labels of each split."""
  for split, (images, labels) in together(found, SIDE, 3).items():
    yield split, images.transpose(0, 3, 1, 2).reshape(len(labels), -1), labels


def cifar10(folder, found, protocol=2):
  """Not the published files, so they have to be trusted."""
  place = folder / 'set/cifar-10-batches-py'
  place.mkdir(parents=True)
  for split, rows, labels in batches(found):
    parts = 5 if split == 'train' else 1
    for n in range(parts):
      one = {b'data': rows[n::parts], b'labels': labels[n::parts].tolist()}
      name = f'data_batch_{n + 1}' if split == 'train' else 'test_batch'
      (place / name).write_bytes(pickle.dumps(one, protocol))
  meta = {b'label_names': [name.encode() for name in NAMES]}
  (place / 'batches.meta').write_bytes(pickle.dumps(meta, protocol))
  return knobs('torchvision', folder / 'set', name='cifar10', trust_pickles=True)


def cifar100(folder, found):
  place = folder / 'set/cifar-100-python'
  place.mkdir(parents=True)
  for split, rows, labels in batches(found):
    one = {'data': rows, 'fine_labels': labels.tolist(), 'coarse_labels': [0]}
    (place / split).write_bytes(pickle.dumps(one, 5))
  meta = {'fine_label_names': NAMES, 'coarse_label_names': ['all']}
  (place / 'meta').write_bytes(pickle.dumps(meta, 5))
  return knobs('torchvision', folder / 'set', name='cifar100', trust_pickles=True)


def svhn(folder, found):
  """The class of the digit 0 is 10."""
  (folder / 'set').mkdir()
  for split, (images, labels) in together(found, SIDE, 3).items():
    digits = np.where(labels, labels, 10)[:, None]
    arrays = {'X': np.moveaxis(images, 0, 3), 'y': digits}
    matlab.savemat(folder / f'set/{split}_32x32.mat', arrays, do_compression=True)
  return knobs('torchvision', folder / 'set', name='svhn')


# --- Hugging Face ---------------------------------------------------------------------


def table(split, found, users=False):
  """A split with Image and ClassLabel, like a data set of Hugging Face."""
  images, labels = together(found, channels=3)[split]
  kinds = {'img': datasets.Image(), 'label': datasets.ClassLabel(names=NAMES)}
  columns = {'img': [Image.fromarray(one) for one in images], 'label': labels}
  return datasets.Dataset.from_dict(columns, datasets.Features(kinds))


def parquet(folder, found, name='data/{split}-0000{n}-of-00002.parquet', test='test'):
  """Two files for each split, as on the Hub."""
  datasets.disable_progress_bars()
  for split in found:
    whole = table(split, found)
    for n in range(2):
      called = name.format(split=test if split == 'test' else split, n=n)
      (folder / 'set' / called).parent.mkdir(parents=True, exist_ok=True)
      whole.shard(2, n, contiguous=True).to_parquet(folder / 'set' / called)
  (folder / 'set/README.md').write_text('---\nlicense: mit\n---\n')
  return knobs('huggingface', folder / 'set', client='', image='', label='')


def parquet_in_folders(folder, found):
  return parquet(folder, found, 'default/{split}/000{n}.parquet', test='validation')


def saved(folder, found):
  """`save_to_disk` without a column of users."""
  datasets.disable_progress_bars()
  splits = {split: table(split, found) for split in found}
  datasets.DatasetDict(splits).save_to_disk(str(folder / 'set'))
  return knobs('huggingface', folder / 'set', client='', image='', label='')


# --- users ----------------------------------------------------------------------------


def leaf(folder, found, rows=lambda images: (images / 255).round(4)):
  """Every second user in its own file."""
  for split, users in found.items():
    (folder / 'set' / split).mkdir(parents=True)
    for n in range(2):
      mine = dict(list(users.items())[n::2])
      data = {
        name: {'x': rows(x.reshape(len(x), -1)).tolist(), 'y': y.tolist()}
        for name, (x, y) in mine.items()
      }
      sizes = [len(y) for _, y in mine.values()]
      text = json.dumps({'users': [*mine], 'num_samples': sizes, 'user_data': data})
      (folder / f'set/{split}/all_data_{n}_niid_{split}.json').write_text(text)
  return knobs('leaf', folder / 'set')


def signed(images):
  """Pixels in [-1, 1], as PFLlib's own scripts write them."""
  return (images / 127.5 - 1).astype(np.float32)


def pfllib(folder, found, pixels=signed, pickled=True):
  """Clients by number, in the order in which they first appear."""
  numbers = {name: n for n, name in enumerate(found['train'] | found['test'])}
  for split, users in found.items():
    (folder / 'set' / split).mkdir(parents=True)
    for name, (images, labels) in users.items():
      x = np.moveaxis(images.reshape(*images.shape[:3], -1), -1, 1)
      client = {'x': pixels(x), 'y': labels.astype(np.int64)}
      path = folder / f'set/{split}/{numbers[name]}.npz'
      arrays = {'data': np.array(client)} if pickled else client
      np.savez_compressed(path, **arrays)
  return knobs('pfllib', folder / 'set', trust_pickles=pickled)


def pfllib_in_plain_arrays(folder, found):
  return pfllib(folder, found, pickled=False)


WITHOUT_USERS = (
  *(keras, medmnist, imagefolder, tiny_imagenet, mnist, fashion_mnist, emnist),
  *(emnist_letters, cifar10, cifar100, svhn, parquet, parquet_in_folders, saved),
)
WITH_USERS = (domainnet, leaf, pfllib, pfllib_in_plain_arrays)
