// A line chart: hover or arrow keys show values, a drag zooms in, a double click resets the zoom.
function lineChart(options) {
  const c = framed(options);
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${c.width} ${c.height}`, height: c.height, role: "img", "aria-label": options.label, tabindex: 0 });
  drawAxes(svg, c);
  const clip = `clip${++lineChart.made}`;
  svg.append(s("clipPath", { id: clip }, s("rect", { x: c.left, y: c.top - 4, width: c.width - c.left - c.right, height: c.height - c.top - c.bottom + 8 })));
  const body = s("g", { "clip-path": `url(#${clip})` });
  drawMarks(body, c, options.marks || []);
  for (const line of c.lines) if (!line.off) body.append(curve(line, c.px, c.py));
  svg.append(body);
  new Reading(svg, c);
  return svg;
}
lineChart.made = 0;

// The ranges of both axes, and the scales from values to pixels.
function framed({ lines, width, height = 250, x, y, view = {}, redraw }) {
  const left = 52, right = 14, top = 10, bottom = 34;
  const [x0, x1] = view.range || extent(lines.flatMap((line) => [line.xs[0], line.xs[line.xs.length - 1]]));
  const seen = lines.filter((line) => !line.off).flatMap((line) => line.ys.filter((value, index) => line.xs[index] >= x0 && line.xs[index] <= x1));
  let [y0, y1] = extent([...seen, ...(y.include || [])]);
  const pad = (y1 - y0) * 0.06 || Math.abs(y1) * 0.1 || 1;
  y0 = y.floor !== undefined && y0 - pad < y.floor ? y.floor : y0 - pad;
  y1 = y.ceiling !== undefined && y1 + pad > y.ceiling ? y.ceiling : y1 + pad;
  const px = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right);
  const py = (value) => height - bottom - ((value - y0) / (y1 - y0 || 1)) * (height - top - bottom);
  return { lines, width, height, x, y, view, redraw, left, right, top, bottom, x0, x1, y0, y1, px, py };
}

function drawAxes(svg, c) {
  for (const tick of ticks(c.y0, c.y1, c.height / 48)) {
    svg.append(s("line", { x1: c.left, x2: c.width - c.right, y1: c.py(tick), y2: c.py(tick), stroke: "var(--grid)" }));
    svg.append(svgText(c.left - 8, c.py(tick) + 4, c.y.format(tick), { "text-anchor": "end" }));
  }
  const floor = c.height - c.bottom;
  for (const tick of (c.x.ticks || ticks)(c.x0, c.x1, c.width / 90, c.x.whole)) svg.append(svgText(c.px(tick), floor + 18, c.x.format(tick), { "text-anchor": "middle" }));
  svg.append(s("line", { x1: c.left, x2: c.width - c.right, y1: floor, y2: floor, stroke: "var(--line)" }));
  if (c.x.label) svg.append(svgText((c.left + c.width - c.right) / 2, c.height - 2, c.x.label, { "text-anchor": "middle", fill: "var(--faint)" }));
}

// Faults: dashed lines, or short strokes along the top if there are many.
function drawMarks(body, c, marks) {
  const seen = marks.filter((mark) => mark.x >= c.x0 && mark.x <= c.x1), many = seen.length > 16;
  for (const mark of seen) {
    const x = c.px(mark.x);
    body.append(s("line", { x1: x, x2: x, y1: c.top, y2: many ? c.top + 8 : c.height - c.bottom, stroke: mark.colour, "stroke-dasharray": many ? null : "2 3", opacity: many ? 0.6 : 0.75 }, s("title", {}, mark.caption)));
    if (!many) body.append(s("path", { d: `M${x - 4},${c.top}h8l-4,6z`, fill: mark.colour }, s("title", {}, mark.caption)));
  }
}

function curve(line, px, py) {
  const points = line.ys.map((value, index) => `${px(line.xs[index]).toFixed(1)},${py(value).toFixed(1)}`);
  const drawn = line.step ? stepped(line, px, py) : points.join(" ");
  const width = line.thin ? 1 : 1.9;
  const attributes = { points: drawn, fill: "none", stroke: line.colour, "stroke-width": width, "stroke-linejoin": "round", "stroke-dasharray": line.dash, opacity: line.thin ? 0.65 : 1, "data-line": line.name };
  if (line.ys.length === 1) return s("circle", { cx: px(line.xs[0]), cy: py(line.ys[0]), r: 3, fill: line.colour });
  return s("polyline", attributes);
}

function stepped(line, px, py) {
  const found = [];
  line.ys.forEach((value, index) => {
    if (index) found.push(`${px(line.xs[index]).toFixed(1)},${py(line.ys[index - 1]).toFixed(1)}`);
    found.push(`${px(line.xs[index]).toFixed(1)},${py(value).toFixed(1)}`);
  });
  return found.join(" ");
}

