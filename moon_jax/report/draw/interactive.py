"""The charts of the page, by plotly. The page's own script gives them its colours."""

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from moon_jax.report.draw.charts import Chart, Line, LineChart, Matrix, Scatter, Spread
from moon_jax.report.draw.styles import Style, style
from moon_jax.report.numbers import naming
from moon_jax.report.numbers.statistics import Estimate

_MOST_ANNOTATED = 20
_MOST_MARKERS = 30
# More lines or longer names would make a box of values that covers the plot.
_MOST_UNIFIED, _LONGEST_UNIFIED = 6, 30
_MOST_TICKS = 10  # that plotly itself would set
_NAME_LETTERS = 26  # in a line beside a box or a point
# plotly's buttons lie at the top right.
_BUTTONS = 32


def figure(chart: Chart, styles: Mapping[str, Style]) -> go.Figure:
  """Draws a chart.

  Args:
    chart: what is drawn.
    styles: label -> style.

  Returns:
    A figure without a title and a legend, which are the page's. The traces of a series
    carry its label as `meta`.
  """
  draw = {LineChart: _lines, Matrix: _matrix, Spread: _spread, Scatter: _scatter}
  drawn = draw[type(chart)](chart, styles)
  drawn.update_layout(
    template='none',
    margin={'l': 8, 'r': 8, 't': _BUTTONS, 'b': 8},
    showlegend=False,
    dragmode=False,
  )
  drawn.update_xaxes(automargin=True)
  drawn.update_yaxes(automargin=True)
  return drawn


def _lines(chart: LineChart, styles: Mapping[str, Style]) -> go.Figure:
  drawn = go.Figure()
  for line in chart.lines:
    if chart.is_sweep:
      drawn.add_trace(_sweep(line, styles[line.label]))
    else:
      drawn.add_trace(_band(line, styles[line.label]))
      drawn.add_trace(_curve(line, styles[line.label]))
  values = sorted({x for line in chart.lines for x in line.x})
  for label, level in chart.levels.items():
    drawn.add_trace(
      _level(label, level, [naming.word(x) for x in values], styles[label])
    )
  names = [*(line.label for line in chart.lines), *chart.levels]
  if len(names) <= _MOST_UNIFIED and max(map(len, names)) <= _LONGEST_UNIFIED:
    drawn.update_layout(hovermode='x unified')
  else:
    drawn.update_layout(hovermode='closest')
    for trace in drawn.data:
      told = f'{_in_lines(trace.name)}<br>{chart.x_label} %{{x}}<br>%{{customdata}}'
      trace.hovertemplate = f'{told}<extra></extra>'
  drawn.update_xaxes(title=chart.x_label)
  drawn.update_yaxes(title=chart.y_label)
  if chart.is_sweep:
    order = [naming.word(x) for x in values]
    drawn.update_xaxes(type='category', categoryorder='array', categoryarray=order)
  else:
    drawn.update_xaxes(**_whole(values))
  return drawn


def _whole(rounds: list[float]) -> dict[str, Any]:
  """An axis of rounds, which are whole numbers, few or many."""
  if len(rounds) == 1:
    return {'dtick': 1, 'range': [rounds[0] - 0.5, rounds[0] + 0.5]}
  return {'dtick': 1 if rounds[-1] - rounds[0] < _MOST_TICKS else None}


def _curve(line: Line, look: Style) -> go.Scatter:
  few = len(line.x) <= _MOST_MARKERS
  mode = 'lines+markers' if few else 'lines'
  return go.Scatter(x=line.x, mode=mode, **_told_line(line, look))


def _told_line(line: Line, look: Style) -> dict[str, Any]:
  """What a curve and a sweep have in common."""
  return {
    'y': [point.mean for point in line.points],
    'line': {'color': look.colour, 'dash': look.dash[1], 'width': 2},
    'marker': {'symbol': look.marker[1], 'size': 7},
    'name': line.label,
    'meta': line.label,
    'customdata': [_told(point) for point in line.points],
    'hovertemplate': '%{customdata}',
  }


