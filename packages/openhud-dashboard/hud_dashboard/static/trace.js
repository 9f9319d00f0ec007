// Trace: windows of steps are loaded when they come near the viewport; keyboard navigation, timeline and screenshots
// follow the current step; new steps of a live run are appended.

const root = document.getElementById("trace");
const steps = document.getElementById("steps");
const instruments = root.querySelector(".instruments");
const places = new Map(); // Step number to its position on the timeline, in thousandths.
let failed = [];
let shots = [];
let current = null;
let held = false; // The current step was selected: it stays current until the user scrolls.
let sought = null; // Id of a step that is being loaded.

// -- windows of steps --------------------------------------------------------------------------------------

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) fetchWindow(entry.target);
}, { rootMargin: "1500px 0px" });

function fetchWindow(section) {
  if (!section.classList.contains("waiting") || section.dataset.asked) return;
  section.dataset.asked = "yes";
  htmx.trigger(section, "wanted");
}

// Unloaded windows get an estimated height, so that the scroll bar is meaningful.
function size() {
  const shown = [...steps.querySelectorAll(".step")].slice(0, 100);
  if (!shown.length) return;
  const mean = shown.reduce((sum, step) => sum + step.offsetHeight, 0) / shown.length;
  for (const section of steps.querySelectorAll(".waiting")) {
    section.style.height = `${Math.round(mean * section.dataset.count)}px`;
    watcher.observe(section);
  }
}

function sectionOf(number) {
  for (const section of steps.querySelectorAll(".window")) {
    if (number <= Number(section.dataset.last)) return section;
  }
  return null;
}

// Sticky elements cover space above the target step.
new ResizeObserver(() => {
  const stuck = getComputedStyle(instruments).position === "sticky" ? instruments.offsetHeight : 0;
  const top = document.querySelector(".top").offsetHeight;
  root.style.setProperty("--stuck", `${stuck + top}px`);
}).observe(instruments);

// -- going to a step ------------------------------------------------------------------------------------------

function goTo(id, focus = true) {
  const step = document.getElementById(id);
  if (step) {
    sought = null;
    choose(step, focus);
    return;
  }
  const number = Number(id.slice("step-".length).split(".")[0]);
  const section = Number.isFinite(number) ? sectionOf(number) : null;
  if (!section) return;
  sought = id;
  const outer = document.getElementById(`step-${number}`);
  if (outer) for (const nested of outer.querySelectorAll("details.nested")) nested.open = true;
  else {
    section.scrollIntoView();
    fetchWindow(section);
  }
}

function choose(step, focus) {
  held = true;
  mark(step);
  step.scrollIntoView({ block: "start" });
  // Steps off screen have an estimated height until they are rendered, which moves later elements.
  requestAnimationFrame(() => step.scrollIntoView({ block: "start" }));
  if (focus) step.focus({ preventScroll: true });
}

function mark(step) {
  if (step === current) return;
  current?.classList.remove("current");
  current = step;
  step.classList.add("current");
  const number = Number(step.dataset.number.split(".")[0]);
  const line = root.querySelector(".cursor");
  if (line && places.has(number)) {
    line.setAttribute("x1", places.get(number));
    line.setAttribute("x2", places.get(number));
  }
  followShots(number);
}

function lookedAt() {
  const top = instruments.getBoundingClientRect().bottom;
  const box = steps.getBoundingClientRect();
  const at = Math.max(top, 48) + 12;
  const step = document.elementFromPoint(box.left + box.width / 2, at)?.closest(".window > .step");
  if (step) mark(step);
}

let asked = false;
let atEnd = false; // At the end of a live run, the view stays at the end.
document.addEventListener("scroll", () => {
  if (innerHeight + scrollY > document.documentElement.scrollHeight - 160) atEnd = true;
  if (asked || held) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    if (!held) lookedAt();
  });
}, { passive: true });
document.addEventListener("wheel", (event) => {
  held = false;
  if (event.deltaY < 0) atEnd = false;
}, { passive: true });
document.addEventListener("touchmove", () => { held = atEnd = false; }, { passive: true });
document.addEventListener("keydown", (event) => {
  if (["PageUp", "Home", "ArrowUp"].includes(event.key)) held = atEnd = false;
  if (["PageDown", "End", "ArrowDown", " "].includes(event.key)) held = false;
});

