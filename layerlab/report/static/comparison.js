/* The page of a comparison: what is shown, drawn when it comes into view, redrawn when chosen anew. */

const DRAW = { curves: drawCurves, paired: drawPaired, rates: drawRates, monitor: drawMonitor };
const sections = [...document.querySelectorAll("section[data-drawing]")].map((node) => ({
  node,
  part: (name) => node.querySelector(`[data-part="${name}"]`),
  control: (name) => node.querySelector(`[data-control="${name}"]`),
  seen: false,
  stale: true,
}));
const boxes = [...document.querySelectorAll("#arms input")];
const shownArms = () => data.models.map((_, i) => i).filter((i) => boxes.find((b) => Number(b.value) === i)?.checked ?? true);
const ticked = (section, name) => section.control(name)?.checked ?? false;
const chosen = (section, name, without) => section.control(name)?.value ?? without;

function draw(section) {
  section.stale = false;
  DRAW[section.node.dataset.drawing](section, shownArms());
  section.node.dataset.drawn = (Number(section.node.dataset.drawn) || 0) + 1;
}

function drawCurves(section, arms) {
  const state = {
    x: chosen(section, "x"), y: chosen(section, "y"), band: chosen(section, "band", "none"),
    each: ticked(section, "each"), whole: ticked(section, "whole"), log: ticked(section, "log"), rates: ticked(section, "rates"),
  };
  const plot = section.part("plot");
  const { groups, ...figure } = curveFigure(arms, state);
  section.part("absent").hidden = figure.traces.length > 0;
  plot.hidden = !figure.traces.length;
  if (!figure.traces.length) clear(plot);
  else figureInto(plot, figure, say("{quantity} against {axis}: {ends}.", { quantity: QUANTITIES[state.y], axis: AXES[state.x], ends: groups.filter((g) => g.judged && g.rows.length).map((g) => say("{arm} ends at {value}", { arm: data.models[g.arm].name, value: format(g.rows.at(-1).mean) })).join("; ") }));
  section.part("key").replaceChildren(...keyOf(groups.map((g) => g.arm)));
  section.part("hint").textContent = curveHint(groups, state);
}

function keyOf(arms) {
  if (data.models.length < 2) return [];
  return [...new Set(arms)].map((arm) => element("span", {}, swatch(arm), data.models[arm].name, isBase(arm) ? say(" (baseline)") : ""));
}

function curveHint(groups, state) {
  const said = [];
  if (data.curves[kindOf(state.y)].thinned) said.push(say("Curves are thinned: a point is the mean of several."));
  if (!state.whole) said.push(say("The first fall is cut off."));
  if (groups.some((g) => g.odd.some((m) => m.lost))) said.push(say("A thin line that ends in a cross is a run that diverged; it is in no mean."));
  if (groups.some((g) => g.odd.some((m) => !m.lost))) said.push(say("A thin line is a run that is not finished."));
  return said.join(" ");
}

function panels(box, entries, { arm, label, figure, said = () => "" }) {
  for (const node of box.querySelectorAll(".panel")) Plotly.purge(node);
  const nodes = entries.map(() => element("div", { class: "panel" }));
  box.replaceChildren(...entries.map((entry, i) => element("figure", {},
    element("figcaption", {}, ...(data.models.length > 1 ? [swatch(arm(entry)), ` ${data.models[arm(entry)].name}`] : []), said(entry)), nodes[i])));
  entries.forEach((entry, i) => figureInto(nodes[i], figure(entry), label(data.models[arm(entry)].name)));
}

function drawPaired(section, arms) {
  const shown = data.paired.filter((s) => arms.includes(s.arm));
  const range = shown.length ? pairedRange(shown, ticked(section, "whole")) : {};
  panels(section.part("panels"), shown, {
    arm: (s) => s.arm, label: (name) => say("Paired difference of {arm}", { arm: name }), figure: (s) => pairedFigure(s, range), said: (s) => versus(s) + say(": {value} {unit} at the end", { value: format(present(s.difference).at(-1)), unit: translated(data.unit) }),
  });
}

const versus = ({ against }) => (against === null || isBase(against) ? "" : ` ${say("(to {arm})", { arm: data.models[against].name })}`);

