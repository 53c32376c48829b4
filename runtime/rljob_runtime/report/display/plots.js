"use strict";
// Plots of the page: figures in the theme's colours, drawn again where they changed. Before report.js.
const isLive = document.documentElement.dataset.live === "true";
const byId = (id) => document.getElementById(id);

function make(tag, className, ...content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  for (const part of content) if (part !== null && part !== undefined) element.append(part);
  return element;
}

// Colours of the present theme in place of the figures' tokens.
function themed(value, style) {
  if (typeof value === "string" && value.startsWith("@")) {
    const name = value.slice(1);
    return style.getPropertyValue("--" + name).trim() || style.getPropertyValue("--other").trim();
  }
  if (Array.isArray(value)) return value.map((item) => themed(item, style));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item, style)]));
  }
  return value;
}

function axis(style, options) {
  return { gridcolor: style.getPropertyValue("--grid").trim(), zeroline: false, automargin: true, nticks: 6, ...options };
}

function draw(element, chart) {
  const style = getComputedStyle(document.documentElement);
  const figure = themed(chart.figure, style);
  const colour = (name) => style.getPropertyValue(name).trim();
  const layout = {
    ...figure.layout,
    margin: { l: 8, r: 8, t: figure.layout.showlegend ? 30 : 12, b: 8 },
    uirevision: chart.key ?? chart.step, // what a reader hid in the legend outlives new data
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--quiet") },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--text"), size: 12 } },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal" },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    xaxis: axis(style, { showgrid: false, tickformat: ",d", hoverformat: ",d", rangemode: "normal", linecolor: colour("--line"), showline: true, ...figure.layout.xaxis }),
    yaxis: axis(style, figure.layout.yaxis),
  };
  for (const key in figure.layout) if (/^yaxis\d+$/.test(key)) layout[key] = axis(style, figure.layout[key]);
  keepZoom(element, layout);
  Plotly.react(element, figure.data, layout, { displayModeBar: false, responsive: true });
  if (!element.dataset.drawn) element.on("plotly_doubleclick", () => { ranges.delete(element); draw(element, plots.get(element).chart); });
  element.dataset.drawn = "true";
}

// The ranges that each plot was last given. Where it has others now, a reader has zoomed, and keeps them until a
// double click; Plotly by itself keeps those alone that new data leave as they were.
const ranges = new Map();

function keepZoom(element, layout) {
  const before = ranges.get(element) || {}, own = { revision: layout.uirevision };
  for (const key in layout) {
    if (!/^[xy]axis/.test(key) || !layout[key].range) continue;
    own[key] = [...layout[key].range];
    const now = element.layout && element.layout[key] && element.layout[key].range;
    const zoomed = before[key] && now && before[key].some((end, i) => end !== now[i]);
    if (zoomed && before.revision === own.revision) layout[key].range = [...now];
  }
  ranges.set(element, own);
}

// Every plot of the page: what to draw, and whether it is drawn. A live page draws those in sight.
const plots = new Map();
const sight = isLive && new IntersectionObserver((seen) => {
  for (const { target, isIntersecting } of seen) {
    plots.get(target).inSight = isIntersecting;
    drawIfDue(target);
  }
}, { rootMargin: "300px" });

function plot(element, chart) {
  const known = plots.get(element);
  if (known && known.chart === chart) return;
  plots.set(element, { chart, due: true, inSight: known ? known.inSight : !isLive });
  if (!known && sight) sight.observe(element);
  drawIfDue(element);
}

function drawIfDue(element) {
  const entry = plots.get(element);
  if (!entry.due || !entry.inSight) return;
  entry.due = false;
  draw(element, entry.chart);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const [element, entry] of plots) {
    entry.due = true;
    drawIfDue(element);
  }
});

function chartCard(chart) {
  const plotted = make("div", "plot");
  plotted.id = "plot-" + chart.key;
  const card = make("div", "card chart" + (chart.wide ? " wide" : ""), make("h3", "", chart.title), make("p", "", chart.note), plotted);
  card.dataset.key = chart.key;
  return card;
}

function drawCharts(place, charts) {
  const known = new Map([...byId(place).children].map((card) => [card.dataset.key, card]));
  const cards = charts.map((chart) => known.get(chart.key) || chartCard(chart));
  if (cards.length !== known.size || cards.some((card, i) => byId(place).children[i] !== card)) byId(place).replaceChildren(...cards);
  charts.forEach((chart, i) => plot(cards[i].lastElementChild, chart));
}
