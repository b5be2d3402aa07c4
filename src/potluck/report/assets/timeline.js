// The timeline of all devices on a canvas. Every pixel column mixes the colours of its spans in proportion, so a
// hundred thousand spans draw as fast as a hundred and short ones stay visible.
const PAINTS = ["compute", "forward", "backward", "receive", "send", "replicate", "recover", "stream", "other", "round-a", "round-b"];
const LANE_OF = { compute: 0, forward: 0, backward: 0, recover: 0, stream: 0, other: 0, receive: 1, send: 2, replicate: 2, "round-a": 0, "round-b": 0 };
const LANES = ["compute", "receive", "send", "recover", "stream", "other", "round"];
const EVENTS = { crash: "dead", leave: "dead", lost: "dead", start: "receive", joined: "receive", link: "cut", partition: "accent", refused: "warn", "rolled back": "recover" };

class Spans {
  constructor() { this.size = 0; this.sorted = true; this.longest = 0; this.grow(256); }
  grow(room) {
    const wider = (old, Kind) => { const made = new Kind(room); if (old) made.set(old); return made; };
    this.starts = wider(this.starts, Float64Array);
    this.ends = wider(this.ends, Float64Array);
    this.rounds = wider(this.rounds, Int32Array);
    this.details = wider(this.details, Int32Array);
  }
  add(start, end, round, detail) {
    if (this.size === this.starts.length) this.grow(2 * this.size);
    this.starts[this.size] = start;
    this.ends[this.size] = end;
    this.rounds[this.size] = round;
    this.details[this.size++] = detail;
    this.longest = Math.max(this.longest, end - start);
    if (this.size > 1 && end < this.ends[this.size - 2]) this.sorted = false;
  }
  // The index range of all spans visible between two times; spans are sorted by end.
  between(from, to) {
    return this.sorted ? [this.after(from), Math.min(this.size, this.after(to + this.longest) + 1)] : [0, this.size];
  }
  after(time) {
    let low = 0, high = this.size;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.ends[middle] < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

async function inflated(text) {
  const raw = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Int32Array(await new Response(stream).arrayBuffer());
}

async function unpack(packed, rows) {
  const columns = await inflated(packed.columns);
  const total = columns.length / 4;
  let start = 0, round = 0, index = 0;
  packed.counts.forEach((many, row) => {
    rows[row] = rows[row] || new Spans();
    for (let number = 0; number < many; number++, index++) {
      start += columns[index];
      round += columns[2 * total + index];
      rows[row].add(start * packed.tick, (start + columns[total + index]) * packed.tick, round, columns[3 * total + index]);
    }
  });
  return rows;
}

class Timeline {
  constructor(run, rows, follow) {
    this.run = run;
    this.rows = rows;
    this.follow = follow;
    this.view = [0, run.end || 1];
    this.canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": "What each device did over time. Keys: arrows move, plus and minus zoom, 0 shows everything.", "data-chart": "timeline" });
    this.strip = el("i");
    this.window = el("div", { class: "window", "aria-hidden": true }, this.strip);
    this.scroller = el("div", { class: "scroller" }, this.canvas);
    this.node = el("div", { class: "stage" }, this.scroller, this.window);
    this.brush = null;
    this.listen();
  }

  update(run) {
    const whole = this.view[0] === 0 && this.view[1] >= this.run.end;
    this.run = run;
    if (whole) this.view = [0, run.end || 1];
    this.prepare();
    this.draw();
  }

  get names() { return ["coordinator", ...this.run.devices.map((device) => device.name)]; }

  layout() {
    const many = this.rows.length;
    this.width = Math.max(280, this.node.clientWidth || 1000);
    this.row = many <= 14 ? 36 : many <= 30 ? 26 : many <= 60 ? 18 : 12;
    this.left = this.width < 560 ? 74 : 118;
    this.top = 26;
    this.first = 20;
    this.height = this.top + this.first + (many - 1) * this.row + 6;
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    this.ratio = ratio;
    const [wide, high] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (this.canvas.width !== wide) this.canvas.width = wide;
    if (this.canvas.height !== high) this.canvas.height = high;
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
  }

  y(row) { return row === 0 ? this.top : this.top + this.first + (row - 1) * this.row; }
  x(time) { return this.left + ((time - this.view[0]) / (this.view[1] - this.view[0])) * (this.width - this.left); }
  time(x) { return this.view[0] + ((x - this.left) / (this.width - this.left)) * (this.view[1] - this.view[0]); }

  prepare() {
    const inks = getComputedStyle(document.documentElement);
    this.ink = Object.fromEntries([...PAINTS, "card", "track", "line", "soft", "ink", "dead", "cut", "accent", "warn", "sans"].map((name) => [name, inks.getPropertyValue(`--${name}`).trim()]));
    const names = this.run.details.map((detail) => detail.pass || detail.name);
    this.paints = Uint8Array.from(names, (name, index) => {
      const found = PAINTS.indexOf(name);
      return found >= 0 ? found : { compute: 0, receive: 3, send: 4, recover: 6, stream: 7, other: 8, round: 9 }[LANES[this.run.lanes[index]]];
    });
    const probe = document.createElement("canvas").getContext("2d");
    this.colours = PAINTS.map((name) => { probe.fillStyle = this.ink[name]; const hex = probe.fillStyle; return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)); });
    this.lanes = PAINTS.map((name) => LANE_OF[name]);
  }

