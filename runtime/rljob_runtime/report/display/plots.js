"use strict";
// Plots of the page: figures in the theme's colours, drawn when they come into sight, and again where they
// changed. Before report.js.
const { live } = document.documentElement.dataset; // where a live page has Plotly from
const isLive = live !== undefined;
const byId = (id) => document.getElementById(id);

function make(tag, className, ...content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  for (const part of content) if (part !== null && part !== undefined) element.append(part);
  return element;
}

// What the page carries packed: gzip in base 85, with "," for "<", as `packed` of report.py writes it.
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";

async function unpacked(id) {
  const text = byId(id).textContent, digits = new Uint8Array(128);
  const words = new DataView(new ArrayBuffer(4 * Math.ceil(text.length / 5)));
  for (let i = 0; i < DIGITS.length; i += 1) digits[DIGITS.charCodeAt(i)] = i;
  for (let i = 0; i < text.length; i += 5) {
    let word = 0;
    for (let j = i; j < i + 5; j += 1) word = 85 * word + (j < text.length ? digits[text.charCodeAt(j)] : 84);
    words.setUint32((i / 5) * 4, word);
  }
  const bytes = new Uint8Array(words.buffer, 0, Math.floor((text.length * 4) / 5));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

// A file that was cut off, or a browser that cannot unpack.
function broken(error) {
  byId("broken").hidden = false;
  throw error;
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
    showlegend: false,
    margin: { l: 8, r: 8, t: 12, b: 8 },
    uirevision: chart.key ?? chart.step,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--quiet") },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--text"), size: 12 } },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    xaxis: axis(style, { showgrid: false, tickformat: ",d", hoverformat: ",d", rangemode: "normal", linecolor: colour("--line"), showline: true, ...figure.layout.xaxis }),
    yaxis: axis(style, figure.layout.yaxis),
  };
  for (const key in figure.layout) if (/^yaxis\d+$/.test(key)) layout[key] = axis(style, figure.layout[key]);
  keepZoom(element, layout);
  const { hidden } = plots.get(element);
  const traces = figure.data.map((trace) => ({ ...trace, visible: !hidden.has(trace.name) }));
  Plotly.react(element, traces, layout, { displayModeBar: false, responsive: true });
  if (!element.dataset.drawn) element.on("plotly_doubleclick", () => { ranges.delete(element); draw(element, plots.get(element).chart); });
  element.dataset.drawn = "true";
}

// The curves' names stand over their plot, where they cover no line. A click hides a curve or shows it again, a
// double click shows it alone or all again; what a reader hid outlives new data. They stand there before the plot is
// drawn: nothing moves when it comes into sight.
function legend(element, { data, layout }) {
  const { hidden } = plots.get(element), place = element.previousElementSibling;
  const looks = (layout.showlegend ? data.filter((trace) => trace.showlegend !== false) : []).map((trace) => ({
    name: trace.name, colour: (trace.line || trace.marker).color, dash: trace.line && trace.line.dash, filled: trace.type === "bar" || Boolean(trace.stackgroup) }));
  const key = JSON.stringify(looks);
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  const mark = () => { for (const item of place.children) item.setAttribute("aria-pressed", String(!hidden.has(item.textContent))); };
  place.replaceChildren(...looks.map(({ name, colour, dash, filled }) => {
    const item = make("button", filled ? "filled" : "", name);
    item.style.setProperty("--swatch", `var(--${colour.slice(1)}, var(--other))`);
    item.style.setProperty("--dash", !dash || dash === "solid" ? "solid" : dash === "dot" ? "dotted" : "dashed");
    item.onclick = ({ detail }) => {
      const others = looks.map((look) => look.name).filter((other) => other !== name);
      if (detail === 2 && others.every((other) => hidden.has(other))) hidden.clear();
      else if (detail === 2) { others.forEach((other) => hidden.add(other)); hidden.delete(name); }
      else if (!hidden.delete(name)) hidden.add(name);
      mark();
      if (element.data) Plotly.restyle(element, { visible: element.data.map((trace) => !hidden.has(trace.name)) });
    };
    return item;
  }));
  mark();
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

// Every plot of the page: what to draw, whether it is drawn, and the names of hidden curves.
const plots = new Map();
const sight = new IntersectionObserver((seen) => {
  for (const { target, isIntersecting } of seen) {
    plots.get(target).inSight = isIntersecting;
    drawIfDue(target);
  }
}, { rootMargin: "300px" });

function plot(element, chart) {
  const known = plots.get(element);
  if (known && known.chart === chart) return;
  plots.set(element, { inSight: false, hidden: new Set(), ...known, chart, due: true });
  if (!known) sight.observe(element);
  legend(element, chart.figure);
  drawIfDue(element);
}

function drawIfDue(element, unseen = false) {
  const entry = plots.get(element);
  if (!window.Plotly || !entry.due || !(entry.inSight || unseen)) return;
  entry.due = false;
  draw(element, entry.chart);
}

const library = (isLive ? fetch(live).then((answer) => answer.text()) : unpacked("plotly")).then((text) => {
  document.body.append(make("script", "", text)); // the page's policy has its hash
  for (const element of plots.keys()) drawIfDue(element);
}).catch(broken);

// The page's data are shown; it is ready when plots are drawn too.
function shown() {
  library.then(() => { document.documentElement.dataset.ready = "true"; });
}

addEventListener("beforeprint", () => { for (const element of plots.keys()) drawIfDue(element, true); });

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const [element, entry] of plots) {
    entry.due = true;
    drawIfDue(element);
  }
});

function chartCard(chart) {
  const plotted = make("div", "plot");
  plotted.id = "plot-" + chart.key;
  const card = make("div", "card chart" + (chart.wide ? " wide" : ""), make("h3", "", chart.title), make("p", "", chart.note), make("div", "legend"), plotted);
  card.dataset.key = chart.key;
  return card;
}

function drawCharts(place, charts) {
  const known = new Map([...byId(place).children].map((card) => [card.dataset.key, card]));
  const cards = charts.map((chart) => known.get(chart.key) || chartCard(chart));
  if (cards.length !== known.size || cards.some((card, i) => byId(place).children[i] !== card)) byId(place).replaceChildren(...cards);
  charts.forEach((chart, i) => plot(cards[i].lastElementChild, chart));
}
