/* Figures of a comparison: curves with seeds as bands, paired differences, learning rates. */

const EVALUATED = ["nats", "bits_per_byte", "accuracy"];
const AXES = { update: data.metric === "loss" ? say("steps") : say("updates"), tokens: say("training tokens"), flops: say("training FLOPs"), seconds: say("training time") };
const QUANTITIES = { nats: say("nats per token, held out"), bits_per_byte: say("bits per byte, held out"), accuracy: say("accuracy, held out"), loss: data.metric === "loss" ? (data.higher ? say("score") : say("loss")) : say("training loss, nats per token") };
const CURVE_DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "5px,2px,2px,2px"];
/* Before this share of the longest run curves fall so steeply that nothing else could be read. */
const EARLY = 0.35;

const isBase = (arm) => arm === data.baseline;
const dashed = (arm) => (isBase(arm) ? "solid" : CURVE_DASHES[arm % CURVE_DASHES.length]);
const nameOf = (arm) => plain(data.models[arm].name);
const kindOf = (y) => (EVALUATED.includes(y) ? "evaluation" : "train");
const points = (run, y) => data.curves[kindOf(y)].runs[run];

/* The end of a run that diverged: larger than any mark of an arm, and in the colour of errors. */
const lostMark = () => ({ symbol: "x-thin", size: 12, line: { width: 3, color: colour("error") } });

/* A place may be sent as a multiple of the updates. */
function columnOf(curve, name) {
  const column = curve[name];
  if (name === "update" || Array.isArray(column)) return column;
  return curve.update.map((n) => (column === null ? null : n * column));
}

/* Runs of one arm and rate, with their curves; those that ended early stand alone. */
function groupsOf(arms, { y, rates }) {
  const groups = new Map();
  data.runs.forEach((run, index) => {
    const curve = points(index, y);
    if (!arms.includes(run.arm) || !curve || !(run.judged || rates)) return;
    const key = `${run.arm} ${run.rate}`;
    if (!groups.has(key)) groups.set(key, { arm: run.arm, rate: run.rate, judged: run.judged, members: [] });
    groups.get(key).members.push({ ...run, curve });
  });
  for (const group of groups.values()) {
    const whole = group.members.filter((m) => !m.lost);
    const done = whole.filter((m) => m.finished);
    group.even = done.length ? done : whole;
    group.odd = group.members.filter((m) => !group.even.includes(m));
  }
  return [...groups.values()];
}

/* Mean, spread and place at every update that all of these runs have reached. */
function merged(members, x, y) {
  const maps = members.map(({ curve }) => {
    const places = columnOf(curve, x);
    return new Map(curve.update.flatMap((n, i) => (curve[y][i] === null || places[i] === null ? [] : [[n, [places[i], curve[y][i]]]])));
  });
  const rows = [...(maps[0]?.keys() ?? [])].filter((n) => maps.every((m) => m.has(n))).map((n) => {
    const found = maps.map((m) => m.get(n));
    const values = found.map((f) => f[1]);
    const mean = average(values);
    const sd = Math.sqrt(values.reduce((sum, v) => sum + (v - mean) ** 2, 0) / Math.max(1, values.length - 1));
    const half = values.length > 1 ? (data.widths[values.length] * sd) / Math.sqrt(values.length) : 0;
    return { update: n, x: average(found.map((f) => f[0])), mean, low: Math.min(...values), high: Math.max(...values), half };
  });
  return rows;
}

/* Seconds are shown in minutes or hours where they are many. */
function unitOf(x, values) {
  const top = Math.max(0, ...values);
  if (x !== "seconds") return { size: 1, title: AXES[x] };
  if (top > 10800) return { size: 3600, title: say("training time, hours") };
  return top > 300 ? { size: 60, title: say("training time, minutes") } : { size: 1, title: say("training time, seconds") };
}

function curveFigure(arms, state) {
  const { x, y } = state;
  const groups = groupsOf(arms, state).map((g) => ({ ...g, rows: merged(g.even, x, y) }));
  const ends = groups.flatMap((g) => g.members.flatMap((m) => present(columnOf(m.curve, x))));
  const unit = unitOf(x, ends);
  const context = { ...state, unit };
  const traces = groups.flatMap((g) => [...(g.judged ? spread(g, context) : []), ...singles(g, context)]);
  traces.push(...groups.filter((g) => g.rows.length).map((g) => middle(g, context)));
  const figure = layout(420, { title: unit.title, ...(state.log ? { type: "log", exponentformat: "power" } : { exponentformat: x === "flops" ? "power" : "SI", rangemode: "tozero" }) }, { title: QUANTITIES[y], ...settled(groups, context, Math.max(...ends)) });
  return { traces, layout: figure, groups };
}

/* The range of values once the first fall is over. */
function settled(groups, { whole, band }, end) {
  if (whole) return {};
  const rows = groups.flatMap((g) => g.rows.filter((r) => r.x >= EARLY * end));
  return zoomed(rows.flatMap((r) => [...edges(r, band), r.mean]));
}

