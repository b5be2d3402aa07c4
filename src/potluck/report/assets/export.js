// Saves figures as image files, at twice the resolution of the screen.
const SAVED_SCALE = 2;

function standaloneSvg(svg) {
  const copy = svg.cloneNode(true);
  const box = svg.viewBox.baseVal;
  copy.setAttribute("xmlns", SVG);
  copy.setAttribute("width", box.width);
  copy.setAttribute("height", box.height);
  const root = getComputedStyle(document.documentElement);
  const names = [...new Set(new XMLSerializer().serializeToString(copy).match(/--[a-z0-9-]+/g) || []), "--ink", "--soft", "--sans"];
  const values = names.map((name) => `${name}:${root.getPropertyValue(name)}`).join(";");
  copy.prepend(s("style", {}, `svg{${values};font:11.5px var(--sans)}text{fill:var(--soft)}.strong{fill:var(--ink);font-weight:560}`));
  return new XMLSerializer().serializeToString(copy);
}

function loadImage(address) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => reject(new Error("the figure could not be drawn"));
    image.src = address;
  });
}

// The figure with its title and legend on one canvas.
async function figureImage(card) {
  const title = card.querySelector("h2").textContent;
  const drawn = [...card.querySelectorAll("svg.chart, canvas[data-chart]")];
  const charts = [];
  for (const one of drawn) {
    if (one instanceof HTMLCanvasElement) run().timeline.draw(true);
    const box = one.getBoundingClientRect();
    const image = one instanceof HTMLCanvasElement ? one : await loadImage(`data:image/svg+xml;charset=utf-8,${encodeURIComponent(standaloneSvg(one))}`);
    charts.push({ image, width: box.width, height: box.height, title: one.closest("[data-panel]")?.dataset.panel });
  }
  const entries = [...card.querySelectorAll(".legend > *")].map((entry) => [entry.textContent, getComputedStyle(entry.querySelector("i")).backgroundColor]);
  return composeImage(title, charts, [...new Map(entries)]);
}

function composeImage(title, charts, entries) {
  const pad = 20, width = Math.max(...charts.map((chart) => chart.width), 320) + 2 * pad;
  const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
  pen.font = `12px ${ink("sans")}`;
  const rows = [[]];
  let used = 0;
  for (const [caption, colour] of entries) {
    const need = pen.measureText(caption).width + 34;
    if (used + need > width - 2 * pad) { rows.push([]); used = 0; }
    rows[rows.length - 1].push([caption, colour, used]);
    used += need;
  }
  const lines = entries.length ? rows.length : 0;
  const height = pad + 26 + charts.reduce((sum, chart) => sum + chart.height + (chart.title ? 24 : 8), 0) + 20 * lines + pad;
  canvas.width = width * SAVED_SCALE;
  canvas.height = height * SAVED_SCALE;
  pen.scale(SAVED_SCALE, SAVED_SCALE);
  pen.fillStyle = ink("card");
  pen.fillRect(0, 0, width, height);
  pen.fillStyle = ink("ink");
  pen.font = `620 16px ${ink("sans")}`;
  pen.fillText(title, pad, pad + 12);
  let y = pad + 26;
  for (const chart of charts) {
    if (chart.title) { pen.fillStyle = ink("soft"); pen.font = `600 12.5px ${ink("sans")}`; pen.fillText(chart.title, pad, y + 12); y += 18; }
    pen.drawImage(chart.image, pad, y, chart.width, chart.height);
    y += chart.height + (chart.title ? 6 : 8);
  }
  pen.font = `12px ${ink("sans")}`;
  rows.forEach((row, line) => row.forEach(([caption, colour, x]) => {
    pen.fillStyle = colour;
    pen.fillRect(pad + x, y + 20 * line + 4, 11, 11);
    pen.fillStyle = ink("soft");
    pen.fillText(caption, pad + x + 17, y + 20 * line + 14);
  }));
  return canvas;
}

function download(address, name) {
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

function saveButtons(card, id) {
  const png = async () => download((await figureImage(card)).toDataURL("image/png"), `${id}.png`);
  const vector = () => card.querySelectorAll("svg.chart").forEach((svg, index) => download(`data:image/svg+xml;charset=utf-8,${encodeURIComponent(standaloneSvg(svg))}`, `${id}${index ? `-${index + 1}` : ""}.svg`));
  return el("span", { class: "tools save" },
    el("button", { type: "button", class: "ghost", "data-save": id, title: "Save this figure as PNG", onclick: png }, "PNG"),
    id === "timeline" ? null : el("button", { type: "button", class: "ghost hide-narrow", title: "Save this figure as SVG", onclick: vector }, "SVG"));
}

// For `potluck report --png`: all figures of the page by name.
window.potluckFigures = async () => {
  const found = {};
  for (const card of document.querySelectorAll("[data-figure]")) found[card.dataset.figure] = (await figureImage(card)).toDataURL("image/png");
  return found;
};
