/* One head: its attention map where the report has one, and what every measure read of it. */

async function openHead(model, layer, head, node) {
  openDialog(say("{model}: layer {layer}, head {head}", { model: data.models[model].name, layer, head }), node);
  const detail = Object.values(data.details).find((one) => one.kind === "attention" && one.model === model && one.layer === layer && one.head === head);
  if (detail) await showAttention(detail);
  else body.append(element("p", { class: "hint" }, say("No finding is about this head, so the report has no map of its attention.")));
  body.append(element("h3", {}, say("Its readings")), headReadings(model, layer, head));
}

/* A row for each quantity: its mean over sequences, its range, and its rank among all heads. */
function headReadings(model, layer, head) {
  const rows = data.measures.filter((measure) => measure.per_head).flatMap((measure) => measure.series
    .filter((series) => series.model === model && series.layers.includes(layer) && series.heads.includes(head))
    .flatMap((series) => measure.columns.map((column) => headReading(measure, series, column, layer, head))));
  const titles = [say("Measure"), say("Quantity"), say("Value"), say("From"), say("To"), say("Rank")];
  const number = (value) => element("td", { class: "number", ...(value === null ? {} : { "data-value": value }) }, format(value));
  const table = element("table", { class: "readings" },
    element("thead", {}, element("tr", {}, ...titles.map((title, i) => element("th", { scope: "col", ...(i > 1 ? { class: "number" } : {}) }, title)))),
    element("tbody", {}, ...rows.map(({ measure, column, value, low, high, rank, of }) => element("tr", {},
      element("td", {}, translated(measure.title)), element("th", { scope: "row" }, columnName(column)), number(value), number(low), number(high),
      element("td", { class: "number" }, rank ? say("{rank} of {count}", { rank, count: of }) : format(null))))));
  makeSortable(table);
  const scroll = element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": say("Its readings") }, table);
  const box = element("div", {}, scroll, element("p", { class: "hint" }, say("Rank 1 is the largest of all heads of this model.")));
  scroll.after(saveButton(`head-${layer}-${head}`, () => table));
  return box;
}

function headReading(measure, { maps, layers, heads }, column, layer, head) {
  const { mean, low, high } = maps[column];
  const at = layers.indexOf(layer) * heads.length + heads.indexOf(head);
  const value = mean[at];
  const known = present(mean);
  const rank = value === null || measure.indices.includes(column) ? null : 1 + known.filter((other) => other > value).length;
  return { measure, column, value, low: (low ?? mean)[at], high: (high ?? mean)[at], rank, of: known.length };
}
