// Fills the report from its JSON, and again what has changed where live.js brings news. Every text of the run
// goes in as text, never as markup.
const data = {};
const PHASE_COLOURS = { reward: "--reward-phase" };
const KNOWN_PHASES = ["generate", "reference", "reward", "update", "sync"];

function phaseColour(name) {
  return "var(" + (PHASE_COLOURS[name] || (KNOWN_PHASES.includes(name) ? "--" + name : "--other")) + ")";
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "nan";
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(digits)));
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (value >= 1024 && i < units.length - 1) { value /= 1024; i += 1; }
  return number(value) + " " + units[i];
}

function seconds(value) {
  return value < 0.1 ? number(value * 1000, 2) + " ms" : number(value, 3) + " s";
}

function table(heads, rows, rightFrom = heads.length) {
  const cells = (tag, parts) => parts.map((part, i) => make(tag, i >= rightFrom ? "right" : "", part instanceof Node ? part : String(part)));
  const body = make("tbody", "", ...rows.map((row) => make("tr", "", ...cells("td", row))));
  if (!heads.some(Boolean)) return make("div", "scroll", make("table", "", body));
  return make("div", "scroll", make("table", "", make("thead", "", make("tr", "", ...cells("th", heads))), body));
}

function header() {
  byId("name").textContent = data.name;
  byId("started").textContent = data.started;
  const { kind, message, step, total, doing, left } = data.status;
  const pill = byId("status");
  pill.className = "pill " + kind;
  pill.textContent = kind === "succeeded" ? kind : `${kind} at step ${step} of ${total}` + (left && isLive ? `, ${left} left` : "");
  byId("progress").hidden = !isLive || kind !== "running";
  byId("progress").firstElementChild.style.width = (100 * step) / Math.max(total, 1) + "%";
  byId("facts").replaceChildren(...data.facts.map(([label, text]) => make("div", "", make("dt", "", label), make("dd", "", text))));
  byId("message").hidden = !message;
  byId("message").textContent = message;
  byId("doing").hidden = !doing || !isLive;
  byId("doing").textContent = doing;
}

function alarms() {
  const active = data.alarms.filter((alarm) => alarm.until === null);
  byId("active-alarms").replaceChildren(...active.map((alarm) =>
    make("p", "message", make("strong", "", `Alarm ${alarm.guard}`), ` since step ${alarm.since}: ${alarm.text}`)));
  byId("alarms").hidden = data.alarms.length === 0;
  const follows = (alarm) => alarm.rolledBackTo !== null ? `rolled back to step ${alarm.rolledBackTo}`
    : alarm.until === null ? make("span", "wrong", "active") : `over at step ${alarm.until}`;
  byId("alarm-card").replaceChildren(table(["guard", "since step", "raised at", "policy", "now", "message"],
    data.alarms.map((a) => [a.guard, a.since, a.step, a.policy, follows(a), a.text])));
}

function tile(place, label, big, under) {
  return make("div", "card " + place, make("div", "label", label), make("div", "big", ...big), make("div", "under", ...under));
}

function change(before, after) {
  return before === undefined ? [after] : [make("span", "from", before), make("span", "arrow", "→"), make("wbr"), after];
}

function accuracyTile(result) {
  const points = result.accuracy;
  if (!points) return tile("first", "Held-out accuracy", ["–"], [data.status.kind === "running" ? "no evaluation yet" : "no evaluation in this run"]);
  const last = points[points.length - 1];
  const under = result.gain
    ? [make("span", "gain " + result.gainSign, result.gain), ` · ${result.gainInterval}`]
    : [`after step ${last.step} · 95 % interval ${last.interval.map((v) => (100 * v).toFixed(1)).join("–")}`];
  const card = tile("first", `Held-out accuracy · ${last.prompts} prompts`, change(points.length > 1 ? points[0].text : undefined, last.text), under);
  const scale = make("div", "scale", make("i", "rail"));
  points.forEach((point, i) => {
    const kind = i === points.length - 1 ? " after" : " before";
    const range = make("i", "range" + kind), dot = make("i", "dot" + kind);
    range.style.left = 100 * point.interval[0] + "%";
    range.style.width = 100 * (point.interval[1] - point.interval[0]) + "%";
    dot.style.left = 100 * point.share + "%";
    scale.append(range, dot);
  });
  scale.append(make("span", "", "0 %"), make("span", "", "100 %"));
  card.append(scale);
  return card;
}