function drawRates(section, arms) {
  figureInto(section.part("plot"), rateFigure(arms), say("Held-out loss against the learning rate. The values are in the table of runs."));
  section.part("key").replaceChildren(...keyOf(arms));
  section.part("edges").replaceChildren(...edgeRates(arms).map(({ arm, end, rate }) => element("li", { class: "loose" },
    edgeSaid(end, { arm: data.models[arm].name, rate: format(rate) }))));
}

const edgeSaid = (end, given) => (end === "smallest"
  ? say("{arm} is best at the smallest rate tried, {rate}: its best rate may lie beyond, and the arm may look worse than it is.", given)
  : say("{arm} is best at the largest rate tried, {rate}: its best rate may lie beyond, and the arm may look worse than it is.", given));

function drawMonitor(section, arms) {
  const state = monitorState(section);
  const entries = data.monitor.arms.filter((e) => arms.includes(e.arm)).map((e) => readLayers(e, state)).filter((e) => e.layers.length);
  const span = lapseSpan(entries, state);
  panels(section.part("maps"), entries, {
    arm: (e) => e.arm, label: (name) => say("{quantity} of every layer over the updates of {arm}", { quantity: state.title, arm: name }), figure: (e) => lapseFigure(e, state, span),
  });
  section.part("infinite").replaceChildren(...data.monitor.arms.filter((e) => arms.includes(e.arm) && e.infinite[state.measure])
    .map((e) => infinity(e.infinite[state.measure], e.arm, data.monitor.measures[Number(state.measure)])));
  drawMoment(section, arms);
}

const monitorState = (section) => ({
  measure: chosen(section, "measure"), part: chosen(section, "part", "mean"), log: ticked(section, "log"),
  title: columnName(data.monitor.measures[Number(chosen(section, "measure"))]),
});

const moments = [...new Set(data.monitor.arms.flatMap((e) => e.updates))].sort((a, b) => a - b);

function drawMoment(section, arms) {
  const state = monitorState(section);
  const entries = data.monitor.arms.filter((e) => arms.includes(e.arm)).map((e) => readLayers(e, state)).filter((e) => e.layers.length);
  const moment = moments[Number(section.control("moment").value)];
  section.part("moment").textContent = say("update {update}", { update: format(moment) });
  section.part("profile").hidden = !entries.length;
  if (entries.length) figureInto(section.part("profile"), profileFigure(entries, state, moment, lapseSpan(entries, state)), say("{quantity} of every layer at update {update}", { quantity: state.title, update: moment }));
}

const PACE = 350;
function play(section) {
  const slider = section.control("moment");
  const button = section.part("play");
  let timer = null;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    button.textContent = say("Play");
  };
  const step = () => {
    if (Number(slider.value) >= moments.length - 1) return stop();
    slider.value = Number(slider.value) + 1;
    drawMoment(section, shownArms());
  };
  button.addEventListener("click", () => {
    if (timer) return stop();
    if (Number(slider.value) >= moments.length - 1) slider.value = -1;
    button.textContent = say("Stop");
    timer = setInterval(step, PACE);
    step();
  });
  slider.addEventListener("input", () => {
    stop();
    drawMoment(section, shownArms());
  });
}

function refresh() {
  for (const node of document.querySelectorAll("svg[data-swatch]")) paint(node);
  for (const section of sections) {
    section.stale = true;
    if (section.seen || (printing && window.Plotly)) draw(section);
  }
}

for (const node of document.querySelectorAll("svg[data-swatch]")) paint(node);
document.getElementById("arms")?.addEventListener("change", refresh);
for (const section of sections) {
  const slider = section.control("moment");
  if (slider) {
    slider.max = moments.length - 1;
    slider.value = moments.length - 1;
    play(section);
  }
  section.node.addEventListener("change", (event) => event.target !== slider && draw(section));
}

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const section = sections.find((s) => s.node === entry.target);
    section.seen = entry.isIntersecting;
    if (section.seen && section.stale) draw(section);
  }
}, { rootMargin: "300px" });
drawable.then((able) => {
  if (!able) return;
  for (const section of sections) watcher.observe(section.node);
});
document.addEventListener("theme", refresh);
