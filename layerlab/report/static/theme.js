/* Light or dark: as the system has it, or as the button says, which every click changes. */

const darkSystem = matchMedia("(prefers-color-scheme: dark)");
const themeButton = document.getElementById("theme");

function remembered() {
  try { return ["light", "dark"].find((one) => one === localStorage.layerlabTheme); } catch { return undefined; }
}

function remember(theme) {
  try {
    if (theme) localStorage.layerlabTheme = theme;
    else delete localStorage.layerlabTheme;
  } catch { /* a page from disk may not remember */ }
}

const systemTheme = () => (darkSystem.matches ? "dark" : "light");

let theme = remembered();
let printing = false;
const shownTheme = () => theme ?? systemTheme();

function setTheme() {
  const told = printing ? "light" : theme;
  if (told) document.documentElement.dataset.theme = told;
  else delete document.documentElement.dataset.theme;
  themeButton.setAttribute("aria-label", shownTheme() === "dark" ? say("Show light colours") : say("Show dark colours"));
  document.dispatchEvent(new Event("theme"));
}

themeButton.hidden = false;
themeButton.addEventListener("click", () => {
  const other = shownTheme() === "dark" ? "light" : "dark";
  theme = other === systemTheme() ? undefined : other;
  remember(theme);
  setTheme();
});
darkSystem.addEventListener("change", setTheme);
/* Paper is light and narrow, and what is drawn has to be as well. */
const PAPER = 680; // pixels between the margins of A4 and of Letter

/* Paper does not scroll: a table with more columns than it has room for is set smaller. */
function fitTable(table) {
  table.style.inlineSize = "min-content";
  const wide = table.offsetWidth;
  table.style.inlineSize = "";
  if (wide > PAPER) table.style.zoom = PAPER / wide;
}

function setPaper(on) {
  printing = on;
  document.documentElement.toggleAttribute("data-paper", on);
  setTheme();
}

addEventListener("beforeprint", () => {
  setPaper(true);
  document.querySelectorAll("table").forEach(fitTable);
});
addEventListener("afterprint", () => {
  for (const table of document.querySelectorAll("table")) table.style.zoom = "";
  setPaper(false);
});
setTheme();
