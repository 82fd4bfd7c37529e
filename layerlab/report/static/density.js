/* The spectral density of a weight matrix, and the tail that was fitted to it. */

function drawDensities(section) {
  const box = section.part("pictures");
  const { pictures } = section.measure;
  if (!box.firstChild) box.append(densityControls(section, pictures), element("div", { class: "sides" }));
  const sides = box.querySelector(".sides");
  for (const node of sides.querySelectorAll(".plot")) Plotly.purge(node);
  const shown = pictures.filter((p) => choice.model === null || p.model === choice.model);
  const found = shown.map((picture) => [picture, nearestDensity(picture.entries, section.density)]).filter(([, entry]) => entry);
  const plots = found.map(() => element("div", { class: "plot" }));
  sides.replaceChildren(...found.map(([{ model }, entry], i) => element("figure", {},
    element("figcaption", {}, ...(data.models.length > 1 ? [swatch(model), " ", element("b", {}, data.models[model].name), ": "] : []), tailOf(entry)), plots[i])));
  // Plotly takes the width of what stands on the page.
  found.forEach(([{ model }, entry], i) => {
    const place = `${layerName(entry.layer)}${say(", ")}${entry.matrix}`;
    figureInto(plots[i], densityFigure(entry, place), say("Spectral density of {place} of {model}", { place, model: data.models[model].name }));
  });
}

function densityControls(section, pictures) {
  const entries = pictures.flatMap((p) => p.entries);
  const names = [...new Set(entries.map((e) => e.matrix))];
  const layers = [...new Set(entries.map((e) => e.layer))].sort((a, b) => a - b);
  const inside = entries.find((e) => e.layer >= 0) ?? entries[0];
  section.density = { matrix: inside?.matrix, layer: inside?.layer };
  const matrix = element("select", {}, ...names.map((value) => element("option", { value }, value)));
  const layer = element("select", {}, ...layers.map((value) => element("option", { value }, layerName(value))));
  matrix.value = section.density.matrix;
  layer.value = section.density.layer;
  matrix.addEventListener("input", () => { section.density.matrix = matrix.value; drawDensities(section); });
  layer.addEventListener("input", () => { section.density.layer = Number(layer.value); drawDensities(section); });
  // A choice here redraws the pictures alone.
  for (const node of [matrix, layer]) node.addEventListener("change", (event) => event.stopPropagation());
  return element("div", { class: "controls" }, element("label", {}, `${say("Matrix")} `, matrix), element("label", {}, `${say("Layer")} `, layer));
}

const nearestDensity = (entries, { matrix, layer }) => entries
  .filter((e) => e.matrix === matrix)
  .reduce((best, e) => (best === null || Math.abs(e.layer - layer) < Math.abs(best.layer - layer) ? e : best), null);

const tailOf = ({ layer, alpha, error, tail }) => (alpha === null
  ? say("{place}: too few eigenvalues for a tail", { place: layerName(layer) })
  : say("{place}: exponent {alpha}, standard error {error}, {tail} eigenvalues in the tail", { place: layerName(layer), alpha: format(Number(alpha.toPrecision(3))), error: format(Number(error.toPrecision(2))), tail }));

/* Bars of equal width in the logarithm; a density falls by the width that each has. */
function densityFigure({ counts, low, high, alpha, start, tail }, place) {
  const step = (high - low) / counts.length;
  const edge = (i) => 10 ** (low + i * step);
  const total = counts.reduce((a, b) => a + b, 0);
  const x = counts.map((_, i) => 10 ** (low + (i + 0.5) * step));
  const traces = [{
    type: "bar", name: say("eigenvalues"), x, width: counts.map((_, i) => edge(i + 1) - edge(i)),
    y: counts.map((count, i) => (count ? count / total / (edge(i + 1) - edge(i)) : null)), marker: { color: colour("muted"), opacity: 0.55 },
  }];
  if (alpha !== null) {
    const ends = Array.from({ length: 24 }, (_, i) => 10 ** (Math.log10(start) + (i / 23) * (high - Math.log10(start))));
    traces.push({ type: "scatter", mode: "lines", name: say("fitted tail"), x: ends, y: ends.map((v) => (tail / total) * ((alpha - 1) / start) * (v / start) ** -alpha), line: { width: 2.4, color: colour("ink") } });
  }
  const figure = layout(320, { title: say("eigenvalue, {place}", { place }), type: "log" }, { title: say("density"), type: "log" });
  return { traces, layout: { ...figure, ...(alpha === null ? {} : legendAbove(figure)) } };
}
