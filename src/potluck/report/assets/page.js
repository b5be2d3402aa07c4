// Builds the page: a report, a live page, or the list of runs.
const host = document.getElementById("page");
const data = JSON.parse(document.getElementById("data").textContent);

function theme(next) {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  let chosen = next;
  try {
    if (next) localStorage.setItem("potluck-theme", next);
    chosen = localStorage.getItem("potluck-theme");
  } catch { /* a page opened from a file may have no storage */ }
  document.documentElement.dataset.theme = chosen || system;
}

const toggleTheme = () => { theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); if (state.runs.length) drawAll(); };

function topBar(...more) {
  const pot = s("svg", { width: 20, height: 20, viewBox: "0 0 20 20", "aria-hidden": true }, s("path", { d: "M3 8h14v5a4 4 0 0 1-4 4H7a4 4 0 0 1-4-4zM1 8h18M8 5c0-1.5 1-1.5 1-3M12 5c0-1.5 1-1.5 1-3", fill: "none", stroke: "var(--accent)", "stroke-width": 1.8, "stroke-linecap": "round", "stroke-linejoin": "round" }));
  const name = data.kind === "live" ? el("a", { class: "mark", href: "../", title: "All runs" }, pot, "Potluck") : el("span", { class: "mark" }, pot, "Potluck");
  return el("div", { class: "bar" }, name, el("span", { class: "space" }), ...more, el("button", { type: "button", class: "ghost", "data-theme-switch": "", "aria-label": "Light or dark", title: "Light or dark (t)", onclick: toggleTheme }, "◐"));
}

function cardFor(section) {
  const body = el("div", { class: "body" });
  const card = el("section", { class: `card ${section.size}`, id: section.id, "data-figure": section.plain ? null : section.id, "aria-label": section.title });
  card.append(el("header", {}, el("h2", {}, section.title), el("span", { class: "space" }), section.tools ? section.tools() : null, section.plain ? null : saveButtons(card, section.id)));
  if (section.note) card.append(el("p", { class: "note" }, section.note));
  card.append(body);
  return [card, body];
}

function drawAll() {
  const live = data.kind === "live";
  const top = scrollY, focus = document.activeElement, inTimeline = focus instanceof HTMLCanvasElement;
  document.getElementById("top").replaceChildren(...headOf(live));
  const grid = document.getElementById("sections");
  const shown = SECTIONS.filter((section) => section.has());
  grid.style.minHeight = `${grid.offsetHeight}px`;
  grid.replaceChildren();
  for (const section of shown) {
    const [card, body] = cardFor(section);
    grid.append(card);
    section.draw(body, Math.floor(body.clientWidth));
    if (several() && section.id === "learning") grid.append(el("div", { class: "chooser" }, el("h3", {}, "The sections below show one run:"), runChooser()));
  }
  grid.append(jobCard());
  grid.style.minHeight = "";
  if (inTimeline) focus.focus({ preventScroll: true });
  if (Math.abs(scrollY - top) > 1) scrollTo(0, top);
}

let jobOpen = false;
function jobCard() {
  const details = el("details", { open: jobOpen, ontoggle: (event) => { jobOpen = event.target.open; } }, el("summary", {}, "The resolved job"), el("pre", { tabindex: 0 }, run().job || "This run has no job.toml."));
  return el("section", { class: "card", id: "job" }, details);
}

async function prepared(one) {
  one.rows = await unpack(one.spans, []);
  return one;
}

function frame() {
  host.replaceChildren(topBar(), el("div", { id: "top" }), el("div", { id: "sections", class: "grid" }));
  let width = innerWidth, due = 0;
  addEventListener("resize", () => {
    if (innerWidth === width || !state.runs.length) return;
    width = innerWidth;
    clearTimeout(due);
    due = setTimeout(drawAll, 120);
  });
}

async function startReport() {
  frame();
  state.runs = await Promise.all(data.runs.map(prepared));
  drawAll();
  done();
}

const done = () => { host.removeAttribute("aria-busy"); document.documentElement.dataset.ready = ""; };

// --- following a run ---------------------------------------------------------------------------------------------------------

function startLive() {
  frame();
  const source = new EventSource("events");
  source.addEventListener("whole", async (event) => {
    const one = await prepared(JSON.parse(event.data));
    state.runs = [one];
    drawAll();
    done();
  });
  source.addEventListener("more", async (event) => {
    const fresh = JSON.parse(event.data), one = run();
    fresh.rows = await unpack(fresh.spans, one.rows);
    fresh.timeline = one.timeline;
    state.runs = [fresh];
    drawLive();
  });
  source.addEventListener("over", () => source.close());
}

// While a tooltip is open the charts are not redrawn; the update follows a moment later.
let waiting = 0;
function drawLive() {
  clearTimeout(waiting);
  document.getElementById("top").replaceChildren(...headOf(true));
  if (document.querySelector("#sections:hover") && tip.node?.classList.contains("shown")) waiting = setTimeout(drawLive, 700);
  else drawAll();
}

document.addEventListener("keydown", (event) => { if (event.key === "t" && !event.ctrlKey && !event.metaKey && !(event.target instanceof HTMLInputElement)) toggleTheme(); });
theme();
if (data.kind === "report") startReport();
else if (data.kind === "live") startLive();
else { startRuns(host); done(); }
