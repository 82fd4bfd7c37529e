/* The page: what is shown, drawn when it comes into view, and redrawn when a choice changes. */

const root = document.documentElement;
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
  drawLines(section, column, shown);
  drawKey(section, column, shown);
  drawVerdicts(section, shown);
  drawMaps(section, column, shown);
  drawSteps(section, column);
  if (section.node.querySelector("details.values").open) drawTable(section);
  section.node.dataset.drawn = measure.name;
}

const meaning = (node, column) =>
  [...node.querySelectorAll(".docs dt")].find((dt) => dt.textContent === column)?.nextElementSibling?.textContent ?? "";

function drawAbsent(section, column, shown) {
  const box = section.part("absent");
  for (const line of box.querySelectorAll("[data-model]")) line.hidden = hiddenModel(line);
  box.querySelector(".empty")?.remove();
  const said = [...box.querySelectorAll("p")].some((line) => !line.hidden);
  if (!shown.length && !said) {
    box.append(element("p", { class: "empty" }, column ? `No reading of ${column}: every value is missing or not finite.` : "No reading of this measure."));
  }
}

const hiddenModel = (node) => choice.model !== null && Number(node.dataset.model) !== choice.model;

function figureInto(node, figure, label) {
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", label);
  return Plotly.react(node, figure.traces, figure.layout, CONFIG);
}

function clear(node) {
  if (node.data) Plotly.purge(node);
  node.replaceChildren();
  node.removeAttribute("role");
  node.removeAttribute("aria-label");
}

/* The bounds to draw, and those of them that lie off the scale. */
function boundsOf(section, column, shown) {
  const bounds = section.control("bounds")?.checked
    ? section.measure.bounds.filter((b) => b.column === column && shown.some((s) => hasReading(s, b.limit))) : [];
  const log = section.control("log").checked;
  return { bounds, far: log ? [] : farBounds(section.measure, shown, column).filter((b) => bounds.includes(b)) };
}

function drawLines(section, column, shown) {
  const node = section.part("lines");
  node.hidden = !shown.length;
  if (!shown.length) return clear(node);
  const { bounds, far } = boundsOf(section, column, shown);
  const options = { log: section.control("log").checked, bounds, far };
  const means = shown.map((s) => `${data.models[s.model].name} from ${format(present(s.values[column].mean)[0])} to ${format(present(s.values[column].mean).at(-1))}`);
  figureInto(node, lines(section.measure, shown, column, options), `${section.measure.title}, ${column} per layer: ${means.join("; ")}. The values are in the table below.`);
}

function drawKey(section, column, shown) {
  const key = section.part("key");
  const items = shown.length > 1 ? shown.map((s) => element("span", {}, swatch(s.model), ` ${data.models[s.model].name}`)) : [];
  const ranged = shown.length <= MOST_BANDS && shown.find((s) => s.values[column].low);
  if (ranged) {
    const over = [ranged.heads?.length > 1 && "heads", ranged.sequences > 1 && "sequences"].filter(Boolean).join(" and ");
    items.push(element("span", {}, element("i", { class: "band" }), ` smallest to largest over ${over}`));
  }
  const { bounds, far } = boundsOf(section, column, shown);
  for (const bound of bounds) {
    const values = extent(shown, bound.limit);
    const where = far.includes(bound) ? `, off this scale: ${span(values)}` : touches(shown, bound) ? `, within ${100 * CLOSE} % of the line` : "";
    items.push(element("span", {}, element("i", { class: "dashed" }), ` ${bound.side === "upper" ? "≤" : "≥"} ${bound.limit} (${bound.source})${where}`));
  }
  if (bounds.length && ranged) items.push(element("span", {}, "a bound is drawn as its mean: compare it with the line, not with the shading"));
  key.replaceChildren(...items);
}

function drawVerdicts(section, shown) {
  section.part("verdicts").replaceChildren(...section.measure.bounds.flatMap((bound, i) => {
    const read = shown.filter((s) => s.bounds[i].readings);
    const broken = read.filter((s) => s.bounds[i].violated);
    return [...broken.map((s) => violation(bound, s, s.bounds[i])), holding(bound, i, read.filter((s) => !broken.includes(s)), broken.length)];
  }).filter(Boolean));
}

const claim = (bound) => element("code", {}, `${bound.column} ${bound.side === "upper" ? "≤" : "≥"} ${bound.limit}`);
const span = (values) => {
  const [low, high] = [Math.min(...values), Math.max(...values)].map(format);
  return low === high ? low : `${low} to ${high}`;
};

function violation(bound, series, found) {
  const who = data.models.length > 1 ? [swatch(series.model), ` ${data.models[series.model].name}: `] : [];
  const excess = found.reach > 1 ? `, by up to ${format(Number((100 * (found.reach - 1)).toPrecision(3)))} %` : "";
  const where = found.layers.slice(0, 8).join(", ") + (found.layers.length > 8 ? ", …" : "");
  const text = `violated in ${format(found.violated)} of ${format(found.readings)} readings (layer ${where})${excess}`;
  return element("li", { class: "violated" }, claim(bound), " ", ...who, text);
}

