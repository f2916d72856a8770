"""Makes the PNG pictures of docs/images from runs.

  python -m docs.images [NAME ...]

  start      pictures of the run on the page "Start"
  tutorial   figures of the report on the page "A table from nothing"
  report     that report in a browser; needs Chromium, and Playwright of the extra dev

Without a name, the program makes all of them. It runs the commands of the pages in the
root of the repository, so it uses finished runs in runs/ again. No program makes the
SVG files in the folder.
"""

import io
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from PIL import Image

from moon_jax.core.errors import ExitCode, UsageError, exit_code_of

DOCS = pathlib.Path(__file__).parent
ROOT, IMAGES = DOCS.parent, DOCS / 'images'
_REPORT = 'runs/tutorial/report'
_DESK, _PHONE, _GAP = (745, 800), (370, 800), 14  # pixels
_WIDER = 1.5  # width of a desktop window / width of its picture

# Name -> page, start of the command on it, and picture of the run -> picture here.
COPIED = {
  'start': (
    'start',
    'launch.py',
    {
      'runs/digits_moon-moon-s0/curves.png': 'digits_curves.png',
      'runs/digits_moon-moon-s0/partition.png': 'digits_partition.png',
    },
  ),
  'tutorial': (
    'tutorial',
    '-m moon_jax.sweep',
    {
      f'{_REPORT}/figures/{figure}.png': f'tutorial_{name}.png'
      for figure, name in (
        ('test_accuracy', 'accuracy'),
        ('partition', 'partition'),
        ('clients', 'clients'),
        ('contrastive_share', 'contrastive_share'),
        ('tsne', 'tsne'),
      )
    },
  ),
}
BROWSED = 'report.png'


def command(page: str, program: str) -> list[str]:
  """The words of the first command of a page that runs a program, without `python`."""
  text = (DOCS / f'{page}.md').read_text().replace('\\\n', ' ')
  line = re.search(rf'^(?:\$ )?python ({re.escape(program)}\b.*)$', text, re.M)
  return shlex.split(line[1])


def copy(name: str) -> None:
  """Runs the command of a page, and copies the pictures that it has made."""
  page, program, pictures = COPIED[name]
  subprocess.run([sys.executable, *command(page, program)], cwd=ROOT, check=True)
  for source, target in pictures.items():
    shutil.copyfile(ROOT / source, IMAGES / target)


def browse() -> None:
  """Takes pictures of the tutorial's report: on a desktop, and dark on a phone."""
  from playwright import sync_api

  page, shots = (ROOT / _REPORT / 'index.html').as_uri(), []
  with sync_api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(
      executable_path=shutil.which('chromium'), args=['--no-sandbox']
    )
    for size, scheme, scale in ((_DESK, 'light', _WIDER), (_PHONE, 'dark', 1)):
      window = {'width': int(scale * size[0]), 'height': int(scale * size[1])}
      opened = browser.new_page(viewport=window, color_scheme=scheme)
      opened.goto(page)
      opened.evaluate('charts.forEach(draw)')
      if scheme == 'dark':
        opened.locator('h2', has_text='Over rounds').evaluate(
          'one => one.scrollIntoView()'
        )
      shots.append(Image.open(io.BytesIO(opened.screenshot())).resize(size))
    browser.close()
  whole = Image.new('RGB', (_DESK[0] + _GAP + _PHONE[0], _DESK[1]), 'grey')
  for shot, left in zip(shots, (0, _DESK[0] + _GAP), strict=True):
    whole.paste(shot, (left, 0))
  whole.save(IMAGES / BROWSED)


def main(argv: Sequence[str]) -> int:
  """Runs the program; returns the exit code."""
  makers = {name: lambda name=name: copy(name) for name in COPIED} | {'report': browse}

  def program():
    if unknown := set(argv) - set(makers):
      wanted = ', '.join(makers)
      raise UsageError(f'{min(unknown)!r} must be one of {wanted}.')
    for name, make in makers.items():
      if not argv or name in argv:
        make()
    return ExitCode.DONE

  return exit_code_of(program)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
