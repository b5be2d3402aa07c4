// Formats numbers for people.
const three = (value) => (Math.abs(value) >= 99.95 ? value.toFixed(0) : String(+value.toPrecision(3)));
const scaled = (steps) => (value) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  for (const [unit, scale] of steps) if (Math.abs(value) >= 0.9995 * scale) return `${three(value / scale)} ${unit}`;
  const [unit, scale] = steps[steps.length - 1];
  return `${three(value / scale)} ${unit}`;
};
const bytes = scaled([["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]]);
const bitrate = (value) => (Number.isFinite(value) ? scaled([["Gbit/s", 125e6], ["Mbit/s", 125e3], ["kbit/s", 125], ["bit/s", 0.125]])(value) : "unlimited");
const joules = scaled([["GJ", 1e9], ["MJ", 1e6], ["kJ", 1e3], ["J", 1]]);
const flops = scaled([["TFLOP/s", 1e12], ["GFLOP/s", 1e9], ["MFLOP/s", 1e6], ["FLOP/s", 1]]);
const count = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
const percent = (value, digits = 1) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)} %`);
const decimal = (value) => (value === null || value === undefined ? "–" : Math.abs(value) >= 1e5 ? scaled([["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]])(value) : String(+value.toPrecision(4)));

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 s";
  const size = Math.abs(value);
  if (size < 0.9995e-3) return `${three(value * 1e6)} µs`;
  if (size < 0.9995) return `${three(value * 1e3)} ms`;
  if (size < 99.95) return `${three(value)} s`;
  const minutes = Math.floor(value / 60 + 0.5 / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.round(value - 60 * minutes)).padStart(2, "0")} s`.replace(" 00 s", "");
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`.replace(" 00 min", "");
}

const TITLES = {
  test_accuracy: "accuracy, held-out data", test_loss: "loss, held-out data", loss: "loss, training",
  buffer: "samples in the buffer", rate: "samples arriving per second", dropped: "samples dropped", share: "fraction of the MACs in use",
};
const FRACTIONS = new Set(["accuracy", "top-5", "f1", "mean-iou"]); // metrics that are fractions of 1
const metricName = (curve) => curve.replace(/^test_/, "");
const metric = (name, value) => (FRACTIONS.has(name) ? percent(value) : decimal(value));
const titled = (name) => TITLES[name] || (name.startsWith("test_") ? `${metricName(name)}, held-out data` : name.replaceAll("_", " "));
