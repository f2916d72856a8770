"""Files of other projects: read pixel for pixel, or refused in a line."""

import json
import re
import shutil

import datasets
import numpy as np
import pytest
from PIL import Image

import moon_jax
from moon_jax.core.errors import ExitCode, UsageError
from moon_jax.data import convert, holdout, sources, torchvision
from moon_jax.data.data_errors import DataError
from moon_jax.predict import command as predict
from moon_jax.report import groups, sections
from moon_jax.report import runs as report_runs
from moon_jax.report.request import Choice
from tests.data import federations, layouts
from tests.data.federations import as_rows, flags, load, save_arrays
from tests.data.layouts import NAMES, knobs_of, save
from tests.data.test_federated import by_user
from tests.refusals import refused
from tests.run_directories import TINY

FEDERATION = federations.make_federation()
# Layouts with three colours, and with images of another size.
COLOURS = {'imagefolder', 'tiny_imagenet', 'parquet', 'parquet_in_folders', 'saved'}
LARGE = {'cifar10', 'cifar100', 'svhn'}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


def check(dataset, expected_splits):
  for split, (expected_images, expected_labels) in expected_splits.items():
    images = getattr(dataset, f'{split}_images')
    labels = getattr(dataset, f'{split}_labels')
    assert images.dtype == np.uint8
    assert images.shape == expected_images.shape
    assert as_rows(images, labels) == as_rows(expected_images, expected_labels)


@pytest.mark.parametrize(
  'layout', layouts.WITHOUT_USERS, ids=lambda layout: layout.__name__
)
def test_every_layout_has_its_pixels_and_labels(layout, tmp_path, capsys):
  data = load(layout(tmp_path, FEDERATION))
  name = layout.__name__
  side = layouts.SIDE if name in LARGE else 8
  check(data, layouts.together(FEDERATION, side, 3 if name in COLOURS | LARGE else 1))
  assert data.clients is None
  if name in COLOURS | LARGE - {'svhn'}:
    assert data.class_names == NAMES
  elif 'emnist' in name:
    assert data.class_names[:4] == (*('abcd' if 'letters' in name else '0123'),)
  else:
    assert data.class_names[8:] == (('Bag', 'Ankle boot') if 'fashion' in name else ())


@pytest.mark.parametrize(
  'layout', layouts.WITH_USERS, ids=lambda layout: layout.__name__
)
def test_each_user_has_its_own_examples(layout, tmp_path):
  data = load(layout(tmp_path, FEDERATION))
  numbers = {name: n for n, name in enumerate(FEDERATION['train'] | FEDERATION['test'])}
  called = {'domainnet': lambda name: name.replace('\x1b', ''), 'leaf': str}
  for split, expected_users in FEDERATION.items():
    examples_by_user = by_user(data, split)
    assert len(examples_by_user) == len(expected_users)
    for name, pair in expected_users.items():
      examples = examples_by_user[called.get(layout.__name__, numbers.get)(name)]
      assert as_rows(*examples) == as_rows(*pair)
  assert data.class_names == (NAMES if layout is layouts.domainnet else ())


@pytest.mark.parametrize('scale', ['signed', 'unit', 'whole'])
def test_pixels_of_pfllib_mean_the_same_for_all(scale, tmp_path, capsys):
  bright = {'a': (np.full((4, 8, 8), 200, np.uint8), np.arange(4) % 2)}
  dark = {'b': (np.full((4, 8, 8), 3, np.uint8), np.arange(4) % 2)}
  federation = {'train': bright | dark, 'test': dark}
  pixels = {
    'signed': lambda x: x / np.float32(127.5) - 1,
    'unit': lambda x: x / np.float32(255),
    'whole': lambda x: x.astype(np.int64),
  }
  knobs = layouts.pfllib(tmp_path, federation, pixels[scale])
  data = load(knobs)
  proposes_another_range = "data.range='0,1' declares them" in capsys.readouterr().err
  assert proposes_another_range == (scale == 'unit')
  if proposes_another_range:
    data = load(knobs, range='0,1')
  assert np.unique(data.train_images[:4]).tolist() == [200]
  assert np.unique(data.train_images[4:]).tolist() == [3]


