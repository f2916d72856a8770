'use strict';

const figures = JSON.parse(document.getElementById('figures').textContent);
const charts = [...document.querySelectorAll('[data-chart]')];
const boxes = [...document.querySelectorAll('input[data-series]')];
const dark = matchMedia('(prefers-color-scheme: dark)');

function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ['ground', 'raised', 'ink', 'faint', 'rule', 'grid'];
  return Object.fromEntries(
    names.map((name) => [name, style.getPropertyValue('--' + name).trim()]));
}

// plotly's axes, hover boxes and annotations, in the page's colours.
function themed(layout) {
  const { ground, raised, ink, faint, rule, grid } = colours();
  const axis = { gridcolor: grid, linecolor: rule, tickcolor: rule, zeroline: false };
  return {
    ...layout,
    paper_bgcolor: 'rgba(0,0,0,0)',
    plot_bgcolor: 'rgba(0,0,0,0)',
    font: { ...layout.font, color: ink, size: 12 },
    xaxis: { ...layout.xaxis, ...axis },
    yaxis: { ...layout.yaxis, ...axis },
    modebar: { bgcolor: 'rgba(0,0,0,0)', color: faint, activecolor: ink },
    hoverlabel: { bgcolor: raised, bordercolor: rule, font: { color: ink }, namelength: -1 },
    annotations: (layout.annotations || []).map((note) => ({
      ...note, bgcolor: ground, opacity: 0.85, arrowcolor: faint,
      font: { ...note.font, color: ink },
    })),
  };
}

function traces(data) {
  const hidden = new Set(boxes.filter((box) => !box.checked).map((box) => box.dataset.series));
  const { ground } = colours();
  return data.map((trace) => {
    const shown = { ...trace, visible: !hidden.has(trace.meta) };
    if (trace.type === 'heatmap') {
      shown.colorscale = [[0, ground], [1, dark.matches ? '#56b4e9' : '#0072b2']];
    }
    return shown;
  });
}

function draw(chart) {
  const { data, layout } = figures[chart.dataset.chart];
  const config = {
    responsive: true,
    displaylogo: false,
    modeBarButtons: [['toImage', 'zoom2d', 'pan2d', 'resetScale2d']],
  };
  Plotly.react(chart, traces(data), themed(layout), config);
}

function drawn() {
  return charts.filter((chart) => chart.classList.contains('js-plotly-plot'));
}

// A report may hold a hundred charts: each is drawn when it comes into sight.
const sight = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) {
      sight.unobserve(target);
      draw(target);
    }
  }
}, { rootMargin: '600px' });
charts.forEach((chart) => sight.observe(chart));
addEventListener('beforeprint', () => charts.forEach(draw));
dark.addEventListener('change', () => drawn().forEach(draw));

function showSeries() {
  const hidden = new Set(boxes.filter((box) => !box.checked).map((box) => box.dataset.series));
  for (const row of document.querySelectorAll('tr[data-series], .legend [data-series]')) {
    row.hidden = hidden.has(row.dataset.series);
  }
  drawn().forEach(draw);
}
boxes.forEach((box) => box.addEventListener('change', showSeries));
// A long list would cover a phone's screen.
if (innerWidth < 700) {
  document.querySelector('.series')?.removeAttribute('open');
}

function compare(a, b) {
  const [x, y] = [a, b].map((text) => (text === '' ? NaN : Number(text)));
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
}

function sort(heading) {
  const headings = [...heading.parentElement.children];
  const index = headings.indexOf(heading);
  const falling = heading.getAttribute('aria-sort') === 'ascending';
  headings.forEach((other) => other.removeAttribute('aria-sort'));
  heading.setAttribute('aria-sort', falling ? 'descending' : 'ascending');
  const body = heading.closest('table').tBodies[0];
  const key = (row) => row.cells[index].dataset.sort;
  // What is not there comes last, whichever way.
  const order = (a, b) => (key(a) === '') - (key(b) === '')
    || (falling ? compare(key(b), key(a)) : compare(key(a), key(b)));
  body.append(...[...body.rows].sort(order));
}
for (const heading of document.querySelectorAll('th')) {
  heading.firstElementChild.addEventListener('click', () => sort(heading));
}