const numbered = (step) => Number(step.dataset.number);

function neighbour(back) {
  const all = [...steps.querySelectorAll(".window > .step, .window.waiting")];
  const at = current ? all.indexOf(current.closest(".window > .step")) : -1;
  return all[at + (back ? -1 : 1)];
}

function walk(way) {
  if (way.endsWith("failed")) {
    const here = current ? numbered(current.closest(".window > .step")) : -1;
    const next = way.startsWith("previous")
      ? failed.filter((number) => number < here).at(-1)
      : failed.find((number) => number > here);
    if (next === undefined) say("No more failed steps in this direction.");
    else visit(`step-${next}`);
    return;
  }
  const target = neighbour(way === "previous");
  if (!target) return;
  if (target.classList.contains("waiting")) {
    visit(`step-${way === "previous" ? target.dataset.last : target.dataset.first}`);
  } else visit(target.id);
}

function visit(id) {
  atEnd = false;
  history.replaceState(history.state, "", `#${id}`);
  goTo(id);
}

function say(text) {
  const place = document.getElementById("said");
  place.textContent = text;
  setTimeout(() => { if (place.textContent === text) place.textContent = ""; }, 2500);
}

document.addEventListener("click", (event) => {
  const way = event.target.closest("[data-step]")?.dataset.step;
  if (way) walk(way);
  const link = event.target.closest('a[href^="#step-"]');
  if (link) {
    event.preventDefault();
    visit(link.getAttribute("href").slice(1));
  }
  // Changing the colour of tokens changes the address and keeps the current step.
  const colour = event.target.closest(".colours a");
  if (colour && current) colour.hash = current.id;
  const drawing = event.target.closest(".drawing svg");
  if (drawing) {
    const box = drawing.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * 1000;
    let nearest = null;
    for (const [number, place] of places) {
      if (nearest === null || Math.abs(place - at) < Math.abs(places.get(nearest) - at)) nearest = number;
    }
    if (nearest !== null) visit(`step-${nearest}`);
  }
});

document.getElementById("go")?.addEventListener("change", (event) => {
  if (event.target.value === "") return;
  visit(`step-${Number(event.target.value)}`);
  event.target.blur();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "o" || event.ctrlKey || event.metaKey || event.altKey || !current) return;
  if (event.target.closest?.("input, textarea, select")) return;
  const folds = [...current.querySelectorAll("details")];
  const open = folds.some((fold) => !fold.open);
  for (const fold of folds) fold.open = open;
});

addEventListener("hashchange", () => goTo(location.hash.slice(1)));

// -- the timeline and the screenshots ---------------------------------------------------------------------------

function readTimeline() {
  const drawing = root.querySelector(".drawing");
  places.clear();
  for (const pair of (drawing?.dataset.places ?? "").split(" ").filter(Boolean)) {
    const [number, place] = pair.split(":").map(Number);
    places.set(number, place);
  }
  failed = (drawing?.dataset.failed ?? "").split(" ").filter(Boolean).map(Number);
  for (const button of root.querySelectorAll('[data-step$="failed"]')) button.disabled = !failed.length;
  const panel = root.querySelector(".shots");
  shots = (panel?.dataset.shots ?? "").split(" ").filter(Boolean).map((pair) => pair.split(":"));
  if (current) {
    const step = current;
    current = null;
    mark(step);
  }
  document.getElementById("timeline").dataset.read = "yes";
}

function address([number, name]) {
  return `/trace/${root.dataset.trace}/steps/${number}/image/${name}`;
}

function showShot(place) {
  const panel = root.querySelector(".shots");
  const shot = shots[place];
  if (!panel || !shot) return;
  const picture = panel.querySelector(".large img");
  panel.querySelector(".image-refused")?.remove();
  picture.hidden = false;
  if (picture.getAttribute("src") !== address(shot)) picture.src = address(shot);
  picture.alt = `Screenshot of step ${shot[0]}`;
  panel.querySelector(".large").href = address(shot);
  panel.querySelector("output").textContent = `step ${shot[0]}, ${place + 1} of ${shots.length}`;
  panel.querySelector(".shots-head a").href = `#step-${shot[0]}`;
  for (const near of [place + 1, place - 1]) if (shots[near]) new Image().src = address(shots[near]);
}

