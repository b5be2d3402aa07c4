// The fleet: a star around the coordinator, or a chain for a pipeline.
function fleetMap(run, width) {
  const devices = run.devices.slice(0, 120);
  return chainOrder(run) ? chain(run, devices, width) : star(run, devices, width);
}

function chainOrder(run) {
  const last = run.partitions[run.partitions.length - 1];
  return last && last.order;
}

const load = (device, end) => Math.min(1, (device.seconds.receive + device.seconds.send + device.seconds.hidden) / (end || 1));
const bandwidth = (device) => Math.min(device.up || 6.25e6, device.down || 6.25e6);

function star(run, devices, width) {
  const crowded = devices.length > 24;
  const height = Math.max(300, Math.min(440, width * (crowded ? 0.9 : 0.62)));
  const cx = width / 2, cy = height / 2, rx = width / 2 - (crowded ? 30 : 30 + 7 * Math.min(16, Math.max(...devices.map((device) => device.name.length), 13))), ry = height / 2 - 46;
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${run.devices.length} devices and their links to the coordinator` });
  const top = Math.max(...devices.map((device) => device.flops || 1));
  const position = (turn) => [cx + rx * Math.cos(turn), cy + ry * Math.sin(turn)];
  devices.forEach((device, number) => {
    const [x, y] = position((2 * Math.PI * number) / devices.length - Math.PI / 2);
    svg.append(linkLine(device, run.end, cx, cy, x, y, crowded ? 1.2 : null));
  });
  svg.append(s("circle", { cx, cy, r: 19, fill: "var(--card)", stroke: "var(--ink)", "stroke-width": 2 }), s("path", { d: `M${cx - 8},${cy - 3}h16M${cx - 8},${cy + 4}h16M${cx - 8},${cy - 3}v7M${cx + 8},${cy - 3}v7`, stroke: "var(--ink)", "stroke-width": 1.6, fill: "none" }));
  devices.forEach((device, number) => {
    const turn = (2 * Math.PI * number) / devices.length - Math.PI / 2;
    const [x, y] = position(turn);
    const size = crowded ? 5 : 8 + 8 * Math.sqrt((device.flops || top) / top);
    svg.append(deviceMark(device, run.end, x, y, size));
    if (crowded) return;
    const below = Math.sin(turn) > -0.2;
    const anchor = Math.cos(turn) > 0.3 ? "start" : Math.cos(turn) < -0.3 ? "end" : "middle";
    const out = anchor === "middle" ? 0 : (anchor === "start" ? 1 : -1) * (size + 9);
    const dy = anchor === "middle" ? (below ? size + 19 : -size - 20) : -2;
    svg.append(svgText(x + out, y + dy, short(device.name, 16), { "text-anchor": anchor, class: "strong" }));
    svg.append(svgText(x + out, y + dy + 14, device.up ? linkWords(device) : bytes(device.sent + device.received), { "text-anchor": anchor, "font-size": 10.5 }));
  });
  return svg;
}

// `50 Mbit/s` if both directions are equal, else `10 ↑ 30 ↓ Mbit/s`.
function linkWords(device) {
  const [up, down] = [bitrate(device.up), bitrate(device.down)];
  const [many, unit] = up.split(" ");
  return up === down ? up : down.endsWith(` ${unit}`) ? `${many} ↑ ${down.split(" ")[0]} ↓ ${unit}` : `${up} ↑ ${down} ↓`;
}

function chain(run, devices, width) {
  const order = chainOrder(run).map((name) => (typeof name === "string" ? devices.find((device) => device.name === name) : devices[name])).filter(Boolean);
  const shown = order.length ? order : devices;
  const spare = devices.filter((device) => !shown.includes(device));
  const height = spare.length ? 218 : 150, step = width / shown.length;
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${shown.length} devices in a chain` });
  shown.forEach((device, number) => {
    const x = step * (number + 0.5);
    if (number) svg.append(linkLine(device, run.end, x - step, 62, x, 62));
  });
  shown.forEach((device, number) => {
    const x = step * (number + 0.5);
    svg.append(deviceMark(device, run.end, x, 62, 16));
    svg.append(svgText(x, 104, short(device.name, Math.max(6, step / 8)), { "text-anchor": "middle", class: "strong" }), svgText(x, 120, `stage ${number}`, { "text-anchor": "middle" }));
  });
  spare.slice(0, 12).forEach((device, number) => {
    const x = (width / Math.min(12, spare.length)) * (number + 0.5);
    svg.append(deviceMark(device, run.end, x, 162, 10), svgText(x, 192, short(device.name, 12), { "text-anchor": "middle" }), svgText(x, 206, device.state === "away" ? "away" : "standing by", { "text-anchor": "middle", "font-size": 10.5 }));
  });
  return svg;
}

function linkLine(device, end, x1, y1, x2, y2, width) {
  const busy = load(device, end);
  const thick = width || Math.max(1, Math.min(9, 1.2 * Math.log10(bandwidth(device) / 1e4)));
  const line = s("g", {},
    s("line", { x1, y1, x2, y2, stroke: "var(--line)", "stroke-width": thick + 2, "stroke-linecap": "round" }),
    s("line", { x1, y1, x2, y2, stroke: busy > 0.66 ? "var(--bad)" : busy > 0.33 ? "var(--send)" : "var(--receive)", "stroke-width": thick, opacity: 0.25 + 0.7 * busy, "stroke-linecap": "round" }));
  return hovered(line, device, end);
}

function deviceMark(device, end, x, y, size) {
  const mark = s("g", { "data-device": device.name }, s("circle", { cx: x, cy: y, r: size + 4, fill: "var(--card)", stroke: "var(--line)" }));
  let turn = -Math.PI / 2;
  for (const [key] of CLASSES) {
    const share = device.seconds[key] / (end || 1);
    if (share > 0.001) mark.append(s("path", { d: arc(x, y, size, turn, turn + 2 * Math.PI * Math.min(share, 0.9999)), fill: `var(--${key})` }));
    turn += 2 * Math.PI * share;
  }
  mark.append(s("circle", { cx: x, cy: y, r: size * 0.5, fill: device.state === "away" ? "var(--dead)" : "var(--card)" }));
  return hovered(mark, device, end);
}

function arc(x, y, r, from, to) {
  const point = (turn) => `${(x + r * Math.cos(turn)).toFixed(2)},${(y + r * Math.sin(turn)).toFixed(2)}`;
  return `M${x},${y}L${point(from)}A${r},${r} 0 ${to - from > Math.PI ? 1 : 0} 1 ${point(to)}Z`;
}

function hovered(node, device, end) {
  node.addEventListener("pointermove", (event) => tip.show(event, aboutDevice(device, end)));
  node.addEventListener("pointerleave", () => tip.hide());
  return node;
}

function aboutDevice(device, end) {
  const lines = [bold(device.name)];
  if (device.flops) lines.push(`${flops(device.flops)}, ${bytes(device.memory)}, ${device.watts} W`);
  if (device.up) lines.push(`up ${bitrate(device.up)}, down ${bitrate(device.down)}, ${seconds(device.latency)} away`);
  lines.push(`received ${bytes(device.received)}, sent ${bytes(device.sent)}`, `link busy ${percent(load(device, end), 0)} of the time`);
  if (device.updates) lines.push(`${count(device.updates)} updates, ${count(device.samples)} samples`);
  if (device.lost || device.late) lines.push(`lost ${device.lost}×, late ${device.late}×`);
  return lines;
}