  // Rows that are scrolled out of view are skipped, unless the whole timeline is exported.
  draw(whole = false) {
    this.layout();
    const from = this.scroller.scrollTop, until = from + (this.scroller.clientHeight || Infinity);
    this.sees = (row) => whole || (this.y(row) + this.row > from && this.y(row) < until);
    const pen = this.canvas.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.fillStyle = this.ink.card;
    pen.fillRect(0, 0, this.width, this.height);
    this.drawGround(pen);
    this.rows.forEach((spans, row) => { if (this.sees(row)) this.drawRow(pen, spans, row); });
    this.drawGone(pen);
    this.drawLabels(pen);
    this.drawEvents(pen);
    this.drawNames(pen);
    this.drawBrush(pen);
    const end = this.run.end || 1;
    this.strip.style.left = `${(100 * this.view[0]) / end}%`;
    this.strip.style.width = `${(100 * (this.view[1] - this.view[0])) / end}%`;
  }

  drawGround(pen) {
    pen.font = `11.5px ${this.ink.sans}`;
    pen.textAlign = "center";
    pen.fillStyle = this.ink.track;
    for (let row = 1; row < this.rows.length; row++) pen.fillRect(this.left, this.y(row) + 1, this.width - this.left, this.row - 4);
    const marks = timeTicks(this.view[0], this.view[1], (this.width - this.left) / 96);
    const digits = marks.length > 1 ? decimals(marks[1] - marks[0]) : 0;
    for (const tick of marks) {
      pen.fillStyle = this.ink.line;
      pen.fillRect(this.x(tick), 18, 1, this.height - 18);
      pen.fillStyle = this.ink.soft;
      const caption = digits && tick ? `${tick.toFixed(digits)} s` : seconds(tick);
      pen.fillText(caption, Math.max(this.left + 14, Math.min(this.x(tick), this.width - 24)), 13);
    }
  }

  exact(time) {
    const wide = this.view[1] - this.view[0];
    if (wide >= 20 || time === 0) return seconds(time);
    const digits = Math.max(0, Math.min(6, 2 - Math.floor(Math.log10(wide))));
    return `${time.toFixed(digits)} s`;
  }

  // The bars of a row: colours weighted by how much of each pixel they cover.
  drawRow(pen, spans, row) {
    const wide = Math.round((this.width - this.left) * this.ratio);
    const lanes = [0, 1, 2].map(() => new Float32Array(4 * wide));
    const scale = wide / (this.view[1] - this.view[0]);
    const [from] = this.view;
    const { starts, ends, rounds, details } = spans;
    const [first, after] = spans.between(...this.view);
    for (let index = first; index < after; index++) {
      const a = (starts[index] - from) * scale, b = (ends[index] - from) * scale;
      if (b < 0 || a > wide) continue;
      let paint = this.paints[details[index]];
      if (paint === 9 && rounds[index] & 1) paint = 10;
      cover(lanes[this.lanes[paint]], this.colours[paint], Math.max(a, 0), Math.min(Math.max(b, a + 0.02), wide), wide);
    }
    const ground = hexOf(this.ink[row ? "track" : "card"]);
    const inner = (row ? this.row : this.first) - 4;
    const [y, main] = [this.y(row) + 1, row ? Math.round(inner * 0.56) : inner];
    this.strips(pen, lanes[0], ground, wide, y, main);
    if (row === 0) return;
    const slim = Math.max(1, (inner - main - 1) / 2);
    this.strips(pen, lanes[1], ground, wide, y + main + 1, slim);
    this.strips(pen, lanes[2], ground, wide, y + main + 1 + slim, slim);
  }