def test_images_of_leaf_may_be_rows_of_rows(tmp_path):
  data = load(layouts.leaf(tmp_path, FEDERATION, lambda x: x.reshape(-1, 8, 8)))
  check(data, layouts.together(FEDERATION))


def test_images_of_leaf_may_have_colours(tmp_path):
  federation = federations.in_colour(FEDERATION)
  data = load(layouts.leaf(tmp_path, federation))
  assert data.train_images.shape[1:] == (8, 8, 3)
  users = federation['train'].values()
  images = np.concatenate([images for images, _ in users])
  labels = np.concatenate([labels for _, labels in users])
  assert as_rows(data.train_images, data.train_labels) == as_rows(images, labels)


# --- folders of images ----------------------------------------------------------------


def one_tree(folder):
  """The federation's training images as CLASS/*, also in another format."""
  knobs = layouts.imagefolder(folder, {'train': FEDERATION['train']})
  return knobs | {'data.path': f'{folder}/set/train'}


def test_a_tree_is_divided_class_by_class_and_by_seed(tmp_path):
  knobs = one_tree(tmp_path)
  with pytest.raises(DataError, match=r'no test images by class: .* ant, bee.*0\.2'):
    load(knobs)
  data, same_seed, other = (
    load(knobs, test_fraction=0.25, test_seed=n) for n in (0, 0, 1)
  )
  assert sources.digest(data) == sources.digest(same_seed) != sources.digest(other)
  small = load(knobs, test_fraction=0.01)  # of each class one at least
  assert np.bincount(small.test_labels).tolist() == [1] * 4
  images, labels = layouts.together(FEDERATION, channels=3)['train']
  sizes = np.bincount(labels)
  np.testing.assert_array_equal(np.bincount(data.test_labels), np.rint(sizes / 4))
  all_examples = [
    np.concatenate(pair) for pair in zip(data[1:3], data[3:5], strict=True)
  ]
  assert as_rows(*all_examples) == as_rows(images, labels)


def test_domains_are_users_and_a_class_may_be_called_train(tmp_path):
  rng = np.random.default_rng(0)
  for domain in ('clipart', 'sketch'):
    for label in ('train', 'bus'):
      for n in range(4):
        image = rng.integers(0, 256, (6, 5, 3), np.uint8)
        save(tmp_path / f'set/{domain}/{label}/{n}.jpg', image)
  knobs = knobs_of('imagefolder', tmp_path / 'set', test_fraction=0.5)
  data = load(knobs)
  assert data.clients.tolist() == ['clipart', 'sketch']
  assert np.bincount(data.test_clients).tolist() == [4, 4]
  clipart = load(knobs | {'data.path': f'{tmp_path}/set/clipart'})
  assert (clipart.class_names, clipart.clients) == (('bus', 'train'), None)
  assert np.bincount(clipart.train_labels).tolist() == [2, 2]


@pytest.mark.parametrize('test', ['val', 'valid', 'validation'])
def test_val_is_the_test_where_there_is_no_labelled_one(test, tmp_path):
  knobs = layouts.imagefolder(tmp_path, FEDERATION, test)
  for name in ('test/images/0.png', '__MACOSX/0.png', '.git/x/0.png'):
    save(tmp_path / 'set' / name, np.zeros((8, 8, 3), np.uint8))
  check(load(knobs), layouts.together(FEDERATION, channels=3))


def test_grey_images_have_one_channel(tmp_path):
  knobs = one_tree(tmp_path)
  for path in (tmp_path / 'set').rglob('*.png'):
    Image.open(path).convert('L').save(path)
  assert load(knobs, test_fraction=0.1).train_images.shape[1:] == (8, 8, 1)


def test_a_class_of_domainnet_keeps_its_number(tmp_path):
  knobs = layouts.domainnet(tmp_path, FEDERATION)
  for path in (tmp_path / 'set').glob('*.txt'):
    lines = path.read_text().splitlines()
    path.write_text('\n'.join(f'{line[:-1]}{3 - int(line[-1])}' for line in lines))
  assert load(knobs).class_names == NAMES[::-1]


def test_the_names_of_emnists_classes_are_complete():
  sizes = [len(classes) for classes in torchvision._EMNIST_CLASSES.values()]
  assert sizes == [62, 47, 47, 26, 10, 10]


