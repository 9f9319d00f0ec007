// Human-baseline session: maps a click on the scaled picture to pixels of the screen; and the clock.

document.addEventListener("click", (event) => {
  const picture = event.target.closest?.("input.screen");
  if (!picture) return;
  const form = picture.form;
  const box = picture.getBoundingClientRect();
  // A keyboard event has no position: use the centre.
  const inside = event.detail > 0 ? [event.clientX - box.left, event.clientY - box.top] : [box.width / 2, box.height / 2];
  const scale = Number(picture.dataset.width) / box.width;
  form.elements.namedItem("x").value = Math.max(0, Math.floor(inside[0] * scale));
  form.elements.namedItem("y").value = Math.max(0, Math.floor(inside[1] * scale));
});

// A block that is pasted into a cell of a grid fills the cells below it and to its right.
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

// Clear text fields of the screen and the address after they were submitted.
document.addEventListener("htmx:beforeSend", (event) => {
  for (const field of event.target.querySelectorAll?.("input[data-once]") ?? []) field.value = "";
});

// The shell's input has a history of commands (arrow up) and is cleared after submission.
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
