"""One small set of labelled images, written as other projects leave theirs.

Each function (folder, federation) -> knobs, as in `federations`, whose federation it
takes; users are lost where a layout has none.
"""

import gzip
import json
import pickle
import struct

import numpy as np
from PIL import Image
from scipy import io as matlab

from tests.data import federations
from tests.data.federations import datasets, pandas

NAMES = ('ant', 'bee', 'cat', 'dog')
SIDE = 32


def together(federation, side=8, channels=1):
  """split -> images [M, side, side, C] and labels of everybody.

  Images are repeated to the side; colours differ by a fixed amount.
  """
  splits = {}
  for split, users in federation.items():
    images, labels, _ = federations.mixed(users)
    times = side // images.shape[1]
    images = images.repeat(times, 1).repeat(times, 2)[..., None]
    splits[split] = images + 10 * np.arange(channels, dtype=np.uint8), labels
  return splits


def knobs_of(source, path, **options):
  knobs = {'data.source': source, 'data.path': str(path)}
  return knobs | {f'data.{name}': value for name, value in options.items()}


# --- npz ------------------------------------------------------------------------------


def one_file(folder, federation, names, column=False):
  arrays = [array for pair in together(federation).values() for array in pair]
  if column:
    arrays[1::2] = (labels[:, None] for labels in arrays[1::2])
  named_arrays = dict(zip(names, arrays, strict=True))
  federations.save_arrays(folder / 'set.npz', named_arrays)
  return knobs_of('npz', folder / 'set.npz')


def keras(folder, federation):
  return one_file(folder, federation, ('x_train', 'y_train', 'x_test', 'y_test'))


def medmnist(folder, federation):
  names = ('train_images', 'train_labels', 'test_images', 'test_labels')
  return one_file(folder, federation, names, column=True)


# --- images in folders ----------------------------------------------------------------


def save(path, image):
  path.parent.mkdir(parents=True, exist_ok=True)
  Image.fromarray(image.squeeze()).save(path)


def imagefolder(folder, federation, test='test', inside=''):
  for split, (images, labels) in together(federation, channels=3).items():
    split_folder = folder / 'set' / (test if split == 'test' else 'train')
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
      save(split_folder / NAMES[label] / inside / f'{i}.png', image)
  return knobs_of('imagefolder', folder / 'set')


def tiny_imagenet(folder, federation):
  """train/CLASS/images/*, val/images/* with annotations, test/images/* without."""
  options = imagefolder(folder, {'train': federation['train']}, inside='images')
  lines, (images, labels) = [], together(federation, channels=3)['test']
  for i, (image, label) in enumerate(zip(images, labels, strict=True)):
    save(folder / f'set/val/images/val_{i}.png', image)
    save(folder / f'set/test/images/test_{i}.png', image)
    lines.append(f'val_{i}.png\t{NAMES[label]}\t0\t0\t7\t7\n')
  (folder / 'set/val/val_annotations.txt').write_text(''.join(lines))
  for name in NAMES:
    (folder / f'set/train/{name}/{name}_boxes.txt').write_text('0\t0\t7\t7\n')
  return options


def domainnet(folder, federation):
  """DOMAIN/CLASS/* and lists of both splits; the domains are the users."""
  for split, users in federation.items():
    for user, (images, labels) in users.items():
      domain, lines = user.replace('\x1b', ''), []
      for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        name = f'{domain}/{NAMES[label]}/{split}_{i}.png'
        save(folder / 'set' / name, image)
        lines.append(f'{name} {label}\n')
      (folder / f'set/{domain}_{split}.txt').write_text(''.join(lines))
  return knobs_of('imagefolder', folder / 'set')


# --- torchvision ----------------------------------------------------------------------


