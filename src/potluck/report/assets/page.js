// Puts the page together: a report of finished data, a page that follows a run, or the list of runs.
const host = document.getElementById("page");
const data = JSON.parse(document.getElementById("data").textContent);

function theme(next) {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  let chosen = next;
  try {
    if (next) localStorage.setItem("potluck-theme", next);
    chosen = localStorage.getItem("potluck-theme");
  } catch { /* a page from a file may have no storage */ }
  document.documentElement.dataset.theme = chosen || system;
}

const flip = () => { theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); if (state.runs.length) drawAll(); };

function topBar(...more) {
  const pot = s("svg", { width: 20, height: 20, viewBox: "0 0 20 20", "aria-hidden": true }, s("path", { d: "M3 8h14v5a4 4 0 0 1-4 4H7a4 4 0 0 1-4-4zM1 8h18M8 5c0-1.5 1-1.5 1-3M12 5c0-1.5 1-1.5 1-3", fill: "none", stroke: "var(--accent)", "stroke-width": 1.8, "stroke-linecap": "round", "stroke-linejoin": "round" }));
  const name = data.kind === "live" ? el("a", { class: "mark", href: "../", title: "All runs" }, pot, "Potluck") : el("span", { class: "mark" }, pot, "Potluck");
  return el("div", { class: "bar" }, name, el("span", { class: "space" }), ...more, el("button", { type: "button", class: "ghost", "data-theme-switch": "", "aria-label": "Light or dark", title: "Light or dark (t)", onclick: flip }, "◐"));
}

function cardFor(part) {
  const body = el("div", { class: "body" });
  const card = el("section", { class: `card ${part.size}`, id: part.id, "data-figure": part.plain ? null : part.id, "aria-label": part.title });
  card.append(el("header", {}, el("h2", {}, part.title), el("span", { class: "space" }), part.tools ? part.tools() : null, part.plain ? null : saveButtons(card, part.id)));
  if (part.note) card.append(el("p", { class: "note" }, part.note));
  card.append(body);
  return [card, body];
}

function drawAll() {
  const live = data.kind === "live";
  const top = scrollY, focus = document.activeElement, inTimeline = focus instanceof HTMLCanvasElement;
  document.getElementById("top").replaceChildren(...headOf(live));
  const grid = document.getElementById("parts");
  const shown = PARTS.filter((part) => part.has());
  grid.style.minHeight = `${grid.offsetHeight}px`;
  grid.replaceChildren();
  for (const part of shown) {
    const [card, body] = cardFor(part);
    grid.append(card);
    part.draw(body, Math.floor(body.clientWidth));
    if (several() && part.id === "learning") grid.append(el("div", { class: "chooser" }, el("h3", {}, "One run at a time from here on:"), runChooser()));
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
  host.replaceChildren(topBar(), el("div", { id: "top" }), el("div", { id: "parts", class: "grid" }));
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

// Whoever is reading something off the page is not disturbed; the newest figures come a moment later.
let waiting = 0;
function drawLive() {
  clearTimeout(waiting);
  document.getElementById("top").replaceChildren(...headOf(true));
  if (document.querySelector("#parts:hover") && tip.node?.classList.contains("shown")) waiting = setTimeout(drawLive, 700);
  else drawAll();
}

document.addEventListener("keydown", (event) => { if (event.key === "t" && !event.ctrlKey && !event.metaKey && !(event.target instanceof HTMLInputElement)) flip(); });
theme();
if (data.kind === "report") startReport();
else if (data.kind === "live") startLive();
else { startRuns(host); done(); }
