// Charts of assignments: which device held which layers, how much of the model each one used, what sub-models cost and gain.
function bandChart(run, width) {
  const partitions = run.partitions.filter((one) => one.cuts);
  const layers = partitions[0].layers;
  const left = 46, right = 12, top = 8, bottom = 34, height = 240;
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "Layers held by each stage over time" });
  const px = (time) => left + (time / (run.end || 1)) * (width - left - right);
  const py = (layer) => top + (layer / layers) * (height - top - bottom);
  partitions.forEach((one, index) => {
    const until = index + 1 < partitions.length ? partitions[index + 1].at : run.end;
    const edges = edgesOf(one, layers), who = one.order || [];
    for (let stage = 0; stage + 1 < edges.length; stage++) {
      const name = who[stage] === undefined ? `stage ${stage}` : String(who[stage]);
      const device = run.devices.findIndex((entry) => entry.name === name);
      const box = s("rect", { x: px(one.at), y: py(edges[stage]), width: Math.max(1.5, px(until) - px(one.at) - 1), height: Math.max(1, py(edges[stage + 1]) - py(edges[stage]) - 1), fill: series(device >= 0 ? device : stage), rx: 2, "data-stage": stage });
      box.addEventListener("pointermove", (event) => tip.show(event, [bold(name), `layers ${edges[stage]}–${edges[stage + 1] - 1}`, `${seconds(one.at)} to ${seconds(until)}`, ...(one.reason ? [one.reason] : [])]));
      box.addEventListener("pointerleave", () => tip.hide());
      svg.append(box);
      if (px(until) - px(one.at) > 8 * name.length + 10 && py(edges[stage + 1]) - py(edges[stage]) > 15) svg.append(s("text", { x: px(one.at) + 7, y: (py(edges[stage]) + py(edges[stage + 1])) / 2 + 4, style: "fill:#fff;font-weight:560;pointer-events:none" }, name));
    }
  });
  for (const tick of ticks(0, layers, 5, true)) svg.append(svgText(left - 8, py(tick) + 4, String(tick), { "text-anchor": "end" }));
  for (const tick of timeTicks(0, run.end, width / 110)) svg.append(svgText(px(tick), height - bottom + 18, seconds(tick), { "text-anchor": "middle" }));
  svg.append(svgText((left + width) / 2, height - 2, "time", { "text-anchor": "middle" }), svgText(0, 0, "layer", { transform: `translate(11,${height / 2 - 10}) rotate(-90)`, "text-anchor": "middle" }));
  return svg;
}

// Cuts are the first layers of the stages after the first, with or without the outer edges.
function edgesOf(one, layers) {
  const inner = one.cuts.filter((cut) => cut > 0 && cut < layers);
  return [0, ...inner, layers];
}

function paretoChart(points, width) {
  const height = 250, left = 56, right = 14, top = 10, bottom = 34;
  const sorted = [...points].sort((a, b) => a.macs - b.macs);
  const [x0, x1] = extent(sorted.map((point) => point.macs)), [y0, y1] = extent(sorted.map((point) => point.gain));
  const px = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right - 8) + 4;
  const py = (value) => height - bottom - ((value - y0) / (y1 - y0 || 1)) * (height - top - bottom - 8) - 4;
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${points.length} sub-models by cost and gain` });
  for (const tick of ticks(y0, y1, 5)) svg.append(s("line", { x1: left, x2: width - right, y1: py(tick), y2: py(tick), stroke: "var(--grid)" }), svgText(left - 8, py(tick) + 4, decimal(tick), { "text-anchor": "end" }));
  for (const tick of ticks(x0, x1, width / 100)) svg.append(svgText(px(tick), height - bottom + 18, decimal(tick), { "text-anchor": "middle" }));
  svg.append(svgText((left + width) / 2, height - 2, "MACs per sample", { "text-anchor": "middle" }));
  let best = -Infinity;
  const front = sorted.filter((point) => point.gain > best && ((best = point.gain), true));
  svg.append(s("polyline", { points: front.map((point) => `${px(point.macs).toFixed(1)},${py(point.gain).toFixed(1)}`).join(" "), fill: "none", stroke: "var(--accent)", "stroke-width": 1.6 }));
  for (const point of sorted) {
    const dot = s("circle", { cx: px(point.macs), cy: py(point.gain), r: front.includes(point) ? 4 : 3, fill: front.includes(point) ? "var(--accent)" : "var(--faint)", "data-point": "" });
    dot.addEventListener("pointermove", (event) => tip.show(event, [bold(`gain ${decimal(point.gain)}`), `${decimal(point.macs)} MACs`, ...(point.rates ? [`rates ${[point.rates].flat().map((rate) => decimal(rate)).join(", ")}`] : [])]));
    dot.addEventListener("pointerleave", () => tip.hide());
    svg.append(dot);
  }
  return svg;
}

// One row per device; the colour is stronger where it used more of the model.
function heatChart(lines, end, width) {
  const row = lines.length > 24 ? 10 : 22, left = Math.min(130, 20 + 7 * Math.max(...lines.map((line) => line.node.length))), right = 14;
  const height = lines.length * row + 26, columns = Math.max(20, Math.min(160, Math.floor((width - left - right) / 5)));
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "Fraction of the model that each device used over time" });
  const step = (width - left - right) / columns;
  lines.forEach((line, number) => {
    const y = number * row + 1;
    svg.append(svgText(left - 8, y + row / 2 + 3, short(line.node, 16), { "text-anchor": "end", class: "strong", "font-size": row < 14 ? 9 : 11.5 }));
    svg.append(s("rect", { x: left, y, width: width - left - right, height: row - 2, fill: "var(--track)" }));
    for (const [from, until, value] of averaged(line, end, columns)) {
      const box = s("rect", { x: (left + from * step).toFixed(2), y, width: ((until - from) * step + 0.3).toFixed(2), height: row - 2, fill: "var(--compute)", opacity: (0.08 + 0.92 * value).toFixed(3), "data-heat": "" });
      box.addEventListener("pointermove", (event) => tip.show(event, [bold(line.node), `${percent(value, 0)} of the model, about ${seconds(((from + until) / 2 / columns) * end)}`]));
      box.addEventListener("pointerleave", () => tip.hide());
      svg.append(box);
    }
  });
  for (const tick of timeTicks(0, end, width / 110)) svg.append(svgText(left + (tick / end) * (width - left - right), height - 6, seconds(tick), { "text-anchor": "middle" }));
  return svg;
}

// The mean of each column; a column without values repeats the last one, and equal columns are joined.
function averaged(line, end, columns) {
  const sums = new Float64Array(columns), many = new Float64Array(columns);
  line.at.forEach((at, index) => {
    const column = Math.min(columns - 1, Math.floor((at / (end || 1)) * columns));
    sums[column] += line.values[index];
    many[column] += 1;
  });
  const found = [];
  let value = null;
  for (let column = 0; column < columns; column++) {
    if (many[column]) value = sums[column] / many[column];
    const last = found[found.length - 1];
    if (value === null) continue;
    if (last && Math.abs(last[2] - value) < 0.004) last[1] = column + 1;
    else found.push([column, column + 1, value]);
  }
  return found;
}
