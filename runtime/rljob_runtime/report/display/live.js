// Keeps the page up to date: asks for what has changed, and says how fresh it is. After report.js.
const FIRST_WAIT = 1000, LONGEST_WAIT = 15000, HIDDEN_WAIT = 10000, ANSWER_WAIT = 30000;
const known = { run: "", version: 0 };
const entries = {}; // of each list that comes in pieces: by id
let answer = null, answered = 0, wait = FIRST_WAIT, usual = FIRST_WAIT, waiting = null;

async function look() {
  clearTimeout(waiting);
  const began = performance.now();
  try {
    const response = await fetch(`live?run=${known.run}&since=${known.version}`,
      { cache: "no-store", credentials: "same-origin", signal: AbortSignal.timeout(ANSWER_WAIT) });
    if (response.status === 401) return location.reload(); // the server was started again: it asks for its token
    if (!response.ok) throw new Error(response.statusText);
    take(await response.json());
    wait = usual = Math.max(FIRST_WAIT, 2 * (performance.now() - began));
  } catch (error) {
    console.info("no answer:", error.message);
    wait = Math.min(2 * wait, LONGEST_WAIT);
  }
  freshness();
  waiting = setTimeout(look, document.hidden ? Math.max(wait, HIDDEN_WAIT) : wait);
}

function take(news) {
  if (news.run !== known.run) for (const name in entries) delete entries[name];
  const changed = { ...news.parts };
  for (const [name, { order, entries: some }] of Object.entries(news.lists)) {
    const before = entries[name] || {};
    entries[name] = Object.fromEntries(order.map((id) => [id, some[id] || before[id]]));
    changed[name] = order.map((id) => entries[name][id]);
  }
  known.run = news.run;
  known.version = news.version;
  [answer, answered] = [news, Date.now()];
  if (Object.keys(changed).length) show(changed);
  document.title = (news.over ? "" : `${data.status.step}/${data.status.total} · `) + data.name + " · rljob watch";
}

function freshness() {
  const place = byId("freshness");
  place.hidden = answer === null;
  if (answer === null) return;
  const silent = (Date.now() - answered) / 1000;
  const lost = silent > Math.max(10, (3 * usual) / 1000) && !document.hidden;
  const age = answer.age === null ? "no event yet" : `last event ${ago(answer.age + silent)} ago`;
  place.className = lost ? "lost" : answer.over ? "over" : "live";
  place.textContent = lost ? `no answer for ${ago(silent)}` : answer.over ? "ended" : `live · ${age}`;
  byId("trouble").hidden = !answer.trouble;
  byId("trouble").textContent = answer.trouble;
}

function ago(value) {
  return value < 90 ? `${Math.round(value)} s` : value < 5400 ? `${Math.round(value / 60)} min` : `${Math.round(value / 3600)} h`;
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
setInterval(freshness, 1000);
look();
