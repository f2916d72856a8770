"""Makes the PNG pictures of docs/images from runs.

  python -m docs.images [NAME ...]

  start      pictures of the run on the page "Start"
  tutorial   figures of the report on the page "A comparison from nothing"
  report     that report in a browser; needs Chromium, and Playwright of the extra dev

Without a name, the program makes all of them. It runs the commands of the pages in the
root of the repository, so it uses finished runs in runs/ again. No program makes the
SVG files in the folder; `python -m papers.build` makes those in experiments/.
"""

import io
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from moon_jax.core.errors import ExitCode, UsageError, exit_code_of

DOCS = pathlib.Path(__file__).parent
ROOT = DOCS.parent
IMAGES = DOCS / 'images'
_REPORT = 'runs/tutorial/report'
_DESKTOP_SIZE = (745, 800)  # pixels
_PHONE_SIZE = (370, 800)
_GAP = 14
_DESKTOP_SCALE = 1.5  # width of a desktop window / width of its picture


class CopiedPictures(NamedTuple):
  """Pictures that a command of a page makes.

  Attributes:
    page: the page, without its suffix.
    program: how the command begins, without `python`.
    pictures: picture that the command makes, from the root -> its name in docs/images.
  """

  page: str
  program: str
  pictures: dict[str, str]


COPIED = {
  'start': CopiedPictures(
    page='start',
    program='launch.py',
    pictures={
      'runs/digits_moon-moon-s0/curves.png': 'digits_curves.png',
      'runs/digits_moon-moon-s0/partition.png': 'digits_partition.png',
    },
  ),
  'tutorial': CopiedPictures(
    page='tutorial',
    program='-m moon_jax.sweep',
    pictures={
      f'{_REPORT}/figures/test_accuracy.png': 'tutorial_accuracy.png',
      f'{_REPORT}/figures/partition.png': 'tutorial_partition.png',
      f'{_REPORT}/figures/class_shares.png': 'tutorial_clients.png',
      f'{_REPORT}/figures/contrastive_share.png': 'tutorial_contrastive_share.png',
      f'{_REPORT}/figures/tsne.png': 'tutorial_tsne.png',
    },
  ),
}
BROWSED = 'report.png'


def command(page: str, program: str) -> list[str]:
  """The words of the first command of a page that runs a program, without `python`."""
  text = (DOCS / f'{page}.md').read_text().replace('\\\n', ' ')
  match = re.search(rf'^(?:\$ )?python ({re.escape(program)}\b.*)$', text, re.M)
  return shlex.split(match[1])


def copy(copied: CopiedPictures) -> None:
  """Runs the command of a page, and copies the pictures that it has made."""
  words = command(copied.page, copied.program)
  subprocess.run([sys.executable, *words], cwd=ROOT, check=True)
  for source, target in copied.pictures.items():
    shutil.copyfile(ROOT / source, IMAGES / target)


def browse() -> None:
  """Takes pictures of the tutorial's report: on a desktop, and dark on a phone."""
  from playwright import sync_api

  with sync_api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(
      executable_path=shutil.which('chromium'), args=['--no-sandbox']
    )
    desktop = _open(browser, _DESKTOP_SIZE, 'light', scale=_DESKTOP_SCALE)
    desktop_shot = _take_shot(desktop, _DESKTOP_SIZE)
    phone = _open(browser, _PHONE_SIZE, 'dark', scale=1.0)
    heading = phone.locator('h2', has_text='Over rounds')
    heading.evaluate('element => element.scrollIntoView()')
    phone_shot = _take_shot(phone, _PHONE_SIZE)
    browser.close()
  width = _DESKTOP_SIZE[0] + _GAP + _PHONE_SIZE[0]
  picture = Image.new('RGB', (width, _DESKTOP_SIZE[1]), 'grey')
  picture.paste(desktop_shot, (0, 0))
  picture.paste(phone_shot, (_DESKTOP_SIZE[0] + _GAP, 0))
  picture.save(IMAGES / BROWSED)


def _open(browser, size, color_scheme, *, scale):
  """The report in a window that is `scale` times as large as its picture."""
  width, height = size
  window = {'width': int(scale * width), 'height': int(scale * height)}
  page = browser.new_page(viewport=window, color_scheme=color_scheme)
  page.goto((ROOT / _REPORT / 'index.html').as_uri())
  page.evaluate('charts.forEach(draw)')
  return page


def _take_shot(page, size):
  return Image.open(io.BytesIO(page.screenshot())).resize(size)


def main(argv: Sequence[str]) -> int:
  """Runs the program; returns the exit code."""
  names = [*COPIED, 'report']

  def program():
    for name in argv:
      if name not in names:
        raise UsageError(f'{name!r} must be one of {", ".join(names)}.')
    for name in argv or names:
      if name in COPIED:
        copy(COPIED[name])
      else:
        browse()
    return ExitCode.DONE

  return exit_code_of(program)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
