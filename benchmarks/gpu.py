"""The rows of the GPU suite: whole experiments, and sweeps over lanes and forms.

It runs on whatever JAX finds, so that a laptop can try it with --rounds=2 --limit=640.
"""

from typing import NamedTuple

from benchmarks import processes
from benchmarks.cpu import Row

# Datasheet of the NVIDIA H200 SXM: TF32 without sparsity, and HBM3e.
PEAK_FLOPS = 494e12
PEAK_BYTES = 4.8e12


class Workload(NamedTuple):
  """What is trained.

  Attributes:
    data_dir: TFDS folder with CIFAR-10.
    limit: training examples; 0 is all.
    num_rounds: of a whole experiment; the bars are for 100.
  """

  data_dir: str
  limit: int
  num_rounds: int

  def flags(self) -> list[str]:
    """The flags of MOON on CIFAR-10, as in the paper."""
    return [
      '--config=configs/cifar10_moon.py',
      f'--config.data.dir={self.data_dir}',
      f'--config.data.limit={self.limit}',
    ]


def rows(workload: Workload, repeats: int, details: dict) -> list[Row]:
  """Measures everything; `details` receives what the processes reported."""
  found = [*_experiments(workload, details)]
  for model, forms, lanes in (
    ('moon_cnn', ('library', 'im2col', 'banded'), (1, 2, 5, 10)),
    ('resnet18', ('library', 'im2col'), (1, 10)),
  ):
    for form in forms:
      for count in lanes:
        found += _sweep(workload, model, form, count, repeats, details)
  return found


def _experiments(workload, details):
  """The whole experiment, without and with augmentation."""
  for augmentation, bar in (('none', 60), ('crop_flip', 120)):
    report = processes.run(
      [
        '-m',
        'benchmarks.run',
        *workload.flags(),
        f'--config.num_rounds={workload.num_rounds}',
        f'--config.augmentation.name={augmentation}',
      ]
    )
    details[f'experiment, {augmentation}'] = report
    details['device'] = report['device']
    yield Row(
      f'MOON, {workload.num_rounds} rounds, augmentation {augmentation}, end to end',
      f'{report["end_to_end_seconds"]:.0f} s, '
      f'test accuracy {report["test_accuracy"]:.3f}',
      f'<= {bar} s',
    )


def _sweep(workload, model, form, lanes, repeats, details):
  """One round of FedAvg and of MOON, and how near it comes to the device's limits."""
  for algorithm in ('fedavg', 'moon'):
    name = f'{model}, {algorithm}, {form}, {lanes} lanes'
    report = processes.run(
      [
        '-m',
        'benchmarks.engine',
        f'--repeats={repeats}',
        *workload.flags(),
        f'--config.algorithm={algorithm}',
        '--config.augmentation.name=none',
        f'--config.model={model}',
        f'--config.execution.convolution={form}',
        f'--config.execution.lanes={lanes}',
        *(['--config.local_epochs=1'] if model == 'resnet18' else []),
      ]
    )
    details[name] = report
    rate = report['steps_per_second']
    flops = report['step_flops'] * rate / PEAK_FLOPS
    traffic = report['step_bytes'] * rate / PEAK_BYTES
    yield Row(
      name,
      f'{report["samples_per_second"]:,.0f} samples/s, '
      f'{flops:.1%} of the arithmetic, {traffic:.1%} of the bandwidth',
      '',
    )
