"""Makes texts of run directories, which anyone may have written, harmless."""

from typing import Any

from moon_jax.core.errors import printable


def escaped(content: Any) -> Any:
  """JSON content whose texts command no terminal and no spreadsheet.

  >>> escaped({'title': '=1+1'})
  {'title': "'=1+1"}
  """
  if isinstance(content, dict):
    return {escaped(key): escaped(entry) for key, entry in content.items()}
  if isinstance(content, list):
    return [escaped(entry) for entry in content]
  if not isinstance(content, str):
    return content
  text = printable(content)
  # A spreadsheet takes a text that begins so for a formula.
  return f"'{text}" if content.startswith(('=', '+', '-', '@')) else text
