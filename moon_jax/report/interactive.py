"""The charts of the page, by plotly. The page's own script gives them its colours."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from moon_jax.report import labels
from moon_jax.report.charts import (
  Chart,
  ClassPoints,
  Line,
  LineChart,
  Matrix,
  Scatter,
  Spread,
  Style,
  covered_lines,
  num_rims,
)
from moon_jax.runner.plots import MOST_ANNOTATED, shortened

_MAX_MARKERS = 30
_RIM_PIXELS = 4  # by which a line is wider than one that lies on it
_MAX_TICKS = 10  # as many as plotly would set by itself
_NAME_LETTERS = 26  # letters in a line beside a box or a point
_NAME_PIXELS = 13  # size of the letters of a class's name
_LETTER_PIXELS, _LINE_PIXELS = 8.5, 20.0  # width of such a letter, height of a label
_PANEL_PIXELS = 330.0  # side of the smallest panel of a scatter
# plotly's buttons are at the top right.
_BUTTONS = 32
_MARGIN = {'l': 8, 'r': 8, 't': _BUTTONS, 'b': 8}


def figure(chart: Chart, styles: Mapping[str, Style]) -> go.Figure:
  """Draws a chart.

  Args:
    chart: the chart.
    styles: label -> style.

  Returns:
    A figure without a title and a legend, because the page has them. The traces of a
    series carry its label as `meta`.
  """
  drawing = go.Figure()
  if isinstance(chart, LineChart):
    _add_lines(drawing, chart, styles)
  elif isinstance(chart, Matrix):
    _add_matrix(drawing, chart)
  elif isinstance(chart, Spread):
    _add_boxes(drawing, chart, styles)
  else:
    _add_scatter(drawing, chart)
  drawing.update_layout(
    template='none', margin=_MARGIN, showlegend=False, dragmode=False
  )
  drawing.update_xaxes(automargin=True)
  drawing.update_yaxes(automargin=True)
  return drawing


def _add_lines(
  drawing: go.Figure, chart: LineChart, styles: Mapping[str, Style]
) -> None:
  covered = covered_lines(chart.lines)
  rims = num_rims(covered)
  for index, line in enumerate(chart.lines):
    style = line.style or styles[line.label]
    names = [line.label, *(chart.lines[lower].label for lower in covered[index])]
    _add_band(drawing, line, style)
    _add_line(drawing, chart, line, style, names, rim=_RIM_PIXELS * rims[index])
  drawing.update_layout(hovermode='closest')
  drawing.update_xaxes(title=chart.x_label)
  drawing.update_yaxes(title=chart.y_label)
  all_x = sorted({x for line in chart.lines for x in line.points.index})
  if chart.ticks:
    drawing.update_xaxes(tickvals=all_x, ticktext=chart.ticks)
  elif len(all_x) == 1:
    drawing.update_xaxes(dtick=1, range=[all_x[0] - 0.5, all_x[0] + 0.5])
  elif all_x[-1] - all_x[0] < _MAX_TICKS:
    drawing.update_xaxes(dtick=1)


def _add_band(drawing: go.Figure, line: Line, style: Style) -> None:
  """The area of one deviation around the mean."""
  x = line.points.index.tolist()
  lower, _, upper = line.band
  drawing.add_scatter(
    x=[*x, *reversed(x)],
    y=[*upper, *reversed(lower)],
    fill='toself',
    hoverinfo='skip',
    fillcolor=style.colour,
    opacity=0.15,
    mode='none',
    name=line.label,
    meta=_series_of(line),
  )


def _series_of(line: Line) -> str | None:
  """The series with which a line is shown; None for a line that is of no series."""
  return line.label if line.style is None else None


def _add_line(
  drawing: go.Figure,
  chart: LineChart,
  line: Line,
  style: Style,
  names: Sequence[str],
  rim: float,
) -> None:
  """The mean.

  Args:
    drawing: the figure.
    chart: the chart.
    line: one of its lines.
    style: its style.
    names: its label, and those of the lines on which it lies.
    rim: pixels that stay visible of it under the lines that lie on it.
  """
  x = line.points.index.tolist()
  _, mean, _ = line.band
  drawing.add_scatter(
    x=x,
    y=list(mean),
    mode='lines+markers' if len(mean) <= _MAX_MARKERS else 'lines',
    line={'color': style.colour, 'dash': style.dash.plotly, 'width': 2 + rim},
    marker={'symbol': style.marker.plotly, 'size': 7 + rim},
    customdata=[
      _estimate_text(mean, std, n)
      for mean, std, n in line.points.itertuples(index=False)
    ],
    hovertemplate=f'{"<br>≈ ".join(map(_with_breaks, names))}<br>'
    f'{chart.x_label} %{{x}}<br>'
    '%{customdata}<extra></extra>',
    name=line.label,
    meta=_series_of(line),
  )


def _estimate_text(mean: float, std: float, n: float) -> str:
  """'83.12 ± 0.41 (n = 3)'."""
  deviation = '' if np.isnan(std) else f' ± {std:.3g}'
  return f'{mean:.4g}{deviation} (n = {n:.0f})'


def _add_matrix(drawing: go.Figure, chart: Matrix) -> None:
  is_annotated = max(chart.values.shape) <= MOST_ANNOTATED
  drawing.add_heatmap(
    z=chart.values,
    x=[*chart.columns] or None,
    y=[*chart.rows] or None,
    colorscale='Blues',
    zmin=0,
    texttemplate='%{z:.0f}' if is_annotated else None,
    hovertemplate=f'{chart.x_label} %{{x}}, {chart.y_label} %{{y}}: '
    '%{z}<extra></extra>',
    colorbar={'title': {'text': chart.unit, 'side': 'right'}, 'thickness': 12},
  )
  tick_distance = 1 if is_annotated else None
  drawing.update_xaxes(
    title=chart.x_label, dtick=tick_distance, type=_axis_type(chart.columns)
  )
  drawing.update_yaxes(
    title=chart.y_label, dtick=tick_distance, type=_axis_type(chart.rows)
  )
  drawing.update_yaxes(autorange='reversed')


def _axis_type(names: Sequence[str]) -> str | None:
  """Plotly would take names that are numerals for numbers."""
  return 'category' if names else None


def _add_boxes(drawing: go.Figure, chart: Spread, styles: Mapping[str, Style]) -> None:
  for label, values in chart.groups.items():
    style = styles[label]
    # An array of one number for the one box of the trace.
    lowest, quartile, median, upper_quartile, highest = np.percentile(
      values, [0, 25, 50, 75, 100]
    )[:, None]
    drawing.add_box(
      x=[values],
      y=[_with_breaks(label)],
      lowerfence=lowest,
      q1=quartile,
      median=median,
      q3=upper_quartile,
      upperfence=highest,
      orientation='h',
      fillcolor='rgba(0,0,0,0)',
      line={'color': style.colour},
      marker={'symbol': style.marker.plotly, 'size': 6, 'color': style.colour},
      name=label,
      meta=label,
      customdata=[chart.names[label]],
      hovertemplate='%{customdata}: %{x:.2f}<extra></extra>',
      boxpoints='all',
      pointpos=0,
      jitter=0.4,
    )
  drawing.update_xaxes(title=chart.x_label)
  drawing.update_yaxes(autorange='reversed')


def name_lines(label: str) -> list[str]:
  """The name of a series, in lines that leave room for its box."""
  return textwrap.wrap(label, _NAME_LETTERS, break_on_hyphens=False)


def _with_breaks(label: str) -> str:
  return '<br>'.join(name_lines(label))


def _add_names(drawing: go.Figure, classes: Sequence[ClassPoints]) -> None:
  """The names of the classes, none over another; a line leads to the median."""
  names = [shortened(entry.label) for entry in classes]
  medians = np.array([np.median(entry.points, axis=0) for entry in classes])
  points = np.concatenate([entry.points for entry in classes])
  low, high = points.min(axis=0), points.max(axis=0)
  # Both axes have one scale: the longer one fills the panel.
  length = max((high - low).max(), 1e-9)
  corner = (low + high - length) / 2
  sizes = [
    [(_LETTER_PIXELS * len(name) + 6) / _PANEL_PIXELS, _LINE_PIXELS / _PANEL_PIXELS]
    for name in names
  ]
  placement = labels.placed((medians - corner) / length, np.array(sizes))
  centres = corner + length * placement.centres
  for name, (x, y), (name_x, name_y) in zip(names, medians, centres, strict=True):
    drawing.add_annotation(
      x=x,
      y=y,
      ax=name_x,
      ay=name_y,
      axref='x',
      ayref='y',
      arrowhead=0,
      arrowwidth=1,
      text=f'<b>{name}</b>',
      font={'size': _NAME_PIXELS * placement.scale},
    )


def _add_scatter(drawing: go.Figure, chart: Scatter) -> None:
  for label, points, style in chart.by_class():
    drawing.add_scatter(
      x=points[:, 0].round(2),
      y=points[:, 1].round(2),
      mode='markers',
      marker={'symbol': style.marker.plotly, 'size': 4, 'color': style.colour},
      name=label if chart.class_names else f'class {label}',
      hovertemplate='%{fullData.name}<extra></extra>',
    )
  classes = chart.by_class()
  if len(classes) <= MOST_ANNOTATED:
    _add_names(drawing, classes)
  drawing.update_xaxes(title='t-SNE 1', showticklabels=False, showgrid=False)
  drawing.update_yaxes(
    title='t-SNE 2', scaleanchor='x', showticklabels=False, showgrid=False
  )