// The cross that follows the pointer or the arrow keys, and the range that a drag zooms into.
class Reading {
  constructor(svg, c) {
    this.svg = svg;
    this.c = c;
    this.at = c.x1;
    this.from = null;
    this.rule = s("line", { y1: c.top, y2: c.height - c.bottom, stroke: "var(--faint)" });
    this.brush = s("rect", { y: c.top, height: c.height - c.top - c.bottom, fill: "var(--accent)", opacity: 0 });
    this.lines = c.lines.filter((line) => !line.off);
    this.dots = this.lines.map((line) => s("circle", { r: 3.6, fill: line.colour, stroke: "var(--card)", "stroke-width": 1.5 }));
    this.cross = s("g", { opacity: 0 }, this.rule, this.dots);
    svg.append(this.brush, this.cross);
    this.listen();
  }

  listen() {
    const { svg } = this;
    svg.addEventListener("pointermove", (event) => this.move(event));
    svg.addEventListener("pointerleave", () => this.leave());
    svg.addEventListener("blur", () => this.leave());
    svg.addEventListener("keydown", (event) => this.key(event));
    if (!this.c.redraw) return;
    svg.addEventListener("pointerdown", (event) => { this.from = this.valueAt(event); svg.setPointerCapture(event.pointerId); });
    svg.addEventListener("pointerup", (event) => this.release(this.valueAt(event)));
    svg.addEventListener("dblclick", () => { delete this.c.view.range; this.c.redraw(); });
  }

  valueAt(event) {
    const { c } = this, box = this.svg.getBoundingClientRect();
    const inside = ((event.clientX - box.left) / box.width) * c.width;
    return this.within(c.x0 + ((inside - c.left) / (c.width - c.left - c.right)) * (c.x1 - c.x0));
  }

  within(value) { return Math.min(this.c.x1, Math.max(this.c.x0, value)); }

  move(event) {
    const value = this.valueAt(event), { px } = this.c;
    if (this.from !== null) {
      this.brush.setAttribute("x", Math.min(px(this.from), px(value)));
      this.brush.setAttribute("width", Math.abs(px(this.from) - px(value)));
      this.brush.setAttribute("opacity", 0.12);
    }
    this.read(value, event);
  }

  release(to) {
    const from = this.from, { c } = this;
    this.from = null;
    this.brush.setAttribute("opacity", 0);
    if (from === null || Math.abs(c.px(to) - c.px(from)) <= 8) return;
    c.view.range = [Math.min(from, to), Math.max(from, to)];
    c.redraw();
  }

  read(value, event) {
    const { c } = this, format = c.y.exact || c.y.format;
    this.at = value;
    this.cross.setAttribute("opacity", 1);
    for (const side of ["x1", "x2"]) this.rule.setAttribute(side, c.px(value));
    const found = this.lines.map((line) => nearest(line.xs, value));
    this.lines.forEach((line, index) => {
      this.dots[index].setAttribute("cx", c.px(line.xs[found[index]]));
      this.dots[index].setAttribute("cy", c.py(line.ys[found[index]]));
    });
    const caption = this.lines.slice(0, 12).map((line, index) => swatch(line.colour, `${line.name}  ${format(line.ys[found[index]])}`));
    if (this.lines.length > 12) caption.push(`and ${this.lines.length - 12} more`);
    tip.show(event, [bold(`${c.x.name || ""} ${c.x.format(value)}`.trim()), ...caption]);
  }

  leave() {
    this.cross.setAttribute("opacity", 0);
    tip.hide();
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], { c } = this;
    if (!step) return;
    event.preventDefault();
    const box = this.svg.getBoundingClientRect(), value = this.within(this.at + (step * (c.x1 - c.x0)) / 60);
    this.read(value, { clientX: box.left + (c.px(value) / c.width) * box.width, clientY: box.top + box.height / 2 });
  }
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

function nearest(xs, value) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= value) low = middle;
    else high = middle;
  }
  return Math.abs(xs[low] - value) <= Math.abs(xs[high] - value) ? low : high;
}

function sparkline(values, width, height, colour) {
  if (values.length < 2) return null;
  const [low, high] = extent(values);
  const points = values.map((value, index) => `${((index / (values.length - 1)) * (width - 2) + 1).toFixed(1)},${(height - 2 - ((value - low) / (high - low || 1)) * (height - 4)).toFixed(1)}`);
  return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": true }, s("polyline", { points: points.join(" "), fill: "none", stroke: colour, "stroke-width": 1.6, "stroke-linejoin": "round" }));
}
