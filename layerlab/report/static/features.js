/* Frequent tokens as points along the three directions of most variance, by layer: a body that turns, or two projections of it. */

const WORD_SHAPES = ["circle", "square", "diamond", "cross"];
const STEPS = 999;
const MOST_BODIES = 4;
const VIEWS = { body: say("three dimensions"), sides: say("two projections") };

/* What draws a body: "fast", "slow" where the processor does it, "" where nothing does. */
const SOFTWARE = /swiftshader|llvmpipe|softpipe|software|basic render/i;
const webgl = (() => {
  let known = null;
  const find = () => {
    const context = document.createElement("canvas").getContext("webgl");
    if (!context) return "";
    const name = context.getExtension("WEBGL_debug_renderer_info")?.UNMASKED_RENDERER_WEBGL ?? context.RENDERER;
    const found = SOFTWARE.test(context.getParameter(name)) ? "slow" : "fast";
    context.getExtension("WEBGL_lose_context")?.loseContext();
    return found;
  };
  return () => (known ??= find());
})();

function drawClouds(section) {
  const box = section.part("pictures");
  const { pictures } = section.measure;
  if (!box.firstChild) box.append(...cloudControls(section, pictures), element("div", { class: "sides" }));
  const shown = pictures.filter((p) => choice.model === null || p.model === choice.model);
  for (const picture of pictures) {
    picture.figure ??= cloudFigure();
    if (!shown.includes(picture)) clear(picture.figure.plot);
  }
  box.querySelector(".sides").replaceChildren(...shown.map((p) => p.figure.node));
  for (const picture of shown) drawCloud(section, picture);
}

function cloudControls(section, pictures) {
  const layers = [...new Set(pictures.flatMap((p) => p.layers))].sort((a, b) => a - b);
  const middle = Math.floor((layers.length - 1) / 2);
  const turning = webgl() === "fast" && pictures.length <= MOST_BODIES;
  section.cloud = { layer: layers[middle] ?? 0, view: turning ? "body" : "sides" };
  const slider = element("input", { type: "range", min: 0, max: Math.max(0, layers.length - 1), value: Math.max(0, middle) });
  const depth = () => layerNumber(section.cloud.layer);
  const output = element("output", {}, depth());
  slider.addEventListener("input", () => {
    section.cloud.layer = layers[Number(slider.value)];
    output.textContent = depth();
    drawClouds(section);
  });
  const view = element("select", {}, ...Object.entries(VIEWS).map(([value, label]) => element("option", { value }, label)));
  view.value = section.cloud.view;
  view.addEventListener("input", () => {
    for (const picture of pictures) clear(picture.figure.plot);
    section.cloud.view = view.value;
    drawClouds(section);
  });
  // A choice here redraws the pictures alone.
  for (const node of [slider, view]) node.addEventListener("change", (event) => event.stopPropagation());
  const chosen = webgl() ? [element("label", {}, `${say("Show")} `, view)] : [];
  const controls = element("div", { class: "controls" }, element("label", {}, `${say("Layer")} `, slider, " ", output), ...chosen);
  return webgl() ? [controls] : [controls, element("p", { class: "hint" }, say("This browser has no WebGL, so the points are shown in two projections."))];
}

/* Colours and marks belong to tokens: the same ones for the same token of every model. */
const wordRanks = new Map();
const rankOf = (token) => wordRanks.get(token) ?? wordRanks.set(token, wordRanks.size).get(token);
const wordShape = (token) => WORD_SHAPES[rankOf(token) % WORD_SHAPES.length];
const wordColour = (token) => categorical(rankOf(token));