  strips(pen, lane, ground, wide, y, high) {
    const image = new ImageData(wide, 1);
    for (let index = 0; index < wide; index++) {
      const weight = lane[4 * index + 3];
      const shown = weight <= 0 ? 0 : Math.min(1, Math.max(weight, 0.22));
      for (let part = 0; part < 3; part++) image.data[4 * index + part] = weight > 0 ? (lane[4 * index + part] / weight) * shown + ground[part] * (1 - shown) : ground[part];
      image.data[4 * index + 3] = weight > 0 ? 255 : 0;
    }
    const aside = this.unusable || (this.unusable = document.createElement("canvas"));
    aside.width = wide;
    aside.height = 1;
    aside.getContext("2d").putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(aside, 0, 0, wide, 1, this.left, y, this.width - this.left, high);
  }

  drawGone(pen) {
    const hatch = { dead: pattern(pen, this.ink.dead), cut: pattern(pen, this.ink.cut) };
    this.run.devices.forEach((device, index) => {
      for (const [start, end, what] of device.gone) {
        const a = Math.max(this.left, this.x(start)), b = Math.min(this.width, this.x(end));
        if (b <= a) continue;
        pen.fillStyle = hatch[what];
        pen.fillRect(a, this.y(index + 1) + 1, Math.max(b - a, 1), this.row - 4);
        if (b - a < 50 || this.row < 18) continue;
        pen.fillStyle = this.ink.card;
        pen.fillRect(a + 6, this.y(index + 1) + this.row / 2 - 10, what === "dead" ? 36 : 44, 16);
        pen.fillStyle = this.ink[what === "dead" ? "dead" : "soft"];
        pen.textAlign = "left";
        pen.fillText(what === "dead" ? "dead" : "disconnected", a + 10, this.y(index + 1) + this.row / 2 + 2);
      }
    });
  }

  // Labels in bars that are wide enough, and a thin edge between neighbours.
  drawLabels(pen) {
    pen.textAlign = "left";
    pen.font = `10.5px ${this.ink.sans}`;
    this.rows.forEach((spans, row) => {
      const [first, after] = spans.between(...this.view);
      if (!this.sees(row) || (spans.longest / (this.view[1] - this.view[0])) * this.width < 5) return;
      for (let index = first, written = 0; index < after && written < 80; index++) {
        const a = this.x(spans.starts[index]), b = this.x(spans.ends[index]);
        if (b - a < 5 || b < this.left || a > this.width) continue;
        const lane = this.lanes[this.paints[spans.details[index]]];
        if (lane !== 0 && row) continue;
        const from = Math.max(a, this.left);
        pen.fillStyle = this.ink.card;
        pen.fillRect(b - 0.5, this.y(row) + 1, 1, row ? Math.round((this.row - 4) * 0.56) : this.first - 4);
        const caption = this.word(spans, index, row);
        if (Math.min(b, this.width) - from < 14 + 6 * caption.length || this.row < 18) continue;
        pen.fillStyle = row ? "#fff" : this.ink.ink;
        pen.fillText(caption, from + 5, this.y(row) + (row ? Math.round((this.row - 4) * 0.28) + 5 : 13));
        written++;
      }
    });
  }

  word(spans, index, row) {
    const detail = this.run.details[spans.details[index]];
    if (row === 0) return detail.name === "round" ? `round ${spans.rounds[index]}` : detail.name;
    if (detail.unit === "batch" || detail.unit === "part") return `${detail.name[0].toUpperCase()}${spans.rounds[index]}`;
    const stage = detail.stage ?? detail.layer ?? detail.layers;
    return stage === undefined ? detail.name : `${detail.name} ${Array.isArray(stage) ? stage.join("–") : stage}`;
  }

