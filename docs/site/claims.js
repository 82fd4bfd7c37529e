/* Tables of claims: shown by source and by word, and on a phone as cards.
   Without this they are plain tables. */
(() => {
  const COLUMNS = ["claim", "source", "verdict"];

  const headings = (table) => [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());

  /** What stands directly in the page and holds this element. */
  const block = (element, page) => {
    let found = element;
    while (found.parentElement && found.parentElement !== page) found = found.parentElement;
    return found;
  };

  const rows = (table) => {
    const names = headings(table);
    return [...table.querySelectorAll("tbody tr")].map((row) => {
      [...row.cells].forEach((cell, place) => { cell.dataset.label = names[place]; });
      const cell = (name) => row.cells[names.indexOf(name)];
      return {
        row,
        source: cell("source").textContent.trim().split(/[,; ]/)[0],
        words: [...cell("verdict").querySelectorAll("strong")].map((word) => word.textContent.trim()),
      };
    });
  };

  const chooser = (name, values, changed) => {
    const label = document.createElement("label");
    const select = document.createElement("select");
    label.append(`${name} `, select);
    for (const value of ["all", ...new Set(values)]) select.append(new Option(value, value === "all" ? "" : value));
    select.addEventListener("change", changed);
    return { label, select };
  };

  const filter = (page) => {
    const tables = [...page.querySelectorAll("table")]
      .filter((table) => COLUMNS.every((name) => headings(table).includes(name)))
      .map((table) => ({ table, rows: rows(table) }));
    if (!tables.length) return;
    const every = tables.flatMap((one) => one.rows);
    const count = document.createElement("output");

    const show = () => {
      let shown = 0;
      for (const { table, rows } of tables) {
        let left = 0;
        for (const { row, source: key, words } of rows) {
          row.hidden = !((!source.select.value || key === source.select.value)
            && (!word.select.value || words.includes(word.select.value)));
          left += !row.hidden;
        }
        const place = block(table, page);
        place.hidden = !left;
        if (place.tagName === "DETAILS" && (source.select.value || word.select.value)) place.open = true;
        const title = place.previousElementSibling;
        if (title && title.tagName === "H2") title.hidden = !left;
        shown += left;
      }
      count.textContent = `${shown} of ${every.length} claims`;
    };

    const source = chooser("Source", every.map((one) => one.source), show);
    const word = chooser("Verdict", every.flatMap((one) => one.words), show);
    const bar = document.createElement("div");
    bar.className = "claims-filter";
    bar.append(source.label, word.label, count);
    const first = block(tables[0].table, page);
    const title = first.previousElementSibling;
    for (const { table } of tables) table.dataset.claims = "";
    (title && title.tagName === "H2" ? title : first).before(bar);
    show();
  };

  /** What is folded is open on paper, and wherever a link or a search leads. */
  const open = (element) => {
    for (let fold = element; fold; fold = fold.parentElement) if (fold.tagName === "DETAILS") fold.open = true;
  };
  addEventListener("beforeprint", () => document.querySelectorAll("article details").forEach(open));

  const start = () => document.querySelectorAll("article").forEach(filter);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
