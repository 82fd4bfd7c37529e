/* Plotly figures from the page's data. Nothing here touches the page. */

const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star"];
const SHAPES = {
  circle: "M5,0A5,5 0 1 1 -5,0A5,5 0 1 1 5,0Z",
  square: "M-4.5,-4.5H4.5V4.5H-4.5Z",
  diamond: "M0,-6L6,0L0,6L-6,0Z",
  "triangle-up": "M0,-6L5.5,4H-5.5Z",
  "triangle-down": "M0,6L5.5,-4H-5.5Z",
  cross: "M-1.8,-5.5H1.8V-1.8H5.5V1.8H1.8V5.5H-1.8V1.8H-5.5V-1.8H-1.8Z",
  x: "M0,-2.6L3,-5.6L5.6,-3L2.6,0L5.6,3L3,5.6L0,2.6L-3,5.6L-5.6,3L-2.6,0L-5.6,-3L-3,-5.6Z",
  star: "M0,-6L1.5,-2L6,-2L2.4,0.8L3.8,5.2L0,2.5L-3.8,5.2L-2.4,0.8L-6,-2L-1.5,-2Z",
};
const FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif";
const coarse = matchMedia("(pointer: coarse)").matches;
const CONFIG = {
  displaylogo: false,
  responsive: true,
  scrollZoom: false,
  modeBarButtons: [["toImage", "resetScale2d"]],
  toImageButtonOptions: { format: "svg" },
  locale: "page",
  locales: { page: { dictionary: { "Download plot": say("Download plot"), "Reset axes": say("Reset axes"), "Reset camera to default": say("Reset camera to default") } } },
};

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const categorical = (index) => colour(`series-${index % 7}`);
const modelSymbol = (index) => SYMBOLS[index % SYMBOLS.length] + (index >= 7 ? "-open" : "");

/* Checkpoints of a run are one colour ramp in the order of their steps; other models differ in hue. */
const checkpoints = data.models.map((_, i) => i).filter((i) => data.models[i].step !== null)
  .sort((a, b) => data.models[a].step - data.models[b].step);

const ramped = (index) => checkpoints.length > 2 && checkpoints.includes(index);

function modelColour(index) {
  if (!ramped(index)) return categorical(index);
  const rank = checkpoints.indexOf(index);
  const at = (2 * rank) / (checkpoints.length - 1);
  const [from, to] = at < 1 ? ["ramp-0", "ramp-1"] : ["ramp-1", "ramp-2"];
  return mix(colour(from), colour(to), at < 1 ? at : at - 1);
}

const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const mix = (from, to, part) => `#${channels(from).map((c, i) =>
  Math.round(c + part * (channels(to)[i] - c)).toString(16).padStart(2, "0")).join("")}`;
const fade = (hex, alpha) => `rgba(${channels(hex).join(",")},${alpha})`;

/* Plotly reads a little HTML in every text it draws. */
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function format(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return (value + 0).toLocaleString("en");
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

const present = (values) => values.filter((v) => v !== null);
const average = (values) => {
  const kept = present(values);
  return kept.length ? kept.reduce((a, b) => a + b, 0) / kept.length : null;
};

/* Blocks are counted from 0; what the first of them reads is the embedding. */
const EMBEDDING = -1;
const layerName = (layer) => (layer === EMBEDDING ? say("embedding") : say("layer {layer}", { layer }));
const layerNumber = (layer) => (layer === EMBEDDING ? say("embedding") : format(layer));

/* Where a layer stands on the horizontal axis: its number, or its depth where models differ. */
function place(series, layer) {
  if (!data.aligned) return layer;
  // The last of a model with attention in some layers alone may have no reading.
  const last = Math.max(series.layers.at(-1), (data.models[series.model].layers ?? 0) - 1);
  return series.layers.length > 1 ? (layer - EMBEDDING) / (last - EMBEDDING) : 0.5;
}

function axisStyle() {
  const line = { gridcolor: colour("rule"), linecolor: colour("rule"), zerolinecolor: colour("rule") };
  return { ...line, tickfont: { color: colour("muted") }, title: { font: { color: colour("muted") } } };
}

function layout(height, x, y) {
  const base = axisStyle();
  const axis = (given) => ({ ...base, ...given, title: { ...base.title, text: given.title || "" } });
  return {
    height,
    margin: { l: 62, r: 14, t: 14, b: 46 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: FONT, size: 13, color: colour("ink") },
    hoverlabel: { bgcolor: colour("panel"), bordercolor: colour("muted"), font: { color: colour("ink"), family: FONT }, align: "left" },
    showlegend: false,
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("muted"), activecolor: colour("ink") },
    dragmode: coarse ? false : "zoom",
    xaxis: axis({ zeroline: false, ...x }),
    yaxis: axis({ zeroline: false, automargin: true, ...y }),
  };
}

