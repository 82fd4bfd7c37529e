/* The page: what is shown, drawn when it comes into view, and redrawn when a choice changes. */

const choice = { model: null };
const sections = [...document.querySelectorAll("section.measure")].map((node) => {
  const measure = data.measures[Number(node.dataset.measure)];
  const part = (name) => node.querySelector(`[data-part="${name}"]`);
  const control = (name) => node.querySelector(`[data-control="${name}"]`);
  return { node, measure, part, control, seen: false, stale: true, sort: { key: null, down: false } };
});

const kindOf = (section) => Number(section.control("kind")?.value ?? 0);
const columnOf = (section) => section.control("column")?.value ?? null;
const seriesOf = (section, everyModel = false) => section.measure.series.filter((s) =>
  s.kind === kindOf(section) && (everyModel || choice.model === null || s.model === choice.model));
const hasReading = (series, column) => present(series.values[column]?.mean ?? []).length > 0;

function draw(section) {
  section.stale = false;
  const { measure } = section;
  const column = columnOf(section);
  const shown = column ? seriesOf(section).filter((s) => hasReading(s, column)) : [];
  section.part("meaning").textContent = column ? meaning(section.node, column) : "";
  drawAbsent(section, column, shown);
  drawPictures(section);
  drawLines(section, column, shown);
  drawKey(section, column, shown);
  drawVerdicts(section, shown);
  drawMaps(section, column, shown);
  drawSteps(section, column);
  if (section.node.querySelector("details.values").open) drawValues(section);
  section.node.dataset.drawn = measure.name;
}

const meaning = (node, column) =>
  [...node.querySelectorAll(".docs dt")].find((dt) => dt.dataset.column === column)?.nextElementSibling?.textContent ?? "";

/* What a measure draws besides its lines, by the kind of picture. */
const DRAWN = { saliency: drawSaliency, features: drawClouds, density: drawDensities };
const drawPictures = (section) => DRAWN[section.measure.pictures[0]?.kind]?.(section);

function drawAbsent(section, column, shown) {
  const box = section.part("absent");
  for (const line of box.querySelectorAll("[data-model]")) line.hidden = hiddenModel(line);
  box.querySelector(".empty")?.remove();
  const said = [...box.querySelectorAll("p")].some((line) => !line.hidden);
  if (!shown.length && !said) {
    box.append(element("p", { class: "empty" }, column ? say("No reading of {column}: every value is missing or not finite.", { column: columnName(column) }) : say("No reading of this measure.")));
  }
}

/* What the findings about these curves hold their readings against. */
const levelsOf = ({ measure }, column, shown) => [...new Set(measure.thresholds.filter((t) =>
  t.column === column && shown.some((s) => s.model === t.model && s.kind === t.kind)).map((t) => t.value))];

const hiddenModel = (node) => choice.model !== null && Number(node.dataset.model) !== choice.model;

function drawLines(section, column, shown) {
  const node = section.part("lines");
  node.hidden = !shown.length;
  if (!shown.length) return clear(node);
  const { bounds, far } = boundsOf(section, column, shown);
  const options = { log: section.control("log").checked, bounds, far, levels: levelsOf(section, column, shown) };
  const means = shown.map((s) => say("{model} from {first} to {last}", { model: data.models[s.model].name, first: format(present(s.values[column].mean)[0]), last: format(present(s.values[column].mean).at(-1)) }));
  figureInto(node, lines(section.measure, shown, column, options), say("{title}, {column} per layer: {means}. The values are in the table below.", { title: translated(section.measure.title), column: columnName(column), means: means.join("; ") }));
}

