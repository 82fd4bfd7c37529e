/* The values of a measure as a table that sorts. */

function drawTable(section) {
  const column = columnOf(section);
  const shown = seriesOf(section);
  const { columns, better, per_head: perHead } = section.measure;
  const heads = [];
  if (data.models.length > 1) heads.push({ key: "model", title: say("model"), of: (s) => data.models[s.model].name, text: true });
  heads.push({ key: "layer", title: say("layer"), of: (s, i) => s.layers[i], show: layerNumber });
  for (const name of columns) heads.push({ key: name, title: columnName(name), of: (s, i) => s.values[name].mean[i] });
  if (perHead && column) {
    heads.push({ key: "head", title: better ? say("worst head") : say("largest head"), of: (s, i) => extreme(s, i, column, better)?.head ?? null });
    heads.push({ key: "its", title: say("its {column}", { column: columnName(column) }), of: (s, i) => extreme(s, i, column, better)?.value ?? null });
  }
  const rows = shown.flatMap((s) => s.layers.map((_, i) => heads.map((h) => h.of(s, i))));
  section.part("table").replaceChildren(table(section, heads, sorted(rows, heads, section.sort)));
}

function extreme(series, i, column, better) {
  const { mean } = series.maps[column];
  const values = series.heads.map((head, j) => ({ head, value: mean[i * series.heads.length + j] })).filter((v) => v.value !== null);
  const sign = better === "higher" ? -1 : 1;
  return values.sort((a, b) => sign * (b.value - a.value))[0];
}

function sorted(rows, heads, { key, down }) {
  const at = heads.findIndex((h) => h.key === key);
  if (at < 0) return rows;
  const order = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
  return [...rows].sort(({ [at]: a }, { [at]: b }) =>
    a === null || b === null ? (a === null) - (b === null) : down ? order(b, a) : order(a, b));
}

function table(section, heads, rows) {
  const heading = ({ key, title }) => {
    const active = section.sort.key === key;
    const button = element("button", { type: "button", "data-key": key }, title);
    button.addEventListener("click", () => {
      section.sort = { key, down: active && !section.sort.down };
      drawTable(section);
      [...section.part("table").querySelectorAll("th button")].find((b) => b.dataset.key === key)?.focus();
    });
    return element("th", { scope: "col", "aria-sort": active ? (section.sort.down ? "descending" : "ascending") : "none" }, button);
  };
  const cell = (value, i) => (heads[i].text
    ? element("th", { scope: "row" }, value)
    : element("td", { class: "number" }, (heads[i].show ?? format)(value)));
  return element("table", { class: "sortable" },
    element("caption", {}, section.measure.per_head ? say("Mean per layer over sequences and heads") : say("Mean per layer over sequences")),
    element("thead", {}, element("tr", {}, ...heads.map(heading))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell)))));
}