def idx(array):
  sizes = struct.pack(f'>{array.ndim}i', *array.shape)
  return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def mnist(folder, federation, set_folder='MNIST', name='mnist', start=''):
  raw = folder / 'set' / set_folder / 'raw'
  raw.mkdir(parents=True)
  names = {'train': 'train', 'test': 'test' if start else 't10k'}
  for split, (images, labels) in together(federation).items():
    images, stem = images[..., 0], f'{start}{names[split]}'
    if start:  # EMNIST's lie on their side, and its letters count from 1
      images, labels = images.transpose(0, 2, 1), labels + ('letters' in start)
    (raw / f'{stem}-images-idx3-ubyte').write_bytes(idx(images))
    gzipped = gzip.compress(idx(labels.astype(np.uint8)))
    (raw / f'{stem}-labels-idx1-ubyte.gz').write_bytes(gzipped)
  return knobs_of('torchvision', folder / 'set', name=name)


def fashion_mnist(folder, federation):
  return mnist(folder, federation, 'FashionMNIST', 'FashionMNIST')


def emnist(folder, federation, split='balanced'):
  return mnist(folder, federation, 'EMNIST', f'emnist/{split}', f'emnist-{split}-')


def emnist_letters(folder, federation):
  return emnist(folder, federation, 'letters')


def batches(federation):
  """CIFAR's rows of pixels and labels of each split."""
  for split, (images, labels) in together(federation, SIDE, 3).items():
    yield split, images.transpose(0, 3, 1, 2).reshape(len(labels), -1), labels


def cifar10(folder, federation, protocol=2):
  """Not the published files, so they have to be trusted."""
  batches_folder = folder / 'set/cifar-10-batches-py'
  batches_folder.mkdir(parents=True)
  for split, rows, labels in batches(federation):
    num_files = 5 if split == 'train' else 1
    for n in range(num_files):
      batch = {b'data': rows[n::num_files], b'labels': labels[n::num_files].tolist()}
      name = f'data_batch_{n + 1}' if split == 'train' else 'test_batch'
      (batches_folder / name).write_bytes(pickle.dumps(batch, protocol))
  meta = {b'label_names': [name.encode() for name in NAMES]}
  (batches_folder / 'batches.meta').write_bytes(pickle.dumps(meta, protocol))
  return knobs_of('torchvision', folder / 'set', name='cifar10', trust_pickles=True)


def cifar100(folder, federation):
  batches_folder = folder / 'set/cifar-100-python'
  batches_folder.mkdir(parents=True)
  for split, rows, labels in batches(federation):
    batch = {'data': rows, 'fine_labels': labels.tolist(), 'coarse_labels': [0]}
    (batches_folder / split).write_bytes(pickle.dumps(batch, 5))
  meta = {'fine_label_names': NAMES, 'coarse_label_names': ['all']}
  (batches_folder / 'meta').write_bytes(pickle.dumps(meta, 5))
  return knobs_of('torchvision', folder / 'set', name='cifar100', trust_pickles=True)


def svhn(folder, federation):
  """The class of the digit 0 is 10."""
  (folder / 'set').mkdir()
  for split, (images, labels) in together(federation, SIDE, 3).items():
    digits = np.where(labels, labels, 10)[:, None]
    arrays = {'X': np.moveaxis(images, 0, 3), 'y': digits}
    matlab.savemat(folder / f'set/{split}_32x32.mat', arrays, do_compression=True)
  return knobs_of('torchvision', folder / 'set', name='svhn')


# --- Hugging Face ---------------------------------------------------------------------


def table(split, federation):
  """A split with Image and ClassLabel, like a data set of Hugging Face."""
  images, labels = together(federation, channels=3)[split]
  features = {'img': datasets.Image(), 'label': datasets.ClassLabel(names=NAMES)}
  columns = {'img': [Image.fromarray(image) for image in images], 'label': labels}
  return datasets.Dataset.from_dict(columns, datasets.Features(features))