function followShots(number) {
  const slider = document.getElementById("scrub");
  if (!slider || document.activeElement === slider) return;
  // The screen at a step is the latest screenshot up to it.
  let place = shots.findLastIndex(([at]) => Number(at) <= number);
  if (place < 0) place = 0;
  slider.value = place;
  showShot(place);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target.matches?.("#scrub, #go")) event.target.blur();
});
document.addEventListener("input", (event) => {
  if (event.target.id === "scrub") showShot(Number(event.target.value));
});

// Replace a refused image by a notice.
function refuse(picture) {
  if (picture.hidden) return;
  picture.hidden = true;
  const note = document.createElement("span");
  note.className = "image-refused";
  note.textContent = "This image is not shown: it is damaged, too large, or of a type that may contain scripts.";
  picture.after(note);
}
document.addEventListener("error", (event) => {
  if (event.target instanceof HTMLImageElement) refuse(event.target);
}, true);
// Images that were refused before this script ran.
for (const picture of document.images) if (picture.complete && !picture.naturalWidth) refuse(picture);

// -- a run that goes on --------------------------------------------------------------------------------------------

new ResizeObserver(() => {
  if (!atEnd || !document.getElementById("follow")?.checked) return;
  held = false;
  scrollTo({ top: document.documentElement.scrollHeight });
}).observe(steps);

let growing = false;
let again = false;

async function grow() {
  if (growing) {
    again = true;
    return;
  }
  growing = true;
  try {
    do {
      again = false;
      await growOnce();
    } while (again);
  } catch {
    say("The server cannot be reached.");
  } finally {
    growing = false;
  }
}

// The timeline covers the whole run: it is redrawn less often than steps arrive.
let redrawing = null;
function redrawSoon() {
  redrawing ??= setTimeout(() => {
    redrawing = null;
    htmx.trigger("#timeline", "grown");
  }, 2000);
}

async function growOnce() {
  const place = `/trace/${root.dataset.trace}`;
  const head = await (await fetch(`${place}/head`)).text();
  htmx.swap("#run", head, { swapStyle: "outerHTML" });
  const last = Number(root.dataset.last);
  // While windows are unloaded, new steps belong to the last of them.
  const query = new URLSearchParams({ first: last + 1 });
  if (root.dataset.colour) query.set("tokens", root.dataset.colour);
  const answer = await fetch(`${place}/steps?${query}`);
  if (!answer.ok) throw new Error(answer.statusText);
  const text = await answer.text();
  const part = new DOMParser().parseFromString(text, "text/html").body;
  const found = [...part.querySelectorAll(":scope > .step")];
  if (!found.length) return;
  document.getElementById("no-steps")?.remove();
  const section = document.createElement("section");
  section.className = "window";
  section.dataset.first = found[0].dataset.number;
  section.dataset.last = found.at(-1).dataset.number;
  section.append(...found);
  steps.append(section);
  htmx.process(section);
  root.dataset.last = section.dataset.last;
  let count = steps.querySelectorAll(".window > .step").length;
  for (const waiting of steps.querySelectorAll(".waiting")) count += Number(waiting.dataset.count);
  document.getElementById("step-count").textContent = `of ${count}`;
  redrawSoon();
  if (found.length >= 100) again = true;
}

if (root.dataset.events) {
  const events = new EventSource(root.dataset.events);
  events.addEventListener("changed", (event) => {
    // A repeated rollout starts again: the steps shown so far are discarded.
    if (Number(event.data.split(".")[0]) < Number(root.dataset.last)) location.reload();
    else grow();
  });
  events.addEventListener("over", () => {
    events.close();
    grow();
  });
}

// -- beginning -------------------------------------------------------------------------------------------------------

document.addEventListener("htmx:afterSwap", (event) => {
  const section = event.target;
  if (section.classList?.contains("waiting")) {
    section.classList.remove("waiting");
    section.style.height = "";
    watcher.unobserve(section);
    }
  if (section.id === "timeline") readTimeline();
});
document.addEventListener("htmx:afterSettle", () => {
  if (sought) goTo(sought);
});
// htmx handles events only after processing the page, which happens in this event as well.
document.addEventListener("DOMContentLoaded", () => setTimeout(() => {
  size();
  const asked = new URLSearchParams(location.search).get("step");
  if (location.hash.startsWith("#step-")) goTo(location.hash.slice(1), false);
  else if (asked) goTo(`step-${asked}`, false);
}));