def _band(line: Line, look: Style) -> go.Scatter:
  low = [point.mean - (point.std or 0.0) for point in line.points]
  high = [point.mean + (point.std or 0.0) for point in line.points]
  return go.Scatter(
    x=[*line.x, *reversed(line.x)],
    y=[*high, *reversed(low)],
    fill='toself',
    fillcolor=look.colour,
    opacity=0.15,
    mode='none',
    hoverinfo='skip',
    name=line.label,
    meta=line.label,
  )


def _sweep(line: Line, look: Style) -> go.Scatter:
  return go.Scatter(
    x=[naming.word(x) for x in line.x],
    error_y={'array': [point.std or 0.0 for point in line.points], 'width': 4},
    mode='lines+markers',
    **_told_line(line, look),
  )


def _level(label: str, level: Estimate, places: list[str], look: Style) -> go.Scatter:
  return go.Scatter(
    x=places,
    y=[level.mean] * len(places),
    mode='lines',
    line={'color': look.colour, 'dash': look.dash[1], 'width': 2},
    name=label,
    meta=label,
    customdata=[_told(level)] * len(places),
    hovertemplate='%{customdata}',
  )


def _told(point: Estimate) -> str:
  """'83.12 ± 0.41 (n = 3)'."""
  spread = '' if point.std is None else f' ± {point.std:.3g}'
  return f'{point.mean:.4g}{spread} (n = {point.n})'


def _matrix(chart: Matrix, styles: Mapping[str, Style]) -> go.Figure:
  del styles
  annotated = max(chart.values.shape) <= _MOST_ANNOTATED
  drawn = go.Figure(
    go.Heatmap(
      z=chart.values,
      colorscale='Blues',
      zmin=0,
      texttemplate='%{z:.0f}' if annotated else None,
      hovertemplate=f'{chart.x_label} %{{x}}, {chart.y_label} %{{y}}: %{{z}}'
      '<extra></extra>',
      colorbar={'title': {'text': chart.unit, 'side': 'right'}, 'thickness': 12},
    )
  )
  drawn.update_xaxes(title=chart.x_label)
  drawn.update_yaxes(title=chart.y_label, autorange='reversed')
  if annotated:
    drawn.update_xaxes(dtick=1)
    drawn.update_yaxes(dtick=1)
  return drawn


def _spread(chart: Spread, styles: Mapping[str, Style]) -> go.Figure:
  drawn = go.Figure()
  for label, values in chart.groups.items():
    look = styles[label]
    drawn.add_trace(
      go.Box(
        x=values,
        y=[_in_lines(label)] * len(values),
        orientation='h',
        boxpoints='all',
        pointpos=0,
        jitter=0.4,
        fillcolor='rgba(0,0,0,0)',
        line={'color': look.colour},
        marker={'symbol': look.marker[1], 'size': 6, 'color': look.colour},
        name=label,
        meta=label,
        hovertemplate='%{x:.2f}<extra></extra>',
      )
    )
  drawn.update_xaxes(title=chart.y_label)
  drawn.update_yaxes(autorange='reversed')
  return drawn


def name_lines(label: str) -> list[str]:
  """The name of a series in lines that leave room for its box."""
  return textwrap.wrap(label, _NAME_LETTERS, break_on_hyphens=False)


def _in_lines(label: str) -> str:
  return '<br>'.join(name_lines(label))


def _scatter(chart: Scatter, styles: Mapping[str, Style]) -> go.Figure:
  del styles
  drawn = go.Figure()
  for label in np.unique(chart.classes):
    look, mine = style(int(label)), chart.points[chart.classes == label]
    drawn.add_trace(
      go.Scatter(
        x=mine[:, 0].round(2),
        y=mine[:, 1].round(2),
        mode='markers',
        marker={'symbol': look.marker[1], 'size': 4, 'color': look.colour},
        name=f'class {label}',
        hovertemplate='%{fullData.name}<extra></extra>',
      )
    )
  for label in np.unique(chart.classes):
    middle = np.median(chart.points[chart.classes == label], axis=0)
    drawn.add_annotation(
      x=middle[0], y=middle[1], text=f'<b>{label}</b>', showarrow=False
    )
  drawn.update_xaxes(showticklabels=False, showgrid=False, title='t-SNE 1')
  drawn.update_yaxes(
    showticklabels=False, showgrid=False, title='t-SNE 2', scaleanchor='x'
  )
  return drawn