def parquet(
  folder, federation, name='data/{split}-0000{n}-of-00002.parquet', test='test'
):
  """Two files for each split, as on the Hub."""
  datasets.disable_progress_bars()
  for split in federation:
    examples = table(split, federation)
    for n in range(2):
      split_name = test if split == 'test' else split
      path = folder / 'set' / name.format(split=split_name, n=n)
      path.parent.mkdir(parents=True, exist_ok=True)
      examples.shard(2, n, contiguous=True).to_parquet(path)
  (folder / 'set/README.md').write_text('---\nlicense: mit\n---\n')
  return knobs_of('huggingface', folder / 'set', client='', image='', label='')


def parquet_in_folders(folder, federation):
  return parquet(
    folder, federation, 'default/{split}/000{n}.parquet', test='validation'
  )


def saved(folder, federation):
  """`save_to_disk` without a column of users."""
  datasets.disable_progress_bars()
  splits = {split: table(split, federation) for split in federation}
  datasets.DatasetDict(splits).save_to_disk(str(folder / 'set'))
  return knobs_of('huggingface', folder / 'set', client='', image='', label='')


# --- users ----------------------------------------------------------------------------


def leaf(folder, federation, rows=lambda images: (images / 255).round(4)):
  """Every second user in its own file."""
  for split, users in federation.items():
    (folder / 'set' / split).mkdir(parents=True)
    for n in range(2):
      users_in_file = dict(list(users.items())[n::2])
      user_data = {
        name: {'x': rows(x.reshape(len(x), -1)).tolist(), 'y': y.tolist()}
        for name, (x, y) in users_in_file.items()
      }
      content = {
        'users': list(users_in_file),
        'num_samples': [len(y) for _, y in users_in_file.values()],
        'user_data': user_data,
      }
      text = json.dumps(content)
      (folder / f'set/{split}/all_data_{n}_niid_{split}.json').write_text(text)
  return knobs_of('leaf', folder / 'set')


def signed(images):
  """Pixels in [-1, 1], as PFLlib's own scripts write them."""
  return (images / 127.5 - 1).astype(np.float32)


def pfllib(folder, federation, pixels=signed, pickled=True):
  """Clients by number, in the order in which they first appear."""
  numbers = {name: n for n, name in enumerate(federation['train'] | federation['test'])}
  for split, users in federation.items():
    (folder / 'set' / split).mkdir(parents=True)
    for name, (images, labels) in users.items():
      x = np.moveaxis(images.reshape((*images.shape[:3], -1)), -1, 1)
      client = {'x': pixels(x), 'y': labels.astype(np.int64)}
      path = folder / f'set/{split}/{numbers[name]}.npz'
      federations.save_arrays(path, {'data': np.array(client)} if pickled else client)
  return knobs_of('pfllib', folder / 'set', trust_pickles=pickled)


def pfllib_in_plain_arrays(folder, federation):
  return pfllib(folder, federation, pickled=False)


def frames(federation):
  """split -> a row for each image: its pixels, its label and its user."""
  for split, users in federation.items():
    images, labels, names = federations.mixed(users)
    frame = pandas.DataFrame(images.reshape(len(images), -1))
    frame.columns = [f'pixel{number}' for number in range(frame.shape[1])]
    yield split, frame.assign(label=labels, user=names)


def table_csv(folder, federation):
  (folder / 'set').mkdir()
  for split, frame in frames(federation):
    frame.to_csv(folder / f'set/{split}.csv', index=False)
  return knobs_of('table', folder / 'set', client='user')


def table_parquet(folder, federation):
  (folder / 'set').mkdir()
  for split, frame in frames(federation):
    frame.to_parquet(folder / f'set/{split}.parquet')
  return knobs_of('table', folder / 'set', client='user')


WITHOUT_USERS = (
  *(keras, medmnist, imagefolder, tiny_imagenet, mnist, fashion_mnist, emnist),
  *(emnist_letters, cifar10, cifar100, svhn, parquet, parquet_in_folders, saved),
)
TABLES = (table_csv, table_parquet)
WITH_USERS = (domainnet, leaf, pfllib, pfllib_in_plain_arrays)
