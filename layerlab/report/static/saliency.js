/* What the next token hangs on: tokens coloured by a score, and a map token x channel, by layer. */

const SCORES = { l1: say("L1: sum over channels"), l2: say("L2: length of the gradient"), product: say("input × gradient") };

const PART = "◌";

function drawSaliency(section) {
  const box = section.part("pictures");
  const { pictures } = section.measure;
  if (!box.firstChild) box.append(pictureControls(section, pictures), element("div", { class: "sides" }));
  const { layer, score } = section.asked;
  const sides = box.querySelector(".sides");
  for (const node of sides.querySelectorAll(".plot")) Plotly.purge(node);
  const shown = pictures.filter((p) => choice.model === null || p.model === choice.model);
  sides.replaceChildren(...shown.map((picture) => {
    const plot = element("div", { class: "plot" });
    const at = Math.min(layer, picture.layers.length - 1);
    const title = element("figcaption", {}, ...(data.models.length > 1 ? [swatch(picture.model), " ", element("b", {}, data.models[picture.model].name), ": "] : []), ...asked(picture));
    drawChannels(plot, picture, at);
    return element("figure", {}, title, tokenStrip(picture, at, score), ...spread(picture), isotropy(section, picture, at), plot);
  }));
}

function pictureControls(section, pictures) {
  section.asked = { layer: 0, score: "l1" };
  const most = Math.max(0, ...pictures.map((p) => p.layers.length - 1));
  const layers = element("input", { type: "range", min: 0, max: most, value: 0 });
  const depth = () => layerNumber(pictures.find((p) => p.layers.length > most).layers[section.asked.layer]);
  const output = element("output", {}, depth());
  const scores = element("select", {}, ...Object.entries(SCORES).map(([value, label]) => element("option", { value }, label)));
  layers.addEventListener("input", () => {
    section.asked.layer = Number(layers.value);
    output.textContent = depth();
    drawSaliency(section);
  });
  scores.addEventListener("input", () => { section.asked.score = scores.value; drawSaliency(section); });
  // A choice here redraws the pictures alone.
  for (const node of [layers, scores]) node.addEventListener("change", (event) => event.stopPropagation());
  return element("div", { class: "controls" }, element("label", {}, `${say("Layer")} `, layers, " ", output), element("label", {}, `${say("Tokens by")} `, scores));
}

/* The question and what the model answers, as sentences. */
function asked({ of, target, foil, prediction, length }) {
  const code = (text) => element("code", {}, text);
  const token = (word) => word.word ? element("span", {}, ...parts("{token}, the first token of {word}", { token: code(word.token), word: code(word.word) })) : code(word.token);
  const chance = (word) => say("probability {probability}, rank {rank}", { probability: format(word.probability), rank: format(word.rank) });
  const given = { of: translated(of), length, target: token(target), chance: chance(target), foil: foil && token(foil), other: foil && chance(foil) };
  const question = foil
    ? parts("logit of {target} ({chance}) less that of {foil} ({other}) after {length} tokens; ", given)
    : parts("{of} of {target} ({chance}) after {length} tokens; ", given);
  const answer = prediction.token === target.token && target.rank === 1
    ? [say("the model predicts it.")] : parts("the model predicts {token}.", { token: token(prediction) });
  return [...question, ...answer];
}

/* Each token on a ground whose strength follows the root of its share of the largest score. */
function tokenStrip(picture, at, score) {
  const line = picture.scores[score][at];
  const top = Math.max(...present(line).map(Math.abs), 0);
  const strip = element("p", { class: "strip looked" });
  strip.append(...withGaps(picture.positions, (i) => {
    const value = line[i] ?? 0;
    const mark = element("span", { title: say("position {position}, {place}: {value}", { position: picture.positions[i], place: layerName(picture.layers[at]), value: format(line[i]) }) }, picture.tokens[i]);
    mark.style.setProperty("--weight", `${top ? Math.round(100 * Math.sqrt(Math.abs(value) / top)) : 0}%`);
    const kinds = [value < 0 && "against", picture.earlier.includes(i) && "earlier", picture.positions[i] === picture.position && "self"];
    mark.className = kinds.filter(Boolean).join(" ");
    return mark;
  }));
  return strip;
}

