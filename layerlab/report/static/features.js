/* Frequent tokens as points along the three directions of most variance, by layer: a body that turns, or two projections of it. */

const WORD_SHAPES = ["circle", "square", "diamond", "cross"];
const STEPS = 999;
const VIEWS = { body: say("three dimensions"), sides: say("two projections") };
/* How far a body turns, in radians: for a pixel of the pointer, and for a key. */
const TURN = 0.01;
const KEY_TURN = 0.1;
const FIRST_TURN = { around: 0.6, up: 0.45 };

function drawClouds(section) {
  const box = section.part("pictures");
  const { pictures } = section.measure;
  if (!box.firstChild) box.append(...cloudControls(section, pictures), element("div", { class: "sides" }));
  const shown = pictures.filter((p) => choice.model === null || p.model === choice.model);
  for (const picture of pictures) {
    picture.figure ??= cloudFigure(section, picture);
    if (!shown.includes(picture)) clear(picture.figure.plot);
  }
  box.querySelector(".sides").replaceChildren(...shown.map((p) => p.figure.node));
  for (const picture of shown) drawCloud(section, picture);
}

function cloudControls(section, pictures) {
  const layers = [...new Set(pictures.flatMap((p) => p.layers))].sort((a, b) => a - b);
  const middle = Math.floor((layers.length - 1) / 2);
  section.cloud = { layer: layers[middle] ?? 0, view: "body" };
  const slider = element("input", { type: "range", min: 0, max: Math.max(0, layers.length - 1), value: Math.max(0, middle) });
  const depth = () => layerNumber(section.cloud.layer);
  const output = element("output", {}, depth());
  slider.addEventListener("input", () => {
    section.cloud.layer = layers[Number(slider.value)];
    output.textContent = depth();
    drawClouds(section);
  });
  const view = element("select", {}, ...Object.entries(VIEWS).map(([value, label]) => element("option", { value }, label)));
  view.addEventListener("input", () => {
    section.cloud.view = view.value;
    drawClouds(section);
  });
  // A choice here redraws the pictures alone.
  for (const node of [slider, view]) node.addEventListener("change", (event) => event.stopPropagation());
  return [element("div", { class: "controls" }, element("label", {}, `${say("Layer")} `, slider, " ", output), element("label", {}, `${say("Show")} `, view))];
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

function cloudFigure(section, picture) {
  const [title, key, hint] = [element("figcaption"), element("p", { class: "key words" }), element("p", { class: "hint" })];
  const plot = element("div", { class: "plot" });
  picture.turn = { ...FIRST_TURN };
  const turn = (around, up) => {
    picture.turn = { around: picture.turn.around + around, up: Math.max(-Math.PI / 2, Math.min(Math.PI / 2, picture.turn.up + up)) };
    turnBody(section, picture);
  };
  turnsByHand(plot, turn, () => section.cloud.view === "body");
  return { title, key, hint, plot, node: element("figure", {}, title, key, hint, plot) };
}

/* A pointer that drags, or the arrow keys, turn what is drawn. */
function turnsByHand(plot, turn, turns) {
  let last = null;
  plot.addEventListener("pointerdown", (event) => {
    if (!turns() || event.button || event.target.closest(".modebar")) return;
    last = event;
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener("pointermove", (event) => {
    if (!last) return;
    turn(TURN * (event.clientX - last.clientX), TURN * (event.clientY - last.clientY));
    last = event;
  });
  for (const end of ["pointerup", "pointercancel"]) plot.addEventListener(end, () => { last = null; });
  const KEYS = { ArrowLeft: [-KEY_TURN, 0], ArrowRight: [KEY_TURN, 0], ArrowUp: [0, -KEY_TURN], ArrowDown: [0, KEY_TURN] };
  plot.addEventListener("keydown", (event) => {
    if (!turns() || !KEYS[event.key]) return;
    event.preventDefault();
    turn(...KEYS[event.key]);
  });
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
  const body = section.cloud.view === "body";
  picture.at = at;
  const figure = body ? bodyFigure(picture, at, percent) : projections(picture, at, percent, Math.min(420, Math.max(280, 0.48 * plot.clientWidth)));
  const label = say("{place} of {model}: its {count} most frequent tokens, along three directions with {shares} of the variance", { count: picture.words.length, place: layerName(layer), model: data.models[picture.model].name, shares: percent.join(", ") });
  plot.classList.toggle("turning", body);
  if (body) plot.tabIndex = 0;
  else plot.removeAttribute("tabindex");
  const buttons = body ? ["toImage"] : ["toImage", "resetScale2d"];
  figureInto(plot, figure, label, { ...CONFIG, modeBarButtons: [buttons] }).then(() => {
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

/* A point as it is seen after the body was turned around its upright, third direction, then towards the eye. */
function seen({ around, up }, x, y, z) {
  const [side, deep] = [x * Math.cos(around) - y * Math.sin(around), x * Math.sin(around) + y * Math.cos(around)];
  return [side, z * Math.cos(up) + deep * Math.sin(up)];
}

/* The points of every token, then an axis from the middle along each direction. */
function bodyPoints({ turn }, traces, most) {
  const points = traces.map(({ x, y, z }) => x.map((_, i) => (x[i] === null ? [null, null] : seen(turn, x[i], y[i], z[i]))));
  const ends = [[most, 0, 0], [0, most, 0], [0, 0, most]].map((end) => seen(turn, ...end));
  const apart = (list) => ({ x: list.map(([x]) => x), y: list.map(([, y]) => y) });
  return [...points.map(apart), ...ends.map((end) => apart([[0, 0], end]))];
}

function bodyFigure(picture, at, percent) {
  const most = reachOf(picture, at);
  const axis = { title: "", range: [-1.5 * most, 1.5 * most], visible: false, fixedrange: true };
  const figure = layout(430, { ...axis, constrain: "domain" }, { ...axis, scaleanchor: "x" });
  const traces = cloudTraces(picture, at, 5);
  const places = bodyPoints(picture, traces, most);
  const bodies = traces.map(({ z, ...trace }, i) => ({ ...trace, ...places[i], type: "scatter" }));
  const axes = places.slice(traces.length).map((place, i) => ({
    ...place, type: "scatter", mode: "lines+text", hoverinfo: "skip", line: { color: colour("muted"), width: 1 },
    text: ["", direction(i, percent)], textfont: { size: 11, color: colour("muted") }, textposition: "top center", cliponaxis: false,
  }));
  return { traces: [...axes, ...bodies], layout: { ...figure, margin: { l: 0, r: 0, t: 8, b: 8 }, dragmode: false } };
}

/* The same points from another side; whatever else is drawn stays. */
function turnBody(section, picture) {
  const { plot } = picture.figure;
  const traces = cloudTraces(picture, picture.at, 5);
  const places = bodyPoints(picture, traces, reachOf(picture, picture.at));
  const ordered = [...places.slice(traces.length), ...places.slice(0, traces.length)];
  Plotly.restyle(plot, { x: ordered.map(({ x }) => x), y: ordered.map(({ y }) => y) });
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