function resultTiles() {
  const { reward, steps, time, speed } = data.result;
  const rewardNote = !reward ? "" : reward.before === undefined ? "latest step"
    : reward.k > 1 ? `mean of first and last ${reward.k} steps` : "first and last step";
  byId("result").replaceChildren(
    accuracyTile(data.result),
    tile("second", "Reward", reward ? change(reward.before, reward.after) : ["–"], [rewardNote]),
    tile("second", "Steps", [steps], [`in ${time}`]),
    tile("third", "Tokens per second", [speed || "–"], ["prompt and response, mean of the steps"]),
  );
}

function learning() {
  byId("learning").hidden = data.charts.length === 0;
  drawCharts("charts", data.charts);
}

// A slider over the entries' steps that calls `show` with one of them. With more entries it stays at its step, or
// at the last one if it was there.
const steppers = {};

function stepper(place, entries, show) {
  const known = steppers[place] || (steppers[place] = makeStepper(place));
  const { slider } = known;
  const step = known.entries.length && Number(slider.value) < known.entries.length - 1 ? known.entries[slider.value].step : Infinity;
  const later = entries.findIndex((entry) => entry.step >= step);
  Object.assign(known, { entries, show });
  slider.max = entries.length - 1;
  slider.value = later < 0 ? entries.length - 1 : later;
  known.update();
}

function makeStepper(place) {
  const slider = make("input"), shown = make("output");
  const back = make("button", "", "‹"), forth = make("button", "", "›");
  const made = { slider, entries: [], show: null };
  slider.type = "range"; slider.min = 0;
  slider.setAttribute("aria-label", "Step"); back.setAttribute("aria-label", "Earlier step"); forth.setAttribute("aria-label", "Later step");
  made.update = () => {
    const i = Number(slider.value);
    shown.textContent = "step " + made.entries[i].step;
    back.disabled = i === 0; forth.disabled = i === made.entries.length - 1;
    made.show(made.entries[i]);
  };
  back.onclick = () => { slider.value = Number(slider.value) - 1; made.update(); };
  forth.onclick = () => { slider.value = Number(slider.value) + 1; made.update(); };
  slider.oninput = made.update;
  byId(place).append(back, slider, forth, shown);
  return made;
}

function time() {
  byId("gantt-card").hidden = data.timeline.length === 0;
  byId("time").hidden = data.timeline.length === 0 && !data.phaseChart;
  drawCharts("phase-chart", data.phaseChart ? [data.phaseChart] : []);
  if (data.timeline.length) stepper("gantt-stepper", data.timeline, showStep);
}

function busy() {
  byId("busy-card").hidden = data.busy.length === 0;
  const share = (value) => (value === undefined ? "" : (100 * value).toFixed(1) + " %");
  const names = [...new Set(data.busy.flatMap((b) => Object.keys(b.phases)))];
  const rows = data.busy.map((b) => [b.worker, share(b.whole), ...names.map((name) => share(b.phases[name]))]);
  byId("busy-table").replaceChildren(table(["", "had work", ...names], rows, 1));
}

let stepShown = null;

function showStep(entry) {
  if (entry === stepShown) return;
  stepShown = entry;
  const place = byId("gantt"), names = new Set();
  place.replaceChildren();
  for (const { row, spans } of entry.rows) {
    const lane = make("div", "lane");
    for (const [name, start, end] of spans) {
      const block = make("i");
      names.add(name);
      block.style.left = (100 * start) / entry.seconds + "%";
      block.style.width = (100 * (end - start)) / entry.seconds + "%";
      block.style.background = phaseColour(name);
      block.title = `${name} · ${seconds(end - start)} · from ${seconds(start)} to ${seconds(end)}`;
      lane.append(block);
    }
    place.append(make("div", "row", row), lane);
  }
  const ticks = make("div", "axis");
  for (let i = 0; i <= 4; i += 1) {
    const tick = make("span", "", seconds((entry.seconds * i) / 4));
    tick.style.left = 25 * i + "%";
    ticks.append(tick);
  }
  place.append(make("div", "blank"), ticks);
  const legend = [...names].map((name) => {
    const item = make("span", "", name);
    item.style.setProperty("--swatch", phaseColour(name));
    return item;
  });
  byId("gantt-legend").replaceChildren(...legend);
}