const legendAbove = ({ margin }) => ({ showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, margin: { ...margin, t: 40 } });

const layerAxis = (shown) => {
  const single = shown.some((s) => s.layers.length === 1);
  if (data.aligned) return { title: single ? say("relative depth (a single layer: 0.5)") : say("relative depth"), range: [-0.03, 1.03] };
  const layers = [...new Set(shown.flatMap((s) => s.layers))];
  return { title: say("layer"), range: [Math.min(...layers) - 0.4, Math.max(...layers) + 0.4], ...layerTicks(layers) };
};

/* Under a picture the embedding is named a line below the numbers: it has room on a telephone too. */
function layerTicks(layers, before = "<br>") {
  if (!layers.includes(EMBEDDING)) return layers.length < 14 ? { dtick: 1 } : {};
  const step = Math.ceil(layers.length / 14);
  const tickvals = layers.filter((n) => n === EMBEDDING || n % step === 0);
  return { tickvals, tickangle: 0, ticktext: tickvals.map((n) => (n === EMBEDDING ? `${before}${say("embedding")}` : format(n))) };
}

/* The mean of a column per layer, its range as a band, and the bounds that speak about it. */
function lines(measure, shown, column, options) {
  const traces = [];
  if (shown.length <= MOST_BANDS) for (const series of shown) traces.push(...band(series, column));
  const bounds = options.bounds.filter((b) => !touches(shown, b));
  const top = options.log ? ceiling(shown, column) : Infinity;
  const heights = [column, ...bounds.map((b) => b.limit)].flatMap((name) => extent(shown, name)).concat(options.levels);
  // The line from which on a bound says nothing is on the scale wherever it is.
  const edges = bounds.map((b) => b.vacuous).filter((v) => v && options.log);
  const inside = heights.filter((v) => v <= top && (!options.log || v > 0)).concat(edges);
  const scale = options.log ? { ...powersOfTen(inside), ...clipped(shown, column, options) } : near(shown, column, options);
  const values = scale.range ?? inside.map(options.log ? Math.log10 : Number);
  for (const bound of bounds) {
    for (const series of limitSeries(shown, bound)) traces.push(limit(series, bound, { dash: dashOf(measure, bound), alone: shown.length === 1, top }));
  }
  for (const series of shown) traces.push(meanLine(series, column), ...flags(measure, series, column));
  // A scale in powers has no 0, and a line towards it would be drawn to the edge.
  if (options.log) for (const trace of traces) trace.y = trace.y.map((v) => (v > 0 ? v : null));
  const figure = layout(340, layerAxis(shown), { title: plain(columnName(column)), ...scale });
  const { right, ...notes } = notesOf(shown, bounds, { ...options, top, values });
  return { traces, layout: { ...figure, ...notes, margin: { ...figure.margin, r: right } } };
}

/* Bounds far above the readings are named below the plot; they do not flatten the readings. */
const FAR = 4;
const CLOSE = 0.005;
const MOST_BANDS = 3;
const extent = (shown, name) => shown.flatMap((s) => Object.values(s.values[name]).flatMap(present));

/* A scale in powers, whose marks are numbers in full: powers of ten where it is wide, else 1, 2 and 5
   of each, or even steps where it is narrow. */
const VAST = 1e8;
const WIDE = 100;
const NARROW = 5;
function powersOfTen(values) {
  const positive = values.filter((v) => v > 0);
  const [low, high] = [Math.min(...positive), Math.max(...positive)];
  const scale = { type: "log", exponentformat: "power" };
  if (!(high <= VAST * low)) return { ...scale, dtick: 1 };
  const marks = high > NARROW * low ? roundMarks(low, high, high > WIDE * low ? [1] : [1, 2, 5]) : evenMarks(low, high);
  return { ...scale, tickvals: marks, ticktext: marks.map(format) };
}

function roundMarks(low, high, digits) {
  const [first, last] = [Math.floor(Math.log10(low)) - 1, Math.ceil(Math.log10(high)) + 1];
  return Array.from({ length: last - first + 1 }, (_, i) => first + i)
    .flatMap((power) => digits.map((digit) => Number(`${digit}e${power}`)));
}

function evenMarks(low, high) {
  const rough = (high - low || high) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((digit) => digit * power >= rough);
  const [first, last] = [Math.max(1, Math.floor(low / step) - 4), Math.ceil(high / step) + 4];
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(6)));
}

const farBounds = (measure, shown, column) => measure.bounds.filter((b) =>
  b.column === column && b.side === "upper" && Math.min(...extent(shown, b.limit)) > FAR * Math.max(...extent(shown, column).map(Math.abs)));