/* What a sign means that no reader knows, where it stands. */
function spread({ tokens }) {
  return tokens.some((token) => token.includes(PART)) ? [element("p", { class: "hint" }, say("◌ is a part of the character that ends at a later token."))] : [];
}

/* How alike the features of this text are where they are looked at. */
function isotropy({ measure }, picture, at) {
  const { cosine, dimension } = measure.series.find((s) => s.model === picture.model).values;
  return element("p", { class: "hint" }, say("Features here: mean cosine {cosine}, {dimension} directions with 80 % of the variance.", { cosine: format(cosine.mean[at]), dimension: format(dimension.mean[at]) }));
}

function rowsOf(picture, nearest) {
  picture.rows ??= {};
  return (picture.rows[nearest] ??= unpack(picture.maps[nearest], picture.bins));
}

/* The map of the nearest layer that has one; maps are unpacked when they are first looked at. */
async function drawChannels(node, picture, at) {
  if (!window.DecompressionStream || !picture.mapped.length) {
    return node.append(element("p", { class: "hint" }, say("This browser cannot unpack the map; it is in report.json.")));
  }
  const wanted = picture.layers[at];
  const nearest = picture.mapped.reduce((best, layer, i) => (Math.abs(layer - wanted) < Math.abs(picture.mapped[best] - wanted) ? i : best), 0);
  const rows = await rowsOf(picture, nearest);
  if (!node.isConnected) return;
  const figure = channelFigure(picture, rows, nearest);
  await figureInto(node, figure, say("Saliency of {tokens} tokens and {channels} channels of {model}, {place}; the scores of the tokens are above.", { tokens: picture.tokens.length, channels: picture.width, place: layerName(picture.mapped[nearest]), model: data.models[picture.model].name }));
  node.dataset.layer = picture.mapped[nearest];
}

function channelFigure({ tokens, positions, bins, width, mapped, peaks }, rows, nearest) {
  const peak = peaks[nearest] ?? 0;
  const first = (bin) => Math.ceil((bin * width) / bins);
  const of = (bin) => (bins === width ? say("channel {channel}", { channel: bin }) : say("channels {first} to {last}", { first: first(bin), last: first(bin + 1) - 1 }));
  const grid = Array.from({ length: bins }, (_, bin) => rows.map((row) => row[bin] / 255));
  const text = grid.map((line, bin) => line.map((root, i) => `${plain(tokens[i])} (${positions[i]}), ${of(bin)}<br>${format(peak * root * root)}`));
  const trace = {
    type: "heatmap", z: grid, hovertext: text, hovertemplate: "%{hovertext}<extra></extra>", colorscale: "Cividis", zmin: 0, zmax: 1,
    colorbar: { thickness: 10, outlinewidth: 0, tickfont: { color: colour("muted") }, tickvals: MARKS.map(Math.sqrt), ticktext: MARKS.map((m) => format(Number((m * peak).toPrecision(2)))) },
  };
  const some = (count, most, label) => {
    const at = [...Array(count).keys()].filter((i) => i % Math.ceil(count / most) === 0);
    return { tickvals: at, ticktext: at.map(label), tickfont: { size: 10, color: colour("muted") } };
  };
  const figure = layout(360,
    { title: say("token"), tickangle: -90, automargin: true, ...some(tokens.length, 40, (i) => plain(tokens[i].slice(0, 10))) },
    { title: say("channel, {place}", { place: layerName(mapped[nearest]) }), ...some(bins, 8, (bin) => String(first(bin))) });
  figure.xaxis.showgrid = figure.yaxis.showgrid = false;
  figure.margin = { l: 52, r: 8, t: 8, b: 40 };
  return { traces: [trace], layout: figure };
}
