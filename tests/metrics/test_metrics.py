"""The metrics agree with scikit-learn, or with numbers worked by hand."""

import numpy as np
import pytest
from sklearn import calibration
from sklearn import metrics as sklearn_metrics

import moon_jax
from moon_jax import catalog
from moon_jax.core.errors import UsageError
from moon_jax.metrics import measuring
from moon_jax.metrics.classified import Classified
from moon_jax.metrics.measuring import measure, measure_tests, require_classes


def classified(num_examples=400, num_classes=7, seed=0):
  """Examples whose logits often prefer their class; each class has some."""
  rng = np.random.default_rng(seed)
  labels = np.arange(num_examples) % num_classes
  rng.shuffle(labels)
  logits = rng.normal(size=(num_examples, num_classes)).astype(np.float32)
  logits[np.arange(num_examples), labels] += 1.5
  return Classified(labels, logits)


def expected_ece(of):
  """From scikit-learn's curve of calibration, and the sizes of its bins."""
  confidence = of.probabilities.max(1)
  is_correct = of.predicted == of.labels
  accuracy, mean_confidence = calibration.calibration_curve(
    is_correct, confidence, n_bins=15
  )
  sizes = np.histogram(confidence, np.linspace(0, 1, 16))[0]
  sizes = sizes[sizes > 0]
  return np.sum(sizes * np.abs(accuracy - mean_confidence)) / sizes.sum()


EXPECTED = {
  'macro_f1': lambda of: sklearn_metrics.f1_score(
    of.labels, of.predicted, average='macro'
  ),
  'balanced_accuracy': lambda of: sklearn_metrics.balanced_accuracy_score(
    of.labels, of.predicted
  ),
  'auc': lambda of: sklearn_metrics.roc_auc_score(
    of.labels, of.probabilities, multi_class='ovr'
  ),
  'ece': expected_ece,
  'top5': lambda of: sklearn_metrics.top_k_accuracy_score(
    of.labels, of.logits, k=5, labels=range(of.num_classes)
  ),
  'nll': lambda of: sklearn_metrics.log_loss(of.labels, of.probabilities),
  'worst_class': lambda of: sklearn_metrics.recall_score(
    of.labels, of.predicted, average=None
  ).min(),
}


@pytest.mark.parametrize('name', catalog.names('metric'))
def test_a_metric_is_that_of_scikit_learn(name):
  numbers = []
  for seed in range(3):
    of = classified(seed=seed)
    (number,) = measure([name], of).values()
    assert number == pytest.approx(EXPECTED[name](of), rel=1e-9)
    numbers.append(number)
  assert len(set(numbers)) > 1


@pytest.mark.parametrize('name', catalog.names('metric'))
def test_many_tests_of_unlike_sizes_together(name, monkeypatch):
  tests = [
    classified(num_examples=size, seed=seed)
    for seed, size in enumerate([70, 9, 14, 40])
  ]
  # Some probabilities are equal, and one test has no number.
  tests[1] = Classified(tests[1].labels, tests[1].logits.round())
  tests[2] = Classified(tests[2].labels, np.full_like(tests[2].logits, np.nan))
  labels, logits = (
    [getattr(of, name) for of in tests] for name in ('labels', 'logits')
  )
  for most_logits in (1, 7 * 40, 7 * 1000):  # alone, some together, all together
    monkeypatch.setattr(measuring, '_MOST_LOGITS', most_logits)
    numbers = measure_tests([name], labels, logits)[name]
    assert np.isnan(numbers).tolist() == [False, False, True, False]
    for of, number in zip(tests, numbers, strict=True):
      if np.isfinite(of.logits).all():
        assert number == pytest.approx(EXPECTED[name](of), rel=1e-9)
        assert number == measure([name], of)[name]


def test_two_classes_and_equal_scores():
  of = classified(num_examples=60, num_classes=2)
  of = Classified(of.labels, of.logits.round())  # many are equal
  auc = sklearn_metrics.roc_auc_score(of.labels, of.probabilities[:, 1])
  assert measure(['auc'], of)['auc'] == pytest.approx(auc)


def test_classes_without_examples():
  # Class 2 has no example and is predicted once, class 3 neither.
  labels = np.array([0, 0, 1, 1])
  logits = np.eye(4)[[0, 0, 1, 2]] * 3
  numbers = measure(catalog.names('metric'), Classified(labels, logits))
  # F1: 1, 2 * 1 / (2 + 1) = 2/3, and 0 of class 2.
  assert numbers['macro_f1'] == pytest.approx((1 + 2 / 3) / 3)
  assert numbers['balanced_accuracy'] == pytest.approx((1 + 0.5) / 2)
  assert numbers['worst_class'] == 0.5
  # Class 0: both get the highest score. Class 1: one does, the other's is equal to
  # those of the two others: (2 + 1) / 4.
  assert numbers['auc'] == pytest.approx((1 + 0.75) / 2)
  alone = Classified(labels[:2], logits[:2])
  assert np.isnan(measure(['auc'], alone)['auc'])


def test_labels_of_one_byte_are_counted():
  labels = np.array([9, 39], np.uint8)
  confusion = Classified(labels, np.eye(40)[labels]).confusion
  assert np.argwhere(confusion).tolist() == [[9, 9], [39, 39]]


def test_large_logits_and_models_that_are_not_finite():
  labels = np.array([0, 1])
  logits = np.array([[[1e30, 0.0], [0.0, -1e30]], [[np.nan, 0.0], [0.0, 1.0]]])
  names = ['nll', 'macro_f1']
  numbers = measure_tests(names, [labels] * 2, logits.astype(np.float32))
  assert numbers['nll'][0] == pytest.approx(5e29)
  assert numbers['macro_f1'][0] == pytest.approx(1 / 3)
  assert np.isnan([numbers['nll'][1], numbers['macro_f1'][1]]).all()


def test_few_classes_are_refused_for_top5():
  require_classes(['top5'], 6)
  with pytest.raises(UsageError, match=r"metrics='auc,top5' has top5, which is 1 for"):
    require_classes(['auc', 'top5'], 5)
  require_classes(['auc'], 2)


@pytest.mark.parametrize(
  ('number', 'problem'),
  [('high', 'must return a number, not str'), (None, 'must return a number, not None')],
)
def test_a_metric_that_returns_no_number_is_one_line(own_parts, number, problem):
  moon_jax.register_metric('constant', lambda of: number)
  with pytest.raises(UsageError, match=f"The metric 'constant' {problem}"):
    measure(['constant'], classified())


def test_a_metric_that_fails_names_its_line(own_parts):
  moon_jax.register_metric('failing', lambda of: of.no_such_thing)
  with pytest.raises(UsageError, match=r"The metric 'failing' failed, line \d+: Attri"):
    measure(['failing'], classified())


def test_a_registered_metric_may_be_of_numpy_or_undefined(own_parts):
  moon_jax.register_metric('single', lambda of: np.float32(0.5))
  moon_jax.register_metric('infinite', lambda of: 1 / np.float64(0.0).clip(1e-999))
  with np.errstate(divide='ignore'):
    numbers = measure(['single', 'infinite'], classified())
  assert numbers['single'] == 0.5
  assert type(numbers['single']) is float
  assert np.isnan(numbers['infinite'])


@pytest.mark.parametrize('name', ['accuracy', 'loss', 'accuracy_std', 'auc', 'Big'])
def test_a_metric_may_not_have_the_name_of_a_column(own_parts, name):
  with pytest.raises(UsageError, match=f'register_metric..{name}'):
    moon_jax.register_metric(name, lambda of: 0.0)
