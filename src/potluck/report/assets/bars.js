// Where the time went: a stacked bar per device whose segments add up to the run.
const CLASSES = [
  ["compute", "computing"], ["hidden", "computing during a transfer"], ["receive", "receiving"], ["send", "sending"],
  ["recover", "recovering"], ["stream", "waiting for data"], ["other", "other"], ["wait", "waiting"], ["cut", "disconnected"], ["dead", "dead"],
];

const IDLE = ["stream", "wait", "cut", "dead"];
const busyFraction = (device, end) => 1 - IDLE.reduce((sum, key) => sum + device.seconds[key], 0) / (end || 1);

function present(devices) {
  return CLASSES.filter(([key]) => devices.some((device) => device.seconds[key] > 1e-9 * (device.seconds.wait + 1)));
}

function barChart(devices, end, width) {
  const row = devices.length > 24 ? 15 : devices.length > 9 ? 24 : 34, left = Math.min(150, 20 + 7 * Math.max(...devices.map((device) => device.name.length))), right = 44;
  const height = devices.length * row + 24;
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "Seconds of each device by activity" });
  const px = (share) => left + share * (width - left - right);
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(s("line", { x1: px(tick), x2: px(tick), y1: 0, y2: height - 22, stroke: "var(--grid)" }));
    svg.append(svgText(px(tick), height - 6, `${100 * tick} %`, { "text-anchor": "middle" }));
  }
  devices.forEach((device, index) => {
    const y = index * row + 2;
    svg.append(svgText(left - 8, y + (row > 30 ? row - 10 : row - 5) / 2 + 4, short(device.name, 20), { "text-anchor": "end", class: "strong" }));
    let done = 0;
    for (const [key, caption] of CLASSES) {
      const spent = device.seconds[key];
      if (!(spent > 0)) continue;
      const box = s("rect", { x: px(done / end), y, width: Math.max(0.4, px((done + spent) / end) - px(done / end)), height: row > 30 ? row - 10 : row - 5, fill: `var(--${key})`, "data-class": key });
      box.addEventListener("pointermove", (event) => tip.show(event, [bold(device.name), swatch(`var(--${key})`, `${caption}: ${seconds(spent)}, ${percent(spent / end)}`)]));
      box.addEventListener("pointerleave", () => tip.hide());
      svg.append(box);
      done += spent;
    }
    svg.append(svgText(width - 2, y + (row > 30 ? row - 10 : row - 5) / 2 + 4, percent(busyFraction(device, end), 0), { "text-anchor": "end" }));
  });
  return svg;
}

const short = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);