def test_sizes_are_equal_or_made_so(tmp_path):
  knobs = one_tree(tmp_path)
  wide = np.full((4, 12, 3), 90, np.uint8)
  save(tmp_path / 'set/train/bee/wide.png', wide)
  line = "'bee/wide.png' is 12x4 and others 8x8 pixels; --config.data.image_size=N"
  with pytest.raises(DataError, match=line):
    load(knobs, test_fraction=0.1)
  data = load(knobs, test_fraction=0.1, image_size=16)
  assert data.train_images.shape[1:] == (16, 16, 3)
  all_images = np.concatenate([data.train_images, data.test_images])
  assert (all_images == 90).all((1, 2, 3)).sum() == 1
  images = layouts.together(FEDERATION, channels=3)['train'][0]
  right = np.asarray(Image.fromarray(images[0]).resize((16, 16), Image.BILINEAR))
  assert (all_images == right).all((1, 2, 3)).sum() == 1


def test_images_are_decoded_once(tmp_path, monkeypatch):
  knobs = layouts.domainnet(tmp_path, FEDERATION)
  first = load(knobs)
  monkeypatch.setattr('moon_jax.data.imagefolder._decode', None)
  from_cache = load(knobs)
  assert from_cache.class_names == NAMES
  assert sources.digest(from_cache) == sources.digest(first)


# --- refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('layout', 'source'),
  [
    (layouts.imagefolder, 'torchvision'),
    (layouts.tiny_imagenet, 'leaf'),
    (layouts.domainnet, 'folder'),
    (layouts.mnist, 'imagefolder'),
    (layouts.cifar10, 'npz'),
    (layouts.svhn, 'huggingface'),
    (layouts.parquet, 'imagefolder'),
    (layouts.saved, 'leaf'),
    (layouts.leaf, 'pfllib'),
    (layouts.pfllib, 'folder'),
    (layouts.keras, 'pfllib'),
  ],
)
def test_the_source_that_reads_it_is_named(layout, source, tmp_path, capsys):
  knobs = layout(tmp_path, FEDERATION)
  wrong_knobs = {'data.source': source, 'data.path': knobs['data.path']}
  if source == 'torchvision':
    wrong_knobs['data.name'] = 'cifar10'
  assert (
    convert.main([*flags(wrong_knobs), f'--out={tmp_path}/out.npz']) == ExitCode.USAGE
  )
  message = capsys.readouterr().err
  assert message.endswith(
    f', is read by --config.data.source={knobs["data.source"]!r}.\n'
  )
  assert message.count('\n') == 1


# --- names of folders -----------------------------------------------------------------


@pytest.mark.parametrize(
  'names', [('Training', 'Testing'), ('training_set', 'test_set'), ('Train', 'Val')]
)
def test_splits_by_other_names_are_no_domains(names, tmp_path):
  knobs = layouts.imagefolder(tmp_path, FEDERATION)
  for old, new in zip(('train', 'test'), names, strict=True):
    (tmp_path / 'set' / old).rename(tmp_path / 'set' / new)
  data = load(knobs)
  check(data, layouts.together(FEDERATION, channels=3))
  assert data.clients is None
  with pytest.raises(DataError, match='is divided already'):
    load(knobs, test_fraction=0.2)


@pytest.mark.parametrize('fraction', [0.0, 0.2])
@pytest.mark.parametrize(
  'folders',
  [('train', 'test1'), ('train_images', 'test_images'), ('a/images', 'a/masks')],
)
def test_folders_that_name_no_class_are_refused(folders, fraction, tmp_path):
  for folder in folders:
    for n in range(3):
      save(tmp_path / f'set/{folder}/cat.{n}.png', np.zeros((6, 5, 3), np.uint8))
  knobs = knobs_of('imagefolder', tmp_path / 'set', test_fraction=fraction)
  with refused(DataError, r'would be the .*class.*; .* CLASS/picture\.png'):
    load(knobs)


def put_tree(folder, names):
  for name in names:
    for n in range(5):
      save(folder / name / f'{n}.png', np.full((4, 4, 3), 40 * n, np.uint8))


