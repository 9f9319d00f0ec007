// Curves: <figure class="chart" data-chart="ADDRESS"> is drawn from JSON at ADDRESS:
//   {"x": [numbers], "x_label": "step", "series": [{"name": "...", "values": [number or null], "axis": "right"}]}
// A series may have "low" and "high" (a whisker at each value), "points" (each value is marked), "thin" (in the back).
// The same numbers are in the JSON twin of the page, linked from the figure's caption, for users without charts.

const colours = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6"];
const drawn = new WeakMap();
const HEIGHT = 240;
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000, 100000];
let library;

function uplot() {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL("./vendor/uPlot.iife.min.js", import.meta.url);
    script.onload = () => resolve(window.uPlot);
    script.onerror = reject;
    document.head.append(script);
  });
  return library;
}

// Draw the charts inside an element that are not drawn yet; with `again`, all charts.
export function drawCharts(within, again = false) {
  for (const figure of (within.querySelectorAll ? within : document).querySelectorAll("[data-chart]")) {
    if (again || !drawn.has(figure)) draw(figure);
  }
}

// Reload the data of the charts inside an element, in place.
export function refreshCharts(within) {
  for (const figure of within.querySelectorAll("[data-chart]")) {
    const plot = drawn.get(figure);
    if (plot) refresh(figure, plot);
    else if (drawn.has(figure) && !figure.querySelector("canvas")) draw(figure);
  }
}

async function refresh(figure, plot) {
  const answer = await fetch(figure.dataset.chart);
  if (!answer.ok || drawn.get(figure) !== plot) return;
  const data = await answer.json();
  if (data.series.map((one) => one.name).join() !== plot.names) {
    draw(figure, data);
    return;
  }
  plot.whiskers = data.series;
  plot.setData([data.x, ...data.series.map((one) => one.values)]);
}

async function draw(figure, known) {
  drawn.set(figure, drawn.get(figure) ?? null);
  const [uPlot, answer] = await Promise.all([uplot(), known ?? fetch(figure.dataset.chart)]);
  if (!known && !answer.ok) return;
  const data = known ?? (await answer.json());
  drawn.get(figure)?.destroy();
  const place = figure.querySelector(".plot") ?? figure;
  place.replaceChildren();
  const plot = new uPlot(options(data, place), [data.x, ...data.series.map((one) => one.values)], place);
  plot.names = data.series.map((one) => one.name).join();
  plot.whiskers = data.series;
  plot.redraw(false);
  drawn.set(figure, plot);
  // If an enclosing element has an address for steps, a click on a step opens it.
  const steps = figure.closest("[data-steps]")?.dataset.steps;
  if (steps) {
    plot.over.addEventListener("click", () => {
      const step = plot.data[0][plot.cursor.idx];
      if (step) location.assign(steps + step);
    });
  }
  new ResizeObserver(() => {
    if (place.clientWidth) plot.setSize({ width: place.clientWidth, height: HEIGHT });
  }).observe(place);
}

function options(data, place) {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => resolved(style.getPropertyValue(name).trim());
  const ink = read("--muted"), line = read("--line");
  const right = data.series.some((one) => one.axis === "right");
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui" };
  return {
    width: place.clientWidth || 600,
    height: HEIGHT,
    scales: { x: { time: false }, y: { range: (plot, low, high) => spread(plot.whiskers ?? data.series, low, high) } },
    // Without a pointer on the chart, the legend shows the values of the last step.
    hooks: { draw: [whiskers], ready: [lastValues], setLegend: [lastValues] },
    axes: [
      { ...axis, label: data.x_label, labelFont: "12px system-ui", labelSize: 18, incrs: data.x.every(Number.isInteger) ? WHOLE : undefined },
      { ...axis, size: 60, values: (_, ticks) => ticks.map(brief) },
      ...(right ? [{ ...axis, scale: "right", side: 1, size: 56, grid: { show: false } }] : []),
    ],
    series: [
      { label: data.x_label ?? "" },
      ...data.series.map((one, index) => ({
        label: one.name,
        scale: one.axis === "right" ? "right" : "y",
        stroke: one.thin ? faint(read(colours[0])) : read(colours[index % colours.length]),
        width: one.thin ? 1 : 2,
        spanGaps: true,
        points: one.points ? { show: true, size: 7 } : { show: !one.thin && data.x.length < 60, size: 5 },
        value: (_, value) => (value === null || value === undefined ? "–" : brief(value)),
      })),
    ],
  };
}

function lastValues(plot) {
  if (plot.legend.idx == null && plot.data[0].length) plot.setLegend({ idx: plot.data[0].length - 1 });
}

// Format a number with few characters.
function brief(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1).replace("e+", "e");
  return String(Math.round(value * 1e4) / 1e4);
}

// Range of the y axis: all values and whiskers, with a margin.
function spread(series, low, high) {
  const ends = series.flatMap((one) => [...(one.low ?? []), ...(one.high ?? [])]).filter((one) => one !== null);
  const least = Math.min(low ?? 0, ...ends), most = Math.max(high ?? 1, ...ends);
  const air = (most - least || Math.abs(most) || 1) * 0.06;
  return [least >= 0 && least < air * 2 ? 0 : least - air, most + air];
}

function whiskers(plot) {
  const context = plot.ctx;
  (plot.whiskers ?? []).forEach((one, index) => {
    if (!one.low || !plot.series[index + 1].show) return;
    context.save();
    context.strokeStyle = plot.series[index + 1].stroke();
    context.lineWidth = 1.5 * devicePixelRatio;
    context.beginPath();
    one.low.forEach((low, place) => {
      if (low === null) return;
      const x = plot.valToPos(plot.data[0][place], "x", true);
      context.moveTo(x, plot.valToPos(low, "y", true));
      context.lineTo(x, plot.valToPos(one.high[place], "y", true));
    });
    context.stroke();
    context.restore();
  });
}

// The colour of a line in the back, also of its mark in the legend.
function faint(colour) {
  return `color-mix(in srgb, ${colour} 45%, transparent)`;
}

// A canvas does not support light-dark(): let the browser resolve a colour.
function resolved(value) {
  const probe = document.createElement("span");
  probe.style.color = value;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}
