/* What the monitor read, over the updates: maps of every arm on one scale, and layer by layer. */

const readings = (entry, { measure, part }) => entry.values[measure][part];

/* An arm with the layers alone of which a quantity was read: a stream has one more than a head. */
function readLayers(entry, state) {
  const steps = entry.updates.length;
  const kept = entry.layers.map((_, i) => i).filter((i) => present(readings(entry, state).slice(i * steps, (i + 1) * steps)).length);
  const values = { [state.measure]: { [state.part]: kept.flatMap((i) => readings(entry, state).slice(i * steps, (i + 1) * steps)) } };
  return { ...entry, layers: kept.map((i) => entry.layers[i]), values };
}

function lapseSpan(entries, state) {
  const values = entries.flatMap((e) => present(readings(e, state).map((v) => scaled(v, state.log))));
  const limits = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
  if (limits[0] === limits[1]) limits[1] += Math.abs(limits[1]) || 1;
  return limits;
}

function lapseFigure(entry, state, span) {
  const { layers, updates } = entry;
  const values = readings(entry, state);
  const at = (i, j) => values[i * updates.length + j];
  const trace = {
    type: "heatmap", x: updates.map(String), y: layers, z: layers.map((_, i) => updates.map((__, j) => scaled(at(i, j), state.log))),
    colorscale: "Cividis", zmin: span[0], zmax: span[1], xgap: updates.length > 30 ? 0 : 1, ygap: layers.length > 24 ? 0 : 1,
    hovertext: layers.map((layer, i) => updates.map((n, j) => say("{place}, update {update}<br>{quantity} {value}", { place: layerName(layer), update: format(n), quantity: plain(state.title), value: format(at(i, j)) }))),
    hovertemplate: "%{hovertext}<extra></extra>",
    colorbar: { thickness: 9, outlinewidth: 0, tickfont: { color: colour("muted") }, ...(state.log ? powers(span) : { nticks: 4 }) },
  };
  const figure = layout(Math.min(420, 96 + Math.max(layers.length, 4) * 20), { title: AXES.update, type: "category", nticks: 6, tickangle: 0 }, { title: say("layer"), ...layerTicks(layers, "") });
  figure.xaxis.showgrid = figure.yaxis.showgrid = false;
  figure.margin = { l: 44, r: 6, t: 8, b: 42 };
  return { traces: [trace], layout: figure };
}

/* All layers at one moment; an arm that was not read at it shows its reading before. */
function profileFigure(entries, state, moment, span) {
  const traces = entries.flatMap((entry) => {
    const j = entry.updates.findLastIndex((n) => n <= moment);
    if (j < 0) return [];
    const y = entry.layers.map((_, i) => readings(entry, state)[i * entry.updates.length + j]);
    return [{
      x: entry.layers, y: y.map((v) => (state.log && v <= 0 ? null : v)), type: "scatter", mode: "lines+markers",
      line: { color: modelColour(entry.arm), width: isBase(entry.arm) ? 3.2 : 2, dash: dashed(entry.arm) },
      marker: { symbol: modelSymbol(entry.arm), size: 8, color: modelColour(entry.arm) },
      hovertext: y.map((v, i) => say("<b>{arm}</b>, {place}, update {update}<br>{quantity} {value}", { arm: nameOf(entry.arm), place: layerName(entry.layers[i]), update: format(entry.updates[j]), quantity: plain(state.title), value: format(v) })),
      hovertemplate: "%{hovertext}<extra></extra>",
    }];
  });
  const layers = [...new Set(entries.flatMap((e) => e.layers))];
  const room = 0.05 * (span[1] - span[0]);
  const figure = layout(340, { title: say("layer"), range: [Math.min(...layers) - 0.4, Math.max(...layers) + 0.4], ...layerTicks(layers) }, { title: plain(state.title), range: [span[0] - room, span[1] + room], ...(state.log ? { type: "log", exponentformat: "power" } : {}) });
  return { traces, layout: figure };
}