function zoomed(values) {
  if (!values.length) return {};
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const room = 0.07 * (high - low || Math.abs(high) || 1);
  return { range: [low - room, high + room] };
}

const edges = (row, band) => (band === "interval" ? [row.mean - row.half, row.mean + row.half] : [row.low, row.high]);

function spread({ arm, even, rows }, { band, unit }) {
  if (band === "none" || even.length < 2 || !rows.length) return [];
  const style = { x: rows.map((r) => r.x / unit.size), type: "scatter", mode: "lines", hoverinfo: "skip", line: { width: 0, color: modelColour(arm) } };
  return [
    { ...style, y: rows.map((r) => edges(r, band)[0]) },
    { ...style, y: rows.map((r) => edges(r, band)[1]), fill: "tonexty", fillcolor: fade(modelColour(arm), 0.14) },
  ];
}

/* A run that diverged or has not finished is always drawn by itself; the others on demand. */
function singles({ arm, even, odd }, { x, y, unit, each }) {
  const shown = each && even.length > 1 ? [...even, ...odd] : odd;
  return shown.map((member) => {
    const places = columnOf(member.curve, x).map((v) => (v === null ? null : v / unit.size));
    const values = member.curve[y];
    const last = values.findLastIndex((v) => v !== null);
    const fate = member.lost ? say(", diverged") : member.finished ? "" : say(", not finished");
    return {
      x: places, y: values, type: "scatter", mode: "lines+markers",
      line: { width: 1, color: modelColour(arm), dash: dashed(arm) }, opacity: 0.75,
      ...(member.lost ? { marker: { ...lostMark(), opacity: values.map((_, i) => Number(i === last)) } } : { mode: "lines" }),
      hovertext: values.map((v, i) => say("<b>{arm}</b>, seed {seed}{fate}<br>update {update}<br>{quantity} {value}", { arm: nameOf(arm), seed: format(member.seed), fate, update: format(member.curve.update[i]), quantity: plain(QUANTITIES[y]), value: format(v) })),
      hovertemplate: "%{hovertext}<extra></extra>",
    };
  });
}

function middle({ arm, rate, judged, even, rows }, { y, unit, rates }) {
  const each = even.length > 1 ? (r) => `<br>${say("{count} seeds from {low} to {high}", { count: even.length, low: format(r.low), high: format(r.high) })}` : () => "";
  const which = rates ? say(", rate {rate}", { rate: format(rate) }) : "";
  return {
    x: rows.map((r) => r.x / unit.size), y: rows.map((r) => r.mean), type: "scatter", mode: "lines+markers",
    line: { color: modelColour(arm), width: !judged ? 1 : isBase(arm) ? 3.2 : 2, dash: dashed(arm) }, opacity: judged ? 1 : 0.5,
    marker: { symbol: modelSymbol(arm), size: judged ? 7 : 4, color: modelColour(arm), maxdisplayed: 9 },
    hovertext: rows.map((r) => say("<b>{arm}</b>{which}, update {update}<br>{quantity} {value}", { arm: nameOf(arm), which, update: format(r.update), quantity: plain(QUANTITIES[y]), value: format(r.mean) }) + each(r)),
    hovertemplate: "%{hovertext}<extra></extra>",
  };
}

/* One panel an arm, all on one scale. */
const PLACED = { tokens: say("tokens"), rank: say("evaluation") };

function pairedFigure(series, range) {
  const places = series.place;
  const style = { x: places, type: "scatter", mode: "lines" };
  const tone = modelColour(series.arm);
  const traces = [
    { ...style, y: series.low, hoverinfo: "skip", line: { width: 0, color: tone } },
    { ...style, y: series.high, hoverinfo: "skip", line: { width: 0, color: tone }, fill: "tonexty", fillcolor: fade(tone, 0.18) },
    {
      ...style, y: series.difference, mode: "lines+markers", line: { color: tone, width: 2 },
      marker: { symbol: modelSymbol(series.arm), size: 7, color: tone, maxdisplayed: 9 },
      hovertext: series.difference.map((v, i) => say("<b>{arm}</b>, {by} {place}<br>difference {value}, {unit}<br>from {low} to {high}", { arm: nameOf(series.arm), by: PLACED[series.by], place: format(places[i]), value: format(v), unit: plain(translated(data.unit)), low: format(series.low[i]), high: format(series.high[i]) })),
      hovertemplate: "%{hovertext}<extra></extra>",
    },
  ];
  const figure = layout(200, { title: AXES[series.by] ?? PLACED.rank, exponentformat: "SI", rangemode: "tozero", nticks: 5 }, { ...range, nticks: 5, zeroline: true });
  figure.yaxis.zerolinecolor = colour("muted");
  figure.yaxis.zerolinewidth = 1.5;
  figure.margin = { l: 46, r: 10, t: 8, b: 40 };
  return { traces, layout: figure };
}