let groupShown = null, groupIndex = 0;

function sampleBrowser() {
  byId("samples").hidden = data.samples.length === 0;
  if (data.samples.length) stepper("sample-stepper", data.samples, showGroups);
}

function showGroups(entry) {
  const { groups } = entry;
  groupIndex = Math.min(groupIndex, groups.length - 1);
  if (groups[groupIndex] === groupShown) return;
  groupShown = groups[groupIndex];
  byId("group-tabs").replaceChildren(...groups.map((_, i) => {
    const tab = make("button", "", groups.length > 1 ? `Group ${i + 1}` : "Group");
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-selected", String(i === groupIndex));
    tab.onclick = () => { groupIndex = i; showGroups(entry); };
    return tab;
  }));
  showGroup(groupShown);
}

let tokensOpen = false;

// A response's first tokens, with id, log-prob and version on hover; unfolded or not as the reader left it.
function tokenLine({ ids, texts, logprobs, version, versions }, length) {
  const by = versions ? versions.flatMap(([number, times]) => Array(times).fill(number)) : [version];
  const tokens = ids.map((id, i) => {
    const drawn = logprobs[i] !== null;
    const facts = drawn ? [`log-prob ${number(logprobs[i])}`, by[i] === undefined ? "" : `weights' version ${by[i]}`] : ["not drawn by the policy"];
    const token = make("span", drawn ? "" : "given", texts[i].replaceAll("\n", "↵\n"));
    token.title = [`token ${id}`, ...facts].filter(Boolean).join(" · ");
    return token;
  });
  const under = `first ${ids.length} of ${length} tokens · begun by the weights' version ${version}`;
  const line = make("details", "", make("summary", "", "Tokens"), make("div", "mono tokens", ...tokens), make("p", "under", under));
  line.open = tokensOpen;
  line.ontoggle = () => { tokensOpen = line.open; };
  return line;
}

const PICTURE_SIDE = 256, SMALL_SIDE = 128;

// A picture with its size under it. Small ones are shown larger, a whole number of times, each pixel sharp.
function pictureOf({ width, height, address }, i, all) {
  const name = `${all.length > 1 ? `Picture ${i + 1}` : "Picture"}, ${width} × ${height}`;
  const longest = Math.max(width, height);
  const times = longest > PICTURE_SIDE ? PICTURE_SIDE / longest : Math.max(1, Math.floor(SMALL_SIDE / longest));
  const figure = make("figure", "", make("figcaption", "under", address ? name : `${name}: not recorded`));
  if (!address) return figure;
  const image = make("img", times > 1 ? "sharp" : "");
  [image.width, image.height] = [width, height].map((side) => Math.max(1, Math.round(side * times)));
  image.alt = name;
  image.src = address;
  figure.prepend(image);
  return figure;
}

function showGroup(group) {
  const prompt = make("div", "prompt", make("div", "label", "Prompt"), make("div", "mono text", group.prompt));
  if (group.pictures.length) {
    const label = group.pictures.length > 1 ? "Pictures" : "Picture";
    prompt.prepend(make("div", "label", label), make("div", "pictures", ...group.pictures.map(pictureOf)));
  }
  if (group.answer !== null) prompt.append(make("div", "label", "Answer"), make("div", "mono text", group.answer));
  const rewards = group.responses.map((response) => response.reward).filter((reward) => reward !== null);
  const low = Math.min(...rewards), high = Math.max(...rewards);
  const cards = group.responses.map((response) => {
    const tone = response.reward === null ? "--muted" : high === low ? "--muted"
      : response.reward === high ? "--good" : response.reward === low ? "--bad" : "--warn";
    const length = response.length === null || response.length === undefined ? "" : response.length + " tokens";
    const card = make("div", "response",
      make("div", "head", make("span", "score", number(response.reward)), make("span", "label", length)),
      make("div", "mono text", response.text));
    const parts = Object.entries(response.parts || {});
    if (response.tokens) card.append(tokenLine(response.tokens, response.length));
    if (parts.length > 1) card.append(make("div", "parts", ...parts.map(([name, value]) => make("span", "", `${name} ${number(value)}`))));
    card.style.setProperty("--tone", `var(${tone})`);
    return card;
  });
  byId("group").replaceChildren(prompt, make("div", "responses", ...cards));
}

