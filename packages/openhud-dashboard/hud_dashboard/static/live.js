// Live parts: an element with data-live="ADDRESS" is reloaded by its own hx-get at every `changed` event of the stream at
// ADDRESS; `over` ends it. Hidden tabs hold no stream: a browser has six connections for all tabs of one server.

const open = new Map();

function follow() {
  for (const [element, source] of open) {
    if (!element.isConnected || !element.dataset.live || document.hidden) {
      source.close();
      open.delete(element);
    }
  }
  if (document.hidden) return;
  for (const element of document.querySelectorAll("[data-live]")) {
    if (!open.has(element)) open.set(element, begin(element));
  }
}

function begin(element) {
  const source = new EventSource(element.dataset.live);
  source.addEventListener("changed", () => window.htmx.trigger(element, "live"));
  source.addEventListener("over", () => source.close());
  return source;
}

// The user's changes to a part survive a reload: ticked boxes, typed text, opened folds.
function keepWhatWasDone() {
  const kept = { INPUT: ["checked", "value"], SELECT: ["value"], TEXTAREA: ["value"], OPTION: ["selected"], DETAILS: ["open"], DIALOG: ["open"] };
  window.Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, element) => !kept[element.tagName]?.includes(name);
}

export function startLive() {
  keepWhatWasDone();
  follow();
  document.addEventListener("visibilitychange", follow);
  document.addEventListener("htmx:afterSettle", follow);
  window.addEventListener("pagehide", () => open.forEach((source) => source.close()));
}