/* In powers of ten a bound may leave the plot at the top, so that the readings keep some room. */
const REACH = 1e6;
const ceiling = (shown, column) => REACH * Math.max(...extent(shown, column));
const leaves = (shown, bound) => Math.max(...extent(shown, bound.limit)) > ceiling(shown, bound.column);

function clipped(shown, column, { bounds, levels }) {
  if (!bounds.some((b) => leaves(shown, b))) return {};
  const positive = [column, ...bounds.map((b) => b.limit)].flatMap((name) => extent(shown, name)).concat(levels).filter((v) => v > 0);
  const low = Math.min(...positive);
  const top = Math.max(...positive.filter((v) => v <= ceiling(shown, column)), 10 * Math.max(...bounds.map((b) => b.vacuous ?? 0)));
  return { dtick: 1, tickvals: null, ticktext: null, range: [Math.log10(low) - 0.15, Math.log10(top) + 0.15] };
}

/* A bound that lies on the line itself, such as a narrow enclosure, is not drawn over it. */
const touches = (shown, bound) => shown.every((s) => s.values[bound.column].mean.every((value, i) => {
  const limit = s.values[bound.limit].mean[i];
  return value === null || limit === null || Math.abs(limit - value) <= CLOSE * Math.abs(value);
}));

function near(shown, column, { bounds, far, levels }) {
  if (!far.length) return {};
  const kept = [column, ...bounds.filter((b) => !far.includes(b)).map((b) => b.limit)];
  const values = kept.flatMap((name) => extent(shown, name)).concat(levels);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const room = 0.06 * (high - low || Math.abs(high) || 1);
  return { range: [low - room, high + room] };
}

function band(series, column) {
  const { low, high } = series.values[column];
  if (!low) return [];
  const x = series.layers.map((n) => place(series, n));
  const style = { x, type: "scatter", mode: "lines", hoverinfo: "skip", line: { width: 0, color: modelColour(series.model) } };
  return [
    { ...style, y: low, connectgaps: false },
    { ...style, y: high, fill: "tonexty", fillcolor: fade(modelColour(series.model), 0.13) },
  ];
}

function meanLine(series, column) {
  const { mean, low, high } = series.values[column];
  const name = plain(data.models[series.model].name);
  const text = series.layers.map((layer, i) => {
    const range = low ? `<br>${say("from {low} to {high}", { low: format(low[i]), high: format(high[i]) })}` : "";
    return `${say("<b>{name}</b>, {place}", { name, place: layerName(layer) })}<br>${plain(columnName(column))} ${format(mean[i])}${range}`;
  });
  return {
    x: series.layers.map((n) => place(series, n)), y: mean, type: "scatter", mode: "lines+markers",
    line: { color: modelColour(series.model), width: 2.2, dash: series.model >= 7 && !ramped(series.model) ? "dashdot" : "solid" },
    marker: { symbol: modelSymbol(series.model), size: series.layers.length > 24 ? 6 : 8, color: modelColour(series.model) },
    hovertext: text, hovertemplate: "%{hovertext}<extra></extra>",
  };
}

/* A bound that is the same for every model is drawn once. */
function limitSeries(shown, bound) {
  const seen = new Set();
  return shown.filter((series) => {
    const key = JSON.stringify([data.aligned ? series.layers : 0, series.values[bound.limit].mean]);
    return seen.has(key) ? false : seen.add(key);
  });
}

/* One dash per bound of a quantity, by plotly's names and as lengths for the key. */
const DASHES = { dash: "9 9", dot: "3 3", dashdot: "9 3 3 3", longdash: "15 15", longdashdot: "15 6 3 6", "3px,12px": "3 12" };

function dashOf(measure, bound) {
  const own = measure.bounds.filter((b) => b.column === bound.column).findIndex((b) => b.limit === bound.limit);
  return Object.keys(DASHES)[own % Object.keys(DASHES).length];
}

function limit(series, bound, { dash, alone: single, top }) {
  const mean = series.values[bound.limit].mean.map((v) => (v > top || (v === 0 && top < Infinity) ? null : v));
  // A reading without neighbours makes no line.
  const alone = mean.map((v, i) => v !== null && (mean[i - 1] ?? null) === null && (mean[i + 1] ?? null) === null);
  const ink = single ? colour("ink") : modelColour(series.model);
  return {
    x: series.layers.map((n) => place(series, n)), y: mean, type: "scatter", connectgaps: false,
    mode: `${alone.some(Boolean) ? "markers+" : ""}lines`,
    marker: { symbol: "line-ew-open", size: alone.map((a) => (a ? 12 : 0)), color: ink, opacity: alone.map(Number) },
    line: { color: ink, width: 1.3, dash },
    hovertext: series.layers.map((layer, i) => `${bound.side === "beside" ? "" : `${say("bound")} `}${say("<b>{name}</b>, {place}", { name: plain(bound.limit), place: layerName(layer) })}<br>${say("{value} (mean)", { value: format(mean[i]) })}`),
    hovertemplate: "%{hovertext}<extra></extra>",
  };
}

