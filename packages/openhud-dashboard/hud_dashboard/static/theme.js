// Applies the stored theme before the first paint. Not a module, which would run too late.
const chosen = localStorage.getItem("theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
