// Live run: its curves and scores are redrawn in place when a step or a score was added. With every rollout, only the
// part of the page with the progress changes.

import { refreshCharts } from "./chart.js";

let shown = done();

function done() {
  return document.querySelector("[data-done]")?.dataset.done;
}

document.addEventListener("htmx:afterSettle", () => {
  if (done() === shown) return;
  shown = done();
  refreshCharts(document);
  window.htmx.trigger("#scores", "done");
});