/* A map for each model: of its heads, or of its matrices where a measure reads several of them. */
function mapsOf(section, column, shown) {
  const { measure } = section;
  if (measure.per_head) return shown.filter((s) => s.maps).map(({ model, layers, heads, maps }) => ({ model, layers, heads, ...maps[column] }));
  if (measure.category !== "matrix") return [];
  // A matrix whose readings are all infinite has a row without colours.
  const every = measure.series.filter((s) => s.layers.length > 1 && (hasReading(s, column) || s.infinite[column]));
  return [...new Set(every.map((s) => s.model))].filter((model) => choice.model === null || choice.model === model).map((model) => {
    const own = every.filter((s) => s.model === model);
    const layers = [...new Set(own.flatMap((s) => s.layers))].sort((a, b) => a - b);
    const cells = (part) => layers.flatMap((layer) => own.map((s) => (s.values[column][part] ?? s.values[column].mean)[s.layers.indexOf(layer)] ?? null));
    const ranged = own.some((s) => s.values[column].low);
    return { model, layers, kinds: own.map((s) => s.kind), names: own.map((s) => measure.kinds[s.kind]), mean: cells("mean"), ...(ranged ? { low: cells("low"), high: cells("high") } : {}) };
  }).filter(({ names }) => names.length > 1);
}

function drawMaps(section, column, shown) {
  const box = section.part("maps");
  for (const node of box.querySelectorAll(".map")) Plotly.purge(node);
  box.replaceChildren();
  const drawable = mapsOf(section, column, shown).filter(({ mean }) => mean.length > 1 && present(mean).length);
  if (!drawable.length) return;
  const log = section.control("log").checked;
  const values = drawable.flatMap(({ mean }) => present(mean.map((v) => scaled(v, log))));
  const limits = [Math.min(...values), Math.max(...values)];
  if (limits[0] === limits[1]) limits[1] += Math.abs(limits[1]) || 1;
  const perHead = section.measure.per_head;
  const named = { column: columnName(column) };
  const nodes = drawable.map(({ model }) => {
    const node = element("div", { class: "map" });
    const title = element("figcaption", {}, ...(data.models.length > 1 ? [swatch(model), ` ${data.models[model].name}: `] : []), perHead ? say("{column} of every head", named) : say("{column} of every matrix", named));
    box.append(element("figure", {}, title, node));
    return node;
  });
  for (const [i, cells] of drawable.entries()) {
    const node = nodes[i];
    const given = { ...named, model: data.models[cells.model].name };
    figureInto(node, map(cells, column, limits, log), perHead ? say("{column} of every layer and head of {model}", given) : say("{column} of every layer and matrix of {model}", given));
    node.on("plotly_click", ({ points: [{ x, y, pointIndex }] }) => perHead ? openHead(cells.model, x, y, node) : showKind(section, cells.kinds[pointIndex[0]]));
  }
}

/* The curve of the matrix whose cell was clicked. */
function showKind(section, kind) {
  section.control("kind").value = kind;
  setDefaults(section);
  draw(section);
}

function drawSteps(section, column) {
  const box = section.part("steps");
  const shown = column ? seriesOf(section, true).filter((s) => hasReading(s, column)) : [];
  const figure = column ? steps(shown, column, section.control("log").checked) : null;
  if (!figure) return box.replaceChildren();
  let plot = box.querySelector(".plot");
  if (!plot) {
    plot = element("div", { class: "plot" });
    box.replaceChildren(element("h3", {}, say("Over training")), plot);
  }
  figureInto(plot, figure, say("{column} against training step", { column: columnName(column) }));
}

const SHOWN_FINDINGS = 10;
let allFindings = false;

function showFindings() {
  const items = [...document.querySelectorAll(".finding")];
  if (!items.length) return;
  const wanted = items.filter((item) => item.dataset.model === undefined || !hiddenModel(item));
  for (const item of items) item.hidden = !wanted.includes(item) || (!allFindings && wanted.indexOf(item) >= SHOWN_FINDINGS);
  const more = document.getElementById("findings-more");
  more.hidden = allFindings || wanted.length <= SHOWN_FINDINGS;
  more.textContent = say("Show all {count} findings", { count: wanted.length });
  const given = { count: wanted.length, model: choice.model === null ? "" : data.models[choice.model].name };
  const one = wanted.length === 1;
  document.getElementById("findings-count").textContent = choice.model === null
    ? (one ? say("{count} finding, worst first.", given) : say("{count} findings, worst first.", given))
    : (one ? say("{count} finding about {model}, worst first.", given) : say("{count} findings about {model}, worst first.", given));
}

