/* The bounds of a measure: which are drawn, the key that names them, and whether they hold. */

/* The bounds to draw, and those of them that lie off the scale. */
function boundsOf(section, column, shown) {
  const bounds = section.control("bounds")?.checked
    ? section.measure.bounds.filter((b) => b.column === column && shown.some((s) => hasReading(s, b.limit))) : [];
  const log = section.control("log").checked;
  return { bounds, far: log ? [] : farBounds(section.measure, shown, column).filter((b) => bounds.includes(b)) };
}

/* A text as nodes: every key of a source that the page lists is a link to its entry. */
const cited = (text) => text.split(/\b([a-z]+\d\d)\b/).map((part) => (
  document.getElementById(`source-${part}`) ? element("a", { href: `#source-${part}` }, part) : part));

function drawKey(section, column, shown) {
  const key = section.part("key");
  const items = shown.length > 1 ? shown.map((s) => element("span", {}, swatch(s.model), ` ${data.models[s.model].name}`)) : [];
  const ranged = shown.length <= MOST_BANDS && shown.find((s) => s.values[column].low);
  if (ranged) {
    const given = section.measure.band?.column === column && section.measure.band.label;
    const over = [ranged.heads?.length > 1 && say("heads"), ranged.sequences > 1 && say("sequences"), section.measure.per_token && say("tokens")].filter(Boolean).join(say(" and "));
    items.push(element("span", {}, element("i", { class: "band" }), ` ${given ? translated(given) : say("smallest to largest over {axes}", { axes: over })}`));
  }
  const { bounds, far } = boundsOf(section, column, shown);
  // Beside dashed lines the reading itself is named too.
  if (bounds.length && shown.length === 1) items.unshift(element("span", { class: "reading" }, swatch(shown[0].model), ` ${columnName(column)}: ${meaning(section.node, column)}`));
  for (const bound of bounds) {
    const values = extent(shown, bound.limit);
    const where = far.includes(bound) || (section.control("log").checked && leaves(shown, bound)) ? say(", off this scale: {span}", { span: span(values) }) : touches(shown, bound) ? say(", within {share} % of the line", { share: 100 * CLOSE }) : "";
    const mark = touches(shown, bound) ? [] : [dashMark(dashOf(section.measure, bound))];
    const sign = { upper: "≤ ", lower: "≥ ", beside: "" }[bound.side];
    const said = bound.side === "beside" || section.measure.band ? `${columnName(bound.limit)}: ${meaning(section.node, bound.limit)}` : `${columnName(bound.limit)} (${translated(bound.source)})`;
    items.push(element("span", {}, ...mark, ` ${sign}`, ...cited(said), `${where}${emptiness(shown, bound)}`));
  }
  if (bounds.some((b) => b.side !== "beside") && ranged && !section.measure.band) items.push(element("span", {}, say("a bound is drawn as its mean: compare it with the line, not with the shading")));
  key.replaceChildren(...items);
}

/* Where a bound is so large that it says nothing. */
function emptiness(shown, { limit, vacuous }) {
  if (!vacuous) return "";
  const layers = shown.flatMap((s) => s.layers.filter((_, i) => s.values[limit].mean[i] >= vacuous));
  return layers.length ? say(", vacuous from {place} on", { place: layerName(Math.min(...layers)) }) : "";
}

function dashMark(dash) {
  const [svg, line] = ["svg", "line"].map((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
  for (const [name, value] of Object.entries({ class: "dash", viewBox: "0 0 48 8", "aria-hidden": "true", "data-dash": dash })) svg.setAttribute(name, value);
  for (const [name, value] of Object.entries({ x1: 0, x2: 48, y1: 4, y2: 4, "stroke-dasharray": DASHES[dash] })) line.setAttribute(name, value);
  svg.append(line);
  return svg;
}

function drawVerdicts(section, shown) {
  section.part("verdicts").replaceChildren(...infinities(section), ...convergence(section.measure, shown), ...section.measure.bounds.flatMap((bound, i) => {
    const read = shown.filter((s) => s.bounds[i].readings);
    const broken = read.filter((s) => s.bounds[i].violated);
    return [...broken.map((s) => violation(bound, s, s.bounds[i])), holding(bound, i, read.filter((s) => !broken.includes(s)), broken.length)];
  }).filter(Boolean));
}

function infinities(section) {
  const column = columnOf(section);
  return seriesOf(section).filter((s) => s.infinite[column]).map((s) => infinity(s.infinite[column], s.model, column));
}

/* A column `residual` says how far the first quantity of its measure is from having converged. */
function convergence({ plot }, shown) {
  const found = shown.map((s) => s.convergence).filter(Boolean);
  const sum = (name) => found.reduce((total, f) => total + f[name], 0);
  if (!sum("open")) return [];
  const given = { open: format(sum("open")), readings: format(sum("readings")), limit: found[0].limit, column: element("code", {}, plot[0]) };
  return [element("li", { class: "loose" }, ...parts("{open} of {readings} readings had not converged (residual above {limit}): {column} is a lower bound", given))];
}

const claim = (bound) => element("code", {}, `${bound.column} ${bound.side === "upper" ? "≤" : "≥"} ${bound.limit}`);
const span = (values) => {
  const [low, high] = [Math.min(...values), Math.max(...values)].map(format);
  return low === high ? low : say("{low} to {high}", { low, high });
};

function violation(bound, series, found) {
  const who = data.models.length > 1 ? [swatch(series.model), ` ${data.models[series.model].name}: `] : [];
  const excess = found.reach > 1 ? say(", by up to {excess} %", { excess: format(Number((100 * (found.reach - 1)).toPrecision(3))) }) : "";
  const where = found.layers.slice(0, 8).map(layerNumber).join(", ") + (found.layers.length > 8 ? ", …" : "");
  const text = say("violated in {violated} of {readings} readings (layer {layers})", { violated: format(found.violated), readings: format(found.readings), layers: where });
  return element("li", { class: "violated" }, claim(bound), " ", ...who, text, excess);
}

function holding(bound, i, series, broken) {
  if (!series.length) return null;
  const found = series.map((s) => s.bounds[i]);
  const readings = found.reduce((sum, f) => sum + f.readings, 0);
  const most = Math.max(...found.map((f) => f.reach));
  const percent = (v) => (v < 1e-4 ? say("under 0.01") : format(Number((100 * v).toPrecision(3))));
  const ends = [...new Set([Math.min(...found.map((f) => f.least)), most].map(percent))];
  const given = { readings: format(readings), models: series.map((s) => data.models[s.model].name).join(say(", ")), share: ends.length > 1 ? say("{low} to {high}", { low: ends[0], high: ends[1] }) : ends[0] };
  const whole = broken ? say("holds in {readings} of {readings} readings of {models}", given) : say("holds in {readings} of {readings} readings", given);
  const used = bound.side === "upper" ? say("; readings are {share} % of the bound", given) : say("; the bound is {share} % of the readings", given);
  return element("li", { class: "holds" }, claim(bound), " ", whole, used, most < 0.1 ? say(", so it says little here") : "");
}