function holding(bound, i, series, broken) {
  if (!series.length) return null;
  const found = series.map((s) => s.bounds[i]);
  const readings = found.reduce((sum, f) => sum + f.readings, 0);
  const most = Math.max(...found.map((f) => f.reach));
  const percent = (v) => (v < 1e-4 ? "under 0.01" : format(Number((100 * v).toPrecision(3))));
  const ends = [...new Set([Math.min(...found.map((f) => f.least)), most].map(percent))];
  const who = broken ? ` of ${series.map((s) => data.models[s.model].name).join(", ")}` : "";
  return element("li", { class: "holds" }, claim(bound),
    ` holds in all ${format(readings)} readings${who}; they use ${ends.join(" to ")} % of it${most < 0.1 ? ", so it says little here" : ""}`);
}

function verdict(bound, series, found) {
  if (!found.readings) return null;
  const claim = `${bound.column} ${bound.side === "upper" ? "≤" : "≥"} ${bound.limit}`;
  const parts = data.models.length > 1 ? [swatch(series.model), ` ${data.models[series.model].name}: `] : [];
  const percent = (value) => (value === null ? "–" : value > 1.0001 ? `${format(value)} times` : `${format(Number((100 * value).toPrecision(3)))} %`);
  const use = `the readings use ${percent(found.least)} to ${percent(found.reach)} of it`;
  const text = found.violated
    ? `violated in ${found.violated} of ${found.readings} readings (layer ${found.layers.join(", ")}), by up to ${format(100 * (found.reach - 1))} %`
    : `holds in all ${found.readings} readings; ${use}${found.reach < 0.1 ? ", so it says little here" : ""}`;
  return element("li", { class: found.violated ? "violated" : "holds" }, element("code", {}, claim), " ", ...parts, text);
}

function drawMaps(section, column, shown) {
  const box = section.part("maps");
  for (const node of box.querySelectorAll(".map")) Plotly.purge(node);
  box.replaceChildren();
  const drawable = shown.filter((s) => s.maps && (s.heads.length > 1 || s.layers.length > 1));
  if (!section.measure.per_head || !drawable.length) return;
  const log = section.control("log").checked;
  const values = drawable.flatMap((s) => present(s.maps[column].mean.map((v) => scaled(v, log))));
  const limits = [Math.min(...values), Math.max(...values)];
  if (limits[0] === limits[1]) limits[1] += Math.abs(limits[1]) || 1;
  const nodes = drawable.map((series) => {
    const node = element("div", { class: "map" });
    const title = element("figcaption", {}, ...(data.models.length > 1 ? [swatch(series.model), ` ${data.models[series.model].name}: `] : []), `${column} of every head`);
    box.append(element("figure", {}, title, node));
    return node;
  });
  for (const [i, series] of drawable.entries()) {
    const node = nodes[i];
    figureInto(node, map(series, column, limits, log), `${column} of every layer and head of ${data.models[series.model].name}`);
    node.on("plotly_click", ({ points }) => openHead(series.model, points[0].x, points[0].y, node));
  }
}

/* A cell opens its attention map where a finding brought one. */
function openHead(model, layer, head) {
  for (const button of document.querySelectorAll(`.finding[data-model="${model}"] [data-detail]`)) {
    const detail = data.details[button.dataset.detail];
    if (detail.kind === "attention" && detail.layer === layer && detail.head === head) return openDetail(button.dataset.detail, button);
  }
}

function drawSteps(section, column) {
  const box = section.part("steps");
  const shown = column ? seriesOf(section, true).filter((s) => hasReading(s, column)) : [];
  const figure = column ? steps(shown, column, section.control("log").checked) : null;
  if (!figure) return box.replaceChildren();
  let plot = box.querySelector(".plot");
  if (!plot) {
    plot = element("div", { class: "plot" });
    box.replaceChildren(element("h3", {}, "Over training"), plot);
  }
  figureInto(plot, figure, `${column} against training step`);
}

function drawTable(section) {
  const column = columnOf(section);
  const shown = seriesOf(section);
  const { columns, better, per_head: perHead } = section.measure;
  const heads = [];
  if (data.models.length > 1) heads.push({ key: "model", of: (s) => data.models[s.model].name, text: true });
  heads.push({ key: "layer", of: (s, i) => s.layers[i] });
  for (const name of columns) heads.push({ key: name, of: (s, i) => s.values[name].mean[i] });
  if (perHead && column) {
    const label = better ? "worst" : "largest";
    heads.push({ key: `${label} head`, of: (s, i) => extreme(s, i, column, better)?.head ?? null });
    heads.push({ key: `its ${column}`, of: (s, i) => extreme(s, i, column, better)?.value ?? null });
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
  const title = ({ key }) => {
    const active = section.sort.key === key;
    const button = element("button", { type: "button" }, key);
    button.addEventListener("click", () => {
      section.sort = { key, down: active && !section.sort.down };
      drawTable(section);
      [...section.part("table").querySelectorAll("th button")].find((b) => b.textContent === key)?.focus();
    });
    return element("th", { scope: "col", "aria-sort": active ? (section.sort.down ? "descending" : "ascending") : "none" }, button);
  };
  const cell = (value, i) => (heads[i].text
    ? element("th", { scope: "row" }, value)
    : element("td", { class: "number" }, format(value)));
  return element("table", { class: "sortable" },
    element("caption", {}, "Mean per layer over sequences", section.measure.per_head ? " and heads" : ""),
    element("thead", {}, element("tr", {}, ...heads.map(title))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell)))));
}

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