function pairedRange(shown, whole) {
  const end = Math.max(...shown.flatMap((s) => present(s.place)));
  const kept = (s, key) => s[key].filter((v, i) => v !== null && (whole || s.place[i] >= EARLY * end));
  const means = shown.flatMap((s) => kept(s, "difference"));
  const reach = 4 * Math.max(...means.map(Math.abs), 1e-9);
  // With two seeds an interval is so wide that no difference could be seen beside it.
  const ends = shown.flatMap((s) => [...kept(s, "low"), ...kept(s, "high")]).filter((v) => Math.abs(v) <= reach);
  // The last one is what is judged: its ends are shown however far they lie.
  const last = shown.flatMap((s) => [present(s.low).at(-1), present(s.high).at(-1)]).filter((v) => v !== undefined);
  return zoomed([...means, 0, ...ends, ...last]);
}

/* The end of every run against its rate; what diverged or lies far above stands at the top. */
function rateFigure(arms) {
  const known = data.runs.filter((r) => r.rate > 0 && arms.includes(r.arm));
  const levels = known.filter((r) => r.value !== null && !r.lost).map((r) => r.value).sort((a, b) => a - b);
  const low = levels[0] ?? 0;
  const top = Math.min(levels.at(-1) ?? 1, low + 4 * Math.max(1e-3, (levels[Math.floor(levels.length / 2)] ?? low) - low));
  const off = (r) => r.lost || (r.value ?? Infinity) > top;
  const high = top + 0.1 * (top - low || 1);
  const traces = arms.flatMap((arm) => rateTraces(arm, known.filter((r) => r.arm === arm), off, high));
  const values = [...new Set(known.map((r) => r.rate))].sort((a, b) => a - b);
  const ticks = values.length <= 8 ? { tickvals: values, ticktext: values.map(format) } : {};
  const figure = layout(360, { title: say("learning rate"), type: "log", ...ticks }, { title: QUANTITIES[data.metric] ?? plain(translated(data.unit)), range: [low - 0.08 * (high - low), high + 0.06 * (high - low)] });
  return { traces, layout: figure };
}

function rateTraces(arm, runs, off, high) {
  const rates = [...new Set(runs.map((r) => r.rate))].sort((a, b) => a - b);
  const mean = rates.map((rate) => {
    const own = runs.filter((r) => r.rate === rate && r.value !== null);
    return own.some(off) ? null : average(own.map((r) => r.value));
  });
  const best = rates.map((rate) => runs.some((r) => r.rate === rate && r.judged));
  const tone = modelColour(arm);
  const dot = (r) => ({ x: r.rate, y: off(r) ? high : r.value, text: `${say("<b>{arm}</b>, seed {seed}, rate {rate}", { arm: nameOf(arm), seed: format(r.seed), rate: format(r.rate) })}<br>${r.lost ? say("diverged") : off(r) ? say("{value}, beyond the scale", { value: format(r.value) }) : format(r.value)}` });
  const dots = runs.filter((r) => !r.lost && r.value !== null);
  const lost = runs.filter((r) => r.lost);
  const hover = { hovertemplate: "%{hovertext}<extra></extra>" };
  return [
    { x: rates, y: mean, type: "scatter", mode: "lines", connectgaps: false, hoverinfo: "skip", line: { color: tone, width: isBase(arm) ? 3 : 1.8, dash: dashed(arm) } },
    { x: dots.map((r) => dot(r).x), y: dots.map((r) => dot(r).y), hovertext: dots.map((r) => dot(r).text), ...hover, type: "scatter", mode: "markers", marker: { symbol: dots.map((r) => (off(r) ? "triangle-up-open" : modelSymbol(arm))), size: 7, color: tone, opacity: 0.8 } },
    { x: lost.map((r) => r.rate), y: lost.map(() => high), hovertext: lost.map((r) => dot(r).text), ...hover, type: "scatter", mode: "markers", marker: lostMark() },
    { x: rates.filter((_, i) => best[i]), y: mean.filter((_, i) => best[i]), type: "scatter", mode: "markers", hoverinfo: "skip", marker: { symbol: "circle-open", size: 18, color: tone, line: { width: 2, color: tone } } },
  ];
}

/* Arms that were best at the smallest or the largest rate tried: their optimum may lie beyond. */
function edgeRates(arms) {
  return arms.flatMap((arm) => {
    const own = data.runs.filter((r) => r.arm === arm && r.rate > 0);
    const rates = own.map((r) => r.rate);
    const best = [...new Set(own.filter((r) => r.judged).map((r) => r.rate))];
    if (best.length !== 1 || new Set(rates).size < 2) return [];
    if (best[0] === Math.min(...rates)) return [{ arm, end: "smallest", rate: best[0] }];
    return best[0] === Math.max(...rates) ? [{ arm, end: "largest", rate: best[0] }] : [];
  });
}
