// The sections of the page. Each says whether the run has data for it; others are left out.
const AXES = {
  round: { title: "Rounds", name: "round", label: "round", format: (value) => decimal(Math.round(value)), whole: true },
  time: { title: "Time", name: "at", label: "time", format: seconds, ticks: timeTicks },
  bytes: { title: "Bytes", name: "after", label: "bytes sent and received", format: bytes },
  energy: { title: "Energy", name: "after", label: "energy proxy: board watts × busy seconds", format: joules },
};
const STREAMS = ["buffer", "rate", "dropped"];
const SUBMODELS = ["share"];
const MAIN = ["test_accuracy", "test_loss", "loss"];
const isLearned = (name) => MAIN.includes(name) || state.runs.some((one) => one.curves.some((curve) => curve.name === name && curve.better));
const TROUBLE = ["crash", "leave", "lost", "link"];

const state = { runs: [], current: 0, axis: "time", off: new Set(), views: {} };
const run = () => state.runs[state.current];
const several = () => state.runs.length > 1;
const runName = (one) => one.label || one.recipe || one.id;
const axes = () => Object.keys(AXES).filter((axis) => state.runs.every((one) => one.curves.every((curve) => curve[axis])));

const SECTIONS = [
  { id: "learning", title: "Learning", size: "", has: () => state.runs.some((one) => one.curves.some((curve) => isLearned(curve.name))), draw: drawLearning, tools: axisSwitch },
  { id: "timeline", title: "Timeline", size: "", has: () => run().rows.some((spans) => spans.size), draw: drawTimeline, tools: timelineTools },
  { id: "time", title: "Where the time went", size: "wide", has: () => run().devices.length > 0 && run().end > 0, draw: drawTimeBreakdown },
  { id: "fleet", title: "Fleet", size: "slim", has: () => run().devices.length > 0, draw: drawFleet },
  { id: "devices", title: "Devices", size: "", has: () => run().devices.length > 0, draw: drawDevices, plain: true },
  { id: "streams", title: "Streams", size: "", has: () => STREAMS.some((name) => run().signals[name]), draw: (body) => drawSignals(body, "streams", STREAMS) },
  { id: "submodels", title: "Sub-models", size: "half", has: () => SUBMODELS.some((name) => run().signals[name]), draw: (body, wide) => body.append(heatChart(run().signals.share, run().end, wide)), note: "The fraction of the model's MACs that each device trained; a stronger colour means more." },
  { id: "pareto", title: "Pareto front", size: "half", has: () => run().pareto.length > 1, draw: (body, wide) => body.append(paretoChart(run().pareto, wide)), note: "Each point is a sub-model: its cost per sample, and its gain." },
  { id: "partitions", title: "Layers held by each device", size: "", has: () => run().partitions.some((one) => one.cuts), draw: (body, wide) => body.append(bandChart(run(), wide)) },
  { id: "quantities", title: "More quantities", size: "", has: () => others().length > 0, draw: drawOthers },
  { id: "events", title: "Faults and recoveries", size: "", has: () => run().events.length > 0, draw: drawEvents, plain: true },
];

// --- header -----------------------------------------------------------------------------------------------------------

function headOf(live) {
  if (several()) return [el("h1", {}, "Comparison of ", String(state.runs.length), " runs"), el("p", { class: "lead" }, [...new Set(state.runs.map((one) => one.title))].join(" · ")), comparison()];
  const one = run();
  const status = el("span", { class: `pill ${one.status}`, "data-status": one.status }, one.status);
  const going = live && one.status === "running";
  return [
    el("div", { class: "head" }, el("h1", {}, one.title), el("span", { class: "pill", style: "padding-left:10px" }, one.recipe), status),
    one.warning ? el("p", { class: "warning", role: "alert" }, sentence(one.warning)) : "",
    el("p", { class: "lead" }, one.reason ? `${sentence(`${one.status}: ${one.reason}`)} ` : "", bold(going ? "What limits it so far: " : "What limited it: "), `${one.limit}.`),
    ...(one.standbys || []).map((text) => el("p", { class: "lead", "data-standby": "" }, sentence(text))),
    one.unreadable ? el("p", { class: "lead" }, `Lines of the journal that cannot be read and are skipped: ${one.unreadable}.`) : "",
    tiles(one),
  ];
}