@pytest.mark.parametrize(
  ('names', 'words'),
  [
    (
      [f'{name}/patient{n}' for n, name in enumerate(['ill', 'well'] * 3)],
      'each of the 6 folders patient0, patient1, patient2, ... lies in one of ill, wel',
    ),
    (
      ['train/ill/p1', 'train/well/p2', 'test/ill/p3', 'test/well/p4'],
      'each of the 4 folders p1, p2, p3, ... lies in one of ill, well alone',
    ),
  ],
)
def test_patients_are_no_classes_of_sites(names, words, tmp_path):
  put_tree(tmp_path / 'set', names)
  knobs = knobs_of('imagefolder', tmp_path / 'set')
  fraction = 0.0 if names[0].startswith('train') else 0.2
  with refused(DataError, re.escape(words)):
    load(knobs, test_fraction=fraction)
  for n, path in enumerate(sorted(tmp_path.rglob('*.png'))):  # as the line says
    path.rename(path.parent.parent / f'{n}.png')
  data = load(knobs, test_fraction=fraction)
  assert (data.class_names, data.clients) == (('ill', 'well'), None)


@pytest.mark.parametrize(
  ('names', 'folder'),
  [
    (['s1/ill', 's1/well/b1', 's1/well/b2', 's2/ill', 's2/well'], 's1/well/b1'),
    (['ill', 'well', 'well/x/y'], 'well/x/y'),
    (['s1/ill/images', 's1/well', 's2/ill', 's2/well'], 's1/ill/images'),
    (['ill/images', 'ill/images/x', 'well/images'], 'ill/images/x'),
    (['train/ill', 'train/well', 'test/ill', 'test/ill/x/y', 'test/well'], 'ill/x/y'),
  ],
)
def test_pictures_below_the_last_level_are_refused(names, folder, tmp_path):
  put_tree(tmp_path / 'set', names)
  fraction = 0.0 if names[0].startswith('train') else 0.2
  with refused(DataError, f'the folder {folder!r} holds images, deeper than CLASS'):
    load(knobs_of('imagefolder', tmp_path / 'set'), test_fraction=fraction)


def test_patients_or_sites_that_stand_first_are_users(tmp_path, capsys):
  """A class that two users share is enough."""
  put_tree(tmp_path / 'set', ['p1/ill', 'p2/ill', 'p3/well'])
  knobs = knobs_of('imagefolder', tmp_path / 'set', test_fraction=0.2)
  for _ in range(2):  # also when the images come from the cache
    data = load(knobs)
    assert data.clients.tolist() == ['p1', 'p2', 'p3']
    line = 'read as DOMAIN/CLASS/*. 3 users: p1, p2, p3; 2 classes: ill, well.'
    assert capsys.readouterr().err.count(line) == 1


@pytest.mark.parametrize(
  ('name', 'remedy'),
  [
    ('WELL', "training has 'well', so give both one name"),
    ('eel', 'remove its images'),
  ],
)
@pytest.mark.parametrize('split', ['test', 'validation'])
def test_a_class_without_training_images_is_named(name, remedy, split, tmp_path):
  names = ['train/ill', 'train/well', 'test/ill', f'{split}/{name}', 'val/ill']
  put_tree(tmp_path / 'set', [name.replace('validation', 'val') for name in names])
  words = f'the {split} set has a class {name!r}, which training has not; {remedy}'
  with refused(DataError, words):
    load(knobs_of('imagefolder', tmp_path / 'set'))


# --- converted ------------------------------------------------------------------------


def test_convert_keeps_classes_without_an_example(tmp_path):
  images, labels = np.zeros((6, 4, 4), np.uint8), np.array([0, 1, 3] * 2)
  arrays = {'train_x': images, 'train_y': labels, 'test_x': images, 'test_y': labels}
  arrays['class_names'] = np.array(['a', 'b', 'b', 'd'])
  save_arrays(tmp_path / 'gap.npz', arrays)
  knobs = knobs_of('npz', tmp_path / 'gap.npz')
  out = tmp_path / 'out.npz'
  assert load(knobs).num_classes == 4
  assert convert.main([*flags(knobs), f'--out={out}']) == ExitCode.DONE
  assert sources.digest(load(knobs_of('npz', out))) == sources.digest(load(knobs))


