"""TensorFlow Federated's HDF5: examples/<user>/pixels and .../label.

FEMNIST has this form (fed_emnist_train.h5, fed_emnist_test.h5; pixels float32 in [0,
1], where 1 is the paper), and CIFAR-100 (image, label, coarse_label).
"""

import types
from typing import Any

from moon_jax.core import files, machine_memory
from moon_jax.core.errors import printable
from moon_jax.core.paths import expand
from moon_jax.data.data_errors import DataError, one_line
from moon_jax.data.example_forms import Reading
from moon_jax.data.federated import assembled

_GROUP = 'examples'


def load_hdf5(
  path: str,
  test_path: str,
  image: str = '',
  label: str = '',
  *,
  reading: Reading,
) -> assembled.Federation:
  """Loads a file of TensorFlow Federated; users are in the order of their names.

  Args:
    path: the file of the training examples.
    test_path: the file of the test examples.
    image: name of the images; '' stands for the usual names.
    label: name of the labels, likewise.
    reading: as in `npz.load_npz`.

  Raises:
    DataError: also when read: a file is missing, damaged or laid out in another way.
  """
  return assembled.two_files(
    _read,
    path,
    test_path,
    image,
    label,
    reading,
  )


def _read(data_flag, path, image, label):
  h5py = assembled.package('hdf5', 'h5py')
  requirement = (
    f'{data_flag} must be an HDF5 file of {_GROUP}/<client>/<image and label>'
  )
  path = expand(path)
  with one_line(requirement):
    files.require_regular(path)
  with one_line(requirement), h5py.File(path, 'r', locking=False) as file:
    if name := _member_in_another_file(h5py, file):
      raise DataError(
        f'{data_flag}: its {name!r} is an external link, or has its numbers in another '
        'file, which is not opened; write the arrays themselves into one file.'
      )
    # `items` would hold h5py's lock from one user to the next: what is read here may be
    # given up, and end in a thread that could then wait for the lock for ever.
    groups = file[_GROUP]
    for name in list(groups):
      group = groups.get(name)
      arrays = {key: array for key, array in group.items() if hasattr(array, 'shape')}
      image_key, label_key = assembled.feature_names(data_flag, image, label, arrays)
      _require_room(data_flag, name, (arrays[image_key], arrays[label_key]))
      images, labels = arrays[image_key][()], arrays[label_key][()]
      yield assembled.make_user(data_flag, name, images, labels)


def _require_room(data_flag, user_name, arrays):
  """Refuses arrays that the memory cannot hold: a small file can declare any shape."""
  num_bytes, total = sum(array.nbytes for array in arrays), machine_memory.total_bytes()
  if num_bytes > total:
    raise DataError(
      f'{data_flag}: client {printable(user_name)!r} has arrays of '
      f'{num_bytes / 2**30:,.0f} GiB, and the machine has {total / 2**30:,.0f}: '
      'the file is damaged, or needs a machine with more memory.'
    )


def _member_in_another_file(h5py: types.ModuleType, file: Any) -> str:
  """The name of a member that is in another file, wholly or in part; '' if none is.

  Everything is looked at before anything is read, by HDF5's own calls, which follow no
  link. A soft link stays in the file, because its path leads through these groups. No
  recursion: groups may be nested without end, and may contain themselves.

  Args:
    h5py: the module.
    file: the `h5py.File`.
  """
  addresses_seen = set()
  groups = [h5py.h5g.open(file.id, b'/')]
  while groups:
    group = groups.pop()
    for name, kind, address in _links(group):
      if kind not in (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT):
        return _text(name)
      if kind == h5py.h5l.TYPE_SOFT or address in addresses_seen:
        continue
      addresses_seen.add(address)
      member = h5py.h5o.open(group, name)
      if isinstance(member, h5py.h5g.GroupID):
        groups.append(member)
      elif isinstance(member, h5py.h5d.DatasetID):
        storage = member.get_create_plist()
        is_virtual = storage.get_layout() == h5py.h5d.VIRTUAL
        if is_virtual or storage.get_external_count():
          return _text(name)
  return ''


def _text(name):
  return printable(name.decode(errors='backslashreplace'))[:100]


def _links(group):
  """Of each member of a group: its name, the kind of the link, and its address."""
  links = []

  def add(name, link):
    links.append((name, link.type, link.u))  # h5py fills one `link` again and again

  group.links.iterate(add, info=True)
  return links
