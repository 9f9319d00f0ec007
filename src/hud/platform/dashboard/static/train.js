// A run that is under way: when a step or a score was added, its curves are drawn again in place, and its scores, too.
// What changes with every rollout is only the part of the page that says so.

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
