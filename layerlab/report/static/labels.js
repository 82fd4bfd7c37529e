/* What stands beside the lines of a plot: thresholds, and the names of bounds, at its edge. */

const SMALL = 11;
const cramped = matchMedia("(max-width: 40rem)");
const aside = (text, at, given = {}) => ({ xanchor: "left", yanchor: "middle", align: "left", showarrow: false, text, y: at, font: { size: SMALL, color: colour("muted") }, ...given });

/* The notes of a plot, and the margin that they need. */
function notesOf(shown, bounds, options) {
  const { log, levels } = options;
  const notes = [emptyAbove(bounds, log), ...levels.filter((v) => !log || v > 0).map((v) => thresholdLine(v, log))];
  if (shown.length === 1 && !cramped.matches) notes.push({ annotations: boundNames(shown[0], bounds, options) });
  const annotations = notes.flatMap((n) => n.annotations ?? []);
  const letters = annotations.filter((a) => a.xanchor === "left").flatMap((a) => a.text.split("<br>")).map((line) => line.length);
  const room = Math.max(0, ...letters) * 0.6 * SMALL + 12;
  return { shapes: notes.flatMap((n) => n.shapes ?? []), annotations, right: letters.length ? Math.max(14, room) : 14 };
}

/* What a finding holds readings against. */
function thresholdLine(level, log) {
  const line = { type: "line", xref: "paper", x0: 0, x1: 1, y0: level, y1: level, line: { color: colour("warning"), width: 1.5, dash: "dash" } };
  const text = plain(say("threshold {level}", { level: format(level) })).replace(" ", "<br>");
  return { shapes: [line], annotations: [aside(text, log ? Math.log10(level) : level, { xref: "paper", x: 1, xshift: 4, font: { size: SMALL, color: colour("warning") } })] };
}

/* The level from which a bound says nothing is a line of its own. */
function emptyAbove(bounds, log) {
  const level = bounds.find((b) => b.vacuous)?.vacuous;
  if (!log || !level) return {};
  const line = { type: "line", xref: "paper", x0: 0, x1: 1, y0: level, y1: level, line: { color: colour("muted"), width: 1 } };
  const note = { xref: "paper", x: 1, y: Math.log10(level), xanchor: "right", yanchor: "bottom", showarrow: false, text: say("a bound above this says nothing"), font: { size: SMALL, color: colour("muted") } };
  return { shapes: [line], annotations: [note] };
}

/* The name of each bound behind its end, or a line above or below where another stands there; the
   key under the plot names them all. */
const ROOM = 0.055;
const NUDGES = [0, -1, 1];
function boundNames(series, bounds, { log, top, values, levels }) {
  const at = (v) => (log ? Math.log10(v) : v);
  const drawn = (v) => v !== null && v <= top && (!log || v > 0);
  const near = ROOM * (Math.max(...values) - Math.min(...values) || 1);
  // A threshold has two lines.
  const taken = levels.map((level) => ({ y: at(level), room: 1.5 * near }));
  const names = [];
  for (const { limit: name } of bounds) {
    const { mean } = series.values[name];
    const i = mean.findLastIndex(drawn);
    if (i < 0) continue;
    const free = (y) => taken.every((t) => Math.abs((t.i ?? i) - i) > 1 || Math.abs(t.y - y) >= (t.room ?? 0.99 * near));
    const y = NUDGES.map((step) => at(mean[i]) + step * near).find(free);
    if (y === undefined) continue;
    taken.push({ i, y });
    names.push(aside(plain(columnName(name)), y, { x: place(series, series.layers[i]), xshift: 8 }));
  }
  return names;
}