function wordMark(token) {
  const [svg, path] = ["svg", "path"].map((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
  for (const [name, value] of Object.entries({ class: "swatch", viewBox: "-8 -8 16 16", "aria-hidden": "true" })) svg.setAttribute(name, value);
  path.setAttribute("d", SHAPES[wordShape(token)]);
  path.style.fill = wordColour(token);
  svg.append(path);
  return svg;
}

function cloudFigure() {
  const [title, key, hint] = [element("figcaption"), element("p", { class: "key words" }), element("p", { class: "hint" })];
  const plot = element("div", { class: "plot" });
  return { title, key, hint, plot, node: element("figure", {}, title, key, hint, plot) };
}

function drawCloud(section, picture) {
  const { title, key, hint, plot } = picture.figure;
  const wanted = section.cloud.layer;
  const at = picture.layers.reduce((best, layer, i) => (Math.abs(layer - wanted) < Math.abs(picture.layers[best] - wanted) ? i : best), 0);
  const layer = picture.layers[at];
  title.replaceChildren(...(data.models.length > 1 ? [swatch(picture.model), " ", element("b", {}, data.models[picture.model].name), ", ", layerName(layer)] : [layerName(layer)]));
  key.replaceChildren(...picture.words.map(({ token, count }) => element("span", {}, wordMark(token), " ", element("code", {}, token), ` ${say("{count} times", { count: format(count) })}`)));
  const percent = picture.shares[at].map((share) => (share === null ? "–" : `${format(Number((100 * share).toPrecision(3)))} %`));
  const values = section.measure.series.find((s) => s.model === picture.model)?.values.apart;
  const place = section.measure.series.find((s) => s.model === picture.model)?.layers.indexOf(layer);
  hint.textContent = say("Variance along the three directions: {shares}. Between tokens: {apart} of the spread of these points.", { shares: percent.join(", "), apart: format(values?.mean[place]) });
  const figure = section.cloud.view === "body" ? bodyFigure(picture, at, percent) : projections(picture, at, percent, Math.min(420, Math.max(280, 0.48 * plot.clientWidth)));
  const label = say("{place} of {model}: its {count} most frequent tokens, along three directions with {shares} of the variance", { count: picture.words.length, place: layerName(layer), model: data.models[picture.model].name, shares: percent.join(", ") });
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", label);
  const buttons = section.cloud.view === "body" ? ["toImage", "resetCameraDefault3d"] : ["toImage", "resetScale2d"];
  Plotly.react(plot, figure.traces, figure.layout, { ...CONFIG, modeBarButtons: [buttons] }).then(() => {
    plot.dataset.layer = layer;
    plot.dataset.view = section.cloud.view;
  });
}

function cloudTraces(picture, at, size) {
  const scale = (picture.reach[at] ?? 0) / STEPS;
  return picture.words.map(({ token }, word) => {
    const [x, y, z] = picture.points[at][word].map((axis) => axis.map((v) => (v === null ? null : v * scale)));
    const hovertext = picture.places[word].map(([sequence, position]) => say("<b>{token}</b><br>sequence {sequence}, position {position}", { token: plain(token), sequence, position }));
    const marker = { size, symbol: wordShape(token), color: wordColour(token), opacity: 0.75, line: { width: 0 } };
    return { x, y, z, mode: "markers", marker, hovertext, hovertemplate: "%{hovertext}<extra></extra>" };
  });
}

const reachOf = (picture, at) => 1.05 * (picture.reach[at] || 1);
const direction = (i, percent) => say("direction {number}: {share}", { number: i + 1, share: percent[i] });

function bodyFigure(picture, at, percent) {
  const most = reachOf(picture, at);
  const axis = (i) => ({ ...axisStyle(), title: { text: say("direction {number}", { number: i + 1 }), font: { color: colour("muted"), size: 11 } }, tickfont: { color: colour("muted"), size: 10 }, range: [-most, most], nticks: 5, showbackground: false, zerolinecolor: colour("muted") });
  const scene = { xaxis: axis(0), yaxis: axis(1), zaxis: axis(2), aspectmode: "cube", camera: { eye: { x: 1.5, y: 1.5, z: 0.9 } }, dragmode: "orbit" };
  const figure = { ...layout(430, {}, {}), scene, margin: { l: 0, r: 0, t: 8, b: 8 }, uirevision: "turned" };
  delete figure.xaxis;
  delete figure.yaxis;
  return { traces: cloudTraces(picture, at, 3).map((trace) => ({ ...trace, type: "scatter3d" })), layout: figure };
}

/* Seen along the third direction and along the second, on one scale. */
function projections(picture, at, percent, height) {
  const most = reachOf(picture, at);
  const across = (domain) => ({ title: direction(0, percent), range: [-most, most], domain, nticks: 5, constrain: "domain" });
  const figure = layout(height, across([0, 0.41]), { title: direction(1, percent), range: [-most, most], nticks: 5, scaleanchor: "x", constrain: "domain" });
  const other = layout(height, across([0.59, 1]), { title: direction(2, percent), range: [-most, most], nticks: 5, scaleanchor: "x2", anchor: "x2", constrain: "domain" });
  const traces = cloudTraces(picture, at, 5).flatMap(({ z, ...trace }) => [
    { ...trace, type: "scatter" },
    { ...trace, y: z, type: "scatter", xaxis: "x2", yaxis: "y2" },
  ]);
  return { traces, layout: { ...figure, xaxis2: { ...other.xaxis, anchor: "y2" }, yaxis2: other.yaxis } };
}