/* A scale that is wide and positive is read better in powers. */
function setDefaults(section) {
  const column = columnOf(section);
  if (!column) return;
  const of = (name) => seriesOf(section, true).flatMap((s) => present(s.values[name].mean));
  const values = of(column);
  const top = Math.max(...values.map(Math.abs));
  const bounds = section.measure.bounds.filter((b) => b.column === column);
  const high = bounds.some((b) => (b.side === "upper" || b.vacuous) && Math.max(...of(b.limit)) > 10 * top);
  // An error of 0, as that of embeddings that are stored exactly, is left out of a scale in powers.
  const positive = values.filter((v) => v > 0 || !bounds.some((b) => b.vacuous));
  const levels = levelsOf(section, column, seriesOf(section, true));
  const distant = levels.some((level) => level > FAR * top);
  section.control("log").checked = Math.min(...positive) > 0 && (high || distant || top / Math.min(...positive) > 100);
  const tick = section.control("bounds");
  if (!tick) return;
  section.part("bound-tick").hidden = !bounds.length;
  tick.checked = bounds.length > 0;
}

/* The plot of what a finding speaks of. */
function showCurve(measure, { column, kind }) {
  const section = sections.find((one) => one.measure.name === measure);
  section.control("column").value = column;
  if (section.control("kind")) section.control("kind").value = kind;
  setDefaults(section);
  section.stale = true;
}

function refresh() {
  for (const node of document.querySelectorAll("svg[data-swatch]")) paint(node);
  drawGlance();
  for (const section of sections) {
    section.stale = true;
    if (section.seen || (printing && window.Plotly)) draw(section);
  }
}

function chooseModel(value) {
  choice.model = value === "all" ? null : Number(value);
  showFindings();
  refresh();
}

for (const node of document.querySelectorAll("svg[data-swatch]")) paint(node);
document.getElementById("models")?.addEventListener("change", (event) => chooseModel(event.target.value));
document.getElementById("findings-more")?.addEventListener("click", () => {
  allFindings = true;
  showFindings();
  document.querySelectorAll(".finding:not([hidden])")[SHOWN_FINDINGS]?.querySelector("a, button")?.focus();
});
document.getElementById("finding-list")?.addEventListener("reveal", () => {
  if (choice.model !== null) document.querySelector('#models [value="all"]').click();
  allFindings = true;
  showFindings();
});
document.getElementById("finding-list")?.addEventListener("click", (event) => {
  const button = event.target.closest("[data-detail]");
  if (button) openDetail(button.dataset.detail, button);
  const link = event.target.closest("a[data-column]");
  if (link) showCurve(link.hash.slice(1), link.dataset);
});
for (const section of sections) {
  setDefaults(section);
  section.node.addEventListener("change", (event) => {
    if (["column", "kind"].includes(event.target.dataset.control)) setDefaults(section);
    draw(section);
  });
  section.node.querySelector("details.values").addEventListener("toggle", (event) => event.target.open && drawValues(section));
}
showFindings();
drawGlance();

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const section = sections.find((s) => s.node === entry.target);
    section.seen = entry.isIntersecting;
    if (section.seen && section.stale) draw(section);
  }
}, { rootMargin: "300px" });
drawable.then((able) => {
  if (!able) return;
  for (const section of sections) watcher.observe(section.node);
  // A printer does not wait until a map is unpacked.
  for (const picture of sections.flatMap(({ measure }) => measure.pictures)) if (picture.kind === "saliency" && picture.mapped.length) rowsOf(picture, 0);
});
document.addEventListener("theme", refresh);