def test_splits_that_number_their_classes_apart_are_refused(tmp_path):
  kinds = [datasets.ClassLabel(names=names) for names in (NAMES, NAMES[1:])]
  splits = dict(
    zip(
      FEDERATION,
      (layouts.table(split, FEDERATION) for split in FEDERATION),
      strict=True,
    )
  )
  other = datasets.Features({'img': datasets.Image(), 'label': kinds[1]})
  labels = [min(label, len(NAMES) - 2) for label in splits['test']['label']]
  test = {'img': splits['test']['img'], 'label': labels}
  splits['test'] = datasets.Dataset.from_dict(test, other)
  datasets.DatasetDict(splits).save_to_disk(str(tmp_path / 'set'))
  knobs = knobs_of('huggingface', tmp_path / 'set', client='', image='', label='')
  with refused(DataError, 'in another split; number all splits together'):
    load(knobs)


def test_sites_that_number_their_classes_apart_are_refused(tmp_path):
  images, labels = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 0, 1])
  arrays = {'train_x': images, 'train_y': labels, 'test_x': images, 'test_y': labels}
  for site, names in (('city', ['cyst', 'tumour']), ('rural', ['cyst', 'tumour'])):
    np.savez(tmp_path / f'{site}.npz', class_names=names, **arrays)
  assert load(knobs_of('folder', tmp_path)).num_classes == 2
  np.savez(tmp_path / 'town.npz', class_names=['cyst', 'normal'], **arrays)
  with refused(DataError, "'town.npz': its class_names are cyst, normal, and those of"):
    load(knobs_of('folder', tmp_path))


def test_files_of_one_split_that_number_their_classes_apart_are_refused(tmp_path):
  for split in ('train', 'test'):
    (tmp_path / split).mkdir()
    for number, names in enumerate((['cyst', 'normal'], ['cyst', 'tumour'])):
      if split == 'test' and number:
        continue
      columns = {'dose': [0.0, 1.0], 'label': [0, 1]}
      features = datasets.Features(
        {'dose': datasets.Value('float32'), 'label': datasets.ClassLabel(names=names)}
      )
      part = datasets.Dataset.from_dict(columns, features)
      part.to_parquet(tmp_path / split / f'{split}_{number}.parquet')
  knobs = knobs_of('huggingface', tmp_path, client='', image='', label='')
  with refused(DataError, "'train_0.parquet' and 'train_1.parquet' of 'train' have"):
    load(knobs | {'data.features': 'dose'})


def test_users_that_each_split_numbers_apart_are_matched_by_name(tmp_path):
  splits = {}
  for split, names in (
    ('train', ['city', 'rural']),
    ('test', ['city', 'north', 'rural']),
  ):
    features = datasets.Features(
      {
        'dose': datasets.Value('float32'),
        '__index_level_0__': datasets.Value('int64'),
        'label': datasets.Value('int64'),
        'site': datasets.ClassLabel(names=names),
      }
    )
    sites = [names.index(name) for name in ('city', 'rural', 'city', 'rural')]
    columns = {
      'dose': [0.0, 1.0, 2.0, 3.0],
      '__index_level_0__': range(4),
      'label': [0, 1, 1, 0],
      'site': sites,
    }
    splits[split] = datasets.Dataset.from_dict(columns, features)
  datasets.DatasetDict(splits).save_to_disk(str(tmp_path / 'set'))
  knobs = knobs_of(
    'huggingface', tmp_path / 'set', client='site', image='', label='label'
  )
  data = load(knobs | {'data.features': '*'})
  assert data.clients.tolist() == ['city', 'rural']
  np.testing.assert_array_equal(data.train_clients, data.test_clients)
  # The numbers of pandas' rows are no feature.
  assert data.feature_names == ('dose',)


def test_parquet_files_may_name_their_split_in_a_folder_of_it(tmp_path):
  name = '{split}/{split}-0000{n}-of-00002.parquet'
  check(
    load(layouts.parquet(tmp_path, FEDERATION, name)),
    layouts.together(FEDERATION, channels=3),
  )