const sentence = (caption) => `${caption[0].toUpperCase()}${caption.slice(1)}.`;

function tiles(one) {
  const f = one.figures, clock = one.world === "simulated" ? "simulated time" : "time";
  const busy = one.devices.reduce((sum, device) => sum + busyFraction(device, one.end), 0) / (one.devices.length || 1);
  const entries = [
    ["Accuracy", f.accuracy === null ? null : percent(f.accuracy), f.best === null ? "" : `best ${percent(f.best)}`],
    ["Loss", f.loss === null ? null : decimal(f.loss), one.curves.some((curve) => curve.name === "test_loss") ? "held-out data" : "training"],
    ...f.metrics.map((one) => [one.name, metric(one.name, one.value), `best ${metric(one.name, one.best)}, ${one.better} is better`]),
    ["Rounds", count(f.rounds), one.stop.rounds ? `of ${count(one.stop.rounds)}` : f.rounds ? `${seconds(f.time_s / f.rounds)} each` : ""],
    [sentence(clock).slice(0, -1), seconds(f.time_s), f.wall_s ? `${one.world === "simulated" ? "computed in" : "in all"} ${seconds(f.wall_s)}` : ""],
    ["Traffic", bytes(f.bytes), f.time_s ? `${bitrate(f.bytes / f.time_s)}` : ""],
    ["Energy proxy", f.energy_j === null ? null : joules(f.energy_j), "watts × busy time"],
    ["Devices", count(f.devices), f.lost || f.late ? `lost ${count(f.lost)}×, late ${count(f.late)}×` : "none lost or late"],
    ["Busy", one.devices.length ? percent(busy, 0) : null, "of a device's time"],
  ];
  return el("section", { class: "figures", "aria-label": "Headline figures" }, entries.filter(([, value]) => value !== null).map(([label, value, more]) =>
    el("div", { class: "figure-tile", "data-tile": label }, el("div", { class: "label" }, label), el("div", { class: "value" }, value), el("div", { class: "more" }, more))));
}

// One column for each metric of any run, in the order of the runs.
function comparedMetrics() {
  const found = new Map(state.runs.flatMap((one) => one.figures.metrics.map((figure) => [figure.name, figure.better])));
  return [...found].map(([name, better]) => [name, (one) => { const figure = one.figures.metrics.find((own) => own.name === name); return figure ? figure.value : null; }, (value) => metric(name, value), better === "higher" ? 1 : -1]);
}

function comparison() {
  const columns = [
    ["accuracy", (one) => one.figures.accuracy, percent, 1], ["best", (one) => one.figures.best, percent, 1], ["loss", (one) => one.figures.loss, decimal, -1],
    ...comparedMetrics(),
    ["rounds", (one) => one.figures.rounds, count, 0], ["time", (one) => one.figures.time_s, seconds, -1], ["traffic", (one) => one.figures.bytes, bytes, -1],
    ["energy proxy", (one) => one.figures.energy_j, joules, -1], ["lost", (one) => one.figures.lost, count, 0], ["late", (one) => one.figures.late, count, 0],
  ].filter(([, take]) => state.runs.some((one) => take(one) !== null && take(one) !== undefined));
  const best = columns.map(([, take, , way]) => (way ? Math.max(...state.runs.map((one) => (take(one) === null ? -Infinity : way * take(one)))) * way : null));
  const head = el("tr", {}, el("th", {}, "run"), columns.map(([name]) => el("th", { class: "number" }, name)), el("th", { class: "hide-narrow" }, "what limited it"));
  const rows = state.runs.map((one, index) => {
    const dot = el("i", { class: "dot" });
    dot.style.background = series(index);
    return el("tr", {}, el("td", {}, dot, bold(runName(one)), " ", el("span", { class: `pill ${one.status}` }, one.status)), columns.map(([, take, format], column) =>
      el("td", { class: `number${best[column] !== null && take(one) === best[column] ? " best" : ""}` }, format(take(one)))), el("td", { class: "hide-narrow" }, one.limit));
  });
  return el("section", { class: "card", style: "margin:16px 0;overflow-x:auto", "aria-label": "Headline figures" }, el("table", { "data-comparison": "" }, el("thead", {}, head), el("tbody", {}, rows)));
}

