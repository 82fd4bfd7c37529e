/* The mark of each model, what is said of it, and small lines of every measure at the page's head. */

function swatch(index) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries({ class: "swatch", viewBox: "-8 -8 16 16", "aria-hidden": "true", "data-swatch": index })) node.setAttribute(name, value);
  return paint(node);
}

function paint(node) {
  const index = Number(node.dataset.swatch);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const tone = modelColour(index);
  path.setAttribute("d", SHAPES[SYMBOLS[index % SYMBOLS.length]]);
  path.style.fill = index >= 7 ? "none" : tone;
  path.style.stroke = tone;
  path.style.strokeWidth = 1.5;
  node.replaceChildren(path);
  return node;
}

/* What is infinite has no place in a plot: of whose readings some are, the others alone are drawn. */
function infinity({ count, readings }, index, column) {
  const who = data.models.length > 1 ? [swatch(index), ` ${data.models[index].name}: `] : [];
  const given = { count: format(count), readings: format(readings), column: element("code", {}, columnName(column)) };
  return element("li", { class: "loose" }, ...who, ...parts("{count} of {readings} readings of {column} are infinite: they are in no mean, range or map", given));
}

/* Small lines, first quantity of every measure, and bars of one without layers; drawn without
   plotly, so they are there at once. */
function drawGlance() {
  document.querySelector("#glance [data-part=tiles]").replaceChildren(...data.measures.map((measure) => {
    const { figure, caption } = measure.table ? barTile(measure.table) : lineTile(measure);
    const none = () => element("span", { class: "none" }, measure.missing.length ? say("not applicable") : say("no reading"));
    return element("a", { href: `#${measure.name}` }, element("b", {}, translated(measure.title)), figure ?? none(), element("small", {}, ...caption));
  }));
}

function lineTile(measure) {
  const column = measure.plot[0];
  const shown = column ? measure.series.filter((s) => s.kind === measure.first && (choice.model === null || s.model === choice.model) && hasReading(s, column)) : [];
  const last = shown.length === 1 ? present(shown[0].values[column].mean) : [];
  const span = last.length ? [element("br"), `${format(last[0])} → ${format(last.at(-1))}`] : [];
  return { figure: shown.length ? spark(shown, column) : null, caption: column ? [columnName(column), ...span] : [] };
}

function barTile({ groups }) {
  const drawn = groups.filter((one) => one.rows.some((row) => row.bar));
  const group = drawn.find((one) => one.rows.length > 1) ?? drawn[0];
  if (!group) return { figure: null, caption: [] };
  const svg = glancePicture();
  const width = 160 / group.rows.length;
  for (const [i, { start, bar }] of group.rows.entries()) {
    const mark = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [name, value] of Object.entries({ x: i * width, y: 48 - 0.48 * (start + bar), width: 0.8 * width, height: 0.48 * bar })) mark.setAttribute(name, value);
    svg.append(mark);
  }
  const at = group.heads.indexOf(group.bar) - group.axes;
  const values = group.rows.map((row) => row.cells[at]).filter(Number.isFinite);
  return { figure: svg, caption: [columnName(group.bar), element("br"), say("from {low} to {high}", { low: format(Math.min(...values)), high: format(Math.max(...values)) })] };
}

function glancePicture() {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries({ viewBox: "0 0 160 48", preserveAspectRatio: "none", "aria-hidden": "true" })) svg.setAttribute(name, value);
  return svg;
}

function spark(shown, column) {
  const values = shown.flatMap((s) => present(s.values[column].mean));
  const low = Math.min(...values);
  const reach = Math.max(...values) - low || 1;
  const svg = glancePicture();
  for (const series of shown) {
    const last = Math.max(1, series.layers.length - 1);
    const point = (v, x) => `${x.toFixed(1)},${(44 - (40 * (v - low)) / reach).toFixed(1)}`;
    const mean = series.values[column].mean;
    const points = mean.length === 1 ? [point(mean[0], 3), point(mean[0], 157)]
      : mean.map((v, i) => (v === null ? "" : point(v, 3 + (154 * i) / last)));
    const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    line.setAttribute("points", points.filter(Boolean).join(" "));
    line.style.stroke = modelColour(series.model);
    svg.append(line);
  }
  return svg;
}