function dataPath(pairs) {
  if (!pairs || !(pairs.shared || pairs.tcp)) return "–";
  if (!pairs.tcp) return "shared memory";
  return pairs.shared ? `shared memory ${pairs.shared}, TCP ${pairs.tcp}` : "TCP";
}

// Seconds with whom they were waited for, the longest first.
function waited(state) {
  const pairs = Object.entries(state.waits).sort((a, b) => b[1] - a[1]);
  const whom = pairs.map(([name, value]) => `${name} ${seconds(value)}`).join(", ");
  return make("div", "", seconds(state.wait_seconds + (state.waits.room || 0)), make("div", "under", whom));
}

function copies(warehouse) {
  if (warehouse.replicated === undefined) return "one";
  const alone = warehouse.times_alone ? `; alone ${warehouse.times_alone} ×, at the end of ${warehouse.steps_alone} steps` : "";
  return warehouse.replicated ? "two" + alone : make("span", "wrong", "one of two" + alone);
}

const DROPPED = { lost: "lost with their warehouse", stale: "older than flow.maxStaleness allows" };

function dockRows() {
  byId("dock-rows-card").hidden = data.dockRows.length === 0;
  if (!data.dockRows.length) return;
  stepper("dock-rows-stepper", data.dockRows, (entry) => {
    byId("dock-rows").style.height = entry.height + "px";
    plot(byId("dock-rows"), entry);
  });
}

function dock() {
  byId("dock").hidden = !data.dock;
  if (!data.dock) return;
  drawCharts("dock-charts", data.dockCharts);
  dockRows();
  byId("dock-card").replaceChildren();
  const rate = (value, text) => (value === null ? "–" : text(value) + "/s");
  const plain = (value) => number(value);
  const states = Object.entries(data.dock.states).map(([name, s]) => [
    name, number(s.rows, 9), bytes(s.bytes_read), bytes(s.bytes_written), waited(s), seconds(s.transfer_seconds), dataPath(data.dock.data_paths[name])]);
  const edges = data.dock.edges.map((e) => [
    `${e.from} → ${e.to}`, number(e.rows, 9), bytes(e.bytes), rate(e.rows_per_second, plain), rate(e.bytes_per_second, bytes)]);
  const stores = Object.entries(data.dock.warehouses).map(([index, w]) => [
    "warehouse " + index, bytes(w.peak_bytes), w.capacity_bytes ? bytes(w.capacity_bytes) : "–",
    w.capacity_bytes ? ((100 * w.peak_bytes) / w.capacity_bytes).toFixed(1) + " %" : "–", copies(w)]);
  const dropped = data.dock.dropped.map((d) => [DROPPED[d.reason] || d.reason, number(d.rows, 9), d.steps.join(", ")]);
  const add = (title, ...content) => byId("dock-card").append(make("h3", "", title), ...content);
  if (states.length) add("Flow by state, over the run", table(["state", "rows", "read", "written", "waited for", "in reads and writes", "read through"], states, 1));
  if (edges.length) add("Flow from state to state, over the run", table(["from and to", "rows", "bytes", "rows", "bytes"], edges, 1));
  if (stores.length) add("Fullest moment", table(["", "held", "capacity", "share", "copies of a row"], stores, 1));
  add("Rows dropped and generated again", dropped.length ? table(["reason", "rows", "steps"], dropped, 1) : make("p", "under", "none"));
}