function runChooser() {
  const pick = (key) => { state.current = Number(key); drawAll(); };
  return choice("Run shown below", state.runs.map((one, index) => [String(index), runName(one)]), String(state.current), pick);
}

// --- learning ------------------------------------------------------------------------------------------------------------

function axisSwitch() {
  const found = axes();
  if (!found.includes(state.axis)) state.axis = found[0] || "time";
  return found.length > 1 ? choice("Horizontal axis", found.map((axis) => [axis, AXES[axis].title]), state.axis, (axis) => { state.axis = axis; state.views = {}; drawAll(); }) : null;
}

function drawLearning(body, wide) {
  const accuracy = learned(["test_accuracy"]), loss = learned(["test_loss", "loss"]), others = listedMetrics();
  const columns = wide > 760 && (accuracy.length > 0) + (loss.length > 0) + others.length > 1 ? 2 : 1, half = (wide - 24 * (columns - 1)) / columns;
  const host = el("div", { class: "grid", style: `grid-template-columns:repeat(${columns},minmax(0,1fr));gap:8px 24px` });
  const asPercent = { format: (value) => percent(value, 0), exact: percent, floor: 0, ceiling: 1 };
  if (accuracy.length) host.append(panel("Accuracy on held-out data", learningChart("accuracy", accuracy, half, asPercent)));
  if (loss.length) host.append(panel("Loss", learningChart("loss", loss, half, { format: decimal, floor: 0 })));
  for (const [curve, better] of others) {
    const name = metricName(curve), y = FRACTIONS.has(name) ? asPercent : { format: decimal };
    host.append(panel(`${name} on held-out data, ${better} is better`, learningChart(name, learned([curve]), half, y)));
  }
  body.append(host);
  const entries = several() ? state.runs.map((one, index) => [runName(one), series(index), "stroke", state.off.has(runName(one))]) : [...new Map([...loss].map((line) => [line.name, [line.name, line.colour, "stroke", state.off.has(line.name)]])).values()];
  if (entries.length > 1) body.append(chips(entries, (name) => { state.off.has(name) ? state.off.delete(name) : state.off.add(name); drawAll(); }));
}

// The metrics with a chart of their own, and which way each is better.
function listedMetrics() {
  const curves = state.runs.flatMap((one) => one.curves).filter((curve) => curve.better && !["test_accuracy", "test_loss"].includes(curve.name) && curve[state.axis]);
  return [...new Map(curves.map((curve) => [curve.name, curve.better]))];
}

const panel = (title, drawn) => el("div", { "data-panel": title }, el("h3", {}, title), drawn);

function learned(names) {
  return state.runs.flatMap((one, index) => one.curves.filter((curve) => names.includes(curve.name) && curve[state.axis]).map((curve) => {
    const training = curve.name === "loss";
    const name = several() ? `${runName(one)}${training ? ", training" : ""}` : titled(curve.name);
    const colour = several() ? series(index) : training ? series(7) : curve.name === "test_accuracy" ? series(0) : series(1);
    return { name, colour, xs: curve[state.axis], ys: curve.values, dash: training && several() ? "3 3" : null, thin: training, off: state.off.has(several() ? runName(one) : name) };
  }));
}

function learningChart(id, lines, width, y) {
  const axis = AXES[state.axis], label = state.axis === "time" && run().world === "simulated" ? "simulated time" : axis.label;
  return lineChart({ lines, width, height: 250, x: { ...axis, label }, y, marks: state.axis === "time" && !several() ? troubles() : [], label: `${id} by ${axis.label}`, view: (state.views[id] = state.views[id] || {}), redraw: drawAll });
}

