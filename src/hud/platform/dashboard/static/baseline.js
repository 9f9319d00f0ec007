// A human's sitting: where a click hits the screen's picture, however large that is shown; and the clock.

document.addEventListener("click", (event) => {
  const picture = event.target.closest?.("input.screen");
  if (!picture) return;
  const form = picture.form;
  const box = picture.getBoundingClientRect();
  // From the keyboard there is no place: the middle is as good as any.
  const inside = event.detail > 0 ? [event.clientX - box.left, event.clientY - box.top] : [box.width / 2, box.height / 2];
  const scale = Number(picture.dataset.width) / box.width;
  form.elements.namedItem("x").value = Math.max(0, Math.floor(inside[0] * scale));
  form.elements.namedItem("y").value = Math.max(0, Math.floor(inside[1] * scale));
});

// A block that is pasted into a cell of a grid fills the cells below and beside it.
document.addEventListener("paste", (event) => {
  const cell = event.target;
  const text = event.clipboardData?.getData("text/plain") ?? "";
  if (!cell.matches?.("table.grid input") || !/[\t\n]/.test(text.trimEnd())) return;
  event.preventDefault();
  const [, row, column] = cell.name.split(".").map(Number);
  text.replace(/\r/g, "").replace(/\n$/, "").split("\n").forEach((line, down) => {
    line.split("\t").forEach((value, right) => {
      const field = cell.form.elements.namedItem(`cell.${row + down}.${column + right}`);
      if (field) field.value = value;
    });
  });
});

function tick() {
  for (const clock of document.querySelectorAll("[data-since]")) {
    const seconds = Math.max(0, Math.floor((Date.now() - Date.parse(clock.dataset.since)) / 1000));
    const text = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
    if (clock.textContent !== text) clock.textContent = text;
  }
}
setInterval(tick, 500);
tick();

// What was typed for a screen, or an address, is gone once it is on its way.
document.addEventListener("htmx:beforeSend", (event) => {
  for (const field of event.target.querySelectorAll?.("input[data-once]") ?? []) field.value = "";
});

// The shell's line keeps the last commands: arrow up brings them back. A command that is on its way leaves the line.
const commands = [];
let place = 0;
document.addEventListener("htmx:beforeSend", (event) => {
  const line = event.target.querySelector?.("textarea.shell-line");
  if (!line || !line.value.trim()) return;
  commands.push(line.value);
  place = commands.length;
  line.value = "";
});
document.addEventListener("keydown", (event) => {
  const line = event.target;
  if (!line.matches?.("textarea.shell-line")) return;
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    line.form.requestSubmit();
  } else if (event.key === "ArrowUp" && place > 0 && !line.value.includes("\n")) {
    event.preventDefault();
    line.value = commands[--place];
  } else if (event.key === "ArrowDown" && place < commands.length && !line.value.includes("\n")) {
    event.preventDefault();
    line.value = commands[++place] ?? "";
  }
});
