"""A trained model as a plain function of NumPy arrays, without JAX or this package.

  python launch.py --workdir=runs/digits
  python -m moon_jax.export runs/digits --output=digits.npz
  python examples/numpy_model.py digits.npz IMAGES.npz

The model is the perceptron `mlp`: four dense layers, with ReLU after the first two.
IMAGES.npz contains `images` [M, 8, 8], numbers as in the run's data: of scikit-learn's
digits, 0 to 16. The program prints the predicted class of
each image.
"""

import json
import sys

import numpy as np


def function_of(path):
  """Reads a file of weights; returns the model as a function.

  The function maps images [M, H, W] or [M, H, W, C] to logits [M, Y] float32.
  """
  if str(path).endswith('.npz'):
    with np.load(path) as saved:
      arrays = dict(saved)
    metadata = json.loads(str(arrays['metadata']))
  else:
    import safetensors

    with safetensors.safe_open(path, 'numpy') as saved:
      names, metadata = saved.keys(), saved.metadata()
      arrays = {name: saved.get_tensor(name) for name in names}
  # Each value of the metadata is a JSON text.
  image_facts = json.loads(metadata['images'])
  mean, std = (np.float32(image_facts[name]) for name in ('mean', 'std'))
  black, white = (image_facts['scale'][name] for name in ('low', 'high'))

  def dense(x, layer):
    return x @ arrays[f'params/{layer}/kernel'] + arrays[f'params/{layer}/bias']

  def logits(images):
    levels = np.rint((images - black) * (255 / (white - black))).astype(np.float32)
    pixels = levels.reshape(len(images), -1, len(mean))
    x = ((pixels / 255 - mean) / std).reshape(len(images), -1)
    x = np.maximum(dense(x, 'encoder'), 0)
    x = np.maximum(dense(x, 'head_hidden'), 0)
    return dense(dense(x, 'head_output'), 'classifier')

  return logits


if __name__ == '__main__':
  print(function_of(sys.argv[1])(np.load(sys.argv[2])['images']).argmax(1))
