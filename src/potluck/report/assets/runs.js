// The list of runs, refreshed every two seconds. Keys: j, k and Enter choose and open; / filters, x marks, c compares.
const listed = { runs: [], chosen: 0, filter: "", marked: new Set() };

function drawRuns() {
  const host = document.getElementById("list");
  const found = listed.runs.filter((one) => `${one.id} ${one.title} ${one.recipe} ${one.status}`.toLowerCase().includes(listed.filter.toLowerCase()));
  listed.chosen = Math.max(0, Math.min(listed.chosen, found.length - 1));
  if (!found.length) { host.replaceChildren(el("p", { class: "empty" }, listed.runs.length ? "No run matches." : "No runs here yet. Start one with: potluck run job.toml")); return; }
  const rows = found.map((one, index) => el("tr", { "data-run": one.id, class: `${index === listed.chosen ? "chosen" : ""} ${listed.marked.has(one.id) ? "marked" : ""}`, onclick: () => openRun(one.id) },
    el("td", {}, el("a", { href: `run/${encodeURIComponent(one.id)}` }, one.title), el("div", { class: "sub" }, one.id)),
    el("td", {}, el("span", { class: `pill ${one.status}` }, one.status)), el("td", { class: "hide-narrow" }, one.recipe),
    el("td", { class: "number" }, one.metric === null ? "–" : metric(...one.metric), one.metric && one.metric[0] !== "accuracy" ? el("div", { class: "sub" }, one.metric[0]) : null), el("td", { class: "hide-narrow" }, sparkline(one.curve, 120, 28, "var(--accent)")),
    el("td", { class: "number hide-narrow" }, count(one.rounds)), el("td", { class: "number hide-narrow" }, seconds(one.time_s)), el("td", { class: "number hide-narrow" }, ago(one.changed))));
  const head = [["run", ""], ["status", ""], ["recipe", "hide-narrow"], ["metric", "number"], ["", "hide-narrow"], ["rounds", "number hide-narrow"], ["time", "number hide-narrow"], ["written", "number hide-narrow"]];
  host.replaceChildren(el("table", { class: "runs" }, el("thead", {}, el("tr", {}, head.map(([caption, kind]) => el("th", { class: kind }, caption)))), el("tbody", {}, rows)));
}

const openRun = (id) => { location.href = `run/${encodeURIComponent(id)}`; };
const mark = (id) => { if (id && !listed.marked.delete(id)) listed.marked.add(id); };
const compareMarked = () => { if (listed.marked.size > 1) location.href = `compare?${[...listed.marked].map((id) => `run=${encodeURIComponent(id)}`).join("&")}`; };
const ago = (at) => { const past = Date.now() / 1000 - at; return past < 5 ? "just now" : past < 3600 * 48 ? `${seconds(Math.round(past))} ago` : new Date(at * 1000).toLocaleDateString(); };

async function refreshRuns() {
  try {
    listed.runs = await (await fetch("runs.json")).json();
    drawRuns();
  } catch { /* the server is unreachable; try again later */ }
  setTimeout(refreshRuns, 2000);
}

function startRuns(host) {
  const filter = el("input", { class: "filter", type: "search", placeholder: "Filter, press /", "aria-label": "Filter runs", oninput: (event) => { listed.filter = event.target.value; drawRuns(); } });
  host.append(topBar(filter), el("h1", {}, "Runs"), el("section", { class: "card", style: "margin-top:16px", id: "list" }, el("p", { class: "empty" }, "Looking …")),
    el("p", { class: "keys", style: "margin-top:12px" }, el("kbd", {}, "j"), " ", el("kbd", {}, "k"), " choose, ", el("kbd", {}, "Enter"), " open, ", el("kbd", {}, "x"), " mark, ", el("kbd", {}, "c"), " compare the marked, ", el("kbd", {}, "/"), " filter, ", el("kbd", {}, "t"), " light or dark"));
  document.addEventListener("keydown", (event) => {
    if (event.target === filter) { if (event.key === "Escape" || event.key === "Enter") filter.blur(); return; }
    if (event.key === "j" || event.key === "ArrowDown") listed.chosen += 1;
    else if (event.key === "k" || event.key === "ArrowUp") listed.chosen -= 1;
    else if (event.key === "x") mark(document.querySelector("tr.chosen")?.dataset.run);
    else if (event.key === "c") { compareMarked(); return; }
    else if (event.key === "/") { event.preventDefault(); filter.focus(); return; }
    else if (event.key === "Enter") { const row = document.querySelector("tr.chosen"); if (row) openRun(row.dataset.run); return; }
    else return;
    event.preventDefault();
    drawRuns();
  });
  refreshRuns();
}
