// Common script of all pages: theme switch, copying, keyboard shortcuts, and charts.
// All listeners are on the document, so that parts loaded later by htmx need no setup.

import { drawCharts } from "./chart.js";
import { startLive } from "./live.js";

const root = document.documentElement;

function isDark() {
  const chosen = root.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function switchTheme() {
  root.dataset.theme = isDark() ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  drawCharts(document, true); // Charts read the colours when they are drawn.
}

function say(text) {
  const place = document.getElementById("said");
  if (!place) return;
  place.textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (place.textContent = ""), 2500);
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    say(`Copied ${button.dataset.copy.length > 60 ? "" : button.dataset.copy}`);
  } catch {
    say("The browser does not allow copying.");
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.copy !== undefined) copy(button);
  else if (button.id === "theme") switchTheme();
  else if (button.id === "shortcuts-button") showShortcuts();
  else if (button.dataset.closes) document.getElementById(button.dataset.closes)?.close();
});

document.addEventListener("submit", (event) => {
  const question = event.target.dataset?.confirm;
  if (question && !confirm(question)) event.preventDefault();
}, true);

// A filter form sends only fields with a value, for short addresses.
document.addEventListener("formdata", (event) => {
  if (!event.target.classList.contains("filters")) return;
  for (const [name, value] of [...event.formData.entries()]) {
    if (value === "") event.formData.delete(name);
  }
});

function showShortcuts() {
  const dialog = document.getElementById("shortcuts");
  if (dialog && !dialog.open) dialog.showModal();
}

function isTyping(element) {
  return element.closest?.("input, textarea, select, [contenteditable]") !== null;
}

// Keyboard shortcuts are in data-key ("n", "Shift+f", "g j"): a link is followed, a button pressed, a field focused.
// A macro of the layout lists them in the help.
let before = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (event.key === "?") {
    showShortcuts();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  const key = (event.shiftKey && event.key.length === 1 && /[A-Z]/.test(event.key) ? "Shift+" : "") + (event.key.length === 1 ? event.key.toLowerCase() : event.key);
  const found = find(`${before} ${key}`.trim()) ?? find(key);
  before = key === "g" ? "g" : "";
  if (!found) return;
  event.preventDefault();
  if (found.matches("input, select, textarea")) found.focus();
  else found.click();
});

function find(keys) {
  return document.querySelector(`[data-key="${CSS.escape(keys)}"]`);
}

// Relative times are updated periodically.
const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
function tick() {
  for (const time of document.querySelectorAll("time[data-relative]")) {
    const seconds = (Date.now() - Date.parse(time.dateTime)) / 1000;
    if (seconds >= 86400 * 30 || seconds < 0) continue;
    const [size, unit] = units.find(([size]) => seconds >= size) ?? [1, "s"];
    const text = seconds < 1 ? "now" : `${Math.floor(seconds / size)} ${unit} ago`;
    if (time.textContent !== text) time.textContent = text;
  }
}
setInterval(tick, 1000);

document.addEventListener("htmx:afterSettle", (event) => drawCharts(event.target));
document.addEventListener("htmx:responseError", (event) => say(`The server responded with status ${event.detail.xhr.status}.`));
document.addEventListener("htmx:sendError", () => say("The server cannot be reached."));
drawCharts(document);
startLive();
// On narrow screens the navigation scrolls horizontally.
document.querySelector("nav a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
