"""The network of an experiment."""

from moon_jax import catalog, models
from moon_jax.catalog.part_errors import explaining_errors_of
from moon_jax.config import Config, flatten
from moon_jax.core import machine_memory, tree
from moon_jax.core.errors import KnobError, UsageError
from moon_jax.core.flags import flag
from moon_jax.core.types import Form
from moon_jax.data import example_forms
from moon_jax.models import cpu_kernels


class NetworkOptions:
  """What a configuration says about the network.

  Attributes:
    model: name of the network in the catalog.
    model_options: knobs of the network.
    dtype: type of the numbers in convolutions and dense layers.
    convolution: the form of convolutions, or 'auto'.
    weights_file: file of the first weights; '' draws them.
    drop_last: whether partial batches are left out, so that there is no filler.
  """

  def __init__(self, config: Config):
    self.model = config.model
    self.model_options = catalog.options('model', flatten(config))
    self.dtype = config.execution.dtype
    self.convolution = config.execution.convolution
    self.weights_file = config.initial_weights
    self.drop_last = config.drop_last


def make_network(
  options: NetworkOptions,
  image_shape: tuple[int, ...],
  num_classes: int,
  backend: str | None = None,
  form: Form | None = None,
) -> models.Network:
  """The network for images [H, W, C], or other examples, of `num_classes` classes.

  form: what an example is; None: a picture.
  backend: kind of device, as JAX names it. None: every kind, so a configured form of
    convolutions that only some kinds have is not used.

  Raises:
    UsageError: the network does not fit the images, the machine's memory, or its form
      the device.
  """
  form = form or Form()
  require_model_takes(options.model, form, image_shape)
  network = models.make(
    options.model,
    form=form,
    image_shape=image_shape,
    num_classes=num_classes,
    convolution=convolution_form(options.convolution, backend),
    dtype=options.dtype,
    **options.model_options,
  )
  part = catalog.part('model', options.model)
  widths = {
    f'{part.group or part.name}.{name}': value
    for name, value in options.model_options.items()
    if type(value) is int
  }
  if widths:
    knob = max(widths, key=widths.get)
    num_bytes = tree.num_bytes(network.shapes)
    machine_memory.require_room(
      knob, widths[knob], num_bytes, 'the weights of the network'
    )
  return network


def refuse_if_filler_matters(network: models.Network, options: NetworkOptions) -> None:
  """Runs a network of the user's once to see that filler reaches no real example.

  Raises:
    UsageError: it does.
  """
  part = catalog.part('model', options.model)
  if part.registered and not options.drop_last:
    with explaining_errors_of(part):
      models.refuse_if_filler_matters(network)


def require_model_takes(model: str, form: Form, shape: tuple[int, ...]) -> None:
  """Raises KnobError unless the network takes such examples.

  A network that a user has registered takes what it can.

  Args:
    model: name of the network in the catalog.
    form: what an example is.
    shape: its shape.
  """
  part = catalog.part('model', model)
  takers = [
    name
    for name in catalog.names('model')
    if catalog.part('model', name).has(trait_of_kind(form.kind))
  ]
  if part.registered or model in takers:
    return
  remedy = f'choose one of {", ".join(takers)}'
  if form.axes and not takers:
    remedy = 'register one'
  if not form.axes:
    # Nobody said that these are pictures: they may be what the network takes.
    for kind, axes in _other_readings(shape).items():
      if part.has(trait_of_kind(kind)):
        kind_of_examples = example_forms.plural(Form(kind=kind))
        remedy = (
          f'{flag("data.axes", axes)} reads them as {kind_of_examples}; for pictures '
          f'{remedy}'
        )
  raise KnobError(
    'model',
    model,
    f'does not take the {example_forms.plural(form)} of these data, {list(shape)}: '
    f'{remedy}.',
  )


def _other_readings(shape: tuple[int, ...]) -> dict[str, str]:
  """Kind -> axes by which arrays that were read as pictures are read as this kind."""
  num_channels = shape[-1]
  return {'signal': 'TC'} if num_channels == 1 else {'volume': 'DHW'}


def trait_of_kind(kind: str) -> str:
  """The trait of networks that take examples of a kind."""
  return f'of_{example_forms.plural(Form(kind=kind))}'


def convolution_form(requested: str, backend: str | None) -> str:
  """The form of convolutions that is requested, or that 'auto' stands for.

  Args:
    requested: the knob `execution.convolution`.
    backend: see `make_network`.

  Raises:
    UsageError: the form is 'fused', and the devices cannot compute it.
  """
  if requested == 'auto' and backend:
    return 'auto_on_cpu' if backend == 'cpu' else 'auto_on_gpu'
  if requested == 'fused' and not backend:
    return 'auto'
  if requested == 'fused':
    fault = cpu_kernels.fault() if backend == 'cpu' else 'its kernels are for CPUs'
    if fault:
      raise UsageError(f'{flag("execution.convolution", "fused")}: {fault}.')
  return requested
