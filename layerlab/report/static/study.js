/* Draws pictures as they were given; colours of axes follow the page. */

const PICTURE_CONFIG = {
  displaylogo: false,
  responsive: true,
  modeBarButtons: [["toImage", "zoom2d", "resetScale2d"]],
  toImageButtonOptions: { format: "svg" },
};

/* A line may end behind a space, and behind any Chinese character but an opening bracket. */
const PIECE = /[（“]*(?:\p{Script=Han}|[^\s\p{Script=Han}（“，。；：）”]+)[，。；：）”]*\s*/gu;
const pen = element("canvas").getContext("2d");

function wrapText(text, { family, size }, most) {
  pen.font = `${size}px ${family}`;
  const lines = [];
  for (const piece of text.match(PIECE) ?? [text]) {
    if (lines.length && pen.measureText((lines.at(-1) + piece).trimEnd()).width < most) lines.push(lines.pop() + piece);
    else lines.push(piece);
  }
  return lines.map((line) => line.trimEnd()).join("<br>");
}

const NAMES = 0.45; // of the width of a picture, at most, for what stands beside its rows
const LINE = 1.3; // between two lines of a name, in heights of its letters
const APART = 4; // between two numbers side by side, at least, likewise
const LEAST = 4; // ticks that plotly takes wherever it may choose

/* Fewer ticks where there is no room for those that a picture names or that plotly would take. */
function thinTicks({ tickvals, ticktext, dtick }, { type, range, tickfont: { size } }, across, long) {
  const most = (apart) => Math.max(2, Math.floor(long / (apart * size)));
  if (tickvals) {
    const step = Math.ceil(tickvals.length / most(LINE));
    const thin = (list) => list.filter((_, i) => i % step === 0);
    return { tickvals: thin(tickvals), ticktext: thin(ticktext) };
  }
  if (dtick) return Math.abs(range[1] - range[0]) > most(LINE) * dtick ? { dtick: null } : {};
  return across && type === "linear" && most(APART) < LEAST ? { nticks: most(APART) } : {};
}

/* Titles of axes and names of rows in as many lines as it takes to stay within the picture. A title
   stands at the middle of its axis, however much room the names beside that take. */
function wrapTitles(layout, { width, height, _size: { l, t, w, h }, ...drawn }) {
  let higher = 0;
  const wrap = ([name, axis]) => {
    const { domain: [from, to], title, tickfont, _categories: rows } = drawn[name];
    const [start, long, whole] = name.startsWith("x") ? [l, w, width] : [t, h, height];
    const middle = start + (long * (from + to)) / 2;
    const room = Math.min((to - from) * whole, 2 * middle, 2 * (whole - middle));
    const named = name.startsWith("y") && rows?.length ? { tickvals: rows, ticktext: rows.map((row) => wrapText(row, tickfont, NAMES * width)) } : {};
    const most = Math.max(1, ...(named.ticktext ?? []).map((row) => row.split("<br>").length));
    higher = Math.max(higher, (most - 1) * LINE * tickfont.size * (rows?.length ?? 0));
    const titled = axis.title?.text ? { title: { ...axis.title, text: wrapText(axis.title.text, title.font, room) } } : {};
    const ticks = thinTicks(axis, drawn[name], name.startsWith("x"), long * (to - from));
    return [name, { ...axis, automargin: true, ...ticks, ...named, ...titled }];
  };
  const axes = Object.entries(layout).filter(([name]) => /^[xy]axis/.test(name));
  const wrapped = Object.fromEntries(axes.map(wrap));
  return { ...layout, height: layout.height + higher, ...wrapped };
}

/* Around a single number plotly takes a scale of 1 to each side, whatever the number. */
function startAtZero(layout, traces) {
  const single = Object.entries(layout).filter(([name]) => /^[xy]axis$/.test(name)
    && new Set(traces.flatMap((trace) => trace[name[0]] ?? [])).size === 1);
  return { ...layout, ...Object.fromEntries(single.map(([name, axis]) => [name, { ...axis, rangemode: "tozero" }])) };
}

function drawPictures() {
  const muted = getComputedStyle(document.documentElement).getPropertyValue("--muted").trim();
  for (const [index, picture] of data.pictures.entries()) {
    const node = document.getElementById(`picture-${index}`);
    const given = { ...startAtZero(picture.layout, picture.data), font: { ...picture.layout.font, color: muted } };
    const drawAs = (layout) => figureInto(node, { traces: picture.data, layout }, node.getAttribute("aria-label"), PICTURE_CONFIG);
    drawAs(given);
    // The room for a title depends on the names of rows, once they are wrapped.
    for (let pass = 0; pass < 2; pass += 1) drawAs(wrapTitles(given, node._fullLayout));
  }
}

/* A window of another width takes other lines. */
let drawnAt = innerWidth;
function redrawPictures() {
  if (drawnAt !== innerWidth) drawPictures();
  drawnAt = innerWidth;
}

drawable.then((able) => {
  if (!able) return;
  drawPictures();
  document.addEventListener("theme", drawPictures);
  addEventListener("resize", redrawPictures);
});