function troubles() {
  const found = run().events.filter(([, , name, caption]) => TROUBLE.includes(name) && caption !== "reconnected" && !(name === "lost" && caption.includes("crash")));
  return found.map(([at, row, name, caption]) => ({ x: at, colour: "var(--dead)", caption: `${run().devices[row - 1]?.name || "coordinator"}: ${name}${caption ? `, ${caption}` : ""}` }));
}

// --- other sections ------------------------------------------------------------------------------------------------------------

function timelineTools() {
  const press = (caption, name, action) => el("button", { type: "button", class: "ghost", "aria-label": name, title: name, onclick: () => action(run().timeline) }, caption);
  return el("span", { class: "tools" },
    el("span", { class: "keys" }, "drag to zoom, or ", el("kbd", {}, "+"), " ", el("kbd", {}, "−"), " ", el("kbd", {}, "←"), " ", el("kbd", {}, "→"), " ", el("kbd", {}, "0")),
    press("+", "Zoom in", (line) => line.zoom(0.5)), press("−", "Zoom out", (line) => line.zoom(2)), press("Fit", "Show everything", (line) => line.fit()));
}

function drawTimeline(body) {
  const one = run();
  one.timeline = one.timeline || new Timeline(one, one.rows);
  body.append(one.timeline.node);
  one.timeline.update(one);
  const paints = new Set(one.details.map((detail, index) => PAINTS[one.timeline.paints[index]]));
  const named = { compute: "computing", forward: "forward", backward: "backward", receive: "receiving", send: "sending", replicate: "replicating", recover: "recovering", stream: "waiting for data", other: "other" };
  const entries = Object.keys(named).filter((paint) => paints.has(paint)).map((paint) => [named[paint], `var(--${paint})`]);
  if (one.devices.some((device) => device.gone.some(([, , what]) => what === "dead"))) entries.push(["dead", "var(--dead)"]);
  if (one.devices.some((device) => device.gone.some(([, , what]) => what === "cut"))) entries.push(["disconnected", "var(--cut)"]);
  body.append(chips([...entries, ["waiting", "var(--track)"]]));
  if (one.figures.devices > one.devices.length) body.append(el("p", { class: "keys" }, `The ${one.devices.length} busiest of ${count(one.figures.devices)} devices.`));
}

function drawTimeBreakdown(body, wide) {
  const one = run();
  body.append(el("div", { class: "scroller tall", tabindex: one.devices.length > 24 ? 0 : null }, barChart(one.devices, one.end, wide)), chips(present(one.devices).map(([key, caption]) => [caption, `var(--${key})`])));
}

function drawFleet(body, wide) {
  body.append(fleetMap(run(), wide));
  body.append(chips([["link busy up to a third", "var(--receive)", "stroke"], ["up to two thirds", "var(--send)", "stroke"], ["more", "var(--bad)", "stroke"]]));
}

const STATES = { computing: "compute", pushing: "send", waiting: "wait", away: "dead", lost: "dead" };

function drawDevices(body) {
  const one = run(), going = one.status === "running", some = (name) => one.devices.some((device) => device[name]);
  const columns = [
    ["device", (device) => bold(device.name), ""],
    ...(going ? [["now", (device) => swatched(`var(--${STATES[device.state] || "wait"})`, device.state), ""], ["last seen", (device) => (device.seen === null ? "–" : `${seconds(Math.max(0, one.end - device.seen))} ago`), "number"]] : []),
    ["busy", (device) => percent(busyFraction(device, one.end), 0), "number"],
    ...(some("updates") ? [["updates", (device) => count(device.updates), "number"]] : []),
    ...(some("samples") ? [["samples", (device) => count(device.samples), "number"], ["samples/s", (device) => decimal(+(device.samples / (one.end || 1)).toPrecision(3)), "number hide-narrow"]] : []),
    ...(some("received") ? [["received", (device) => bytes(device.received), "number hide-narrow"]] : []), ["sent", (device) => bytes(device.sent), "number hide-narrow"],
    ...(some("flops") ? [["speed", (device) => flops(device.flops), "number hide-narrow"]] : []),
    ...(some("lost") ? [["lost", (device) => count(device.lost), "number"]] : []), ...(some("late") ? [["late", (device) => count(device.late), "number"]] : []),
  ];
  const head = el("tr", {}, columns.map(([name, , kind]) => el("th", { class: kind }, name)));
  const rows = one.devices.map((device) => el("tr", { "data-row": device.name }, columns.map(([, take, kind]) => el("td", { class: kind }, take(device)))));
  body.append(el("div", { class: "scroll", tabindex: 0 }, el("table", {}, el("thead", {}, head), el("tbody", {}, rows))));
}