/* Small lines, first quantity of every measure; drawn without plotly, so they are there at once. */
function drawGlance() {
  document.getElementById("glance").replaceChildren(...sections.map((section) => {
    const { measure } = section;
    const column = measure.plot[0];
    const shown = column ? measure.series.filter((s) => s.kind === 0 && (choice.model === null || s.model === choice.model) && hasReading(s, column)) : [];
    const last = shown.length === 1 ? present(shown[0].values[column].mean) : [];
    const figure = shown.length ? spark(shown, column) : element("span", { class: "none" }, measure.missing.length ? "not applicable" : "no reading");
    const caption = last.length ? `${format(last[0])} → ${format(last.at(-1))}` : `${column ?? ""}`;
    return element("a", { href: `#${measure.name}` }, element("b", {}, measure.title), figure, element("small", {}, caption));
  }));
}

function spark(shown, column) {
  const values = shown.flatMap((s) => present(s.values[column].mean));
  const low = Math.min(...values);
  const reach = Math.max(...values) - low || 1;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 160 48");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
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

const SHOWN_FINDINGS = 10;
let allFindings = false;

function showFindings() {
  const items = [...document.querySelectorAll(".finding")];
  if (!items.length) return;
  const wanted = items.filter((item) => item.dataset.model === undefined || !hiddenModel(item));
  for (const item of items) item.hidden = !wanted.includes(item) || (!allFindings && wanted.indexOf(item) >= SHOWN_FINDINGS);
  const more = document.getElementById("findings-more");
  more.hidden = allFindings || wanted.length <= SHOWN_FINDINGS;
  more.textContent = `Show all ${wanted.length} findings`;
  const who = choice.model === null ? "" : ` about ${data.models[choice.model].name}`;
  document.getElementById("findings-count").textContent = `${wanted.length} ${wanted.length === 1 ? "finding" : "findings"}${who}, worst first.`;
}

/* A scale that is wide and positive is read better in powers. */
function setDefaults(section) {
  const column = columnOf(section);
  if (!column) return;
  const of = (name) => seriesOf(section, true).flatMap((s) => present(s.values[name].mean));
  const values = of(column);
  const top = Math.max(...values.map(Math.abs));
  section.control("log").checked = Math.min(...values) > 0 && top / Math.min(...values) > 100;
  const bounds = section.measure.bounds.filter((b) => b.column === column);
  const tick = section.control("bounds");
  if (!tick) return;
  section.part("bound-tick").hidden = !bounds.length;
  tick.checked = bounds.length > 0;
}

function refresh() {
  for (const node of document.querySelectorAll("svg[data-swatch]")) paint(node);
  drawGlance();
  for (const section of sections) {
    section.stale = true;
    if (section.seen) draw(section);
  }
}

function chooseModel(value) {
  choice.model = value === "all" ? null : Number(value);
  showFindings();
  refresh();
}

const THEMES = ["system", "light", "dark"];
function setTheme(theme) {
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
  document.getElementById("theme").setAttribute("aria-label", `Colours: ${theme === "system" ? "as the system" : theme}`);
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

for (const node of document.querySelectorAll("svg[data-swatch]")) paint(node);
document.getElementById("models")?.addEventListener("change", (event) => chooseModel(event.target.value));
document.getElementById("findings-more")?.addEventListener("click", () => {
  allFindings = true;
  showFindings();
  document.querySelectorAll(".finding:not([hidden])")[SHOWN_FINDINGS]?.querySelector("a, button")?.focus();
});
document.getElementById("finding-list")?.addEventListener("click", (event) => {
  const button = event.target.closest("[data-detail]");
  if (button) openDetail(button.dataset.detail, button);
});
for (const section of sections) {
  setDefaults(section);
  section.node.addEventListener("change", (event) => {
    if (["column", "kind"].includes(event.target.dataset.control)) setDefaults(section);
    draw(section);
  });
  section.node.querySelector("details.values").addEventListener("toggle", (event) => event.target.open && drawTable(section));
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
/* Plotly is the last script of the page: what needs it waits, the rest is there before. */
addEventListener("DOMContentLoaded", () => sections.forEach((section) => watcher.observe(section.node)));
addEventListener("beforeprint", () => sections.filter((s) => s.stale).forEach(draw));
