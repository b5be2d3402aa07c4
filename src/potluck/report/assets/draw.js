// Elements, colours, ticks and the tooltip. Text enters the page as text nodes only.
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value; // the page's policy forbids style attributes
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const svgText = (x, y, caption, more) => s("text", { x: x.toFixed(1), y: y.toFixed(1), ...more }, caption);

const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const series = (index) => `var(--s${index % 8})`;

function ticks(low, high, about, whole = false) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(about, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= rough * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) found.push(+(index * step).toPrecision(12));
  return found;
}

// Ticks of a time axis: steps of 1, 2, 5, 10, 15, 30 seconds or minutes, then hours.
function timeTicks(low, high, about) {
  const rough = (high - low) / Math.max(about, 1);
  const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400].find((one) => one >= rough);
  if (rough < 1 || !step) return ticks(low, high, about);
  const found = [];
  for (let index = Math.ceil(low / step); index * step <= high; index++) found.push(index * step);
  return found;
}

// The number of decimals that distinguishes steps of this size: 0.25 needs two.
function decimals(step) {
  let digits = 0;
  while (digits < 9 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-3 * step * 10 ** digits) digits++;
  return digits;
}

const tip = {
  node: null,
  show(event, lines) {
    if (!this.node) document.body.append((this.node = el("div", { id: "tip", role: "status" })));
    this.node.replaceChildren(...lines.flatMap((line, index) => [index ? el("br") : null, line].filter(Boolean)));
    this.node.classList.add("shown");
    const box = this.node.getBoundingClientRect();
    const left = event.clientX + 16 + box.width > innerWidth ? event.clientX - box.width - 12 : event.clientX + 16;
    this.node.style.left = `${Math.max(4, left)}px`;
    this.node.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 6))}px`;
  },
  hide() {
    if (this.node) this.node.classList.remove("shown");
  },
};
const bold = (caption) => el("b", {}, caption);
const swatch = (colour, caption) => {
  const mark = el("i");
  mark.style.background = colour;
  return el("span", {}, mark, caption);
};

function chips(entries, toggle) {
  return el("div", { class: "legend" }, entries.map(([name, colour, shape, off]) => {
    const mark = el("i", { class: shape || "" });
    mark.style.background = colour;
    return toggle ? el("button", { type: "button", "aria-pressed": String(!off), onclick: () => toggle(name) }, mark, name) : el("span", {}, mark, name);
  }));
}

function choice(label, options, chosen, pick) {
  return el("div", { class: "switch", role: "group", "aria-label": label }, options.map(([key, caption]) =>
    el("button", { type: "button", "aria-pressed": String(key === chosen), "data-choice": key, onclick: () => pick(key) }, caption)));
}
