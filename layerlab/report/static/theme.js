/* Light, dark, or as the system; `refresh` draws the page again. */

const root = document.documentElement;
const THEMES = ["system", "light", "dark"];
const themeSaid = (theme) => ({ system: say("Colours: as the system"), light: say("Colours: light"), dark: say("Colours: dark") })[theme];
function setTheme(theme) {
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
  document.getElementById("theme").setAttribute("aria-label", themeSaid(theme));
  document.getElementById("theme").textContent = { system: "◐", light: "○", dark: "●" }[theme];
}

function remembered() {
  try { return THEMES.includes(localStorage.layerlabTheme) ? localStorage.layerlabTheme : "system"; } catch { return "system"; }
}

let theme = remembered();
setTheme(theme);
document.getElementById("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try { localStorage.layerlabTheme = theme; } catch { /* a page from disk may not remember */ }
  setTheme(theme);
  refresh();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
