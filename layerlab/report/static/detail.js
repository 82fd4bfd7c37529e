/* What a finding opens: a head's attention map with its tokens, or a layer's largest channels. A
   cell of a heat map opens its head too. */

const dialog = document.getElementById("detail");
const body = document.getElementById("detail-body");
let opener = null;

function openDialog(title, button) {
  opener = button;
  document.getElementById("detail-title").textContent = title;
  body.replaceChildren();
  dialog.showModal();
}

function openDetail(key, button) {
  const detail = data.details[key];
  if (!detail) return undefined;
  if (detail.kind === "attention") return openHead(detail.model, detail.layer, detail.head, button);
  openDialog(`${data.models[detail.model].name}: ${layerName(detail.layer)}`, button);
  showChannels(detail);
  return undefined;
}

dialog.addEventListener("close", () => {
  body.replaceChildren();
  if (opener) opener.focus();
});
dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
document.getElementById("detail-close").addEventListener("click", () => dialog.close());

/* Rows of bytes, deflated, in base64: weights from 0 to 255. */
async function unpack(packed, width) {
  const flat = new Uint8Array(await unpacked(packed, "deflate").arrayBuffer());
  return Array.from({ length: flat.length / width }, (_, i) => flat.subarray(i * width, (i + 1) * width));
}

async function showAttention(detail) {
  if (!window.Plotly) {
    body.append(element("p", {}, say("This browser cannot unpack the map; its numbers are in report.json.")));
    return;
  }
  const { tokens, positions, own } = detail;
  const rows = await unpack(detail.map, tokens.length);
  const plot = element("div", { class: "plot" });
  const slider = element("input", { type: "range", min: 0, max: own.length - 1, value: own.length - 1, id: "detail-query" });
  const chosen = element("output", { for: "detail-query" });
  const strip = element("p", { class: "strip" });
  const keys = element("div", { "data-part": "keys" });
  const columns = element("div", { class: "pair" }, plot, element("div", {},
    element("h3", {}, say("Where one token looks")),
    element("label", { class: "query" }, `${say("Query")} `, slider, chosen), strip,
    element("h3", {}, say("The keys it looks at most")), keys));
  const whole = positions.every((position, i) => position === i);
  const given = { sequence: detail.sequence, positions: runsOf(positions), gap: GAP };
  const hint = whole
    ? say("Sequence {sequence}. Each row is a query, each column a key that it looks at; rows sum to 1, or less where the model has sinks.", given)
    : say("Sequence {sequence}. Each row is a query, each column a key that it looks at. Of a longer sequence the positions {positions} are shown; {gap} stands where some are left out.", given);
  body.append(element("p", { class: "hint" }, hint), columns);
  const choose = () => {
    const row = Number(slider.value);
    chosen.textContent = `${positions[own[row]]} ${tokens[own[row]]}`;
    strip.replaceChildren(...withGaps(positions.slice(0, own[row] + 1), (key) => {
      const weight = rows[row][key] / 255;
      const mark = element("span", { title: `${positions[key]}: ${weight.toFixed(2)}` }, tokens[key]);
      mark.style.setProperty("--weight", `${Math.round(100 * Math.sqrt(weight))}%`);
      if (key === own[row]) mark.className = "self";
      return mark;
    }));
    keys.replaceChildren(topKeys(detail, rows[row]));
  };
  slider.addEventListener("input", choose);
  choose();
  const figure = attentionFigure(detail, rows, Math.min(520, Math.max(280, plot.clientWidth)));
  await figureInto(plot, figure, say("Attention weights, one row per query"), { ...CONFIG, displayModeBar: false });
  plot.on("plotly_click", ({ points }) => { slider.value = slotsOf(own.map((key) => positions[key]))[points[0].pointIndex[0]]; choose(); });
}

const MARKS = [0, 0.02, 0.1, 0.25, 0.5, 1];

function attentionFigure({ tokens, positions, own }, rows, height) {
  // Most weights are small: colour follows their square root, the colour bar names the weights.
  const keys = slotsOf(positions);
  const queries = slotsOf(own.map((key) => positions[key]));
  const weight = (i, key) => (i === null || key === null || key > own[i] ? null : rows[i][key] / 255);
  const cells = (made) => queries.map((i) => keys.map((key) => made(weight(i, key), i, key)));
  const z = cells((w) => (w === null ? null : Math.sqrt(w)));
  const text = cells((w, i, key) => (w === null ? "" :
    say("{query} looks at<br>{key}: {weight}", { query: `${plain(tokens[own[i]])} (${positions[own[i]]})`, key: `${plain(tokens[key])} (${positions[key]})`, weight: w.toFixed(2) })));
  const trace = { type: "heatmap", z, hovertext: text, hovertemplate: "%{hovertext}<extra></extra>", hoverongaps: false, colorscale: "Cividis", zmin: 0, zmax: 1, colorbar: { thickness: 10, outlinewidth: 0, tickfont: { color: colour("muted") }, tickvals: MARKS.map(Math.sqrt), ticktext: MARKS.map(String) } };
  const some = (slots, keyOf) => {
    const stride = Math.ceil(slots.length / 30);
    const at = slots.map((_, slot) => slot).filter((slot) => slots[slot] === null || slots[slot] % stride === 0);
    const label = (key) => `${positions[key]} ${plain(tokens[key].slice(0, 8))}`;
    return { tickvals: at, ticktext: at.map((slot) => (slots[slot] === null ? GAP : label(keyOf(slots[slot])))), tickfont: { size: 10, color: colour("muted") } };
  };
  const figure = layout(height, { title: say("key"), tickangle: -90, automargin: true, ...some(keys, (key) => key) }, { title: say("query"), autorange: "reversed", ...some(queries, (i) => own[i]) });
  figure.xaxis.showgrid = figure.yaxis.showgrid = false;
  figure.margin = { l: 40, r: 8, t: 8, b: 40 };
  return { traces: [trace], layout: figure };
}

/* The keys that one query gives most of its attention. */
function topKeys({ tokens, positions }, weights) {
  const order = tokens.map((_, key) => key).filter((key) => weights[key]).sort((a, b) => weights[b] - weights[a]).slice(0, 8);
  return bars(order.map((key) => [tokens[key], say("position {position}", { position: positions[key] }), Number((weights[key] / 255).toPrecision(3))]), [say("Token"), say("Where"), say("Weight")]);
}

function showChannels(detail) {
  const rows = detail.channels.map((c) => [c.token, say("position {position}, channel {channel}", { position: c.token_index, channel: c.channel }), c.value]);
  body.append(
    element("p", { class: "hint" }, say("Sequence {sequence}. The largest values of the residual stream after this layer, with the token that carries each.", detail)),
    bars(rows, [say("Token"), say("Where"), say("Value")]));
}

function bars(rows, titles) {
  const top = Math.max(...rows.map(([, , value]) => Math.abs(value)), 1e-30);
  const line = ([token, where, value]) => {
    const bar = element("span", { class: "bar-mark" });
    bar.style.inlineSize = `${(100 * Math.abs(value)) / top}%`;
    return element("tr", {}, element("td", { class: "token" }, token), element("td", {}, where),
      element("td", { class: "number" }, format(value)), element("td", { class: "bar-cell" }, bar));
  };
  return element("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": titles.join(", ") }, element("table", { class: "bars" },
    element("thead", {}, element("tr", {}, ...titles.map((t) => element("th", { scope: "col" }, t)), element("td"))),
    element("tbody", {}, ...rows.map(line))));
}