function flags(measure, series, column) {
  const broken = new Set(measure.bounds.flatMap((b, i) => (b.column === column ? series.bounds[i].layers : [])));
  const at = series.layers.map((n, i) => [n, i]).filter(([n]) => broken.has(n));
  if (!at.length) return [];
  return [{
    x: at.map(([n]) => place(series, n)), y: at.map(([, i]) => series.values[column].mean[i]),
    type: "scatter", mode: "markers", hoverinfo: "skip",
    marker: { symbol: "circle-open", size: 18, color: colour("error"), line: { width: 2.5, color: colour("error") } },
  }];
}

/* One cell per layer and head, or matrix; all maps of a quantity share one scale. */
function map({ layers, heads, names, mean, low, high }, column, span, log) {
  const rows = names ?? heads;
  const at = (values, i, j) => values[i * rows.length + j];
  const z = rows.map((_, j) => layers.map((__, i) => scaled(at(mean, i, j), log)));
  const text = rows.map((row, j) => layers.map((layer, i) => {
    const range = low ? `<br>${say("from {low} to {high}", { low: format(at(low, i, j)), high: format(at(high, i, j)) })}` : "";
    const cell = names ? say("{name}, layer {layer}", { name: plain(row), layer }) : say("layer {layer}, head {head}", { layer, head: row });
    return `${cell}<br>${plain(columnName(column))} ${format(at(mean, i, j))}${range}`;
  }));
  const gap = layers.length > 24 || rows.length > 24 ? 0.5 : 1.5;
  const trace = {
    type: "heatmap", x: layers, y: names ? names.map(plain) : heads, z, colorscale: "Cividis", zmin: span[0], zmax: span[1],
    xgap: gap, ygap: gap, hovertext: text, hovertemplate: "%{hovertext}<extra></extra>",
    colorbar: { thickness: 10, outlinewidth: 0, tickfont: { color: colour("muted") }, ...(log ? powers(span) : {}) },
  };
  const ticks = (list) => (list.length < 14 ? { dtick: 1 } : {});
  const side = names ? { autorange: "reversed", type: "category" } : { title: say("head"), ...ticks(heads) };
  const figure = layout(Math.min(460, 110 + rows.length * 22), { title: say("layer"), ...ticks(layers) }, side);
  figure.xaxis.showgrid = figure.yaxis.showgrid = false;
  figure.margin.r = 8;
  return { traces: [trace], layout: figure };
}

const scaled = (value, log) => (value === null || (log && value <= 0) ? null : log ? Math.log10(value) : value);

function powers([low, high]) {
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((t) => low + t * (high - low));
  return { tickvals: ticks, ticktext: ticks.map((t) => format(Number((10 ** t).toPrecision(2)))) };
}

/* A series of checkpoints: the mean over layers, and the first, middle and last layer. */
function steps(shown, column, log) {
  const sorted = shown.filter((s) => data.models[s.model].step !== null)
    .sort((a, b) => data.models[a.model].step - data.models[b.model].step);
  if (sorted.length < 2) return null;
  const x = sorted.map((s) => data.models[s.model].step);
  // The embedding is no layer, where there are others.
  const means = sorted.map((s) => s.values[column].mean.slice(s.layers.length > 1 && s.layers[0] === EMBEDDING ? 1 : 0));
  const pick = (part) => means.map((mean) => mean[Math.round(part * (mean.length - 1))]);
  const rows = [
    [say("mean over layers"), means.map(average), "solid", 3, "circle", 0],
    [say("first layer"), pick(0), "dot", 1.5, "square", 1],
    [say("middle layer"), pick(0.5), "dash", 1.5, "diamond", 2],
    [say("last layer"), pick(1), "dashdot", 1.5, "triangle-up", 4],
  ];
  const traces = rows.map(([name, y, dash, width, symbol, hue]) => ({
    x, y, name, type: "scatter", mode: "lines+markers",
    line: { dash, width, color: categorical(hue) }, marker: { symbol, size: 8, color: categorical(hue) },
    hovertext: y.map((v, i) => `${say("<b>{name}</b>, step {step}", { name, step: format(x[i]) })}<br>${plain(columnName(column))} ${format(v)}`),
    hovertemplate: "%{hovertext}<extra></extra>",
  }));
  const figure = layout(300, { title: say("training step") }, { title: plain(columnName(column)), ...(log ? powersOfTen(rows.flatMap(([, y]) => present(y))) : {}) });
  return { traces, layout: { ...figure, ...legendAbove(figure) } };
}
