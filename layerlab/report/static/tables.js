/* Tables that sort by a click on a heading, and that are saved as CSV. */

const ABSENT = "–";

/* What a cell holds: its value with all its digits where it has one, else its text. */
const cellText = (cell) => cell.dataset.value ?? cell.textContent.replace(/\s+/g, " ").trim();

/* What a cell sorts by: the number at its beginning, if its column is one of numbers. */
function cellKey(cell) {
  const text = cellText(cell);
  if (text === ABSENT || text === "") return null;
  if (!cell.classList.contains("number")) return text;
  const number = Number.parseFloat(text.replace(/,/g, ""));
  return Number.isNaN(number) ? text : number;
}

/* Numbers before texts, and what is missing last, whichever way. */
function compareKeys(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return sign * (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
}

function sortRows(table, { key, down }) {
  const heads = [...table.tHead.rows[0].cells];
  const at = heads.findIndex((head) => head.textContent === key);
  for (const head of heads) if (head.hasAttribute("aria-sort")) head.setAttribute("aria-sort", heads[at] !== head ? "none" : down ? "descending" : "ascending");
  if (at < 0) return;
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => [cellKey(row.cells[at]), row]);
  body.append(...keyed.sort(([a], [b]) => compareKeys(a, b, down ? -1 : 1)).map(([, row]) => row));
}

/* `state` is by which heading, and which way; who redraws the table keeps it. */
function makeSortable(table, state = { key: null, down: false }) {
  table.classList.add("sortable");
  for (const head of table.tHead.rows[0].cells) {
    if (!head.textContent) continue;
    const button = element("button", { type: "button" }, ...head.childNodes);
    button.addEventListener("click", () => {
      Object.assign(state, { key: head.textContent, down: state.key === head.textContent && !state.down });
      sortRows(table, state);
    });
    head.replaceChildren(button);
    head.setAttribute("aria-sort", "none");
  }
  sortRows(table, state);
}

const quotedCell = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

function tableCsv(table) {
  const line = (row) => [...row.cells].filter((cell) => !cell.classList.contains("bar-cell")).map((cell) => quotedCell(cellText(cell) === ABSENT ? "" : cellText(cell))).join(",");
  return [...table.tHead.rows, ...table.tBodies[0].rows].map((row) => `${line(row)}\r\n`).join("");
}

function saveFile(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url));
}

/* A button below a table, which is looked for when it is clicked: it may have been drawn anew. */
function saveButton(name, find) {
  const button = element("button", { type: "button", class: "save" }, say("Download as CSV"));
  button.setAttribute("aria-label", say("Download {name} as CSV", { name }));
  button.addEventListener("click", () => saveFile(`${name}.csv`, tableCsv(find()), "text/csv"));
  return button;
}

for (const table of document.querySelectorAll("table[data-csv]")) {
  makeSortable(table);
  (table.closest(".scroll") ?? table).after(saveButton(table.dataset.csv, () => table));
}
