// Live parts: an element with data-live="ADDRESS" is asked for again, by its own hx-get, whenever the stream of events at
// ADDRESS says `changed`; `over` ends it. Tabs that nobody looks at hold no stream: a browser has six connections for
// all tabs of one server.

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

// What a person did to a part stays when it is drawn again: boxes ticked, text typed, folds opened.
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