function swatched(colour, caption) {
  const dot = el("i", { class: "dot" });
  dot.style.background = colour;
  return el("span", {}, dot, caption);
}

function drawSignals(body, id, names) {
  const found = names.filter((name) => run().signals[name]);
  const wide = body.clientWidth, columns = wide > 1000 ? Math.min(3, found.length) : wide > 760 ? Math.min(2, found.length) : 1;
  const host = el("div", { class: "grid", style: `grid-template-columns:repeat(${columns},minmax(0,1fr));gap:8px 24px` });
  for (const name of found) host.append(panel(titled(name), signalChart(`${id}/${name}`, name, (wide - 24 * (columns - 1)) / columns)));
  body.append(host);
  const nodes = [...new Set(found.flatMap((name) => run().signals[name].map((line) => line.node)))];
  if (nodes.length <= 16) body.append(chips(nodes.map((node) => [node, nodeColour(node), "stroke"])));
}

const nodeColour = (node) => series(run().devices.findIndex((device) => device.name === node));

function signalChart(id, name, width) {
  const lines = run().signals[name].map((line) => ({ name: line.node, colour: nodeColour(line.node), xs: line.at, ys: line.values, step: true, thin: run().signals[name].length > 10 }));
  return lineChart({ lines, width, height: 220, x: { ...AXES.time }, y: { format: decimal, floor: 0, include: [0] }, label: titled(name), view: (state.views[id] = state.views[id] || {}), redraw: drawAll });
}

function others() {
  const known = [...STREAMS, ...SUBMODELS];
  return [...Object.keys(run().signals).filter((name) => !known.includes(name)), ...new Set(state.runs.flatMap((one) => one.curves.map((curve) => curve.name)).filter((name) => !isLearned(name)))];
}

function drawOthers(body, wide) {
  const columns = wide > 760 ? 2 : 1, width = (wide - 24 * (columns - 1)) / columns;
  const host = el("div", { class: "grid", style: `grid-template-columns:repeat(${columns},minmax(0,1fr));gap:8px 24px` });
  for (const name of others()) host.append(panel(titled(name), run().signals[name] ? signalChart(`other/${name}`, name, width) : learningChart(`other/${name}`, learned([name]), width, { format: decimal })));
  body.append(host);
}

function drawEvents(body) {
  const one = run(), shown = one.events.slice(0, 400);
  const rows = shown.map(([at, row, name, caption]) => {
    const dot = el("i", { class: "dot" });
    dot.style.background = `var(--${EVENTS[name] || "other"})`;
    const look = () => { one.timeline.show(at - one.end * 0.02, at + one.end * 0.04); one.timeline.node.scrollIntoView({ block: "center", behavior: "smooth" }); };
    return el("tr", {}, el("td", { class: "number", style: "width:1%" }, el("a", { href: "#timeline", onclick: (event) => { event.preventDefault(); look(); } }, seconds(at))), el("td", {}, row ? one.devices[row - 1].name : "coordinator"), el("td", {}, dot, name), el("td", {}, caption));
  });
  body.append(el("div", { class: "scroll", tabindex: 0 }, el("table", {}, el("thead", {}, el("tr", {}, ["at", "device", "what", "details"].map((name, index) => el("th", { class: index ? "" : "number" }, name)))), el("tbody", {}, rows))));
  if (one.events.length > shown.length) body.append(el("p", { class: "keys" }, `The first ${shown.length} of ${count(one.events.length)}; all of them are in the journal.`));
}