def test_a_folder_of_parquet_files_may_be_called_test(tmp_path):
  layouts.parquet(tmp_path, FEDERATION, '{split}-0000{n}-of-00002.parquet')
  (tmp_path / 'set').rename(tmp_path / 'test')
  knobs = knobs_of('huggingface', tmp_path / 'test', client='', image='', label='')
  check(load(knobs), layouts.together(FEDERATION, channels=3))


@pytest.mark.parametrize('layout', ['restructured', 'labelled test'])
def test_variants_of_tiny_imagenet(layout, tmp_path):
  knobs = layouts.tiny_imagenet(tmp_path, FEDERATION)
  set_folder = tmp_path / 'set'
  folder = 'val' if layout == 'restructured' else 'test'
  shutil.rmtree(set_folder / folder / 'images')
  images, labels = layouts.together(FEDERATION, channels=3)['test']
  for i, (image, label) in enumerate(zip(images[:7], labels[:7], strict=True)):
    save(set_folder / folder / NAMES[label] / f'{i}.png', image)
  if folder == 'val':
    shutil.rmtree(set_folder / 'test')
  data = load(knobs)
  assert len(data.test_labels) == 7
  validation = data.validation_labels
  assert (validation is None) if folder == 'val' else (len(validation) == len(labels))


def test_links_to_a_folder_above_end(tmp_path):
  knobs = layouts.imagefolder(tmp_path, FEDERATION)
  for name in 'ab':
    (tmp_path / 'set' / f'.{name}').symlink_to('.')
  assert len(load(knobs).test_labels) == 26


def test_records_keep_the_names_of_classes(tmp_path):
  knobs = layouts.domainnet(tmp_path, FEDERATION)
  assert convert.main([*flags(knobs), f'--out={tmp_path}/out']) == ExitCode.DONE
  assert load(knobs_of('records', tmp_path / 'out')).class_names == NAMES


def test_text_labels_name_the_classes(tmp_path):
  arrays = {}
  for split, (images, labels) in layouts.together(FEDERATION).items():
    arrays |= {f'{split}_x': images, f'{split}_y': np.array(NAMES)[labels]}
  save_arrays(tmp_path / 'a.npz', arrays)
  data = load(knobs_of('npz', tmp_path / 'a.npz'))
  check(data, layouts.together(FEDERATION))
  assert data.class_names == NAMES
  splits = layouts.together(FEDERATION).items()
  named = arrays | {f'{split}_y': labels for split, (_, labels) in splits}
  named['class_names'] = np.array([*NAMES, 'fly'])
  save_arrays(tmp_path / 'a.npz', named)
  assert load(knobs_of('npz', tmp_path / 'a.npz')).num_classes == 5
  arrays['test_y'][3] = 'eel'
  save_arrays(tmp_path / 'a.npz', arrays)
  with pytest.raises(DataError, match="test_y holds 'eel', a class that train_y ha"):
    load(knobs_of('npz', tmp_path / 'a.npz'))
  save_arrays(tmp_path / 'a.npz', arrays | {'class_names': np.zeros(3)})
  with pytest.raises(DataError, match='class_names must be text'):
    load(knobs_of('npz', tmp_path / 'a.npz'))


# --- a run ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures('quick_runs')
def test_one_set_from_two_sources_is_one_run_and_records_its_classes(tmp_path):
  """Number for number; the names of the classes go into the records of both."""
  knobs = layouts.imagefolder(tmp_path, FEDERATION)
  words = [*flags(knobs), f'--out={tmp_path}/set.npz']
  assert convert.main(words) == ExitCode.DONE
  digits, runs = 'configs/digits_moon.py', []
  from_npz = knobs_of('npz', tmp_path / 'set.npz')
  for name, source in (('one', knobs), ('two', from_npz)):
    changes = TINY | source | {'algorithm': 'fedavg', 'data.limit': 0, 'num_rounds': 1}
    config = moon_jax.load_config(digits, changes)
    runs.append(moon_jax.run(config, tmp_path / name))
  assert runs[0].metrics == runs[1].metrics
  for run in runs:
    saved = json.loads((run.workdir / 'config.json').read_text())
    assert saved['images']['class_names'] == list(NAMES)
    (report_run,) = report_runs.find([run.workdir], print)
    assert report_runs.class_names(report_run.provenance, 4) == NAMES
    assert report_runs.class_names(report_run.provenance, 5) == ()
    (setting,) = groups.settings([report_run], Choice(None, ('seed',), {}))
    (matrix,) = sections.partition(setting)
    assert matrix.rows == NAMES
  np.savez(tmp_path / 'new.npz', images=np.zeros((1, 8, 8, 3), np.uint8))
  words = [f'--workdir={runs[0].workdir}', f'--input={tmp_path}/new.npz']
  assert predict.main(words) == ExitCode.DONE
  with np.load(tmp_path / 'new_predictions.npz') as predictions:
    assert predictions['class_names'].tolist() == list(NAMES)


