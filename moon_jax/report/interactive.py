"""The charts of the page, by plotly. The page's own script gives them its colours."""

import textwrap
from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from moon_jax.report.charts import Chart, LineChart, Matrix, Scatter, Spread, Style
from moon_jax.runner.plots import MOST_ANNOTATED, shortened

_MOST_MARKERS = 30
_MOST_TICKS = 10  # as many as plotly would set by itself
_NAME_LETTERS = 26  # letters in a line beside a box or a point
# plotly's buttons are at the top right.
_BUTTONS = 32
_MARGIN = {'l': 8, 'r': 8, 't': _BUTTONS, 'b': 8}


def figure(chart: Chart, looks: Mapping[str, Style]) -> go.Figure:
  """Draws a chart.

  Args:
    chart: the chart.
    looks: label -> style.

  Returns:
    A figure without a title and a legend, because the page has them. The traces of a
    series carry its label as `meta`.
  """
  draw = {LineChart: _lines, Matrix: _matrix, Spread: _boxes, Scatter: _scatter}
  drawn = go.Figure()
  draw[type(chart)](drawn, chart, looks)
  drawn.update_layout(template='none', margin=_MARGIN, showlegend=False, dragmode=False)
  drawn.update_xaxes(automargin=True)
  drawn.update_yaxes(automargin=True)
  return drawn


def _lines(drawn: go.Figure, chart: LineChart, looks: Mapping[str, Style]) -> None:
  for line in chart.lines:
    look, (low, mean, high) = looks[line.label], line.band
    x, series = line.points.index.tolist(), {'name': line.label, 'meta': line.label}
    told = f'{_in_lines(line.label)}<br>{chart.x_label} %{{x}}<br>%{{customdata}}'
    band = {'fillcolor': look.colour, 'opacity': 0.15, 'mode': 'none'} | series
    x_band, y_band = [*x, *reversed(x)], [*high, *reversed(low)]
    drawn.add_scatter(x=x_band, y=y_band, fill='toself', hoverinfo='skip', **band)
    drawn.add_scatter(
      x=x,
      y=list(mean),
      mode='lines+markers' if len(mean) <= _MOST_MARKERS else 'lines',
      line={'color': look.colour, 'dash': look.dash[1], 'width': 2},
      marker={'symbol': look.marker[1], 'size': 7},
      customdata=[_told(*point) for point in line.points.itertuples(index=False)],
      hovertemplate=f'{told}<extra></extra>',
      **series,
    )
  drawn.update_layout(hovermode='closest')
  drawn.update_xaxes(title=chart.x_label)
  drawn.update_yaxes(title=chart.y_label)
  values = sorted({x for line in chart.lines for x in line.points.index})
  if chart.ticks:
    drawn.update_xaxes(tickvals=values, ticktext=chart.ticks)
  elif len(values) == 1:
    drawn.update_xaxes(dtick=1, range=[values[0] - 0.5, values[0] + 0.5])
  elif values[-1] - values[0] < _MOST_TICKS:
    drawn.update_xaxes(dtick=1)


def _told(mean: float, std: float, n: float) -> str:
  """'83.12 ± 0.41 (n = 3)'."""
  spread = '' if np.isnan(std) else f' ± {std:.3g}'
  return f'{mean:.4g}{spread} (n = {n:.0f})'


def _matrix(drawn: go.Figure, chart: Matrix, looks: Mapping[str, Style]) -> None:
  annotated = max(chart.values.shape) <= MOST_ANNOTATED
  where = f'{chart.x_label} %{{x}}, {chart.y_label} %{{y}}'
  drawn.add_heatmap(
    z=chart.values,
    x=[*chart.columns] or None,
    y=[*chart.rows] or None,
    colorscale='Blues',
    zmin=0,
    texttemplate='%{z:.0f}' if annotated else None,
    hovertemplate=f'{where}: %{{z}}<extra></extra>',
    colorbar={'title': {'text': chart.unit, 'side': 'right'}, 'thickness': 12},
  )
  every = 1 if annotated else None
  # Plotly would take names that are numerals for numbers.
  kinds = ('category' if names else None for names in (chart.columns, chart.rows))
  drawn.update_xaxes(title=chart.x_label, dtick=every, type=next(kinds))
  drawn.update_yaxes(title=chart.y_label, dtick=every, type=next(kinds))
  drawn.update_yaxes(autorange='reversed')


def _boxes(drawn: go.Figure, chart: Spread, looks: Mapping[str, Style]) -> None:
  every_point = {'boxpoints': 'all', 'pointpos': 0, 'jitter': 0.4}
  for label, values in chart.groups.items():
    look = looks[label]
    ends = np.percentile(values, [0, 25, 50, 75, 100])[:, None]
    names = ('lowerfence', 'q1', 'median', 'q3', 'upperfence')
    drawn.add_box(
      x=[values],
      y=[_in_lines(label)],
      **dict(zip(names, ends, strict=True)),
      orientation='h',
      fillcolor='rgba(0,0,0,0)',
      line={'color': look.colour},
      marker={'symbol': look.marker[1], 'size': 6, 'color': look.colour},
      name=label,
      meta=label,
      hovertemplate='%{x:.2f}<extra></extra>',
      **every_point,
    )
  drawn.update_xaxes(title=chart.x_label)
  drawn.update_yaxes(autorange='reversed')


def name_lines(label: str) -> list[str]:
  """The name of a series, in lines that leave room for its box."""
  return textwrap.wrap(label, _NAME_LETTERS, break_on_hyphens=False)


def _in_lines(label: str) -> str:
  return '<br>'.join(name_lines(label))


def _scatter(drawn: go.Figure, chart: Scatter, looks: Mapping[str, Style]) -> None:
  for label, points, look in chart.by_class():
    drawn.add_scatter(
      x=points[:, 0].round(2),
      y=points[:, 1].round(2),
      mode='markers',
      marker={'symbol': look.marker[1], 'size': 4, 'color': look.colour},
      name=label if chart.class_names else f'class {label}',
      hovertemplate='%{fullData.name}<extra></extra>',
    )
    x, y = np.median(points, axis=0)
    drawn.add_annotation(x=x, y=y, text=f'<b>{shortened(label)}</b>', showarrow=False)
  hidden = {'showticklabels': False, 'showgrid': False}
  drawn.update_xaxes(title='t-SNE 1', **hidden)
  drawn.update_yaxes(title='t-SNE 2', scaleanchor='x', **hidden)