  drawEvents(pen) {
    for (const [at, row, name] of this.run.events) {
      const x = this.x(at);
      if (x < this.left - 4 || x > this.width + 4 || name === "lost" || name === "joined") continue;
      const colour = EVENTS[name] || "other";
      pen.fillStyle = this.ink[colour];
      const y = this.y(row);
      pen.beginPath();
      if (name === "start") { pen.moveTo(x - 4.5, y + 7); pen.lineTo(x + 4.5, y + 7); pen.lineTo(x, y - 1); }
      else { pen.moveTo(x - 4.5, y - 1); pen.lineTo(x + 4.5, y - 1); pen.lineTo(x, y + 7); }
      pen.fill();
      if (name === "partition") pen.fillRect(x - 0.5, this.top, 1, this.height);
    }
  }

  drawNames(pen) {
    pen.fillStyle = this.ink.card;
    pen.fillRect(0, 0, this.left - 4, this.height);
    pen.textAlign = "right";
    const skip = Math.max(1, Math.ceil(11 / this.row));
    this.names.forEach((name, row) => {
      pen.font = `${row ? 560 : 400} ${this.row < 14 ? 10 : 12}px ${this.ink.sans}`;
      pen.fillStyle = this.ink[row ? "ink" : "soft"];
      if (row % skip === 0) pen.fillText(short(row || !this.run.details.some((detail) => detail.name === "round") ? name : "rounds", this.left < 90 ? 9 : 16), this.left - 12, this.y(row) + (row ? this.row : this.first) / 2 + 2);
    });
  }

  drawBrush(pen) {
    if (!this.brush) return;
    pen.fillStyle = this.ink.accent;
    pen.globalAlpha = 0.16;
    pen.fillRect(Math.min(...this.brush), this.top, Math.abs(this.brush[0] - this.brush[1]), this.height);
    pen.globalAlpha = 1;
  }

  // --- zooming and panning -------------------------------------------------------------------------------------------------

  show(from, to) {
    const end = this.run.end || 1;
    const wide = Math.min(end, Math.max(to - from, end * 1e-7));
    const start = Math.min(Math.max(0, from), end - wide);
    this.view = [start, start + wide];
    this.soon();
  }
  soon() { if (!this.due) this.due = requestAnimationFrame(() => { this.due = 0; this.draw(); }); }
  zoom(factor, at = (this.view[0] + this.view[1]) / 2) { this.show(at - (at - this.view[0]) * factor, at + (this.view[1] - at) * factor); }
  move(share) { const step = share * (this.view[1] - this.view[0]); this.show(this.view[0] + step, this.view[1] + step); }
  fit() { this.show(0, this.run.end || 1); }

