// Before the first paint: the theme that was chosen here, if one was. Not a module, which would come too late.
const chosen = localStorage.getItem("theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
