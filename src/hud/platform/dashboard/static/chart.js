// Curves: <figure class="chart" data-chart="ADDRESS"> is drawn from JSON at ADDRESS:
//   {"x": [numbers], "x_label": "step", "series": [{"name": "...", "values": [number or null], "axis": "right"}]}
// Whoever sees no charts finds the same numbers in the page's JSON twin, which the figure's caption links to.

const colours = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6"];
const drawn = new WeakMap();
const HEIGHT = 240;
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

// Draw the charts inside an element that are not drawn yet; with `again`, all of them.
export function drawCharts(within, again = false) {
  for (const figure of (within.querySelectorAll ? within : document).querySelectorAll("[data-chart]")) {
    if (again || !drawn.has(figure)) draw(figure);
  }
}

async function draw(figure) {
  drawn.set(figure, drawn.get(figure) ?? null);
  const [uPlot, answer] = await Promise.all([uplot(), fetch(figure.dataset.chart)]);
  if (!answer.ok) return;
  const data = await answer.json();
  drawn.get(figure)?.destroy();
  const place = figure.querySelector(".plot") ?? figure;
  place.replaceChildren();
  const plot = new uPlot(options(data, place), [data.x, ...data.series.map((one) => one.values)], place);
  drawn.set(figure, plot);
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
    scales: { x: { time: false } },
    axes: [
      { ...axis, label: data.x_label, labelFont: "12px system-ui" },
      { ...axis, size: 56 },
      ...(right ? [{ ...axis, scale: "right", side: 1, size: 56, grid: { show: false } }] : []),
    ],
    series: [
      { label: data.x_label ?? "" },
      ...data.series.map((one, index) => ({
        label: one.name,
        scale: one.axis === "right" ? "right" : "y",
        stroke: read(colours[index % colours.length]),
        width: 2,
        spanGaps: true,
        points: { show: data.x.length < 60, size: 5 },
        value: (_, value) => (value === null || value === undefined ? "–" : String(Math.round(value * 1e4) / 1e4)),
      })),
    ],
  };
}

// A canvas does not know light-dark(): let the browser say which colour a value is now.
function resolved(value) {
  const probe = document.createElement("span");
  probe.style.color = value;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}