  listen() {
    const inside = (event) => { const box = this.canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.canvas) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move(event.deltaX / 800);
      else this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 240), this.time(inside(event)[0]));
    }, { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => {
      const [x] = inside(event);
      if (x < this.left || event.button) return;
      this.brush = [x, x];
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      const [x, y] = inside(event);
      if (this.brush) { this.brush[1] = Math.max(this.left, x); this.draw(); }
      this.tell(event, x, y);
    });
    this.canvas.addEventListener("pointerup", () => {
      const brush = this.brush;
      this.brush = null;
      if (brush && Math.abs(brush[0] - brush[1]) > 6) this.show(this.time(Math.min(...brush)), this.time(Math.max(...brush)));
      else if (brush) this.draw();
    });
    this.canvas.addEventListener("pointerleave", () => tip.hide());
    this.scroller.addEventListener("scroll", () => this.soon());
    this.canvas.addEventListener("dblclick", () => this.fit());
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.window.addEventListener("pointerdown", (event) => { this.window.setPointerCapture(event.pointerId); this.slide(event); });
    this.window.addEventListener("pointermove", (event) => { if (event.buttons) this.slide(event); });
  }

  slide(event) {
    const box = this.window.getBoundingClientRect();
    const middle = ((event.clientX - box.left) / box.width) * this.run.end, half = (this.view[1] - this.view[0]) / 2;
    this.show(middle - half, middle + half);
  }

  key(event) {
    const action = { ArrowLeft: () => this.move(-0.15), ArrowRight: () => this.move(0.15), "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6), 0: () => this.fit(), Home: () => this.fit() }[event.key];
    if (!action || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    action();
  }

  // --- what is under the pointer --------------------------------------------------------------------------------------

  tell(event, x, y) {
    const row = y < this.top + this.first ? 0 : 1 + Math.floor((y - this.top - this.first) / this.row);
    if (x < this.left || y < this.top || row >= this.rows.length) { tip.hide(); return; }
    const time = this.time(x);
    const near = this.run.events.find(([at, where]) => where === row && Math.abs(this.x(at) - x) < 5);
    const found = this.under(row, time, y);
    const lines = [bold(this.names[row])];
    if (near) lines.push(swatch(`var(--${EVENTS[near[2]] || "other"})`, `${near[2]}${near[3] ? `: ${near[3]}` : ""}, at ${this.exact(near[0])}`));
    if (found >= 0) lines.push(...this.about(this.rows[row], found));
    else lines.push(this.idle(row, time), this.exact(time));
    tip.show(event, lines);
  }

  under(row, time, y) {
    const spans = this.rows[row];
    const inner = this.row - 4, inMain = row === 0 || y - this.y(row) < inner * 0.58;
    const slack = (1.2 * (this.view[1] - this.view[0])) / (this.width - this.left);
    const [first, after] = spans.between(time - slack, time + slack);
    let best = -1, bestScore = Infinity;
    for (let index = first; index < after; index++) {
      if (spans.starts[index] - slack > time || spans.ends[index] + slack < time) continue;
      const main = this.lanes[this.paints[spans.details[index]]] === 0;
      const away = Math.max(0, spans.starts[index] - time, time - spans.ends[index]);
      const score = away / slack + (main === inMain ? 0 : 10);
      if (score < bestScore) { best = index; bestScore = score; }
    }
    return best;
  }

  about(spans, index) {
    const detail = this.run.details[spans.details[index]];
    const long = spans.ends[index] - spans.starts[index];
    const paint = PAINTS[this.paints[spans.details[index]]];
    const lines = [swatch(`var(--${paint})`, `${detail.name}${spans.rounds[index] >= 0 ? `, ${detail.unit} ${spans.rounds[index]}` : ""}`), `${seconds(long)} from ${this.exact(spans.starts[index])}`];
    if (detail.bytes) lines.push(`${bytes(detail.bytes)}${long > 0 ? ` at ${bitrate(detail.bytes / long)}` : ""}`);
    for (const [name, value] of Object.entries(detail)) if (!["name", "unit", "bytes"].includes(name)) lines.push(`${name} ${Array.isArray(value) ? value.join("–") : typeof value === "number" ? decimal(value) : value}`);
    return lines;
  }

  idle(row, time) {
    const gone = row ? this.run.devices[row - 1].gone.find(([start, end]) => start <= time && time <= end) : null;
    return gone ? `${gone[2] === "dead" ? "dead" : "disconnected"} for ${seconds(gone[1] - gone[0])}` : row ? "waiting" : "between rounds";
  }
}

function cover(lane, colour, a, b, wide) {
  const first = Math.floor(a), last = Math.min(wide - 1, Math.floor(b));
  for (let index = first; index <= last; index++) {
    const share = Math.min(b, index + 1) - Math.max(a, index);
    if (share <= 0) continue;
    const at = 4 * index;
    lane[at] += colour[0] * share;
    lane[at + 1] += colour[1] * share;
    lane[at + 2] += colour[2] * share;
    lane[at + 3] += share;
  }
}

const hexOf = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

function pattern(pen, colour) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const made = tile.getContext("2d");
  made.strokeStyle = colour;
  made.globalAlpha = 0.5;
  made.lineWidth = 1.6;
  for (const shift of [-8, 0, 8]) { made.moveTo(shift, 8); made.lineTo(shift + 8, 0); }
  made.stroke();
  return pen.createPattern(tile, "repeat");
}
