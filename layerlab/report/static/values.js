/* The values of a measure as a table. */

function drawValues(section) {
  const column = columnOf(section);
  const shown = seriesOf(section);
  const { name, columns, better, per_head: perHead } = section.measure;
  const heads = [];
  if (data.models.length > 1) heads.push({ title: say("model"), of: (s) => data.models[s.model].name, text: true });
  heads.push({ title: say("layer"), of: (s, i) => s.layers[i], show: layerNumber });
  for (const each of columns) heads.push({ title: columnName(each), of: (s, i) => s.values[each].mean[i] });
  if (perHead && column) {
    heads.push({ title: better ? say("worst head") : say("largest head"), of: (s, i) => extreme(s, i, column, better)?.head ?? null });
    heads.push({ title: say("its {column}", { column: columnName(column) }), of: (s, i) => extreme(s, i, column, better)?.value ?? null });
  }
  const rows = shown.flatMap((s) => s.layers.map((_, i) => heads.map((h) => h.of(s, i))));
  const box = section.part("table");
  box.replaceChildren(valueTable(section, heads, rows));
  makeSortable(box.firstChild, section.sort);
  if (!box.nextElementSibling) box.after(saveButton(name, () => box.firstChild));
}

/* The head that a layer is worst or largest in; none where one is infinite, as that is no number here. */
function extreme(series, i, column, better) {
  if (series.infinite[column]?.layers.includes(series.layers[i])) return undefined;
  const { mean } = series.maps[column];
  const values = series.heads.map((head, j) => ({ head, value: mean[i * series.heads.length + j] })).filter((v) => v.value !== null);
  const sign = better === "higher" ? -1 : 1;
  return values.sort((a, b) => sign * (b.value - a.value))[0];
}

/* Of positions and channels no mean says anything. */
function frequent({ indices }) {
  return indices.length ? [say("; of {columns} the most frequent value, or – where none is", { columns: indices.map(columnName).join(say(", ")) })] : [];
}

function valueTable(section, heads, rows) {
  const cell = (value, i) => (heads[i].text
    ? element("th", { scope: "row" }, value)
    : element("td", { class: "number", ...(value === null ? {} : { "data-value": value }) }, (heads[i].show ?? format)(value)));
  return element("table", {},
    element("caption", {}, section.measure.per_head ? say("Mean per layer over sequences and heads") : say("Mean per layer over sequences"), ...frequent(section.measure)),
    element("thead", {}, element("tr", {}, ...heads.map(({ title, text }) => element("th", { scope: "col", ...(text ? {} : { class: "number" }) }, title)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell)))));
}
