"""index.html in headless Chromium: it opens, and its controls work.

Needs a browser on the machine: Debian's is `apt-get install chromium`.
"""

import contextlib
import shutil

import pytest

from moon_jax.core.errors import ExitCode
from moon_jax.report.__main__ import main
from tests.run_directories import write_run

sync_api = pytest.importorskip('playwright.sync_api', reason='playwright is missing')
BROWSER = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser'))), None)
pytestmark = pytest.mark.skipif(
  BROWSER is None, reason='no chromium on this machine (apt-get install chromium)'
)
PATIENCE_MS = 120_000  # a busy machine
DESKTOP, PHONE = (1200, 800), (360, 740)
# Text of the first table's cells in a column, without hidden rows.
CELLS = """(index) => [...document.querySelectorAll('#table-accuracy tbody tr')]
  .filter((row) => row.offsetParent)
  .map((row) => row.cells[index].innerText)"""
SHOWN = """(name) => document.querySelector(`[data-chart='${name}']`).data
  .filter((trace) => trace.visible).map((trace) => trace.meta)"""


@pytest.fixture(scope='module')
def page_path(tmp_path_factory, empty_figures):
  """The page of three series; the names of the runs need escaping."""
  folder = tmp_path_factory.mktemp('page') / 'runs <script> & "more"'
  for index, name in enumerate(('fedavg', 'moon', 'sa_moon')):
    for seed in range(2):
      accuracies = [0.2, 0.5 + 0.1 * index, 0.6 + 0.1 * ((index + 1) % 3) + 0.02 * seed]
      flag = f'--config.algorithm={name}'
      write_run(folder / f'{name}-s{seed}', accuracies, flag, seed=seed)
  write_run(folder / 'killed', [0.1], seed=9, finished=False)
  out = folder.parent / 'out'
  assert main([str(folder), f'--out={out}', '--features=none']) == ExitCode.DONE
  # Nothing that the page needs may be in another file.
  page_alone = folder.parent / 'alone.html'
  (out / 'index.html').rename(page_alone)
  return page_alone


@pytest.fixture(scope='module')
def browser():
  with sync_api.sync_playwright() as playwright:
    # For root, as in a container, Chromium starts only without its sandbox.
    started = playwright.chromium.launch(
      executable_path=BROWSER, args=['--no-sandbox'], timeout=PATIENCE_MS
    )
    yield started
    started.close()


@contextlib.contextmanager
def opened(browser, path, size, scheme='light'):
  """The page in a window of a size; any error or request of the page is a failure."""
  width, height = size
  window = {'width': width, 'height': height}
  context = browser.new_context(viewport=window, color_scheme=scheme)
  context.set_default_timeout(PATIENCE_MS)
  page, complaints, requests = context.new_page(), [], []
  page.on('pageerror', lambda error: complaints.append(str(error)))
  page.on('console', lambda message: complaints.append(message.text))
  page.on('request', lambda request: requests.append(request.url))
  page.goto(path.as_uri())
  page.evaluate('charts.forEach(draw)')
  yield page
  assert complaints == []
  assert requests == [path.as_uri()]
  context.close()


def test_on_a_desktop(browser, page_path):
  with opened(browser, page_path, DESKTOP) as page:
    # (0.7 + 0.72) / 2, (0.8 + 0.82) / 2, (0.6 + 0.62) / 2; deviation 0.02 / sqrt(2).
    names, finals = ['FedAvg', 'MOON', 'SA-MOON'], ['71.00', '81.00', '61.00']
    assert page.evaluate(CELLS, 0) == names
    assert page.evaluate(CELLS, 3) == [f'{final} ± 1.41' for final in finals]
    drawn = page.evaluate(
      "document.querySelector('[data-chart=test_accuracy]').data"
      ".filter((trace) => trace.mode.includes('lines')).map((trace) => trace.y)"
    )
    assert [curve[2] for curve in drawn] == pytest.approx([71.0, 81.0, 61.0])
    assert 'killed is unfinished after round 1' in page.inner_text('.notes')
    check_sorting(page)
    check_hiding(page)
    check_hovering(page)


def check_sorting(page):
  heading = page.locator('#table-accuracy th').nth(3)
  heading.locator('button').click()
  assert heading.get_attribute('aria-sort') == 'ascending'
  assert page.evaluate(CELLS, 0) == ['SA-MOON', 'FedAvg', 'MOON']
  heading.locator('button').click()
  assert heading.get_attribute('aria-sort') == 'descending'
  assert page.evaluate(CELLS, 0) == ['MOON', 'FedAvg', 'SA-MOON']
  # FedAvg has no difference to itself, so it is last in either order.
  for _ in range(2):
    page.locator('#table-accuracy th button').nth(7).click()
    assert page.evaluate(CELLS, 0)[2] == 'FedAvg'
  # Words are sorted alphabetically, not as numbers.
  page.locator('#table-accuracy th button').nth(0).click()
  assert page.evaluate(CELLS, 0) == ['FedAvg', 'MOON', 'SA-MOON']


def check_hiding(page):
  assert not page.locator('.legend').first.is_visible()
  box = page.locator("input[data-series='MOON']")
  box.uncheck()
  assert page.evaluate(CELLS, 0) == ['FedAvg', 'SA-MOON']
  for chart in ('test_accuracy', 'train_loss'):
    assert set(page.evaluate(SHOWN, chart)) == {'FedAvg', 'SA-MOON'}
  box.check()
  assert set(page.evaluate(SHOWN, 'train_loss')) == {'FedAvg', 'MOON', 'SA-MOON'}
  assert page.evaluate(CELLS, 0) == ['FedAvg', 'MOON', 'SA-MOON']