function suites() {
  byId("suites").hidden = data.suites.length === 0;
  const rows = data.suites.map((s) => [s.name, s.prompts, s.measure, s.first, s.last, s.gain, s.passAtK]);
  byId("suite-card").replaceChildren(table(["set", "prompts", "measure", "first", "last", "gain, points", "pass@k"], rows));
}

function reshardMemory() {
  byId("reshard-memory-card").hidden = data.reshardMemory.length === 0;
  if (data.reshardMemory.length) stepper("reshard-memory-stepper", data.reshardMemory, (entry) => plot(byId("reshard-memory"), entry));
}

function reshard() {
  byId("reshard").hidden = data.reshard.length + data.inFlight.length === 0;
  drawCharts("reshard-charts", data.reshardCharts);
  reshardMemory();
  byId("reshard-card").replaceChildren();
  const share = (value) => (100 * value).toFixed(1) + " %";
  const units = { seconds, bytes, share, nats: (value) => number(value, 2) + " nats", count: (value) => number(value, 9) };
  const add = (title, told) => {
    const rows = told.map((r) => {
      const show = units[r.unit];
      return [make("div", "", r.label, make("span", "note", r.note)), show(r.median), show(r.largest), show(r.last)];
    });
    if (told.length) byId("reshard-card").append(make("h3", "", title), table(["", "median", "largest", "last"], rows, 1));
  };
  add("Over all reshards of the run", data.reshard);
  add("Weights that came while devices generated", data.inFlight);
  const over = data.reshardOverBound;
  if (over.length) byId("reshard-card").append(make("p", "wrong", `Held more than the bound after step ${over.slice(0, 20).join(", ")}`));
}

function notices() {
  byId("notices").hidden = data.notices.length === 0;
  const rows = data.notices.map((n) => [n.step ?? "–", n.kind, n.count > 1 ? `${n.text} (${n.count} times)` : n.text]);
  byId("notice-card").replaceChildren(table(["step", "from", "message"], rows));
}

function runDetails() {
  byId("profiles").hidden = !data.profiles.length;
  const traces = data.profiles.map((p) => {
    const link = make("a", "", p.path);
    link.href = p.path;
    return [p.step, p.what, link, p.bytes, p.seconds, p.operators];
  });
  byId("profiles").replaceChildren(make("h3", "", "Traces"),
    table(["step", "of", "Chrome trace", "size", "seconds", "most time of their own"], traces));
  const checkpoints = data.checkpoints.map((c) => [c.step, c.path]);
  byId("checkpoints").replaceChildren(make("h3", "", "Checkpoints"),
    checkpoints.length ? table(["step", "path"], checkpoints) : make("p", "under", "none"));
  if (data.best) byId("checkpoints").append(make("p", "under", `Best: ${data.best}`));
  const machine = [...Object.entries(data.machine), ...Object.entries(data.versions)];
  if (data.resumedFrom.length) machine.push(["resumed after step", data.resumedFrom.join(", ")]);
  byId("machine").replaceChildren(make("h3", "", "Machine and versions"),
    machine.length ? table(["", ""], machine) : make("p", "under", "not recorded"));
  byId("spec").textContent = data.spec;
  document.querySelector(".spec").hidden = !data.spec;
}

// What each part of the page is drawn from.
const PARTS = [
  [header, ["name", "started", "status", "facts"]],
  [alarms, ["alarms"]],
  [resultTiles, ["result", "status"]],
  [learning, ["charts"]],
  [time, ["timeline", "phaseChart"]],
  [busy, ["busy"]],
  [sampleBrowser, ["samples"]],
  [dock, ["dock", "dockCharts", "dockRows"]],
  [suites, ["suites"]],
  [reshard, ["reshard", "inFlight", "reshardOverBound", "reshardCharts", "reshardMemory"]],
  [notices, ["notices"]],
  [runDetails, ["profiles", "checkpoints", "best", "machine", "versions", "resumedFrom", "spec"]],
];

// Takes the parts that have changed and draws what shows them.
function show(changed) {
  Object.assign(data, changed);
  for (const [draw, names] of PARTS) if (names.some((name) => name in changed)) draw();
  shown();
}

if (!isLive) unpacked("data").then((text) => show(JSON.parse(text))).catch(broken);