# --- examples for validation ----------------------------------------------------------


def with_validation(layout, folder):
  """The layout, with another federation's training examples as validation split."""
  validation = {'train': federations.make_federation(seed=3)['train']}
  channels = 1 if layout == 'npz' else 3
  images, labels = layouts.together(validation, channels=channels)['train']
  if layout == 'npz':
    knobs = layouts.medmnist(folder, FEDERATION)
    arrays = dict(np.load(folder / 'set.npz'))
    arrays['val_images'] = images[..., 0]
    arrays['val_labels'] = labels[:, None]
    save_arrays(folder / 'set.npz', arrays)
  elif layout == 'imagefolder':
    knobs = layouts.imagefolder(folder, FEDERATION)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
      save(folder / f'set/val/{NAMES[label]}/{i}.png', image)
  else:
    knobs = layouts.parquet(folder, FEDERATION)
    layouts.table('train', validation).to_parquet(
      folder / 'set/data/validation.parquet'
    )
  return knobs, images, labels


@pytest.mark.parametrize('layout', ['npz', 'imagefolder', 'parquet'])
def test_reserved_examples_are_for_validation(layout, tmp_path):
  knobs, images, labels = with_validation(layout, tmp_path)
  data, small = load(knobs), load(knobs, limit=9)
  check(data, layouts.together(FEDERATION, channels=images.shape[-1]))
  reserved = data.validation_images, data.validation_labels
  assert as_rows(*reserved) == as_rows(images, labels)
  rest, validation = holdout.validation_split(data, 0.0, 0)
  assert (rest, validation) == (data, reserved)
  with pytest.raises(UsageError, match='have 52 examples for validation'):
    holdout.validation_split(data, 0.1, 0)
  part = as_rows(small.validation_images, small.validation_labels)
  assert len(part) == 9
  assert set(part) <= set(as_rows(*reserved))
  words = [*flags(knobs), f'--out={tmp_path}/new.npz']
  assert convert.main(words) == ExitCode.DONE
  same_seed = load(knobs_of('npz', tmp_path / 'new.npz'))
  assert sources.digest(same_seed) == sources.digest(data)
  plain = data._replace(validation_images=None, validation_labels=None)
  assert sources.digest(plain) != sources.digest(data)


def test_users_have_examples_for_validation_beside_them(tmp_path, capsys):
  validation = federations.make_federation(seed=3)['train']
  knobs = federations.huggingface(tmp_path, FEDERATION | {'validation': validation})
  data, out = load(knobs), tmp_path / 'new'
  (tmp_path / 'plain').mkdir()
  plain = load(federations.huggingface(tmp_path / 'plain', FEDERATION))
  for split in ('train', 'test'):
    np.testing.assert_equal(by_user(data, split), by_user(plain, split))
  images, labels = layouts.together({'train': validation})['train']
  rows = as_rows(data.validation_images, data.validation_labels)
  assert sorted(rows) == sorted(as_rows(images, labels))
  assert convert.main([*flags(knobs), f'--out={out}']) == ExitCode.DONE
  assert f"are left out of records; --out='{out}.npz'" in capsys.readouterr().err
  assert convert.main([*flags(knobs), f'--out={out}.npz']) == ExitCode.DONE
  assert sources.digest(load(knobs_of('npz', f'{out}.npz'))) == sources.digest(data)
  words = [*flags(knobs_of('npz', f'{out}.npz')), f'--out={out}-2']
  assert convert.main(words) == ExitCode.DONE
  assert 'are left out' in capsys.readouterr().err