def check_hovering(page):
  chart = page.locator('[data-chart=test_accuracy]')
  chart.scroll_into_view_if_needed()
  box = chart.locator('.nsewdrag').bounding_box()
  page.mouse.move(box['x'] + 0.5 * box['width'], box['y'] + 0.5 * box['height'])
  label = chart.locator('.hoverlayer')
  label.locator('text').first.wait_for()
  # The pointer is at round 2; the label shows the nearest of 0.5, 0.6 and 0.7.
  text = label.text_content()
  assert 'communication rounds 2' in text
  assert any(f'{mean} ± 0 (n = 2)' in text for mean in (50, 60, 70))
  # plotly's buttons are there now, and above the plot.
  buttons = chart.locator('.modebar').bounding_box()
  assert buttons['height'] > 10
  assert buttons['y'] + buttons['height'] <= box['y']


@pytest.mark.slow
def test_long_settings_leave_the_numbers_in_sight(browser, tmp_path):
  # The two settings differ in many knobs, as in a folder of many experiments.
  write_run(tmp_path / 'runs/a', [0.5, 0.6])
  write_run(
    tmp_path / 'runs/b',
    [0.5, 0.7],
    '--config.partition.beta=0.1',
    '--config.optimizer.learning_rate=0.002',
    '--config.local_epochs=12',
    '--config.batch_size=96',
    '--config.optimizer.momentum=0.85',
    '--config.optimizer.weight_decay=0.003',
  )
  words = (str(tmp_path / 'runs'), f'--out={tmp_path / "out"}', '--features=none')
  assert main(words) == ExitCode.DONE
  with opened(browser, tmp_path / 'out/index.html', DESKTOP) as page:
    table = page.locator('#table-accuracy')
    assert 'beta=0.5' in table.locator('td').first.inner_text()
    last = table.locator('th').last.bounding_box()
    assert last['x'] + last['width'] <= DESKTOP[0]


@pytest.mark.slow
def test_one_round_of_series_with_long_names(browser, tmp_path):
  write_run(tmp_path / 'runs/a', [0.5])
  write_run(
    tmp_path / 'runs/b',
    [0.6],
    '--config.server_optimizer.learning_rate=0.01',
    '--config.server_optimizer.momentum=0.85',
    '--config.moon.mu=0.5',
    '--config.moon.tau=0.25',
  )
  words = (str(tmp_path / 'runs'), f'--out={tmp_path / "out"}', '--features=none')
  assert main(words) == ExitCode.DONE
  with opened(browser, tmp_path / 'out/index.html', PHONE) as page:
    chart = page.locator('[data-chart=test_accuracy]')
    # Not 0.9, 1, 1.1.
    assert chart.locator('.xtick text').all_text_contents() == ['1']
    chart.scroll_into_view_if_needed()
    point = chart.locator('.point').last.bounding_box()
    page.mouse.move(point['x'] + 2, point['y'] + 2)
    label = chart.locator('.hoverlayer .hovertext')
    label.wait_for()
    text = label.text_content()
    for words in ('tau=0.25', 'communication rounds 1', '60 (n = 1)'):
      assert words in text
    label_box = label.bounding_box()
    chart_box = chart.bounding_box()
    assert label_box['x'] >= chart_box['x']
    label_end = label_box['x'] + label_box['width']
    assert label_end <= chart_box['x'] + chart_box['width']


def test_on_a_phone(browser, page_path):
  with opened(browser, page_path, PHONE) as page:
    # Tables scroll inside their frames, the page does not scroll sideways.
    assert page.evaluate('document.documentElement.scrollWidth') <= PHONE[0]
    frame = page.locator('.table').first
    assert frame.evaluate('(node) => node.scrollWidth > node.clientWidth')
    # A shadow at the edge shows that the frame scrolls; at the end a cover hides it.
    assert frame.evaluate('(node) => getComputedStyle(node).backgroundAttachment') == (
      'local, local, scroll, scroll'
    )
    assert page.locator('details.series').get_attribute('open') is None
    legend = page.locator('.legend').first
    assert legend.inner_text().split('\n')[1::2] == ['FedAvg', 'MOON', 'SA-MOON']
    assert legend.bounding_box()['width'] <= PHONE[0]
    for chart in page.locator('[data-chart]').all():
      assert 250 < chart.bounding_box()['width'] <= PHONE[0]


@pytest.mark.slow
def test_in_the_dark(browser, page_path):
  def colours(scheme):
    with opened(browser, page_path, DESKTOP, scheme) as page:
      ground = page.evaluate('getComputedStyle(document.body).backgroundColor')
      tick = "getComputedStyle(document.querySelector('.xtick text')).fill"
      return brightness(ground), brightness(page.evaluate(tick))

  light, dark = colours('light'), colours('dark')
  assert light[0] > 200 > 60 > light[1]
  assert dark[1] > 200 > 60 > dark[0]


def brightness(colour):
  """'rgb(20, 23, 28)' -> the mean of its three numbers."""
  numbers = [float(word) for word in colour.strip('rgb()').split(',')]
  return sum(numbers) / 3
